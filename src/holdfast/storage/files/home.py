"""The home: the folder in which one node keeps everything.

    data.db  data.db-wal  data.db-shm     0600   the database (SQLite's own files)
    blobs/ab/<sha256>                     0600 in 0700 folders
    identity.key  identity.next.key       0600   32 random bytes, its signing seed, and the next one
    identity.former                       0600   how its earlier keys signed the ones after them
    tls.crt  tls.key                      0600   what its daemon shows to clients
    api.sock  wake.sock                   0600   sockets of its daemon
    ballast                               0600   room that is given up when the disk is full
    log.mark                              0600
    bus.mark                              0600   which numbers its bus has reserved
    quorum.db  quorum.db-wal  quorum.db-shm  0600  its Raft logs: terms, votes and entries
    quorum.mark  quorum.lock              0600   what they must show at least; who has them open
    quorum.ballast                        0600   room for votes when the disk is full
    whereabouts.json                      0600
    logs/metrics.jsonl
    processes/<pid>-<random>              one per process that has the home open (`presence`)
    watchers/<pid>-<random>               0600   sockets of readers that wait, while there are any

It is a home once `data.db` exists. The folder is ours alone: another owner, or a link where a file
belongs, is refused; modes that drifted are mended, and the caller tells about it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.rules.errors import AlreadyExists, BadPath, NoHome, NotOurs
from holdfast.rules.paths import check_place
from holdfast.storage.files.durable import (
    FILE_MODE,
    FOLDER_MODE,
    TEMPORARY_PREFIX,
    alone_in,
    disk_errors,
    durable_replace,
    make_folder,
)

IDENTITY_BYTES: Final = 32
_BLOB_CHARS: Final = 64
_BLOB_FOLDER_CHARS: Final = 2
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
    def identity_former(self) -> Path:
        return self.root / "identity.former"

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
    def watchers(self) -> Path:
        """Sockets of readers that wait; use `watchers_folder`."""
        return self.root / "watchers"

    @property
    def ballast(self) -> Path:
        return self.root / "ballast"

    @property
    def mark(self) -> Path:
        return self.root / "log.mark"

    @property
    def bus_mark(self) -> Path:
        return self.root / "bus.mark"

    @property
    def quorum(self) -> Path:
        """The Raft logs. Never in a backup: a restored home has no past to vote with."""
        return self.root / "quorum.db"

    @property
    def quorum_wal(self) -> Path:
        return self.root / "quorum.db-wal"

    @property
    def quorum_shm(self) -> Path:
        return self.root / "quorum.db-shm"

    @property
    def quorum_mark(self) -> Path:
        return self.root / "quorum.mark"

    @property
    def quorum_lock(self) -> Path:
        return self.root / "quorum.lock"

    @property
    def quorum_ballast(self) -> Path:
        return self.root / "quorum.ballast"

    @property
    def auth_key(self) -> Path:
        """What opens the auth material in the database. Never in a backup."""
        return self.root / "auth.key"

    @property
    def whereabouts(self) -> Path:
        return self.root / "whereabouts.json"

    @property
    def console(self) -> Path:
        """The sessions of browsers at the console. Never in a backup."""
        return self.root / "console.json"

    @property
    def ephemeral(self) -> Path:
        """Marks a home that is removed when its daemon ends."""
        return self.root / "ephemeral"

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
        inner = (self.database, self.wal, self.shm, self.identity, self.mark, self.whereabouts)
        serving = (
            self.identity_next,
            self.identity_former,
            self.tls_cert,
            self.tls_key,
            self.auth_key,
            self.ballast,
            self.console,
        )
        return (*inner, self.metrics, self.backup_lock, self.bus_mark, *serving, *self._voting)

    @property
    def _voting(self) -> tuple[Path, ...]:
        rows = (self.quorum, self.quorum_wal, self.quorum_shm)
        return (*rows, self.quorum_mark, self.quorum_lock, self.quorum_ballast)

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
    if status_of(paths.database) is None:
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
    status = status_of(paths.root, follow=True)
    if status is None:
        raise NoHome(f"there is no folder {paths.root}")
    mended = _guard(paths.root, status, stat.S_IFDIR)
    for folder in paths.folders:
        mended += _guard_if_there(folder, stat.S_IFDIR)
    for file in paths.files:
        mended += _guard_if_there(file, stat.S_IFREG)
    mended += _guard_if_there(paths.watchers, stat.S_IFDIR)
    for socket in paths.sockets:
        mended += _guard_if_there(socket, stat.S_IFSOCK)
    for blob_folder in _hex_names(paths.blobs, _BLOB_FOLDER_CHARS):
        mended += _guard_if_there(blob_folder, stat.S_IFDIR)
        if full:
            mended += _guard_blobs(blob_folder)
    return mended


def socket_path(paths: HomePaths) -> Path:
    """Where the daemon of a home listens: in the home, or near if its path is too long for that.

    NotOurs if another user has made a folder there.
    """
    return _safe(_reachable(paths, paths.socket), paths)


def wake_path(paths: HomePaths, *, make: bool = False) -> Path:
    """Where other processes nudge the daemon of a home. For them this never fails: a nudge that
    goes to a wrong place tells nothing. With `make`, for the daemon, see `socket_path`.
    """
    path = _reachable(paths, paths.wake)
    return _safe(path, paths) if make else path


def watchers_folder(paths: HomePaths, *, make: bool = False) -> Path:
    """Where readers that wait for commits have their sockets; the first of them makes it. With
    `make`, for readers, see `socket_path`; for those who nudge them this never fails.
    """
    # A name in it is that of a process and eight digits.
    longest = paths.watchers / "4294967295-12345678"
    folder = _reachable(paths, longest, below=paths.watchers.name).parent
    return _safe(folder, paths) if make else folder


# --- The folder --------------------------------------------------------------------------------


def _usable_path(text: str, what: str) -> Path:
    check_place(text, what)
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


def status_of(path: str | Path, *, follow: bool = False) -> os.stat_result | None:
    """What the system knows of a file; None if there is none."""
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


def size_of(path: str | Path) -> int:
    """How many bytes a file has; 0 if there is none. By one look: another process may remove a WAL
    between two.
    """
    status = status_of(path)
    return 0 if status is None else status.st_size


def _guard_if_there(path: str | Path, kind: int) -> list[str]:
    status = status_of(path)
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


def _reachable(paths: HomePaths, socket: Path, *, below: str = "") -> Path:
    """A name for the socket that the kernel takes. `below` is the folder of the home for it."""
    # The real path decides: a home is the same by whatever links one comes to it.
    real = os.fsencode(os.path.realpath(paths.root))
    name = Path(below, socket.name)
    if len(real) + len(f"/{name}") <= _SOCKET_PATH_BYTES_MAX:
        return Path(os.fsdecode(real)) / name
    from hashlib import sha256  # rarely needed, and it would cost every start

    short = f"holdfast-{os.geteuid()}-{sha256(real).hexdigest()[:32]}"
    return _SHORT_PLACE / short / name


def _safe(socket: Path, paths: HomePaths) -> Path:
    """The same, in a folder of ours.

    A short name stands where every user may write, and another could have made the folder first. A
    folder that is not ours, or that others may enter, is not used.
    """
    folder = socket.parent
    if folder.parent == _SHORT_PLACE and folder != Path(os.path.realpath(paths.root)):
        if status_of(folder) is None:
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
    """Mends each blob of a folder; one sentence for all, because there may be very many."""
    blobs = _hex_names(folder, _BLOB_CHARS)
    count = sum(len(_guard_if_there(blob, stat.S_IFREG)) for blob in blobs)
    return [f"{count} blobs in {folder} had other modes; they are 0600 again"] if count else []
