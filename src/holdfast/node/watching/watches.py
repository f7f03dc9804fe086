"""`watch`: changes as they come, for callers that wait and for coroutines.

    for change in team.state.watch("build/"):
        print(change.key, change.value, change.cursor)

A watch follows the log (`changes`), so it misses nothing and repeats nothing, and goes on from the
cursor of any change, also after a restart. It waits on a socket of its own in the home, on which
every process that commits there rings after its commit (`watcher_sockets`); since a datagram may
get lost with the process that was to send it, it also looks once a second.

Closing a watch, closing its node and cancelling its coroutine end it at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from holdfast.node.core.engine import NodeEngine
from holdfast.node.watching.log_watch import LogWatch, WakeSocket
from holdfast.node.watching.source import HomeSource, WatchSource
from holdfast.node.watching.watcher_sockets import bind_watcher, leave
from holdfast.rules.cursor import LogCursor
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import SECOND_MS, WATCH_MS

T = TypeVar("T")

log = logging.getLogger("holdfast")


class ChangeWatch(Generic[T]):
    """Changes as they come, for a caller that waits. `close` may be called by another thread."""

    def __init__(self, source: WatchSource[T]) -> None:
        self._source = source
        self._closed = False
        self._bell = source.bell()
        source.enlist(self)

    @property
    def cursor(self) -> LogCursor | int:
        """What `since` takes, to go on here: everything up to it was yielded.

        >>> with team.state.watch(since="start") as changes:
        ...     change = next(changes)
        ...     going_on = team.state.watch(since=changes.cursor)
        """
        return self._source.cursor

    @property
    def has_more(self) -> bool:
        """The next change was read already, so that it comes at once.

        >>> with team.state.watch(since="start") as changes:
        ...     changes.has_more
        False
        """
        return self._source.has_more

    def present(self) -> Iterator[T]:
        """What is there now, without waiting for more.

        >>> with team.state.watch("colour", since="start") as changes:
        ...     [change.key for change in changes.present()]
        ['colour'...]
        """
        return self._source.present()

    def close(self) -> None:
        """Ends the iteration, also one that waits in another thread.

        >>> changes = team.state.watch()
        >>> changes.close()
        """
        self._closed = True
        self._bell.close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        source, bell = self._source, self._bell
        while not self._closed:
            if source.has_more:
                return source.pop()
            bell.hush()  # before reading: a commit from now on rings again
            try:
                if source.read():
                    continue
            except HoldfastError:
                if self._closed:
                    break  # its node was closed meanwhile
                self.close()
                raise
            bell.wait(WATCH_MS)
        raise StopIteration

    def __enter__(self) -> ChangeWatch[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncChangeWatch(Generic[T]):
    """Changes as they come, for coroutines."""

    def __init__(self, source: WatchSource[T]) -> None:
        self._source = source
        self._changes = source.stream()

    @property
    def cursor(self) -> LogCursor | int:
        """What `since` takes, to go on here: everything up to it was yielded."""
        return self._source.cursor

    @property
    def has_more(self) -> bool:
        """The next change was read already, so that it comes at once."""
        return self._source.has_more

    async def close(self) -> None:
        """Ends the iteration. To end one that waits, cancel its task."""
        await self._changes.aclose()
        self._source.close()

    def __aiter__(self) -> AsyncChangeWatch[T]:
        return self

    async def __anext__(self) -> T:
        return await anext(self._changes)

    async def __aenter__(self) -> AsyncChangeWatch[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def enlist(engine: NodeEngine, watch: ChangeWatch[Any]) -> None:
    """Closing the node closes the watch."""
    _watches_of(engine).add(watch)


async def followed(source: HomeSource[T]) -> AsyncGenerator[T, None]:
    """What is new in a home, for coroutines."""
    with _watches_of(source.engine).in_loop() as log_watch:
        while not log_watch.closing:
            while source.has_more:
                yield source.pop()
            looks = log_watch.looks  # before reading: a commit from now on is another look
            try:
                found = await asyncio.to_thread(source.read)
            except HoldfastError:
                if log_watch.closing:
                    return  # its node was closed meanwhile
                raise
            if not found and not await log_watch.rung(looks, WATCH_MS / SECOND_MS):
                log_watch.look()  # a datagram may get lost


# --- all watches of a node ---------------------------------------------------------------------


class _LoopBell:
    """What the watches of one event loop wait on, as long as there are any."""

    def __init__(self, engine: NodeEngine) -> None:
        def head() -> int:
            return engine.read("log.head", lambda tx: tx.log_bounds()[1])

        self.log_watch = LogWatch(head)
        self.users = 0
        self._socket: tuple[Path, WakeSocket] | None = None
        folder = engine.wake_folder
        if folder is not None:
            try:
                self._socket = bind_watcher(folder, self._bound)
            except HoldfastError as error:
                log.warning("changes are seen within a second only: %s", error.message)
        if self._socket is None:
            engine.store.on_commit(self.log_watch.ring)

    def close(self) -> None:
        self.log_watch.close()
        if self._socket is not None:
            path, wake = self._socket
            wake.close()
            leave(path)

    def _bound(self, path: Path) -> tuple[Path, WakeSocket]:
        return path, WakeSocket(path, self.log_watch)


class _Watches:
    """The watches of one node, so that closing it ends them."""

    def __init__(self, engine: NodeEngine) -> None:
        self._engine = engine
        self._waiting: WeakSet[ChangeWatch[Any]] = WeakSet()
        self._loops: dict[asyncio.AbstractEventLoop, _LoopBell] = {}
        engine.on_close.append(self.end)

    def add(self, watch: ChangeWatch[T]) -> None:
        self._waiting.add(watch)

    @contextmanager
    def in_loop(self) -> Iterator[LogWatch]:
        """What wakes the watches of the running loop."""
        loop = asyncio.get_running_loop()
        bell = self._loops.get(loop)
        if bell is None:
            bell = self._loops[loop] = _LoopBell(self._engine)
        bell.users += 1
        try:
            yield bell.log_watch
        finally:
            bell.users -= 1
            if not bell.users:
                bell.close()
                self._loops.pop(loop, None)

    def end(self) -> None:
        """Ends all of them, from any thread."""
        for watch in list(self._waiting):
            watch.close()
        for loop, bell in list(self._loops.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(bell.log_watch.close)


_lock = threading.Lock()


def _watches_of(engine: NodeEngine) -> _Watches:
    with _lock:
        if engine.watches is None:
            engine.watches = _Watches(engine)
        found: _Watches = engine.watches
        return found
