"""The log of one group on the node's quorum log.

A group has one submission under way at a time; what the machine writes meanwhile goes into the
next one, in order. So when the disk is full and a write is refused, nothing that follows it has
been tried, and everything is tried again later as it was. Any other error is for good: whether the
write is on the disk nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from holdfast.node.quorum.embedded.ports import Wrote
from holdfast.rules.errors import DiskFull, HoldfastError, StoreFailed
from holdfast.rules.quorum.raft.config import GroupConfig, decode_config
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.messages import DiskHealth, EntryKind, RaftEntry
from holdfast.rules.quorum.raft.state import DurablePast
from holdfast.rules.quorum_rows import CONFIG_KIND, EntryRow, GroupWrite, HardStateRow, SaveAnswer
from holdfast.storage.quorum_port import QuorumLog, QuorumReader

_KINDS: Final[dict[EntryKind, int]] = {"noop": 0, "data": 1, "config": CONFIG_KIND}
_NAMES: Final = {number: name for name, number in _KINDS.items()}


class LogDisk:
    """Belongs to the driver's thread; the quorum log has its own."""

    def __init__(
        self,
        log: QuorumLog,
        scope: str,
        voter: int,
        *,
        post: Callable[[Callable[[], None]], None],
        on_health: Callable[[DiskHealth], None],
    ) -> None:
        """`post` calls a function in the driver's thread, from any thread."""
        self._log, self._scope, self._voter = log, scope, voter
        self._post, self._on_health = post, on_health
        self._queue: list[tuple[RaftWrite, Wrote]] = []
        self._under_way = 0
        """How many writes of the queue, from the first, are submitted."""
        self._full = False
        self._failed: HoldfastError | None = None

    def write(self, write: RaftWrite, done: Wrote) -> None:
        assert write.snapshot is None, "a snapshot comes in by parts"
        if self._failed is not None:
            self._post(partial(done, self._failed))
            return
        self._queue.append((write, done))
        if not self._under_way and not self._full:
            self._submit()

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        rows = self._log.entries(self._scope, first, last + 1, bytes_max)
        return [entry_of(row) for row in rows]

    def retry(self) -> None:
        """There may be room again."""
        if self._full and not self._under_way and self._queue:
            self._submit()

    def _submit(self) -> None:
        writes = [row_of(write, self._scope, self._voter) for write, _ in self._queue]
        try:
            self._under_way = self._log.submit(writes, self._answered)
        except HoldfastError as error:
            self._fail(error)
            return
        assert self._under_way, "an empty queue has room for one write"

    def _answered(self, answers: list[SaveAnswer]) -> None:
        """Called by the thread that writes."""
        self._post(partial(self._take, answers))

    def _take(self, answers: list[SaveAnswer]) -> None:
        for answer in answers:
            if self._failed is not None:
                return
            if isinstance(answer.error, DiskFull):
                self._wait_for_room()
                return
            if answer.error is not None:
                self._fail(_typed(answer.error))
                return
            _, done = self._queue.pop(0)
            self._under_way -= 1
            if self._full:
                self._full = False
                self._on_health("fine")
            done(None)
        if self._queue and not self._under_way:
            self._submit()

    def _wait_for_room(self) -> None:
        """Nothing after the refused write was done: each of them needs the one before it."""
        self._under_way = 0
        if not self._full:
            self._full = True
            self._on_health("full")

    def _fail(self, error: HoldfastError) -> None:
        self._failed, self._under_way = error, 0
        queue, self._queue = self._queue, []
        for _, done in queue:
            self._post(partial(done, error))


def _typed(error: BaseException) -> HoldfastError:
    return error if isinstance(error, HoldfastError) else StoreFailed(f"the quorum log: {error!r}")


def row_of(write: RaftWrite, scope: str, voter: int) -> GroupWrite:
    """What the machine wants written, as the quorum log takes it."""
    return GroupWrite(
        scope=scope,
        voter=voter,
        number=write.number,
        hard=HardStateRow(term=write.term, vote=write.vote),
        cut_from=write.cut_from or None,
        entries=tuple(
            [
                EntryRow(
                    index=index, term=entry.term, kind=_KINDS[entry.kind], payload=entry.payload
                )
                for index, entry in enumerate(write.entries, write.first)
            ]
        ),
    )


def entry_of(row: EntryRow) -> RaftEntry:
    return RaftEntry(row.term, _NAMES[row.kind], row.payload)


def past_of(reader: QuorumReader, scope: str, applied: int) -> DurablePast:
    """What the disk of this node has of a group, as its machine begins with it."""
    head, boundary = reader.head(scope), reader.boundary(scope)
    configs: list[tuple[int, GroupConfig]] = [
        (boundary.index, decode_config(boundary.config) if boundary.config else GroupConfig())
    ]
    configs += [(row.index, decode_config(row.payload)) for row in reader.configs(scope)]
    runs: list[tuple[int, int]] = []
    for run in reader.term_runs(scope):
        if not runs or runs[-1][1] != run.term:
            runs.append((run.first, run.term))
    raft_log = RaftLog(head.base, head.base_term, head.last, tuple(runs), tuple(configs))
    return DurablePast(head.term, head.vote, raft_log, max(applied, head.base))
