"""Who has a home open.

Each process holds a lock on its file in `processes/` for as long as it lives and removes the file
when it ends well. So a file with a lock is a living process, and a file without one is a process
that ended badly. The kernel drops the lock with the process, whatever killed it, so process
numbers, which are used again and repeat between containers, decide nothing.

- The file is locked under a temporary name and renamed after that: no process sees it without a
  lock.
- A process that asks takes a shared lock for a moment. Two that ask at once do not see each other.
- A forked child gets a copy of the descriptor, which would keep a dead parent's lock alive, so the
  child closes it first thing. A child that works on the home opens it anew.
- The sign of a process that works on the database says on which one, and since which start of the
  machine (`vouch`): if it is killed and the machine goes on, the system still has every byte that
  it wrote, and there is less to check (docs/decisions/0108). Once its disk has failed it says so no
  more (`doubt`).
- The file is not flushed: that would cost more than opening the home. Most file systems keep the
  order of changes, so it is on the disk once any later write is; where one does not, a leftover WAL
  tells the same after a power cut.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from holdfast.storage.files.durable import (
    FULL,
    appear_locked,
    disk_errors,
    make_folder,
)
from holdfast.storage.files.home import HomePaths, status_of
from holdfast.storage.owned_lock import owned_lock, run_locked

_PRESENCE_BYTES_MAX: Final = 8192
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_HEX: Final = frozenset("0123456789abcdef")


class Holder(msgspec.Struct, frozen=True):
    """A process that has the home open, or had when it ended badly."""

    pid: int
    command: str
    started_at: int
    """Milliseconds since 1970 on that process's clock."""
    name: str
    """Of its file in `processes/`; never used twice."""
    proof: str = ""
    """Which database it worked on, since which start of the machine; empty if it does not say."""


class _Note(msgspec.Struct):
    """What is written in the file, for people and for error messages."""

    pid: int
    started_at_ms: int
    argv0: str
    proof: str = ""


class Presence:
    """This process's sign at the door of a home. Two in one process are fine."""

    __slots__ = ("_note", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._note = _Note(os.getpid(), time.time_ns() // 1_000_000, _argv0())

    @classmethod
    def enter(cls, paths: HomePaths) -> Presence:
        presence = cls.at(paths)
        presence.appear()
        return presence

    @classmethod
    def at(cls, paths: HomePaths) -> Presence:
        """A sign with a name of its own, which has not appeared yet."""
        return cls(paths.processes / f"{os.getpid()}-{os.urandom(8).hex()}")

    def vouch(self, database: Path) -> None:
        """Says that all that this process writes goes to this database, by way of a system that is
        up. What cannot be said is left out: then more is checked, and nothing is lost.
        """
        with suppress(OSError):
            self._say(proof_of(database))

    def doubt(self) -> None:
        """A disk has failed under this process: nobody shall rely on what it has written."""
        try:
            self._say("")
        except OSError:
            with suppress(OSError):
                run_locked(_fork_waits, lambda: self._write(b""))  # needs no room

    def _say(self, proof: str) -> None:
        note = msgspec.structs.replace(self._note, proof=proof)
        run_locked(_fork_waits, lambda: self._write(msgspec.json.encode(note)))

    def _write(self, content: bytes) -> None:
        fd = _held.get(self.path.name)
        if fd is not None:
            # Shorter first: a reader in between finds a note that cannot be read, and no wrong one.
            os.ftruncate(fd, 0)
            os.pwrite(fd, content, 0)

    def appear(self, *, full_disk: bool = False) -> None:
        """With `full_disk`, who finds no room for a sign goes on without: a home can still be read
        then. Who works on a home alone needs one.
        """
        note = msgspec.json.encode(self._note)
        with disk_errors(f"enter {self.path.parent.parent}"):
            for content in (note, b""):
                try:
                    self._appear(content)
                    return
                except OSError as error:
                    if error.errno not in FULL or not full_disk:
                        raise

    def _appear(self, content: bytes) -> None:
        try:
            run_locked(_fork_waits, lambda: appear_locked(self.path, content, _held))
        except FileNotFoundError:
            make_folder(self.path.parent)
            run_locked(_fork_waits, lambda: appear_locked(self.path, content, _held))

    def leave(self) -> None:
        """A good end. A forked child has nothing to leave, and twice is once."""
        with disk_errors(f"leave {self.path}"):
            run_locked(_fork_waits, self._leave)

    def _leave(self) -> None:
        if self.path.name in _held:
            try:
                # Removed while it is locked: nobody sees it without a lock and thinks of a crash.
                self.path.unlink(missing_ok=True)
            finally:
                os.close(_held.pop(self.path.name))

    def vanish(self) -> None:
        """A bad end: the lock goes, as with a killed process, and the file stays."""
        run_locked(_fork_waits, self._vanish)

    def _vanish(self) -> None:
        if self.path.name in _held:
            os.close(_held.pop(self.path.name))


def others(paths: HomePaths) -> list[Holder]:
    """The other processes that have the home open now."""
    return [holder for holder, alive in _look(paths) if alive]


def unclean(paths: HomePaths) -> list[Holder]:
    """The processes that ended without leaving: killed, crashed, or the machine went down."""
    return [holder for holder, alive in _look(paths) if not alive]


def proof_of(database: Path) -> str:
    """What stays the same while the machine is up and the database is where it is. A copy, or one
    that took its place, is another; so is the same one after a power cut. Empty if the system does
    not tell when it was started.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
        status = os.stat(database)
    except (OSError, UnicodeDecodeError):
        return ""
    return f"{boot} {status.st_dev} {status.st_ino}" if boot else ""


def only_killed(paths: HomePaths, ended: Sequence[Holder]) -> bool:
    """Did these processes end while the machine went on and their disk worked? Without a log to
    look at, where nobody else has the home open, it cannot be said.
    """
    proof = proof_of(paths.database)
    alike = bool(ended) and bool(proof) and all(holder.proof == proof for holder in ended)
    return alike and (status_of(paths.wal) is not None or bool(others(paths)))


def left_log(paths: HomePaths) -> bool:
    """Has everybody gone and left a write-ahead log? The last one to leave well removes it."""
    status = status_of(paths.wal)
    if status is None or not status.st_size or status_of(paths.database) is None:
        return False
    here = any(status_of(paths.processes / name) is not None for name in _held)
    return not here and not others(paths)


def clear_unclean(paths: HomePaths, holders: Iterable[Holder]) -> None:
    """Forget these bad ends. Call it after what they ask for (the integrity check) was done.

    Only what the caller saw is forgotten, so a process that dies meanwhile is noticed next time.
    """
    for holder in holders:
        assert _pid_of(holder.name) is not None, "only a name that unclean() returned"
        with disk_errors(f"remove {paths.processes / holder.name}"):
            (paths.processes / holder.name).unlink(missing_ok=True)


_held: Final[dict[str, int]] = {}
"""What this process holds: the names of its files and the descriptors that carry the locks."""


_fork_waits: Final = owned_lock()
"""A fork in another thread waits until a descriptor is in `_held`, so the child knows of it."""


def _in_child() -> None:
    try:
        for fd in _held.values():
            os.close(fd)
    finally:
        _held.clear()
        _fork_waits.release()


os.register_at_fork(
    before=_fork_waits.acquire, after_in_parent=_fork_waits.release, after_in_child=_in_child
)


def _look(paths: HomePaths) -> Iterator[tuple[Holder, bool]]:
    """Every process but this one, and whether it lives."""
    with disk_errors(f"list {paths.processes}"):
        try:
            names = sorted(os.listdir(paths.processes))
        except FileNotFoundError:
            return
    for name in names:
        if _pid_of(name) is None or name in _held:
            continue
        with disk_errors(f"look at {paths.processes / name}"):
            seen = _look_at(paths.processes / name)
        if seen is not None:
            yield seen


def _look_at(path: Path) -> tuple[Holder, bool] | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            alive = False
        except BlockingIOError:
            alive = True
        status = os.fstat(fd)
        if status.st_nlink == 0:
            return None  # it left well between our opening the file and our trying the lock
        return _holder(path.name, status, os.read(fd, _PRESENCE_BYTES_MAX)), alive
    finally:
        os.close(fd)


def _holder(name: str, status: os.stat_result, content: bytes) -> Holder:
    try:
        note = msgspec.json.decode(content, type=_Note)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A power cut may keep the name and lose the content; the name and the time are enough.
        note = _Note(_pid_of(name) or 0, status.st_mtime_ns // 1_000_000, "")
    command = note.argv0 or "an unknown command"
    return Holder(note.pid, command, note.started_at_ms, name, note.proof)


def _pid_of(name: str) -> int | None:
    pid, _, random = name.partition("-")
    if not (pid.isascii() and pid.isdecimal() and len(random) == 16 and _HEX.issuperset(random)):
        return None
    return int(pid)


def _argv0() -> str:
    """The command without its arguments: those may hold what nobody else should read."""
    command = (sys.argv and sys.argv[0]) or sys.executable or "python"
    # Names of files may hold any bytes; what is written must be text.
    return os.fsencode(command).decode("utf-8", "replace")
