"""A lock that an exception cannot leave locked.

A signal handler of Python runs between any two bytecodes of the main thread and may raise there:
Ctrl-C does, and so does many a handler of `signal.alarm`. If that happens after `acquire` has
returned and before its caller has noted it, no `finally` knows that there is something to release.
So the lock itself says who holds it, and whoever cleans up asks it:

    refuse_nested(lock)
    try:
        try:
            lock.acquire()
            …
        finally:
            settle()        # asks is_owned(), and may run twice
    finally:
        settle()            # the exception may also have come within the first one

`run_locked` is that pattern for short steps. docs/decisions/0032 tells what else was considered.

This module stands on the CLI's cold path, like `fork_gate`: it must not import threading.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable

from holdfast.rules.errors import StoreBusy

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path
if TYPE_CHECKING:
    from typing import Any, Protocol, TypeVar

    T = TypeVar("T")

    class OwnedLock(Protocol):
        """What `threading.RLock` is; `Condition` relies on its `_is_owned` as well."""

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...
        def _is_owned(self) -> bool:
            """Whether this thread holds the lock."""

        def __enter__(self) -> bool: ...
        def __exit__(self, *exc: object) -> None: ...


def owned_lock() -> OwnedLock:
    lock: Any = RLock()  # its stub leaves out _is_owned
    known: OwnedLock = lock
    return known


def nested() -> StoreBusy:
    """The error for a call that its own thread has interrupted: waiting would never end."""
    return StoreBusy(
        "this thread is in the middle of another call of the same store",
        hint="do not call the store from a signal handler: set a flag there, and act on it later",
    )


def run_locked(lock: OwnedLock, do: Callable[[], T]) -> T:
    """Runs a short step that holds the lock."""
    if lock._is_owned():
        raise nested()
    try:
        try:
            lock.acquire()
            return do()
        finally:
            if lock._is_owned():
                lock.release()
    finally:
        if lock._is_owned():
            lock.release()
