"""The fold of a group into this node's store: committed entries go through the door, in one
transaction with the index up to which everything is applied.

Entries that no caller made, the empty one of a new leader and changes of the members, are not
folded. How far we are is stored with the next one that is: after a restart those in between are
passed over once more.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.node.core.commit import AppliedRun, CommitRun, Committed, CommittedEntry
from holdfast.node.core.context import NodeContext
from holdfast.node.quorum.embedded.committed_entries import LogEntries
from holdfast.node.quorum.embedded.ports import Folded, FoldedEntry
from holdfast.rules.errors import HoldfastError, StoreFailed
from holdfast.storage.ports import Work

Write = Callable[[str, Work[Any]], "Future[Any]"]
FOLD = "quorum.fold"
"""What the metrics call it. It is not refused when the disk is nearly full: it is decided."""


class FoldedEnvelope(NamedTuple):
    """What became of one envelope. Under its id there may be others, with other content."""

    raw: bytes
    committed: Committed


class StoreFold:
    """A `CommitFold` for one mesh."""

    def __init__(
        self,
        ctx: NodeContext,
        mesh: str,
        write: Write,
        *,
        applied: int,
        post: Callable[[Callable[[], None]], None],
        on_folded: Callable[[Sequence[Committed]], None] = lambda results: None,
    ) -> None:
        self.applied = applied
        self.on_folded = on_folded
        self._ctx, self._mesh, self._write, self._post = ctx, mesh, write, post

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        columns = entries.in_columns(self._mesh) if isinstance(entries, LogEntries) else None
        if columns is None and not entries:
            self._post(partial(self._passed, upto, done))
            return
        future = self._write(FOLD, CommitRun(self._ctx, self._mesh, entries, upto, columns))
        future.add_done_callback(partial(self._folded, entries, upto, done))

    def stand_at(self, index: int) -> None:
        """A snapshot up to this index is in the store."""
        self.applied = index

    def _passed(self, upto: int, done: Folded) -> None:
        self.applied = upto
        done(())

    def _folded(
        self,
        entries: Sequence[CommittedEntry],
        upto: int,
        done: Folded,
        future: Future[Sequence[Committed]],
    ) -> None:
        if future.cancelled():
            return  # the loop ends
        error = future.exception()
        if error is not None:
            typed = error if isinstance(error, HoldfastError) else StoreFailed(f"{error!r}")
            done(typed)
            return
        results = future.result()
        self.applied = upto
        if isinstance(results, AppliedRun):
            done(_entries(results))
        else:
            done(map(_entry, entries, results))
        self.on_folded(results)


def _entries(results: AppliedRun) -> Iterator[FoldedEntry]:
    for index, raw, result in results.told():
        yield FoldedEntry(index, result.raw_id or b"", FoldedEnvelope(raw, result))


def _entry(entry: CommittedEntry, result: Committed) -> FoldedEntry:
    return FoldedEntry(entry.index, result.raw_id or b"", FoldedEnvelope(entry.raw, result))
