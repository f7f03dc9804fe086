"""What a step wants done: everything in one value, which the driver carries out in this order.

1. `write` goes to the disk. 2. `send` goes out at once, `send_after` when the disk has the write of
the given number. 3. `apply` is a range of committed entries that this node's disk has. The rest
tells callers and operators what became of what they asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from holdfast.rules.limits import QUORUM_APPEND_BYTES_MAX, QUORUM_APPEND_ENTRIES_MAX
from holdfast.rules.quorum.raft.config import GroupConfig
from holdfast.rules.quorum.raft.messages import (
    AppendEntries,
    Message,
    RaftEntry,
    RefusalReason,
)

Role = Literal["follower", "precandidate", "candidate", "leader"]
AlarmName = Literal[
    "another_group",
    "another_recipient",
    "own_id",
    "removed_sender",
    "this_node_removed",
    "term_leap",
    "term_beyond",
    "two_leaders",
    "leader_alive",
    "contradicts_commit",
    "bad_config",
    "voter_restored",
    "disk_hangs",
    "disk_failed",
    "lost_quorum",
    "transfer_failed",
    "unknown_write",
]


class InstalledSnapshot(msgspec.Struct, frozen=True):
    """The snapshot that takes the place of the whole log."""

    index: int
    term: int
    config_index: int
    config: GroupConfig


class RaftWrite(msgspec.Struct, frozen=True):
    """One write, atomic: all of it is on the disk or nothing. Writes reach the disk in the order of
    their numbers. First the snapshot is put in place (the log is empty then), then entries from
    `cut_from` on are removed, then `entries` are added from index `first` on.
    """

    number: int
    term: int
    """The term of this node; never lowered."""
    vote: int
    """Whom it voted for in that term; 0 for nobody."""
    last: int
    """The last index of the log after this write; the acknowledgement names it again."""
    cut_from: int = 0
    first: int = 0
    entries: tuple[RaftEntry, ...] = ()
    snapshot: InstalledSnapshot | None = None


class SendAppend(msgspec.Struct, frozen=True):
    """An AppendEntries for which the driver has the entries: `first` to `last`, or none if `last`
    is below `first`. `filled` makes messages of it.
    """

    group: bytes
    sender: int
    to: int
    term: int
    prev_term: int
    first: int
    last: int
    commit: int
    round: int


class SendSnapshot(msgspec.Struct, frozen=True):
    """That member needs entries which this node has dropped: send it a snapshot, in parts, on a
    lane of its own; then say `SnapshotFinished`.
    """

    to: int
    term: int
    at_least: int
    """The snapshot covers this index."""


Outgoing = Message | SendAppend | SendSnapshot


class ProposalsTaken(msgspec.Struct, frozen=True):
    """Proposals stand in the log of the leader from `first` on, in their order. That is no promise
    yet: they may still be cut off.
    """

    ids: tuple[bytes, ...]
    first: int
    term: int


class ProposalsHeld(msgspec.Struct, frozen=True):
    """The driver keeps these and proposes them again when `retry_held` comes, or refuses them
    when their caller's time is over.
    """

    ids: tuple[bytes, ...]
    reason: RefusalReason
    origin: int
    """The member that forwarded them; this node's id for its own callers."""


class ProposalsForwarded(msgspec.Struct, frozen=True):
    """Proposals are on their way to the leader. If no answer comes they may be in the log or not:
    the driver sends them again under the same ids.
    """

    ids: tuple[bytes, ...]
    to: int


class ProposalsRefused(msgspec.Struct, frozen=True):
    """These are not in the log and will not be, unless somebody proposes them again."""

    ids: tuple[bytes, ...]
    reason: RefusalReason


ProposalOutcome = ProposalsTaken | ProposalsHeld | ProposalsForwarded | ProposalsRefused


class ReadReady(msgspec.Struct, frozen=True):
    """Serve that read when this node has applied the log up to `index`."""

    number: int
    index: int


class ReadFailed(msgspec.Struct, frozen=True):
    """That read cannot be served now; the caller may ask again."""

    number: int
    reason: RefusalReason


class ChangeOutcome(msgspec.Struct, frozen=True):
    """What became of a membership change: the index of its entry, or why there is none."""

    index: int
    reason: str = ""
    id: int = 0
    """The member concerned; a new learner's new id."""


class RoleChange(msgspec.Struct, frozen=True):
    role: Role
    term: int
    leader: int
    """0 while none is known."""


class Alarm(msgspec.Struct, frozen=True):
    """Something for the log of events and the counters: by name, and about whom."""

    name: AlarmName
    member: int = 0


class RaftEffects(msgspec.Struct, frozen=True):
    """Everything that one step wants done."""

    write: RaftWrite | None = None
    send: tuple[Outgoing, ...] = ()
    send_after: tuple[tuple[int, Message], ...] = ()
    apply: tuple[int, int] | None = None
    """First and last index of entries that may be applied now."""
    proposals: tuple[ProposalOutcome, ...] = ()
    retry_held: bool = False
    reads: tuple[ReadReady | ReadFailed, ...] = ()
    change: ChangeOutcome | None = None
    role: RoleChange | None = None
    slept: bool = False
    """The group has fallen asleep: ticks may stop until the next other event."""
    woke: bool = False
    alarms: tuple[Alarm, ...] = ()


NOTHING: Final = RaftEffects()


def filled(order: SendAppend, entries: Sequence[RaftEntry]) -> tuple[AppendEntries, ...]:
    """The messages for an order: `entries` are those from `order.first` on, all of them or as many
    as the driver has at hand. A message has at most `QUORUM_APPEND_BYTES_MAX` bytes of payload,
    but one entry at least.
    """
    assert len(entries) <= max(0, order.last - order.first + 1)
    messages: list[AppendEntries] = []
    prev, prev_term, taken = order.first - 1, order.prev_term, 0
    while taken < len(entries) or not messages:
        upto = _fitting(entries, taken)
        part = tuple(entries[taken:upto])
        messages.append(
            AppendEntries(
                order.group,
                order.sender,
                order.to,
                order.term,
                prev,
                prev_term,
                order.commit,
                order.round,
                part,
            )
        )
        prev, taken = prev + len(part), upto
        prev_term = part[-1].term if part else prev_term
    return tuple(messages)


def _fitting(entries: Sequence[RaftEntry], start: int) -> int:
    size = 0
    for position in range(start, min(len(entries), start + QUORUM_APPEND_ENTRIES_MAX)):
        size += len(entries[position].payload)
        if size > QUORUM_APPEND_BYTES_MAX and position > start:
            return position
    return min(len(entries), start + QUORUM_APPEND_ENTRIES_MAX)
