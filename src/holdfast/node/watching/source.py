"""What a watch reads from: a reader that stands somewhere, and takes what is new from there.

A `HomeSource` reads a home that is open here; what asks a daemon is in `node/remote/watching.py`.

This module stands on the CLI's cold path: keep its imports few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from holdfast.rules.cursor import LogCursor

if TYPE_CHECKING:
    from holdfast.node.core.engine import NodeEngine
    from holdfast.node.watching.watches import ChangeWatch

T = TypeVar("T")


class Bell(Protocol):
    """What a thread waits on until there may be more to read."""

    def hush(self) -> None:
        """Forgets what has rung until now."""

    def wait(self, timeout_ms: int) -> None:
        """Returns when something has rung, after `close`, and when time is up."""

    def close(self) -> None:
        """Ends the wait, and every later one."""


class WatchSource(Generic[T]):
    """A reader that follows something which only grows."""

    @property
    def cursor(self) -> LogCursor | int:
        """Everything up to here was yielded, or does not pass."""
        raise NotImplementedError

    @property
    def has_more(self) -> bool:
        """Something was read and is not yielded yet."""
        raise NotImplementedError

    def pop(self) -> T:
        """The next of what was read."""
        raise NotImplementedError

    def read(self) -> bool:
        """Reads until something passes; False if nothing more has come."""
        raise NotImplementedError

    def present(self) -> Iterator[T]:
        """What is there now, without waiting for more."""
        while self.has_more or self.read():
            yield self.pop()

    def bell(self) -> Bell:
        """What a thread that reads this waits on."""
        raise NotImplementedError

    def enlist(self, watch: ChangeWatch[T]) -> None:
        """The watch is closed when what it reads from is."""
        raise NotImplementedError

    def stream(self) -> AsyncGenerator[T, None]:
        """The same for coroutines, without end."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more is read."""


class HomeSource(WatchSource[T]):
    """Follows something in a home that is open here. It holds what one page of it gave."""

    def __init__(self, engine: NodeEngine) -> None:
        self.engine = engine
        self._ready: deque[T] = deque()

    @property
    def has_more(self) -> bool:
        return bool(self._ready)

    # Whoever waits has asyncio and sockets; who only describes what to follow needs neither.

    def bell(self) -> Bell:
        from holdfast.node.watching.watcher_sockets import CommitBell

        return CommitBell(self.engine.wake_folder)

    def enlist(self, watch: ChangeWatch[T]) -> None:
        from holdfast.node.watching.watches import enlist

        enlist(self.engine, watch)

    def stream(self) -> AsyncGenerator[T, None]:
        from holdfast.node.watching.watches import followed

        return followed(self)
