"""The envelopes among the entries of a log, each with its fence, as the fold takes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.core.runs.plain_columns import CommittedColumns
from holdfast.rules.commit_columns import read_columns
from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.quorum.coordinated import decode_coordinated
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.raft.messages import RaftEntry

log = logging.getLogger("holdfast")


class LogEntries(Sequence[CommittedEntry]):
    """Neighbouring entries of a log, from index `first` on, before anybody has read them: in
    columns if all of them are plain, else one by one.
    """

    def __init__(self, incarnation: int, first: int, entries: Sequence[RaftEntry]) -> None:
        self._incarnation, self._first, self._entries = incarnation, first, entries

    def in_columns(self, mesh: str) -> CommittedColumns | None:
        """What they say, if they are plain entries of one term in the order of this mesh."""
        if not self._entries:
            return None
        term, payloads = self._entries[0].term, []
        for entry in self._entries:
            if entry.kind != "data" or entry.term != term:
                return None
            payloads.append(entry.payload)
        columns = read_columns(mesh, payloads)
        if columns is None:
            return None
        fence = FenceToken(self._incarnation, term, columns.coordinator, self._first)
        return CommittedColumns(columns, fence)

    @cached_property
    def readable(self) -> list[CommittedEntry]:
        return readable_entries(self._incarnation, self._first, self._entries)

    def __iter__(self) -> Iterator[CommittedEntry]:
        return iter(self.readable)

    def __len__(self) -> int:
        return len(self.readable)

    @overload
    def __getitem__(self, at: int) -> CommittedEntry: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[CommittedEntry]: ...
    def __getitem__(self, at: int | slice) -> CommittedEntry | Sequence[CommittedEntry]:
        return self.readable[at]


def readable_entries(
    incarnation: int, first: int, entries: Sequence[RaftEntry]
) -> list[CommittedEntry]:
    """Of entries from index `first` on. What no coordinator can have written is passed over by
    every node alike.
    """
    readable = []
    for index, entry in enumerate(entries, first):
        if entry.kind != "data":
            continue
        try:
            read = decode_coordinated(entry.payload)
        except BadQuorumMessage as error:
            log.error("entry %d of the quorum is passed over: %s", index, error.message)
            continue
        fence = FenceToken(incarnation, entry.term, read.coordinator, index)
        readable.append(CommittedEntry(read.envelope, fence, read.committed_at, index))
    return readable
