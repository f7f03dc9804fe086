"""The newest entries of a log, in memory: most members and the fold need no others.

It holds a run of neighbouring indexes. What is older is read from the disk, so the cache may drop
its oldest entries at any time; it keeps what was begun to be written and is not on the disk yet,
because nobody else has that.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.rules.quorum.raft.messages import RaftEntry


class EntryCache:
    """Entries from `first` on. Drops the older half when there are more bytes than `bytes_max`."""

    def __init__(self, next: int, bytes_max: int) -> None:
        """`next` is the index that the next entry gets."""
        self.first = next
        self._entries: list[RaftEntry] = []
        self._bytes, self._bytes_max = 0, bytes_max

    @property
    def next(self) -> int:
        return self.first + len(self._entries)

    def put(self, first: int, entries: Sequence[RaftEntry]) -> None:
        """Entries that follow what is here. After a snapshot they may begin elsewhere."""
        assert first == self.next or not self._entries, "the log has no gaps"
        if not self._entries:
            self.first = first
        self._entries += entries
        self._bytes += _size(entries)

    def cut(self, first: int) -> None:
        """The log ends before this index now."""
        keep = max(0, first - self.first)
        self._bytes -= _size(self._entries[keep:])
        del self._entries[keep:]
        self.first = min(self.first, first)

    def clear(self, next: int) -> None:
        """The log was replaced by a snapshot."""
        self._entries.clear()
        self.first, self._bytes = next, 0

    def shrink(self, durable: int) -> None:
        """Drops older entries if there are too many bytes: only what the disk has."""
        if self._bytes <= self._bytes_max:
            return
        drop = 0
        left = self._bytes
        while left > self._bytes_max // 2 and self.first + drop <= durable:
            left -= len(self._entries[drop].payload)
            drop += 1
        del self._entries[:drop]
        self.first, self._bytes = self.first + drop, left

    def run(self, first: int, last: int, bytes_max: int) -> list[RaftEntry] | None:
        """The entries from `first` to `last`, as far as `bytes_max` reaches and one at least; None
        if the first of them is not here.
        """
        if not self.first <= first < self.next:
            return None
        run = self._entries[first - self.first : last - self.first + 1]
        size = 0
        for place, entry in enumerate(run):
            size += len(entry.payload)
            if place and size > bytes_max:
                return run[:place]
        return run


def _size(entries: Sequence[RaftEntry]) -> int:
    return sum([len(entry.payload) for entry in entries])
