"""Sockets in a home on which readers wait for commits of any process.

A reader that waits has a socket in `watchers/`. Whoever commits sends a datagram to each of them
after its commit (`ring_watchers`), so that a reader that is rung finds the commit when it reads.
Neither side polls, and it works in the same way on Linux and on macOS. A watch on the files of the
database would ring too early: the log of SQLite is written before its commit can be seen, and what
makes it visible is written into shared memory, of which the system tells nobody.

The last reader that leaves removes the folder, so that a commit costs one failed look at it where
nobody waits. A socket whose reader was killed refuses the next datagram, and is removed.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from holdfast.rules.errors import HoldfastError, StoreFailed
from holdfast.storage.files.durable import FOLDER_MODE, disk_errors
from holdfast.transport.unix_socket import bound

T = TypeVar("T")

_DRAIN_MAX: Final = 256

log = logging.getLogger("holdfast")


def bind_watcher(where: Callable[[], Path], bind: Callable[[Path], T]) -> T:
    """What `bind` makes of the path for the socket of a new reader."""
    folder = where()
    for last in (False, False, True):
        with disk_errors(f"create the folder {folder}"), suppress(FileExistsError):
            os.mkdir(folder, FOLDER_MODE)
        try:
            with disk_errors(f"make a socket in {folder}"):
                return bind(folder / f"{os.getpid()}-{os.urandom(4).hex()}")
        except StoreFailed:
            if last or folder.exists():
                raise
            # The last reader has just left, and taken the folder with it.
    raise AssertionError("the last try returns or raises")


def leave(path: Path) -> None:
    """Removes the socket of a reader, and the folder if nobody else waits."""
    with suppress(OSError):
        os.unlink(path)
    with suppress(OSError):
        os.rmdir(path.parent)


def ring_watchers(folder: Path) -> None:
    """Rings at every reader that waits. Never waits, never fails."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        for name in names:
            path = folder / name
            try:
                sender.sendto(b"\0", str(path))
            except ConnectionRefusedError:
                leave(path)  # its reader was killed
            except OSError:
                continue  # it has left, or has not heard us yet and will wake anyway


class CommitBell:
    """What one thread waits on. `close` may be called by another; the descriptors go when the
    object does, so that nobody waits on one that is another file by then.
    """

    def __init__(self, folder: Callable[[], Path] | None) -> None:
        self._pid = os.getpid()
        self._path: Path | None = None
        self._socket: socket.socket | None = None
        self._ended, self._end = os.pipe()
        if folder is not None:
            try:
                self._path, self._socket = bind_watcher(folder, _bound)
            except HoldfastError as error:
                # It looks once a second then, as it does anyway.
                log.warning("changes are seen within a second only: %s", error.message)

    def hush(self) -> None:
        """Forgets what has rung until now."""
        if self._socket is not None:
            with suppress(OSError):
                for _ in range(_DRAIN_MAX):
                    self._socket.recv(1)

    def wait(self, timeout_ms: int) -> None:
        """Returns when something has rung, after `close`, and when time is up."""
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        if self._socket is not None:
            poll.register(self._socket.fileno(), select.POLLIN)
        poll.poll(timeout_ms)

    def close(self) -> None:
        """Ends the wait, and leaves the folder."""
        os.write(self._end, b"\0")
        self._leave()

    def _leave(self) -> None:
        path, self._path = self._path, None
        # A forked child has a copy of the object, and nothing to leave.
        if path is not None and self._pid == os.getpid():
            leave(path)

    def __del__(self) -> None:
        self._leave()
        for fd in (self._ended, self._end):
            os.close(fd)
        if self._socket is not None:
            self._socket.close()


def _bound(path: Path) -> tuple[Path, socket.socket]:
    return path, bound(path, socket.SOCK_DGRAM)
