"""The writes of a mesh that wait, as this process changes them: each step is one durable write.

What a step does to a row is decided by `rules/quorum/write_queue.py`, and stored by
`node/core/write_queue.py`. Each step looks at the row anew in its transaction, because the fold may
have ended it meanwhile, and then it has nothing to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from holdfast.node.core.commit import Committed
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.write_queue import (
    queue_add,
    queue_counts,
    queue_get,
    queue_put,
    queue_waiting,
)
from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.outbox import quorum_lane_of
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.view import IntentRecord
from holdfast.rules.quorum.write_queue import (
    QueuedWrite,
    WriteCounts,
    WriteFailure,
    decided,
    failed_try,
    is_open,
    started,
)
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Reader, Transaction, Work

T = TypeVar("T")

ADD: Final = "quorum.queue"
STEP: Final = "quorum.replay"


class LoopWrite(Protocol):
    """Runs a write from the event loop, durably; `LoopWriter.write` does."""

    def __call__(self, name: str, work: Work[T], /) -> Awaitable[T]: ...


class WaitingWrite(NamedTuple):
    """A row whose turn it is, and the envelope that it is about."""

    row: QueuedWrite
    raw: bytes


class WriteLane:
    """The lane of one mesh. Belongs to one event loop."""

    def __init__(self, engine: NodeEngine, write: LoopWrite, mesh: str) -> None:
        self._engine, self._write, self.mesh = engine, write, mesh
        self._is_empty = False
        self.is_paused = False

    async def load(self) -> int:
        """What the disk says when this process begins: what was under way is pending again.
        Returns how many rows wait.
        """
        lane = quorum_lane_of(self.mesh)
        await self._write(STEP, lambda tx: tx.outbox_recover(lane))
        job = self._engine.read("quorum.paused", lambda tx: tx.job_get(paused_job(self.mesh)))
        self.is_paused = job is not None
        return self.counts().pending

    def counts(self) -> WriteCounts:
        """What still needs something. Only this process adds rows, so an empty lane stays empty
        until it does; others may resolve rows.
        """
        if self._is_empty:
            return WriteCounts()
        counts = self._engine.read("quorum.counts", lambda tx: queue_counts(tx, self.mesh))
        self._is_empty = not counts.queue_depth
        return counts

    def forget_counts(self) -> None:
        """They may be others than this process knows."""
        self._is_empty = False

    # --- a write that found no quorum --------------------------------------------------------

    async def add(
        self, envelope: Envelope, failure: WriteFailure, target: str = ""
    ) -> QueuedWrite | IntentRecord:
        """Keeps it. If it was decided meanwhile, that is returned instead."""

        def keep(tx: Transaction) -> QueuedWrite | IntentRecord:
            known = tx.intents_known(self.mesh, [envelope.id]).get(envelope.id)
            if known is not None:
                return known
            return queue_add(tx, self._engine.ctx, envelope, failure, target)

        self.forget_counts()
        return await self._write(ADD, keep)

    # --- a try -------------------------------------------------------------------------------

    def get(self, id: bytes) -> QueuedWrite | None:
        return self._engine.read(STEP, lambda tx: queue_get(tx, self.mesh, id))

    def page(self, after: int) -> list[tuple[int, QueuedWrite]]:
        """Rows that wait with a number > after, and their numbers. Rows of one moment are never
        parted, so that sorting pages sorts all.
        """

        def read(tx: Reader) -> list[tuple[int, QueuedWrite]]:
            rows = queue_waiting(tx, self.mesh, after, CHUNK_ROWS)
            more = len(rows) == CHUNK_ROWS
            while more:
                further = queue_waiting(tx, self.mesh, rows[-1][0], CHUNK_ROWS)
                same = [one for one in further if one[1].created_at == rows[-1][1].created_at]
                rows += same
                more = len(same) == CHUNK_ROWS
            return rows

        return self._engine.read(STEP, read)

    async def start(self, id: bytes, fence: FenceToken) -> WaitingWrite | None:
        """Marks a row as being replayed under this fence; None if it does not wait any more."""

        def work(tx: Transaction) -> WaitingWrite | None:
            row = queue_get(tx, self.mesh, id)
            if row is None or not is_open(row):
                return None
            entry = tx.log_find(id)
            if entry is None:
                raise StoreCorrupt(f"the waiting write {id_text(id)} is not in the log")
            begun = started(row, fence, self._engine.ctx.now_ms())
            return WaitingWrite(queue_put(tx, begun), entry.raw)

        return await self._write(STEP, work)

    async def fail(self, id: bytes, failure: WriteFailure) -> QueuedWrite | None:
        """A try came to no decision."""
        return await self._step(id, lambda row, now: failed_try(row, failure, now))

    async def settle(self, id: bytes, committed: Committed) -> QueuedWrite | None:
        """A try was decided; the fold has said so already, if it was done here."""
        row = self.get(id)
        if row is None or not is_open(row):
            return row
        return await self._step(
            id,
            lambda row, now: decided(
                row, committed.outcome, now, committed.reason, committed.detail
            ),
        )

    async def _step(
        self, id: bytes, change: Callable[[QueuedWrite, int], QueuedWrite]
    ) -> QueuedWrite | None:
        def work(tx: Transaction) -> QueuedWrite | None:
            row = queue_get(tx, self.mesh, id)
            if row is None or not is_open(row):
                return row
            return queue_put(tx, change(row, self._engine.ctx.now_ms()))

        return await self._write(STEP, work)

    # --- pause -------------------------------------------------------------------------------

    async def pause(self) -> None:
        now = self._engine.ctx.now_ms()
        row = JobRow(name=paused_job(self.mesh), cursor={"paused": True}, updated_at=now)
        await self._write("quorum.pause", lambda tx: tx.job_put(row))
        self.is_paused = True

    async def resume(self) -> None:
        await self._write("quorum.pause", lambda tx: tx.job_drop(paused_job(self.mesh)))
        self.is_paused = False


def paused_job(mesh: str) -> str:
    """The name under which the store keeps that the replay of a mesh is paused."""
    return f"quorum.paused:{mesh}"
