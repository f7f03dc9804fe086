"""Homes that a program leaves open: they are closed when the program ends, in whatever way Python
still gets to say so (the end of the script, an exception, `sys.exit`, an interrupt).

A script, a test or a notebook often ends without `close`. To the next opening that would look like
a crash, with a warning and a look at what was written last.

- A home that somebody still holds, by its node or by any family of it, is closed when the program
  ends. Threads that Python waits for have ended by then; a daemon thread that goes on gets
  `StoreClosed`.
- A home that nobody holds any more is closed by the next opening in this process, or at the end.
  Not when it is let go: that happens in any thread, in the middle of anything.
- Its bus is closed a step earlier, while an event loop still gets threads to work in: when the main
  thread has ended, before others are waited for.
- A forked child closes nothing of its parent's, and what it has opened itself.

A process that is killed gets no word; what its sign says is looked at then (`files/presence.py`).
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias
from weakref import WeakMethod, finalize, ref

log = logging.getLogger("holdfast")


class LeftOpen(Protocol):
    def close_left(self) -> None:
        """LeftOpen it, if there still is something to close."""


_held: Final[dict[int, ref[LeftOpen]]] = {}
_early: Final[list[WeakMethod[Callable[[], None]]]] = []
_dropped: Final[deque[Callable[[], None]]] = deque()
"""What closes those that nobody holds any more."""


Drop: TypeAlias = "finalize[[int, Callable[[], None]], LeftOpen]"


def close_at_the_end(one: LeftOpen, close_dropped: Callable[[], None]) -> Drop:
    """`one` is closed when the program ends; if nobody holds it any more, `close_dropped`, which
    must not refer to it, is called soon. What comes back is for `closed`.
    """
    key = id(one)
    _held[key] = ref(one)
    drop = finalize(one, _drop, key, close_dropped)
    drop.atexit = False
    return drop


def closed(drop: Drop) -> None:
    """It was closed by its holder."""
    found = drop.detach()
    if found is not None:
        _held.pop(id(found[0]), None)


def close_dropped() -> None:
    """LeftOpen what nobody holds any more."""
    while _dropped:
        try:
            close = _dropped.popleft()
        except IndexError:
            return  # another thread was faster
        _quietly(close)


def close_with_the_main_thread(close: Callable[[], None]) -> None:
    """Calls the bound method `close` when the main thread has ended, if its object is still held.

    From then on Python starts no work in threads of executors. It has no public hook for that
    moment; where the one that executors use is missing, nothing is closed early.
    """
    import concurrent.futures.thread  # noqa: F401  # what is registered later is called earlier

    if not _early:
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(_close_early)
    _early[:] = [found for found in _early if found() is not None]
    _early.append(WeakMethod(close))


def _close_early() -> None:
    for found in list(_early):
        close = found()
        if close is not None:
            _quietly(close)


def _drop(key: int, close: Callable[[], None]) -> None:
    _held.pop(key, None)
    _dropped.append(close)


def _close_all() -> None:
    for found in list(_held.values()):
        one = found()
        if one is not None:
            _quietly(one.close_left)
    close_dropped()


def _quietly(close: Callable[[], None]) -> None:
    """The program is about to end, or does something else: this must not be what fails it."""
    try:
        close()
    except Exception as error:
        log.warning("closing a home that was left open: %s", error)


atexit.register(_close_all)
