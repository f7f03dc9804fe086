"""Waiting until something in a folder is written, without looking again and again.

Linux tells by inotify, which Python has no module for; its three calls are made through the C
library. Elsewhere, and where the kernel has no more watches to give, a look once a second does it.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
from pathlib import Path
from typing import Final

from holdfast.rules.limits import WATCH_MS

_CHANGES: Final = 0x0002 | 0x0080 | 0x0100
"""IN_MODIFY, IN_MOVED_TO, IN_CREATE"""
_EVENTS_BYTES: Final = 65_536


class FolderWatch:
    """One folder. `wait` belongs to one thread; `close` may be called by another."""

    def __init__(self, folder: Path) -> None:
        self._ended, self._end = os.pipe()
        self._events = _watched(folder)

    def wait(self, timeout_ms: int) -> bool:
        """True as soon as something in the folder was written since the last call, or may have
        been; False after `timeout_ms` or after `close`.
        """
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        if self._events is not None:
            poll.register(self._events, select.POLLIN)
        else:
            timeout_ms = min(timeout_ms, WATCH_MS)
        ready = {fd for fd, _ in poll.poll(timeout_ms)}
        if self._ended in ready:
            return False
        if self._events is None:
            return True
        if self._events in ready:
            os.read(self._events, _EVENTS_BYTES)
        return self._events in ready

    def close(self) -> None:
        """Ends the wait. The descriptors go when the object does, so that nobody waits on one that
        is another file by then.
        """
        os.write(self._end, b"\0")

    def __del__(self) -> None:
        for fd in (self._ended, self._end, self._events):
            if fd is not None:
                os.close(fd)


def _watched(folder: Path) -> int | None:
    """A descriptor that can be read when something in the folder was written; None if the system
    has none to give.
    """
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    fd: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if library.inotify_add_watch(fd, os.fsencode(folder), _CHANGES) < 0:
        os.close(fd)
        return None
    return fd
