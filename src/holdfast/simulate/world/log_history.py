"""What the logs of a world's nodes have held, seen from outside and kept after it was truncated.

After everything that a node does, the world looks what its log has gained. From then on it knows
what stands at each offset, who wrote it and through which zone it came. A log may only grow at its
end and shrink at its beginning; anything else is reported as a sentence:

* what stood at an offset stands there for as long as the epoch lasts;
* no envelope stands twice in one log; an id does only if the first with it has given it back;
* nothing is missing between what was there before and what is new.

A node that is restored from a backup goes back in time: its log is then what it was, under a new
epoch, and the history remembers what the node has lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.rules.envelope import decode_trusted
from holdfast.rules.ids import id_text, is_aside
from holdfast.rules.rows import Entry
from holdfast.storage.ports import Reader

ALL: Final = 1 << 40


class Seen(NamedTuple):
    """One entry of a log: what filters ask about, and its place among those of its origin."""

    id: bytes
    mesh: str
    op: str
    entity: str
    origin: str
    epoch: int
    seq: int
    via: str
    """The zone that it came through; empty for what was written here."""


@dataclass(slots=True)
class LogHistory:
    """The log of one node, from its first entry on."""

    peer: str
    epoch: int = 1
    first: int = 1
    """The first offset that the node still holds."""
    entries: list[Seen] = field(default_factory=list)
    """By offset, from 1 on."""
    offsets: dict[bytes, int] = field(default_factory=dict)
    lost: dict[bytes, None] = field(default_factory=dict)
    """What the log held before the node was restored, and has not got again."""

    @property
    def head(self) -> int:
        return len(self.entries)

    def at(self, offset: int) -> Seen:
        return self.entries[offset - 1]

    def holds(self, id: bytes) -> bool:
        return id in self.offsets

    def look(self, tx: Reader, via: str) -> tuple[list[Entry], list[str]]:
        """Returns the new entries, and what is wrong. Entries of others came through zone `via`."""
        first, head = tx.log_bounds()
        problems = []
        if tx.epoch() != self.epoch:
            problems.append(f"its log counts in epoch {tx.epoch()} after {self.epoch}")
        if first < self.first:
            problems.append(f"its log begins at {first} and began at {self.first}")
        if head < self.head or (first > self.head + 1 and head > 0):
            problems.append(f"its log holds [{first}, {head}] and went up to {self.head}")
        new = [] if problems else tx.log_range(self.head + 1, ALL, ALL)
        if not problems and self.head >= first:
            last = tx.log_get(self.head)
            if last is not None and last.id != self.entries[-1].id and is_aside(last.id):
                self._set_aside(last)
            if last is None or last.id != self.entries[-1].id:
                problems.append(f"offset {self.head} of its log holds something else than before")
        self.first = max(self.first, first)
        for entry in new:
            if entry.offset != self.head + 1:
                problems.append(f"its log has a gap before offset {entry.offset}")
                break
            if entry.id in self.offsets:
                before = self.offsets[entry.id]
                other = tx.log_get(before)
                if other is not None and is_aside(other.id):
                    self._set_aside(other)
                else:
                    problems.append(f"{id_text(entry.id)} stands twice: {before}, {entry.offset}")
            self._add(entry, via)
        return new, problems

    def _set_aside(self, entry: Entry) -> None:
        """An entry has given its id back: it stands where it stood, under another one."""
        before = self.at(entry.offset)
        self.entries[entry.offset - 1] = before._replace(id=entry.id)
        del self.offsets[before.id]
        self.offsets[entry.id] = entry.offset

    def went_back(self, tx: Reader, then: Sequence[Seen]) -> list[str]:
        """Called after a restore: the log must be what it was `then`. Returns what is wrong."""
        problems = []
        if tx.epoch() <= self.epoch:
            problems.append(f"a restored log counts in epoch {tx.epoch()} after {self.epoch}")
        before, (first, head) = self.entries, tx.log_bounds()
        self.epoch, self.first = tx.epoch(), first
        self.entries = list(then)
        self.offsets = {seen.id: at for at, seen in enumerate(then, 1)}
        if head != self.head or [entry.id for entry in tx.log_range(first, head + 1, ALL)] != [
            seen.id for seen in self.entries[first - 1 :]
        ]:
            problems.append("a restored log is not the one that was backed up")
        self.lost.update((seen.id, None) for seen in before)
        self.lost = {id: None for id in self.lost if id not in self.offsets}
        return problems

    def _add(self, entry: Entry, via: str) -> None:
        envelope = decode_trusted(entry.raw)
        own = entry.origin == self.peer
        seen = Seen(
            entry.id,
            entry.mesh,
            entry.op,
            entry.entity,
            entry.origin,
            envelope.epoch,
            envelope.seq,
            "" if own else via,
        )
        self.entries.append(seen)
        self.offsets[entry.id] = self.head
        self.lost.pop(entry.id, None)
