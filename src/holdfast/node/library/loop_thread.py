"""An event loop in a thread, for callers that wait: they hand coroutines in and get results.

A forked child has the loop without its thread: it would wait for ever. It is refused instead, as by
everything else that its parent had open (`storage/fork_gate.py`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from holdfast.rules.errors import BusClosed
from holdfast.storage.fork_gate import refusal

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of threads that wait. It starts with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        """The process that has the thread; 0 if none was started."""
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._running(work))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns. An interrupt of the waiting thread cancels it."""
        assert threading.current_thread() is not self._thread, "the loop would wait for itself"
        future = self.submit(work)
        try:
            return future.result()
        except CancelledError:
            raise BusClosed("the bus was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Runs `last`, cancels what still runs, and ends the thread; in a forked child it only
        forgets them.
        """
        if self._is_forked:
            if last is not None:
                last.close()
            return
        with self._lock:
            loop, self._loop, self._closed = self._loop, None, True
        if loop is None or self._thread is None:
            if last is not None:
                last.close()
            return
        try:
            if last is not None:
                asyncio.run_coroutine_threadsafe(last, loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    @property
    def _is_forked(self) -> bool:
        return self._pid not in (0, os.getpid())

    def _running(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if self._is_forked:  # and the lock may have been held at the fork
            work.close()
            raise refusal()
        with self._lock:
            if self._closed:
                work.close()
                raise BusClosed("the bus of this node was closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
                self._pid = os.getpid()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
