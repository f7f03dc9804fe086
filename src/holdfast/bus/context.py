"""What all parts of one bus share: who it is, its store, clock, randomness, tasks and counters."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from nacl.signing import SigningKey

from holdfast.bus.deadlines import Deadlines
from holdfast.bus.guard import guarded
from holdfast.bus.options import BusOptions, RunInThread
from holdfast.bus.ports import PeerDirectory
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.bus.signed_envelope import INCARNATION_BYTES
from holdfast.rules.errors import BusError, HoldfastError
from holdfast.rules.limits import BUS_FINISH_MS, BUS_TIDY_ALONG, BUS_TIDY_MS, SECOND_MS
from holdfast.service.clock import Clock

log = logging.getLogger("holdfast.bus")
T = TypeVar("T")
_NEVER_MS: Final = 1 << 31


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
        self.drops = options.drops
        self.deadlines = Deadlines(self.loop)
        """Of requests, those that are asked and those that are answered."""
        self.incarnation = b""
        self.life = options.random(INCARNATION_BYTES)
        """A mark of this bus, from here to its end (`rules/bus/links/key_lives.py`)."""
        self.is_closed = False
        self.counts: Counter[str] = Counter()
        """Events since the bus was bound, by name."""
        self._tasks: dict[asyncio.Task[Any], Callable[[], None] | None] = {}
        """What runs, and what is to be called when it ends."""
        self._changed: asyncio.Future[None] | None = None
        self._finished: dict[int, None] = {}
        """Messages of the inbox that handlers have finished with, until the store knows it."""
        self._removed: dict[int, None] = {}
        """Rows of the outbox that are done with, until the store knows it."""
        self._tidying: asyncio.TimerHandle | None = None
        self._tidy_ms = _NEVER_MS
        """How long that timer was to wait."""
        self._is_tidying = False
        self._tidy_failures = 0

    # --- tasks -------------------------------------------------------------------------------

    def spawn(
        self,
        work: Coroutine[Any, Any, None],
        name: str,
        *,
        then: Callable[[], None] | None = None,
    ) -> asyncio.Task[None]:
        """Runs something of the bus's own, and calls `then` at its end. It is ended with the bus;
        what it raises is logged.
        """
        task = self.loop.create_task(work, name=f"holdfast-bus-{name}")
        self._tasks[task] = then
        task.add_done_callback(self._ended)
        return task

    def spawn_at_once(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """As `spawn`, but everything up to the first wait happens now. It must not ask for its
        task.
        """
        try:
            waits_for = work.send(None)
        except StopIteration:
            return
        except Exception as error:
            self._failed(f"holdfast-bus-{name}", error)
            return
        self.spawn(_go_on(work, waits_for), name)

    def _ended(self, task: asyncio.Task[None]) -> None:
        then = self._tasks.pop(task, None)
        if then is not None:
            then()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(task.get_name(), error)

    def _failed(self, name: str, error: BaseException) -> None:
        self.counts["faults"] += 1
        if isinstance(error, HoldfastError):
            log.warning("%s: %s (%s)", name, error.message, error.hint)
        else:
            log.error("%s met a fault of Holdfast", name, exc_info=error)

    async def end_tasks(self) -> None:
        """Cancels what still runs and waits for it."""
        self.deadlines.close()
        while tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # --- waiting for something that others bring about -----------------------------------------

    def counted_ms(self) -> int:
        """By which messages that wait run out of time: leaps of the clock do not count."""
        return self.store.counted.now_ms()

    def clock_ahead_ms(self) -> float:
        """By how much the clock is ahead of the loop's time, which nobody sets."""
        return self.clock.now_ms() - self.loop.time() * SECOND_MS

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
        if self._tidy_ms > BUS_FINISH_MS:
            self._tidy_soon(BUS_FINISH_MS)

    def is_finished(self, number: int) -> bool:
        """Whether a message that the store may still show is done with."""
        return number in self._finished

    def remove_outbox(self, id: int) -> None:
        """A message has arrived, or is given up. The store learns it soon, with others."""
        self._removed[id] = None
        if self._tidy_ms > BUS_TIDY_MS:
            self._tidy_soon(BUS_TIDY_MS)

    def is_removed(self, id: int) -> bool:
        """Whether a row of the outbox that the store may still show is done with."""
        return id in self._removed

    def keep_outbox(self, id: int) -> None:
        """The same message was put into the outbox again before its row was removed."""
        self._removed.pop(id, None)

    def tidy_along(self) -> None:
        """Something else is about to be written: what is done with, if it is much, is written in
        the same turn of the loop, so that a store with a disk commits once.
        """
        much = len(self._finished) + len(self._removed) >= BUS_TIDY_ALONG
        if much and self._tidying is not None and not self.is_closed:
            self._tidying.cancel()
            self._tidy_now()

    def _tidy_soon(self, within_ms: int) -> None:
        if self._is_tidying or self.is_closed or self._tidy_ms <= within_ms:
            return
        if self._tidying is not None:
            self._tidying.cancel()
        self._tidy_ms = within_ms
        self._tidying = self.loop.call_later(within_ms / 1000, self._tidy_now)

    def _tidy_now(self) -> None:
        self._tidying, self._tidy_ms = None, _NEVER_MS
        if not self.is_closed:
            self._is_tidying = True
            self.spawn_at_once(self._tidy(), "tidy")

    async def _tidy(self) -> None:
        try:
            await self.tidy()
        except BusError as error:
            # The store may be well again soon, and perhaps nothing else is done with until then.
            self._tidy_failures += 1
            log.warning("the store was not told what is done with: %s", error.message)
            wait_ms = backoff_ms(self._tidy_failures, self.jitter())
            self._tidying = self.loop.call_later(wait_ms / 1000, self._tidy_now)
            self._tidy_ms = 0  # nothing that is done with meanwhile makes it sooner
            return
        finally:
            self._is_tidying = False
        self._tidy_failures = 0
        if self._removed or self._finished:
            self._tidy_soon(BUS_TIDY_MS if self._removed else BUS_FINISH_MS)

    async def tidy(self) -> None:
        """Tells the store what is done with. What it could not take is told again."""
        await self.settle()
        removed = list(self._removed)
        if removed:
            await guarded(self.store.remove_many(removed))
            for id in removed:
                self._removed.pop(id, None)

    async def settle(self) -> None:
        """Returns when the store knows which messages handlers have finished with until now."""
        finished = list(self._finished)
        if finished:
            await guarded(self.store.finish_inbox(finished))
            for number in finished:
                self._finished.pop(number, None)
            self.changed()


class _Begun:
    """A coroutine that has run up to its first wait, for a task to go on with."""

    def __init__(self, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._work, self._waits_for = work, waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        work, waits_for = self._work, self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    work.close()
                    raise
                except BaseException as error:
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(sent)
        except StopIteration:
            return


async def _go_on(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _Begun(work, waits_for)
