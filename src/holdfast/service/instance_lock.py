"""Which process serves a home: one at a time, and any other process can find out which.

The daemon holds a lock on `daemon.lock` for as long as it lives, and writes into it who it is and
where it listens. The kernel drops the lock with the process, however it ends, so what stands in a
file without a lock means nothing. The bus of a home has such a lock of its own: a program may hold
it without a daemon.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.rules.errors import AlreadyExists, DiskFull
from holdfast.storage import fork_gate
from holdfast.storage.files.ballast import Ballast
from holdfast.storage.files.durable import disk_errors
from holdfast.storage.files.home import HomePaths

log = logging.getLogger("holdfast")

LOCK: Final = "daemon.lock"
_NOTE_BYTES_MAX: Final = 65536
_TRIES: Final = 50
_MOMENT_S: Final = 0.01
_END: Final = "end it first: holdfast down"


class DaemonNote(msgspec.Struct, frozen=True):
    """What stands in the lock file: who holds the lock, and where it listens."""

    pid: int
    addresses: list[str] = []


class DaemonLock:
    """One daemon for each home. The kernel drops the lock with the process, however it ends."""

    def __init__(
        self, paths: HomePaths, *, what: str = "a daemon", end: str = _END, file: str = LOCK
    ) -> None:
        self._path = paths.root / file
        with disk_errors(f"open {self._path}"):
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if not self._take():
            os.close(self._fd)
            holder = daemon_note(paths, file)
            who = "another process" if holder is None else f"process {holder.pid}"
            raise AlreadyExists(
                f"{what} serves {paths.root} already: {who}", hint=f"use that one, or {end}"
            )
        self.write(DaemonNote(os.getpid()))
        fork_gate.watch(self)

    def still(self, until: float) -> bool:
        return True

    def go_on(self) -> None: ...

    def disown(self) -> tuple[object, ...]:
        """A forked child closes its copy, which would keep the lock of a dead parent alive."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        return ()

    def _take(self) -> bool:
        """True once the lock is ours. A process that only looks holds it too, for a moment: another
        try tells it from a daemon.
        """
        moment = threading.Event()
        for _ in range(_TRIES):
            if _locks(self._fd, fcntl.LOCK_EX):
                return True
            if not _locks(self._fd, fcntl.LOCK_SH):
                return False
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            moment.wait(_MOMENT_S)
        return False

    def write(self, note: DaemonNote) -> None:
        try:
            self._write(note)
        except DiskFull as error:
            Ballast(self._path.parent).release()
            try:
                self._write(note)
            except DiskFull:
                # The lock says that a daemon is here; where it listens, its own messages say.
                log.warning("%s", error.message)

    def _write(self, note: DaemonNote) -> None:
        with disk_errors(f"write {self._path}"):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(note), 0)

    def close(self) -> None:
        if self._fd < 0:
            return
        # Emptied, not removed: a process that opened it meanwhile would lock a file that is gone.
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
        fd, self._fd = self._fd, -1
        os.close(fd)


def daemon_note(paths: HomePaths, file: str = LOCK) -> DaemonNote | None:
    """Which daemon serves a home now; None if none does."""
    try:
        fd = os.open(paths.root / file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        if _locks(fd, fcntl.LOCK_SH):
            return None
        return msgspec.json.decode(os.pread(fd, _NOTE_BYTES_MAX, 0), type=DaemonNote)
    except msgspec.DecodeError:
        # It has just taken the lock, is about to leave, or found no room on the disk for its note.
        pid = _locked_by(fd)
        return None if pid is None else DaemonNote(pid)
    finally:
        os.close(fd)


def _locked_by(fd: int) -> int | None:
    """The process that holds the lock of a file, where the system tells: Linux does."""
    status = os.fstat(fd)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            held = [line.split() for line in locks]
    except OSError:
        return None
    pids = [
        int(words[4]) for words in held if words[1:4:2] == ["FLOCK", "WRITE"] and words[5] == place
    ]
    return pids[0] if pids and pids[0] > 0 else None


def wait_until_free(paths: HomePaths, timeout_s: float, file: str = LOCK) -> bool:
    """Waits until no daemon serves a home; False if that takes longer than `timeout_s`."""
    with disk_errors(f"open {paths.root / file}"):
        fd = os.open(paths.root / file, os.O_RDONLY | os.O_NOFOLLOW)
    # Only a blocked call learns of it, so a thread waits; if it still waits, it ends with us.
    waiter = threading.Thread(target=_wait_and_close, args=(fd,), daemon=True)
    waiter.start()
    waiter.join(timeout_s)
    return not waiter.is_alive()


def _wait_and_close(fd: int) -> None:
    """Waits for a lock and lets go of it at once, also when nobody waits for that any more."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _locks(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
