"""The home: the folder in which one node keeps everything, and who has it open.

    data.db  data.db-wal  data.db-shm     0600   the database (SQLite's own files)
    blobs/ab/<sha256>                     0600 in 0700 folders
    identity.key  identity.next.key       0600   32 random bytes, its signing seed, and the next one
    tls.crt  tls.key                      0600   what its daemon shows to whoever connects
    api.sock  wake.sock                   0600   sockets of its daemon
    ballast                               0600   room that is given up when the disk is full
    log.mark                              0600
    logs/metrics.jsonl
    processes/<pid>-<random>              one per process that has the home open

It is a home once `data.db` exists. The folder is ours alone: another owner, or a link where a file
belongs, is refused; modes that drifted are mended, and the caller tells about it.

**Who has it open.** Each process holds a lock on its file in `processes/` for as long as it lives
and removes the file when it ends well. So a file with a lock is a living process, and a file
without one is a process that ended badly. The kernel drops the lock with the process, whatever
killed it, so process numbers, which are used again and repeat between containers, decide nothing.

- The file is locked under a temporary name and renamed after that: nobody sees it without a lock.
- Whoever asks takes a shared lock for a moment. Two who ask at once do not see each other.
- A forked child gets a copy of the descriptor, which would keep a dead parent's lock alive, so the
  child closes it first thing. A child that works on the home opens it anew.
- The file is not flushed: that would cost more than opening the home. Most file systems keep the
  order of changes, so it is on the disk once any later write is; where one does not, a leftover WAL
  tells the same after a power cut.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from holdfast.rules.errors import AlreadyExists, BadPath, NoHome, NotOurs
from holdfast.storage.files.durable import (
    FILE_MODE,
    FOLDER_MODE,
    TEMPORARY_PREFIX,
    appear_locked,
    disk_errors,
    durable_replace,
    make_folder,
)

IDENTITY_BYTES: Final = 32
_BLOB_CHARS: Final = 64
_BLOB_FOLDER_CHARS: Final = 2
_PRESENCE_BYTES_MAX: Final = 8192
_HEX: Final = frozenset("0123456789abcdef")
_KINDS: Final = {stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFSOCK: "socket"}
_SOCKET_PATH_BYTES_MAX: Final = 100
"""The kernel keeps little room for the name of a socket: 104 bytes on some systems."""
_SHORT_PLACE: Final = Path("/tmp")
"""Not $TMPDIR or $XDG_RUNTIME_DIR: a daemon and a shell may have different ones, and must find the
same socket."""


class HomePaths(msgspec.Struct, frozen=True):
    """Where everything of a home lies."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "data.db"

    @property
    def wal(self) -> Path:
        return self.root / "data.db-wal"

    @property
    def shm(self) -> Path:
        return self.root / "data.db-shm"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def identity(self) -> Path:
        return self.root / "identity.key"

    @property
    def identity_next(self) -> Path:
        return self.root / "identity.next.key"

    @property
    def tls_cert(self) -> Path:
        return self.root / "tls.crt"

    @property
    def tls_key(self) -> Path:
        return self.root / "tls.key"

    @property
    def socket(self) -> Path:
        """Where the daemon listens; use `socket_path`, which knows how long a path may be."""
        return self.root / "api.sock"

    @property
    def wake(self) -> Path:
        """Where other processes nudge the daemon; use `wake_path`."""
        return self.root / "wake.sock"

    @property
    def ballast(self) -> Path:
        return self.root / "ballast"

    @property
    def mark(self) -> Path:
        return self.root / "log.mark"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def metrics(self) -> Path:
        return self.root / "logs" / "metrics.jsonl"

    @property
    def processes(self) -> Path:
        return self.root / "processes"

    @property
    def backup_lock(self) -> Path:
        return self.root / "backup.lock"

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.blobs, self.logs, self.processes)

    @property
    def files(self) -> tuple[Path, ...]:
        inner = (self.database, self.wal, self.shm, self.identity, self.mark)
        serving = (self.identity_next, self.tls_cert, self.tls_key, self.ballast)
        return (*inner, self.metrics, self.backup_lock, *serving)

    @property
    def sockets(self) -> tuple[Path, ...]:
        return (self.socket, self.wake)


def resolve_home(explicit: str | Path | None, environ: Mapping[str, str]) -> Path:
    """The home to use: the one named, else $HOLDFAST_HOME, else the platform's data folder."""
    if explicit is not None:
        return _usable_path(str(explicit), "the path of the home")
    named = environ.get("HOLDFAST_HOME", "")
    if named:
        return _usable_path(named, "$HOLDFAST_HOME")
    # Imported only here: it costs as much as the rest of a start, and most starts name a home.
    import platformdirs

    return Path(platformdirs.user_data_dir("holdfast", appauthor=False)).absolute()


def require_home(root: Path) -> HomePaths:
    """The paths of a home that is there, or NoHome."""
    paths = HomePaths(root)
    if _status(paths.database) is None:
        raise NoHome(f"there is no Holdfast home in {root}")
    return paths


def create_home(root: Path, peer: str) -> HomePaths:
    """The folders and the key of a new home; the database is the caller's next step.

    A creation that was cut short is taken up where it stopped, with the key that is there. Two
    processes that create the same home at once get the same key.
    """
    paths = HomePaths(root)
    other = f"choose another folder: holdfast init --peer {peer} --home FOLDER"
    _make_root(root, other)
    with alone_in(root):
        _refuse_used(paths, other)
        check_modes(paths)
        for folder in paths.folders:
            make_folder(folder)
        if not paths.identity.exists():
            durable_replace(paths.identity, os.urandom(IDENTITY_BYTES))
    return paths


def check_modes(paths: HomePaths, *, full: bool = False) -> list[str]:
    """Mends modes that drifted, one sentence for each; NotOurs if that is not ours to mend.

    The cost does not grow with the number of blobs, unless `full` asks for each of them.
    """
    # The root itself may be a link: people put large folders on large disks.
    status = _status(paths.root, follow=True)
    if status is None:
        raise NoHome(f"there is no folder {paths.root}")
    mended = _guard(paths.root, status, stat.S_IFDIR)
    for folder in paths.folders:
        mended += _guard_if_there(folder, stat.S_IFDIR)
    for file in paths.files:
        mended += _guard_if_there(file, stat.S_IFREG)
    for socket in paths.sockets:
        mended += _guard_if_there(socket, stat.S_IFSOCK)
    for blob_folder in _hex_names(paths.blobs, _BLOB_FOLDER_CHARS):
        mended += _guard_if_there(blob_folder, stat.S_IFDIR)
        if full:
            mended += _guard_blobs(blob_folder)
    return mended


def socket_path(paths: HomePaths) -> Path:
    """Where the daemon of a home listens: in the home, or near if its path is too long for that.

    NotOurs if somebody else has laid a folder there.
    """
    return _safe(_reachable(paths, paths.socket), paths)


def wake_path(paths: HomePaths, *, make: bool = False) -> Path:
    """Where the daemon of a home is nudged. Whoever nudges only looks: this never fails, and a
    nudge that falls into a trap says nothing. With `make`, for the daemon, see `socket_path`.
    """
    path = _reachable(paths, paths.wake)
    return _safe(path, paths) if make else path


class Holder(msgspec.Struct, frozen=True):
    """A process that has the home open, or had when it ended badly."""

    pid: int
    command: str
    started_at: int
    """Milliseconds since 1970 on that process's clock."""
    name: str
    """Of its file in `processes/`; never used twice."""


class _Note(msgspec.Struct):
    """What is written in the file, for people and for error messages."""

    pid: int
    started_at_ms: int
    argv0: str


class Presence:
    """This process's sign at the door of a home. Two in one process are fine."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def enter(cls, paths: HomePaths) -> Presence:
        note = _Note(os.getpid(), time.time_ns() // 1_000_000, _argv0())
        path = paths.processes / f"{note.pid}-{os.urandom(8).hex()}"
        with disk_errors(f"enter {paths.root}"), _fork_waits:
            try:
                _held[path.name] = appear_locked(path, msgspec.json.encode(note))
            except FileNotFoundError:
                make_folder(paths.processes)
                _held[path.name] = appear_locked(path, msgspec.json.encode(note))
        return cls(path)

    def leave(self) -> None:
        """A good end. A forked child has nothing to leave, and twice is once."""
        with disk_errors(f"leave {self.path}"), _fork_waits:
            fd = _held.pop(self.path.name, None)
            if fd is None:
                return
            try:
                # Removed while it is locked: nobody sees it without a lock and thinks of a crash.
                self.path.unlink(missing_ok=True)
            finally:
                os.close(fd)

    def vanish(self) -> None:
        """A bad end: the lock goes, as with a killed process, and the file stays."""
        with _fork_waits:
            fd = _held.pop(self.path.name, None)
            if fd is not None:
                os.close(fd)


def others(paths: HomePaths) -> list[Holder]:
    """The other processes that have the home open now."""
    return [holder for holder, alive in _look(paths) if alive]


def unclean(paths: HomePaths) -> list[Holder]:
    """The processes that ended without leaving: killed, crashed, or the machine went down."""
    return [holder for holder, alive in _look(paths) if not alive]


def left_log(paths: HomePaths) -> bool:
    """Has everybody gone and left a write-ahead log? The last one to leave well removes it."""
    status = _status(paths.wal)
    if status is None or not status.st_size or _status(paths.database) is None:
        return False
    here = any(_status(paths.processes / name) is not None for name in _held)
    return not here and not others(paths)


def clear_unclean(paths: HomePaths, holders: Iterable[Holder]) -> None:
    """Forget these bad ends. Call it after what they ask for (the integrity check) was done.

    Only what the caller saw is forgotten, so a process that dies meanwhile is noticed next time.
    """
    for holder in holders:
        assert _pid_of(holder.name) is not None, "only a name that unclean() returned"
        with disk_errors(f"remove {paths.processes / holder.name}"):
            (paths.processes / holder.name).unlink(missing_ok=True)


# --- The folder --------------------------------------------------------------------------------


def _usable_path(text: str, what: str) -> Path:
    if not text or "\0" in text:
        raise BadPath(f"{what} is {text!r}", hint="name a folder")
    try:
        text.encode()
    except UnicodeEncodeError:
        # SQLite takes names as UTF-8 only.
        raise BadPath(
            f"{what} is not UTF-8: {text!r}", hint="rename the folder, or choose another"
        ) from None
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise BadPath(f"{what} is {text!r}: {error}", hint="write the path without ~") from error


def _make_root(root: Path, other: str) -> None:
    missing = [folder for folder in (root, *root.parents) if not os.path.exists(folder)]
    nearest = missing[-1].parent if missing else root
    if not nearest.is_dir():
        raise AlreadyExists(f"{nearest} is a file, not a folder", hint=other)
    allowed = os.W_OK | os.X_OK
    if not os.access(nearest, allowed, effective_ids=os.access in os.supports_effective_ids):
        raise NotOurs(f"this user may not write in {nearest}", hint=other)
    # Parents too are made for our eyes only: who may write there may replace the home.
    for folder in reversed(missing):
        make_folder(folder)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One at a time among the processes that change what lies in a folder."""
    with disk_errors(f"lock {folder}"):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with disk_errors(f"lock {folder}"):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _refuse_used(paths: HomePaths, other: str) -> None:
    """An empty folder or the beginnings of a home may become one; nothing else is touched."""
    with disk_errors(f"list {paths.root}"):
        names = {name for name in os.listdir(paths.root) if not name.startswith(TEMPORARY_PREFIX)}
        has_blobs = paths.blobs.is_dir() and len(os.listdir(paths.blobs)) > 0
    if paths.database.name in names:
        raise AlreadyExists(f"{paths.root} is a Holdfast home already", hint=f"open it, or {other}")
    ours = {*(folder.name for folder in paths.folders), paths.identity.name}
    lost = any(name.startswith(paths.database.name) for name in names)
    if lost or has_blobs or paths.mark.name in names:
        raise AlreadyExists(
            f"{paths.root} is what remains of a home: its database {paths.database.name} is gone",
            hint=f"restore it from a backup, or {other}",
        )
    if names - ours:
        raise AlreadyExists(f"{paths.root} is not empty and not a Holdfast home", hint=other)
    if paths.identity.name in names and paths.identity.lstat().st_size != IDENTITY_BYTES:
        raise AlreadyExists(f"{paths.identity} is not a key of Holdfast", hint=other)


# --- Modes -------------------------------------------------------------------------------------


def _status(path: str | Path, *, follow: bool = False) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise NotOurs(
            f"this user may not look at {path}", hint="run as the user who owns the home"
        ) from error
    except OSError:
        with disk_errors(f"look at {path}"):
            raise


def _guard_if_there(path: str | Path, kind: int) -> list[str]:
    status = _status(path)
    return [] if status is None else _guard(path, status, kind)


def _guard(path: str | Path, status: os.stat_result, kind: int) -> list[str]:
    if stat.S_IFMT(status.st_mode) != kind:
        found = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "something else"
        wanted = _KINDS[kind]
        raise NotOurs(
            f"{path} is {found} where a {wanted} belongs",
            hint=f"put the {wanted} itself there: nothing in a home is followed to elsewhere",
        )
    if status.st_uid != os.geteuid():
        raise NotOurs(
            f"{path} belongs to user {status.st_uid}, and this process runs as {os.geteuid()}",
            hint=f"run as that user, or give it back: chown -R {os.geteuid()} on the home",
        )
    wanted_mode = FOLDER_MODE if kind == stat.S_IFDIR else FILE_MODE
    mode = stat.S_IMODE(status.st_mode)
    if mode == wanted_mode:
        return []
    with disk_errors(f"set the mode of {path}"):
        try:
            # By name, never through a descriptor: closing one of the database's files would drop
            # every lock that SQLite holds on it in this process.
            os.chmod(path, wanted_mode)
        except FileNotFoundError:
            return []  # another process closed the database; its WAL is gone
    return [f"{path} had mode {mode:04o}; it is {wanted_mode:04o} again"]


def _reachable(paths: HomePaths, socket: Path) -> Path:
    """A name for the socket that the kernel takes."""
    # The real path decides: a home is the same by whatever links one comes to it.
    real = os.fsencode(os.path.realpath(paths.root))
    if len(real) + len(f"/{socket.name}") <= _SOCKET_PATH_BYTES_MAX:
        return Path(os.fsdecode(real)) / socket.name
    from hashlib import sha256  # rarely needed, and it would cost every start

    name = f"holdfast-{os.geteuid()}-{sha256(real).hexdigest()[:32]}"
    return _SHORT_PLACE / name / socket.name


def _safe(socket: Path, paths: HomePaths) -> Path:
    """The same, in a folder of ours.

    A short name stands where everybody may write, so whoever comes first could set a trap there: a
    folder that is not ours, or that others may enter, is not used.
    """
    folder = socket.parent
    if folder.parent == _SHORT_PLACE and folder != Path(os.path.realpath(paths.root)):
        if _status(folder) is None:
            make_folder(folder)
        _guard_if_there(folder, stat.S_IFDIR)
    return socket


def _hex_names(folder: str | Path, chars: int) -> list[str]:
    """The paths in a folder whose name is a hash, or the beginning of one, of this length."""
    with disk_errors(f"list {folder}"):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
    ours = (name for name in names if len(name) == chars and _HEX.issuperset(name))
    return [os.path.join(folder, name) for name in ours]


def _guard_blobs(folder: str) -> list[str]:
    """Each blob of a folder, told in one sentence: there may be very many."""
    blobs = _hex_names(folder, _BLOB_CHARS)
    count = sum(len(_guard_if_there(blob, stat.S_IFREG)) for blob in blobs)
    return [f"{count} blobs in {folder} had other modes; they are 0600 again"] if count else []


# --- Presence ----------------------------------------------------------------------------------

_held: Final[dict[str, int]] = {}
"""What this process holds: the names of its files and the descriptors that carry the locks."""
_fork_waits: Final = threading.RLock()
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
    return Holder(note.pid, note.argv0 or "an unknown command", note.started_at_ms, name)


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
