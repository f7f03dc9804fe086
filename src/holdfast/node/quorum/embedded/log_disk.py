"""The log of one group on the node's quorum log.

A group has one submission under way at a time; what the machine writes meanwhile goes into the
next one, in order. So when the disk is full and a write is refused, nothing that follows it has
been tried, and everything is tried again later as it was. Any other error is for good: whether the
write is on the disk nobody knows.

A lone write to a quick disk is saved in the driver's own thread (docs/decisions/0092), everything
else by the thread of the quorum log.

A snapshot takes its turn among the writes, alone. Its parts, and what shortens the log, are calls
that last: they run in threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Final, NamedTuple

from holdfast.node.quorum.embedded.ports import Received, Wrote
from holdfast.rules.errors import DiskFull, HoldfastError, StoreFailed
from holdfast.rules.quorum.log_rows import (
    CONFIG_KIND,
    EntryRow,
    GroupWrite,
    HardStateRow,
    QuorumSnapshot,
    SaveAnswer,
    SnapshotIntake,
)
from holdfast.rules.quorum.raft.config import GroupConfig, decode_config
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.messages import DiskHealth, EntryKind, RaftEntry
from holdfast.rules.quorum.raft.state import DurablePast
from holdfast.storage.quorum_port import QuorumLog, QuorumReader

_KINDS: Final[dict[EntryKind, int]] = {"noop": 0, "data": 1, "config": CONFIG_KIND}
_NAMES: Final = {number: name for name, number in _KINDS.items()}


class _Queued(NamedTuple):
    write: RaftWrite
    commit: int
    done: Wrote


def in_a_thread(call: Callable[[], None]) -> None:
    Thread(target=call, name="quorum log", daemon=True).start()


class LogDisk:
    """A `GroupDisk` and an `IntakeDisk`. Belongs to the driver's thread; the quorum log has its
    own.
    """

    def __init__(
        self,
        log: QuorumLog,
        scope: str,
        voter: int,
        *,
        post: Callable[[Callable[[], None]], None],
        on_health: Callable[[DiskHealth], None],
        aside: Callable[[Callable[[], None]], None] = in_a_thread,
        soon: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`post` calls a function in the driver's thread, from any thread; `aside` in another one,
        because it lasts. `soon` calls one in the driver's thread in its next turn; without it,
        nothing is written in that thread.
        """
        self._log, self._scope, self._voter = log, scope, voter
        self._post, self._on_health, self._aside = post, on_health, aside
        self._soon = soon
        self._queue: list[_Queued] = []
        self._under_way = 0
        """How many writes of the queue, from the first, are submitted."""
        self._full = False
        self._failed: HoldfastError | None = None
        self._ended = False

    def end(self) -> None:
        """The group takes no part any more. Its log refuses what is still on its way, which says
        nothing about the disk: nobody hears of it.
        """
        self._ended = True
        self._queue.clear()

    def write(self, write: RaftWrite, commit: int, done: Wrote) -> None:
        if self._ended:
            return
        if self._failed is not None:
            self._post(partial(done, self._failed))
            return
        self._queue.append(_Queued(write, commit, done))
        if not self._under_way and not self._full:
            if self._soon is not None and write.entries:
                # After the next turn: by then what this step sends has left, and others' disks work
                # at the same time as ours.
                self._under_way = 1
                self._soon(partial(self._soon, self._save_here))
            else:
                self._submit()

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        rows = self._log.entries(self._scope, first, last + 1, bytes_max)
        return [entry_of(row) for row in rows]

    def retry(self) -> None:
        """There may be room again."""
        if self._full and not self._under_way and self._queue:
            self._submit()

    # --- snapshots, and how the log is shortened --------------------------------------------------

    def compact(self, index: int, config: bytes, done: Wrote) -> None:
        self._do(lambda: self._log.compact(self._scope, index, config), done)

    def intake(self) -> SnapshotIntake | None:
        return self._log.intake(self._scope)

    def intake_part(self, offset: int) -> bytes:
        return self._log.intake_part(self._scope, offset)

    def intake_begin(self, snapshot: QuorumSnapshot, done: Received) -> None:
        self._ask(lambda: self._log.intake_begin(self._scope, self._voter, snapshot), done)

    def intake_add(self, offset: int, content: bytes, done: Received) -> None:
        self._ask(lambda: self._log.intake_add(self._scope, offset, content), done)

    def intake_drop(self, done: Wrote) -> None:
        self._do(lambda: self._log.intake_drop(self._scope), done)

    def _ask(self, call: Callable[[], int], done: Received) -> None:
        """Runs a call aside and posts what it returns, or its error."""

        def run() -> None:
            try:
                answer: int | HoldfastError = call()
            except Exception as error:
                answer = _typed(error)
            self._post(partial(done, answer))

        self._aside(run)

    def _do(self, call: Callable[[], None], done: Wrote) -> None:
        def count() -> int:
            call()
            return 0

        self._ask(count, lambda answer: done(answer if isinstance(answer, HoldfastError) else None))

    # --- writes ----------------------------------------------------------------------------------

    def _save_here(self) -> None:
        """Saves a lone write in this thread, which spares two hand-overs; if there are more by now,
        or the disk may be slow, the log's own thread does it.
        """
        if not self._queue:
            return  # the disk has failed, or the group has ended
        answer = None
        if len(self._queue) == 1 and self._failed is None:
            one = self._queue[0]
            answer = self._log.save_at_once(row_of(one.write, self._scope, self._voter, one.commit))
        self._under_way = 0
        if answer is None:
            self._submit()
        else:
            self._under_way = 1
            self._take([answer])

    def _submit(self) -> None:
        if self._queue[0].write.snapshot is not None:
            self._under_way = 1
            self._do(partial(self._install, self._queue[0]), self._installed)
            return
        writes = []
        adds = False
        for one in self._queue:
            if one.write.snapshot is not None:
                break
            row = row_of(one.write, self._scope, self._voter, one.commit)
            if adds and row.is_promise:
                # A log whose disk is full still saves what adds nothing: a vote would be there
                # before the entries that came first, and those could never follow it.
                break
            adds = adds or not row.is_promise
            writes.append(row)
        try:
            self._under_way = self._log.submit(writes, self._answered)
        except HoldfastError as error:
            self._fail(error)
            return
        assert self._under_way, "an empty queue has room for one write"

    def _install(self, one: _Queued) -> None:
        """The snapshot takes the place of the log. What a snapshot brings has no entries."""
        write = one.write
        assert not write.entries, "a step takes a snapshot or entries"
        hard = HardStateRow(term=write.term, vote=write.vote, commit=one.commit)
        self._log.intake_install(self._scope, self._voter, write.number, hard)

    def _installed(self, error: HoldfastError | None) -> None:
        if self._ended or self._failed is not None:
            return
        if isinstance(error, DiskFull):
            self._wait_for_room()
        elif error is not None:
            self._fail(error)
        else:
            self._done_one()
            if self._queue and not self._under_way:
                self._submit()

    def _answered(self, answers: list[SaveAnswer]) -> None:
        """Called by the thread that writes."""
        self._post(partial(self._take, answers))

    def _take(self, answers: list[SaveAnswer]) -> None:
        for answer in answers:
            if self._ended or self._failed is not None:
                return
            if isinstance(answer.error, DiskFull):
                self._wait_for_room()
                return
            if answer.error is not None:
                self._fail(_typed(answer.error))
                return
            self._done_one()
        if self._queue and not self._under_way:
            self._submit()

    def _done_one(self) -> None:
        one = self._queue.pop(0)
        self._under_way -= 1
        if self._full:
            self._full = False
            self._on_health("fine")
        one.done(None)

    def _wait_for_room(self) -> None:
        """Nothing after the refused write was done: each of them needs the one before it."""
        self._under_way = 0
        if not self._full:
            self._full = True
            self._on_health("full")

    def _fail(self, error: HoldfastError) -> None:
        self._failed, self._under_way = error, 0
        queue, self._queue = self._queue, []
        for one in queue:
            self._post(partial(one.done, error))


def _typed(error: BaseException) -> HoldfastError:
    return error if isinstance(error, HoldfastError) else StoreFailed(f"the quorum log: {error!r}")


def row_of(write: RaftWrite, scope: str, voter: int, commit: int = 0) -> GroupWrite:
    """What the machine wants written, as the quorum log takes it."""
    return GroupWrite(
        scope=scope,
        voter=voter,
        number=write.number,
        hard=HardStateRow(term=write.term, vote=write.vote, commit=commit),
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
