"""Tasks from before there were voters: this node brings those that it has into the order.

Nothing else can be decided about such a task before (`rules/quorum/task_turns.py`). Whoever begins
a quorum adopts all that it has, before it says that the quorum has begun; every other node, as soon
as it takes part, what it has and the order lacks. That happens once on each node: since it knows of
the quorum, no turn that only stamps decide gets in any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.fold_tasks import is_adopted
from holdfast.node.quorum.service.lane import LoopWrite
from holdfast.node.quorum.service.strong_writes import StrongWrites
from holdfast.rules.bodies import encode_body
from holdfast.rules.errors import HoldfastError, Refused
from holdfast.rules.limits import CHUNK_ROWS, QUORUM_COMMIT_MS, QUORUM_DUTIES_AT_ONCE, SECOND_MS
from holdfast.rules.quorum.intents import ADOPT, AdoptedTurn, TaskAdopt
from holdfast.rules.rows import JobRow, TaskEventRow
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast.quorum")


class TaskAdoption:
    """The tasks of one mesh. Belongs to one event loop."""

    def __init__(self, engine: NodeEngine, write: LoopWrite, writes: StrongWrites) -> None:
        self._engine, self._write, self._writes = engine, write, writes
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.is_done = False

    def start(self) -> None:
        """Nothing runs for a mesh that has nothing to adopt."""
        self.is_done = not self._engine.read("quorum.adopted", self._is_left)
        if not self.is_done:
            self._running = asyncio.create_task(self._run())

    def wake(self) -> None:
        self._changed.set()

    async def done(self, timeout_ms: int) -> None:
        """Returns when all is adopted, or time is over."""
        if self._running is not None and not self.is_done:
            await asyncio.wait([self._running], timeout=timeout_ms / SECOND_MS)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    # --- the work ----------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.is_done:
            self._changed.clear()
            try:
                # What others have adopted is here first.
                await self._writes.order.confirm(timeout_ms=QUORUM_COMMIT_MS)
                await self._adopt_all()
                self.is_done = True
            except HoldfastError as error:
                log.info("tasks of %s are adopted later: %s", self._writes.mesh, error.message)
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUORUM_COMMIT_MS / SECOND_MS):
                        await self._changed.wait()

    async def _adopt_all(self) -> None:
        after = ""
        while True:
            page = self._engine.read("quorum.adopt", self._page(after))
            if page is None:
                break
            after, wanted = page
            for at in range(0, len(wanted), QUORUM_DUTIES_AT_ONCE):
                some = wanted[at : at + QUORUM_DUTIES_AT_ONCE]
                await asyncio.gather(*(self._adopt(task) for task in some))
        now = self._engine.ctx.now_ms()
        job = JobRow(name=_job(self._writes.mesh), cursor={}, updated_at=now)
        await self._write("quorum.adopted", lambda tx: tx.job_put(job))

    async def _adopt(self, task: str) -> None:
        mesh = self._writes.mesh
        turns = self._engine.read("quorum.adopt", lambda tx: tx.task_events(mesh, task))
        body = encode_body(TaskAdopt(tuple(_adopted(turn) for turn in turns)))
        try:
            await self._writes.intend(ADOPT, task, body, None, QUORUM_COMMIT_MS)
        except Refused as error:
            log.error("the task %s of %s is not adopted: %s", task, mesh, error.message)

    def _page(self, after: str) -> Callable[[Reader], tuple[str, list[str]] | None]:
        """The next tasks that are not in the order, and how far that is; None at the end."""

        def read(tx: Reader) -> tuple[str, list[str]] | None:
            rows = tx.task_scan(self._writes.mesh, None, after, CHUNK_ROWS)
            if not rows:
                return None
            return rows[-1].task, [row.task for row in rows if not is_adopted(tx, row)]

        return read

    def _is_left(self, tx: Reader) -> bool:
        """Whether there may be something to adopt."""
        mesh = self._writes.mesh
        return tx.job_get(_job(mesh)) is None and bool(tx.task_scan(mesh, None, "", 1))


def _job(mesh: str) -> str:
    return f"quorum.adopted:{mesh}"


def _adopted(row: TaskEventRow) -> AdoptedTurn:
    turn = row.turn
    return AdoptedTurn(
        turn.version, turn.kind, turn.generation, turn.event_time, turn.title, turn.description
    )
