"""How much of the log of a group may go.

What this node has folded stands in its tables, and a member that lacks it can get it as a snapshot.
A snapshot is dear, so a log keeps a tail for members that were away for a moment, and a leader
keeps what a voter still lacks, but not for ever: a voter that lacks more than the limits of what is
held gets a snapshot when it comes back. What was not folded here never goes.

Only a leader knows what others have. Other members keep the tail.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from holdfast.rules.limits import (
    QUORUM_COMPACT_BYTES,
    QUORUM_COMPACT_ENTRIES,
    QUORUM_HELD_BYTES,
    QUORUM_HELD_ENTRIES,
    QUORUM_TAIL_BYTES,
    QUORUM_TAIL_ENTRIES,
)
from holdfast.rules.quorum.raft.messages import RaftEntry


class LogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a log keeps, in entries and in bytes; whichever is reached first."""

    tail_entries: int = QUORUM_TAIL_ENTRIES
    tail_bytes: int = QUORUM_TAIL_BYTES
    held_entries: int = QUORUM_HELD_ENTRIES
    held_bytes: int = QUORUM_HELD_BYTES
    step_entries: int = QUORUM_COMPACT_ENTRIES
    step_bytes: int = QUORUM_COMPACT_BYTES


LOG_LIMITS: Final = LogLimits()


class LogSizes:
    """How many bytes the newest entries of a log have, by index. What was there when this node
    started counts as nothing: it is bounded by the number of entries.
    """

    def __init__(self, last: int) -> None:
        self._base = last
        self._sums: list[int] = [0]
        """Bytes of the entries after `_base`, up to each index."""

    def put(self, first: int, entries: Iterable[RaftEntry]) -> None:
        """Entries that follow what is here; those that stood in their place are forgotten."""
        self.cut(first)
        if first != self._base + len(self._sums):
            self._base, self._sums = first - 1, [0]
        total = self._sums[-1]
        for entry in entries:
            total += len(entry.payload)
            self._sums.append(total)

    def cut(self, first: int) -> None:
        """The log ends before this index now."""
        if first <= self._base:
            self._base, self._sums = first - 1, [0]
        else:
            del self._sums[first - self._base :]

    def drop(self, index: int) -> None:
        """The log begins after this index now."""
        if index > self._base:
            del self._sums[: min(index - self._base, len(self._sums) - 1)]
            self._base = index

    def between(self, after: int, upto: int) -> int:
        """The bytes of the entries after one index, up to another."""
        return max(0, self._at(upto) - self._at(after))

    def floor(self, entries_max: int, bytes_max: int) -> int:
        """The lowest index such that what stands above it is no more than this."""
        last = self._base + len(self._sums) - 1
        place = bisect_left(self._sums, self._sums[-1] - bytes_max)
        by_bytes = self._base + place if self._sums[-1] > bytes_max else 0
        return max(0, last - entries_max, by_bytes)

    def _at(self, index: int) -> int:
        place = min(max(index - self._base, 0), len(self._sums) - 1)
        return self._sums[place]


def compact_to(
    limits: LogLimits, sizes: LogSizes, *, boundary: int, safe: int, matched: Sequence[int]
) -> int:
    """The index after which the log may begin; `boundary` if it stays as it is.

    `safe` is folded here and known to the disk as committed. `matched` is how far the disks of the
    other voters are, as a leader knows it; empty for everybody else.
    """
    wanted = min([sizes.floor(limits.tail_entries, limits.tail_bytes), *matched])
    held = sizes.floor(limits.held_entries, limits.held_bytes)
    index = min(safe, max(wanted, held))
    gone = index - boundary
    if gone >= limits.step_entries or (
        gone > 0 and sizes.between(boundary, index) >= limits.step_bytes
    ):
        return index
    return boundary
