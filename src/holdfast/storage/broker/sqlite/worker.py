"""One thread that runs calls for an event loop, in order.

A thousand members that read at once are a thousand calls: handing each over and back by itself
would cost more than the reads. So the thread takes the calls that wait, one after the other, and
hands their results back together, as soon as no call waits or the first result is half a
millisecond old.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, TypeVar

from holdfast.rules.errors import StoreClosed
from holdfast.storage import fork_gate

T = TypeVar("T")
Begin = Callable[[], Coroutine[Any, Any, Any]]
_Done = tuple[asyncio.Future[Any], Any, BaseException | None]

_HELD_S: Final = 0.0005


class Worker:
    """Calls run in the order in which the tasks of one loop ask for them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: SimpleQueue[tuple[asyncio.Future[Any], Begin] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = threading.Lock()
        """Held while a call runs."""
        self._stilled = self._forked = False
        self._under_way = 0
        """Calls that were begun and are not settled: counted by the loop alone."""
        fork_gate.watch(self)

    @property
    def runs(self) -> bool:
        return self._loop is not None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # A daemon: a process that ends without closing ends as if it were killed, and that is safe.
        threading.Thread(target=self._run, args=(loop,), name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Ends the thread after the calls that wait."""
        if self._loop is not None:
            self._loop = None
            self._waiting.put(None)

    async def do(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine that never suspends in the thread, and waits for its result."""
        return await self.begin(begin)

    def begin(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Queues the call at once; the future gets its result."""
        if self._loop is None:
            if self._forked:
                raise fork_gate.refusal()
            raise StoreClosed("the store is not open", hint="open it first")
        future: asyncio.Future[T] = self._loop.create_future()
        self._under_way += 1
        self._waiting.put((future, begin))
        return future

    def begin_here(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T] | None:
        """Runs the call at once, in the thread of the loop; its future is done. None, and nothing
        is run, while a call is under way: they keep their order.
        """
        if self._loop is None or self._under_way:
            return None
        future: asyncio.Future[T] = self._loop.create_future()
        with self._turn:
            done = _finish(future, begin)
        _settle([done])
        return future

    def still(self, until: float) -> bool:
        self._stilled = self._turn.acquire(timeout=max(0.0, until - monotonic()))
        return self._stilled

    def go_on(self) -> None:
        if self._stilled:
            self._stilled = False
            self._turn.release()

    def disown(self) -> tuple[object, ...]:
        kept = vars(self).copy()
        self._loop, self._forked, self._waiting = None, True, SimpleQueue()
        return (kept,)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        done: list[_Done] = []
        oldest = 0.0
        while (work := self._waiting.get()) is not None:
            future, begin = work
            if future.cancelled():
                done.append((future, None, None))
            else:
                with self._turn:
                    done.append(_finish(future, begin))
            now = monotonic()
            if len(done) == 1:
                oldest = now
            if done and (self._waiting.empty() or now - oldest >= _HELD_S):
                self._hand_back(loop, done)
                done = []
        if done:
            self._hand_back(loop, done)

    def _hand_back(self, loop: asyncio.AbstractEventLoop, done: list[_Done]) -> None:
        try:
            loop.call_soon_threadsafe(self._settle, done)
        except RuntimeError:
            # The loop is closed: no caller waits any more.
            return

    def _settle(self, done: list[_Done]) -> None:
        self._under_way -= len(done)
        _settle(done)


def _finish(future: asyncio.Future[Any], begin: Begin) -> _Done:
    work = begin()
    try:
        work.send(None)
    except StopIteration as end:
        return future, end.value, None
    except BaseException as error:
        return future, None, error
    work.close()
    return future, None, AssertionError("the SQLite store never waits for anything but the disk")


def _settle(done: list[_Done]) -> None:
    for future, value, error in done:
        if future.done():
            continue  # cancelled before or meanwhile
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
