"""From the lines of a watch to the entries of the order, each once, in order, without a gap.

Every entry is written together with the key `l`, so the version of `l` numbers the entries. A line
that skips a number has lost something on its way, which watches of etcd have done. Then the
follower closes the watch and lists what is there instead.

Only the revisions of events say how far a follower is: the revision in the header of a line is that
of the store, which runs ahead of what was sent. A line may end within a revision (`fragment`); then
its last events wait for the next line, so that what was written together is seen together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from holdfast.rules.errors import QuorumSetBack, Truncated
from holdfast.rules.etcd.entry import HeldKey, OrderedEntry, OrderPoint, ordered_entry
from holdfast.rules.etcd.keys import OrderKeys


class GapSeen(Exception):
    """A watch has left something out. It never leaves `node/quorum/etcd`."""


class FollowProgress(msgspec.Struct, frozen=True):
    """How far a follower is within one watch."""

    seen: OrderPoint
    covered: int = 0
    """The revision up to which a listing was complete. The last entry may be older, and by now
    compacted, so that a watch cannot begin there."""
    waiting: tuple[HeldKey, ...] = ()
    """Events of a revision whose end has not come yet."""

    @property
    def resume_at(self) -> int:
        """The revision from which the next watch begins."""
        return max(self.seen.position, self.covered) + 1


def on_events(
    keys: OrderKeys, progress: FollowProgress, events: Sequence[HeldKey], *, more: bool
) -> tuple[FollowProgress, tuple[OrderedEntry, ...]]:
    """What one line adds. `more`: the line is a fragment, and the next one goes on where it ends.
    Raises GapSeen where an entry is missing.
    """
    fresh = [event for event in events if event.revision > progress.seen.position]
    fresh[:0] = progress.waiting
    revisions = [event.revision for event in fresh]
    if revisions != sorted(revisions):
        raise GapSeen("the events of a watch are out of order")
    waiting: tuple[HeldKey, ...] = ()
    if more and fresh:
        waiting = tuple(event for event in fresh if event.revision == revisions[-1])
        del fresh[-len(waiting) :]
    seen, entries = progress.seen, list[OrderedEntry]()
    for _, group in groupby(fresh, key=lambda event: event.revision):
        found = list(_revision(keys, seen, list(group)))
        entries += found
        seen = found[-1].point if found else seen
    return FollowProgress(seen, progress.covered, waiting), tuple(entries)


def _revision(keys: OrderKeys, seen: OrderPoint, events: list[HeldKey]) -> Iterator[OrderedEntry]:
    """The entries of one revision, by their keys, which is an order that all followers share."""
    ends = [event.version for event in events if event.key == keys.last]
    found = [(id, event) for event in events if (id := keys.id_of(event.key)) is not None]
    if not found and not ends:
        return
    if not found or ends != [seen.number + len(found)]:
        raise GapSeen(f"after entry {seen.number} came {ends or 'one without a number'}")
    for number, (id, event) in enumerate(sorted(found), seen.number + 1):
        yield ordered_entry(id, event, number)


def check_end(seen: OrderPoint, end: OrderPoint, floor: int) -> None:
    """Raises unless a follower that has `seen` so much can go on to the `end` of the order, of
    which everything up to `floor` may have been forgotten.
    """
    if end.position < seen.position or end.number < seen.number:
        raise QuorumSetBack(
            f"this node has seen {seen.number} entries up to {seen.position}; "
            f"the etcd has {end.number} up to {end.position}"
        )
    if floor > seen.position:
        raise Truncated(
            f"entries up to {floor} were forgotten; this node has seen those up to {seen.position}",
            first_available=floor + 1,
            hint="take a snapshot from another node of the mesh, then follow from there",
        )


def check_listed(seen: OrderPoint, listed: int, end: OrderPoint) -> None:
    """Raises unless a listing holds every entry from `seen` to `end`."""
    if seen.number + listed != end.number:
        raise QuorumSetBack(
            f"the etcd counts {end.number - seen.number} entries after {seen.position} "
            f"and lists {listed}"
        )
