"""An event loop of asyncio whose time is that of a simulated world.

Code that is plain asyncio runs on it as it is: tasks, futures, timeouts, queues. Each simulated
process has a loop of its own, and all loops of a world share its calendar. A turn of a loop is one
event there: it calls what is ready, in the order in which it was planned, as every loop promises.
When no loop has anything ready, the world's time is moved to the next timer or arrival. What a real
loop does not promise, such as when a thread has finished, is drawn from the seed.

A process can die between any two callbacks of its loop. `goes_on` is asked after each one; when it
says no, nothing of this loop runs ever again. `abandon` then throws the tasks away.

There are no sockets and no threads here. What a task raises and nobody looks at is told to
`on_trouble`, because it would only stand in a log otherwise.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from math import floor
from typing import Any, Final, TypeVarTuple, Unpack

from holdfast.simulate.world.seeds import PromiseBroken
from holdfast.simulate.world.world import World

TURNS_AT_ONE_TICK_MAX: Final = 20_000
"""A loop that turns more often than this while no time passes is spinning."""
THREAD_MS_MAX: Final = 4
"""A function that is handed to a thread starts within this time."""


Given = TypeVarTuple("Given")


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one simulated process."""

    _in_turn = False

    def __init__(
        self,
        world: World,
        name: str,
        *,
        goes_on: Callable[[], bool] = lambda: True,
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.handles = 0
        """How many callbacks it has called."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Those that have not ended, in the order in which they were made."""
        self._world = world
        self._goes_on = goes_on
        self._on_trouble = on_trouble or self._raise_later
        self._trouble: list[str] = []
        self._rng = world.fork(f"loop of {name} at {world.ticks}")
        # Two processes never agree about the value of a monotonic clock.
        self._began = self._rng.randrange(1_000, 100_000) - world.ticks // 1000
        self._queue: deque[asyncio.Handle] = deque()
        self._planned = False
        self._turns, self._last_tick = 0, -1
        self._over = False
        self.set_task_factory(self._make_task)

    # --- time -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._time_at(self._world.ticks)

    def _time_at(self, tick: int) -> float:
        return self._began + tick / 1000

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Given]], object],
        *args: *Given,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        tick = floor((when - self._began) * 1000)
        # When it rings, `time()` is not before its time: else code that looks would spin.
        while self._time_at(tick) < when:
            tick += 1
        delay = max(0, tick - self._world.ticks)
        self._world.at(delay, self._ring, timer, name=f"timer of {self.name}")
        return timer

    def _ring(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            self._enqueue(timer)

    # --- turns ----------------------------------------------------------------------------------

    def call_soon(
        self,
        callback: Callable[[Unpack[Given]], object],
        *args: *Given,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon

    def _enqueue(self, handle: asyncio.Handle) -> None:
        if self._over:
            return
        self._queue.append(handle)
        if not self._planned:
            self._planned = True
            self._world.at(0, self._turn, name=f"turn of {self.name}")

    def _turn(self) -> None:
        """Calls what is ready now. What becomes ready meanwhile waits for the next turn."""
        self._planned = False
        self._check_spinning()
        with self._as_running():
            for _ in range(len(self._queue)):
                if self._over or not self._queue:
                    return
                handle = self._queue.popleft()
                if handle.cancelled():
                    continue
                handle._run()
                self.handles += 1
                if not self._goes_on():
                    self.stop_dead()
                    return
        if self._queue and not self._planned:
            self._planned = True
            self._world.at(0, self._turn, name=f"turn of {self.name}")
        self.raise_trouble()

    @contextmanager
    def _as_running(self) -> Iterator[None]:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._in_turn = True
        try:
            yield
        finally:
            self._in_turn = False
            asyncio._set_running_loop(before)

    def _check_spinning(self) -> None:
        self._turns = self._turns + 1 if self._last_tick == self._world.ticks else 0
        self._last_tick = self._world.ticks
        if self._turns > TURNS_AT_ONE_TICK_MAX:
            raise PromiseBroken(f"the loop of {self.name} turns and turns, and no time passes")

    def is_running(self) -> bool:
        return self._in_turn

    # --- threads --------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Calls the function here, after a while; its answer comes in a later turn."""
        answer = self.create_future()

        def run() -> None:
            if answer.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                self._finish(answer, error=error)
            else:
                self._finish(answer, result)

        self.call_later(self._rng.randrange(THREAD_MS_MAX + 1) / 1000, run)
        return answer

    def _finish(
        self, answer: asyncio.Future[Any], result: Any = None, *, error: Exception | None = None
    ) -> None:
        def tell() -> None:
            if answer.cancelled():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        self.call_soon(tell)

    # --- tasks and trouble ----------------------------------------------------------------------

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **given: Any) -> Any:
        task = asyncio.Task(coro, loop=self, **given)
        self.tasks[task] = None
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._over:
            return
        error = context.get("exception")
        said = context.get("message", "an error that nobody handled")
        self._on_trouble(f"{self.name}: {said}: {error!r}" if error else f"{self.name}: {said}")

    def _raise_later(self, text: str) -> None:
        self._trouble.append(text)

    def raise_trouble(self) -> None:
        """Raises what was told to nobody else."""
        if self._trouble:
            raise PromiseBroken("; ".join(self._trouble[:3]))

    # --- the end --------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self._over

    def stop_dead(self) -> None:
        """The process is dead: nothing of this loop runs any more."""
        self._over = True
        self._queue.clear()

    def abandon(self) -> None:
        """Throws away what a dead process has left in memory, in an order that a seed repeats.
        Whatever its `finally` blocks try reaches nothing: its disk and its network are gone.
        """
        self.stop_dead()
        with warnings.catch_warnings():
            # Some of it was to be awaited and never will be.
            warnings.simplefilter("ignore", RuntimeWarning)
            while self.tasks:
                task, _ = self.tasks.popitem()
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coro = task.get_coro()
                if coro is not None:
                    with suppress(BaseException):
                        coro.close()
                del task, coro
        self.close()

    def __del__(self) -> None:
        """Nothing has to be closed here: there are no sockets and no threads."""

    def run_until_complete(self, future: Any) -> Any:
        """Lets the world go on until this is done. Raises PromiseBroken if it never will be."""
        task = asyncio.ensure_future(future, loop=self)
        while not task.done():
            if self._over or not self._world.step():
                raise PromiseBroken(f"the world of {self.name} ends before what is waited for")
        self.raise_trouble()
        return task.result()
