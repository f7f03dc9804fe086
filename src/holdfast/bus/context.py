"""What all parts of one bus share: who it is, its store, clock, randomness, tasks and counters."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from nacl.signing import SigningKey

from holdfast.bus.guard import guarded
from holdfast.bus.options import BusOptions, RunInThread
from holdfast.bus.ports import PeerDirectory
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import BUS_ACK_MS
from holdfast.service.clock import Clock

log = logging.getLogger("holdfast.bus")
T = TypeVar("T")


class BusContext:
    """One bus, as its parts know it. Belongs to one event loop."""

    def __init__(
        self, options: BusOptions, seed: bytes, store: MeshStore, peers: PeerDirectory
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.signing_key = SigningKey(seed)
        self.key = bytes(self.signing_key.verify_key)
        self.name = options.name
        self.store = store
        self.peers = peers
        self.clock: Clock = options.clock
        self.random: Callable[[int], bytes] = options.random
        self.jitter: Callable[[], float] = options.jitter
        self.run_in_thread: RunInThread = options.run_in_thread
        self.batch = options.batch
        self.incarnation = b""
        self.is_closed = False
        self.counts: Counter[str] = Counter()
        """Events since the bus was bound, by name."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._changed: asyncio.Future[None] | None = None
        self._finished: dict[int, None] = {}
        """Messages of the inbox that handlers have finished with, until the store knows it."""
        self._removed: dict[int, None] = {}
        """Rows of the outbox that are done with, until the store knows it."""
        self._tidying = False

    # --- tasks -------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs something of the bus's own. It is ended with the bus; what it raises is logged."""
        task = self.loop.create_task(work, name=f"holdfast-bus-{name}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.counts["faults"] += 1
            if isinstance(error, HoldfastError):
                log.warning("%s: %s (%s)", task.get_name(), error.message, error.hint)
            else:
                log.error("%s met a fault of Holdfast", task.get_name(), exc_info=error)

    async def end_tasks(self) -> None:
        """Cancels what still runs and waits for it."""
        while tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # --- waiting for something that others bring about -----------------------------------------

    def changed(self) -> None:
        """A link came or went, or a peer told what it listens to and serves."""
        waiting, self._changed = self._changed, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def until(self, holds: Callable[[], T | None], timeout_ms: int) -> T | None:
        """What `holds` returns as soon as that is not None; None if the time is over before."""
        deadline = self.loop.time() + timeout_ms / 1000
        while (found := holds()) is None and self.loop.time() < deadline and not self.is_closed:
            await asyncio.wait([self._next_change()], timeout=deadline - self.loop.time())
        return found

    async def until_changed(self) -> None:
        await asyncio.wait([self._next_change()])

    def _next_change(self) -> asyncio.Future[None]:
        if self._changed is None:
            self._changed = self.loop.create_future()
        return self._changed

    # --- what is done with ---------------------------------------------------------------------

    def finish_inbox(self, number: int) -> None:
        """A handler has finished with a message. The store learns it soon, with others."""
        self._finished[number] = None
        self._tidy_soon()

    def is_finished(self, number: int) -> bool:
        """Whether a message that the store may still show is done with."""
        return number in self._finished

    def remove_outbox(self, id: int) -> None:
        """A message has arrived, or is given up. The store learns it soon, with others."""
        self._removed[id] = None
        self._tidy_soon()

    def is_removed(self, id: int) -> bool:
        """Whether a row of the outbox that the store may still show is done with."""
        return id in self._removed

    def keep_outbox(self, id: int) -> None:
        """The same message was put into the outbox again before its row was removed."""
        self._removed.pop(id, None)

    def _tidy_soon(self) -> None:
        if not self._tidying and not self.is_closed:
            self._tidying = True
            self.loop.call_later(BUS_ACK_MS / 1000, self._tidy_now)

    def _tidy_now(self) -> None:
        if not self.is_closed:
            self.spawn(self._tidy(), "tidy")

    async def _tidy(self) -> None:
        try:
            await self.tidy()
        finally:
            self._tidying = False

    async def tidy(self) -> None:
        """Tells the store what is done with. What it could not take is told again with the next."""
        while self._removed or self._finished:
            removed, finished = list(self._removed), list(self._finished)
            if removed:
                await guarded(self.store.remove_many(removed))
                for id in removed:
                    self._removed.pop(id, None)
            if finished:
                await self.settle()

    async def settle(self) -> None:
        """Returns when the store knows which messages handlers have finished with until now."""
        finished = list(self._finished)
        if finished:
            await guarded(self.store.finish_inbox(finished))
            for number in finished:
                self._finished.pop(number, None)
            self.changed()
