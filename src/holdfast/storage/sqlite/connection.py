"""Opening the SQLite file as Holdfast wants it, and saying in our words what went wrong.

Only apsw may touch a home's database in a process: a second SQLite library that closes the same
file drops the first one's locks. Pragmas are set one by one and read back, since one that silently
did not take would cost durability.

This module stands on the CLI's cold path: keep its imports few.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock, get_ident
from time import monotonic
from weakref import ref

import apsw

from holdfast.rules import limits
from holdfast.rules.errors import (
    BadInput,
    DiskFull,
    HoldfastError,
    NotAllowed,
    NotOurs,
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
)
from holdfast.storage import fork_gate

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

APPLICATION_ID = 0x486F6C64
"""`Hold`, in the file's header: what the `file` command and our own check recognise."""

UnbindableErrors = (UnicodeEncodeError, OverflowError)
"""What binding raises for half of a surrogate pair (a command line may hold one) and for numbers
beyond 64 bits."""

_POLL_S = 0.0005
_SYNC = {"full": 2, "normal": 1, "off": 0}


def sync_mode(chosen: str | None, default: str | None) -> str:
    """The durability to open with: an argument, else HOLDFAST_STORE_SYNC, else full."""
    mode = (chosen or default or "full").lower()
    if mode not in ("full", "normal"):
        raise BadInput(
            f"store sync {mode!r} is neither full nor normal",
            hint="set HOLDFAST_STORE_SYNC to full, which survives power loss, or to normal, which "
            "may lose the last commits then",
        )
    return mode


def connect(
    path: str | Path,
    *,
    sync: str = "full",
    vfs: str | None = None,
    read_only: bool = False,
    page_bytes: int = limits.WAL_PAGE_BYTES,
) -> apsw.Connection:
    """A connection with every setting in place. A new database gets pages of `page_bytes`.

    Processes that share a database share an index of its WAL, in a file that has to be made. On a
    full disk it cannot be: then this connection has the database alone, until it is closed (see
    `is_alone`), with the index in memory.
    """
    if apsw.SQLITE_VERSION_NUMBER < limits.SQLITE_VERSION_MIN:
        raise StoreFailed(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a database that has readers",
            hint="upgrade apsw: it brings a current SQLite",
        )
    flags = apsw.SQLITE_OPEN_READWRITE | (0 if read_only else apsw.SQLITE_OPEN_CREATE)
    fork_gate.check_may_open(str(path))
    me = get_ident()
    try:
        _OPEN.enter(me)
        try:
            return _connected(path, flags, vfs, sync, page_bytes, read_only, me)
        except DiskFull:
            return _connected(path, flags, vfs, sync, page_bytes, read_only, me, alone=True)
    finally:
        _OPEN.connecting.discard(me)


def is_alone(connection: apsw.Connection) -> bool:
    """Whether this connection keeps all others away from the database."""
    return bool(connection.pragma("locking_mode") == "exclusive")


def _connected(
    path: str | Path,
    flags: int,
    vfs: str | None,
    sync: str,
    page_bytes: int,
    read_only: bool,
    me: int,
    *,
    alone: bool = False,
) -> apsw.Connection:
    try:
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    except apsw.CantOpenError as error:
        raise StoreFailed(f"cannot open {path}: {error}") from error
    except apsw.Error as error:
        raise typed(error) from error
    try:
        _OPEN.known[id(connection)] = _Known(connection, str(path), me)
        if alone:
            connection.pragma("locking_mode", "exclusive")
        _configure(connection, sync, page_bytes, read_only)
        if read_only:
            # Asked now: the file may be there and have no room for the index.
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get  # noqa: B018
    except BaseException as error:
        shut(connection)
        raise typed(error) from error
    return connection


def managed(connection: apsw.Connection) -> None:
    """Says that a store knows when this connection is in use. Any other may be, until closed."""
    _OPEN.known[id(connection)].user = None


class _Refusing:
    """Stands where a connection was, in a forked child."""

    def __getattr__(self, name: str) -> Any:
        raise fork_gate.refusal()


def refusing() -> Any:
    return _Refusing()


class _Known:
    """One connection: its file, and the thread that uses it, where no store knows."""

    def __init__(self, connection: apsw.Connection, path: str, user: int) -> None:
        key = id(connection)
        self.connection = ref(connection, lambda gone: _OPEN.known.pop(key, None))
        self.file = fork_gate.file_id(path)
        self.user: int | None = user


class _OpenConnections:
    """All connections of this process, for the time of a fork."""

    def __init__(self) -> None:
        self.known: dict[int, _Known] = {}
        self.connecting: set[int] = set()
        """The threads that open a connection now."""
        self._fork_ends: LockType | None = None
        """Held while a fork is under way; `threading.Event` would cost the cold path its import."""
        fork_gate.watch(self)

    def enter(self, thread: int) -> None:
        """Notes a thread that is about to connect; a fork that is under way comes first."""
        self.connecting.add(thread)
        while (fork_ends := self._fork_ends) is not None:
            self.connecting.discard(thread)
            with fork_ends:
                pass
            self.connecting.add(thread)

    def still(self, until: float) -> bool:
        self._fork_ends = wait = allocate_lock()
        wait.acquire()
        me = {get_ident(), None}
        while (self.connecting | {known.user for known, _ in self._open()}) - me:
            if monotonic() > until:
                return False
            wait.acquire(timeout=_POLL_S)  # in vain, since we hold it
        return True

    def _open(self) -> list[tuple[_Known, apsw.Connection]]:
        found = [(known, known.connection()) for known in list(self.known.values())]
        return [(known, con) for known, con in found if con is not None and _is_open(con)]

    def go_on(self) -> None:
        fork_ends, self._fork_ends = self._fork_ends, None
        if fork_ends is not None:
            fork_ends.release()

    def disown(self) -> tuple[object, ...]:
        inherited = self._open()
        fork_gate.inherit(known.file for known, _ in inherited if known.file is not None)
        self.known, self.connecting, self._fork_ends = {}, set(), None
        fork_gate.watch(self)
        return (inherited,)


def _is_open(connection: apsw.Connection) -> bool:
    try:
        connection.in_transaction  # noqa: B018
    except apsw.ConnectionClosedError:
        return False
    return True


_OPEN = _OpenConnections()


def shut(connection: apsw.Connection) -> None:
    """Closes a connection; twice is once. What a failing disk does meanwhile costs nothing that was
    committed: the next opening takes it from the log.
    """
    try:
        path = connection.filename
    except apsw.ConnectionClosedError:
        return
    try:
        connection.close(True)
    except apsw.Error as error:
        import logging  # here, because most processes never need it

        logging.getLogger("holdfast").warning("closing %s: %s", path, error)


def _configure(connection: apsw.Connection, sync: str, page_bytes: int, read_only: bool) -> None:
    connection.set_busy_timeout(limits.BUSY_TIMEOUT_MS)
    if connection.pragma("journal_mode") != "wal" and not read_only:
        check_ours(connection)  # before: the journal mode is written into the file
        connection.pragma("page_size", page_bytes)  # of no effect where something is in the file
        _set(connection, "journal_mode", "wal")
    _set(connection, "synchronous", _SYNC[sync])
    _set(connection, "foreign_keys", 1)
    connection.pragma("cache_size", -limits.CACHE_KIB)
    connection.pragma("mmap_size", limits.MMAP_BYTES)
    _set(connection, "temp_store", 2)
    if read_only:
        _set(connection, "query_only", 1)
    else:
        # An old WAL file is overwritten in place, which syncs faster than growing a new one.
        connection.pragma("journal_size_limit", limits.WAL_BYTES_MAX)
        bytes_due = limits.WAL_CHECKPOINT_PAGES * limits.WAL_PAGE_BYTES
        connection.pragma("wal_autocheckpoint", bytes_due // page_bytes_of(connection))


def page_bytes_of(connection: apsw.Connection) -> int:
    found = connection.pragma("page_size")
    assert isinstance(found, int)
    return found


def check_ours(connection: apsw.Connection) -> None:
    """Refuses the database of another program; an empty one may become ours."""
    if connection.pragma("application_id") == APPLICATION_ID:
        return
    if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get is not None:
        raise NotOurs(
            f"{connection.filename} is a SQLite database of another program",
            hint="choose another home",
        )


def _set(connection: apsw.Connection, name: str, value: int | str) -> None:
    connection.pragma(name, value)
    got = connection.pragma(name)
    if got != value:
        raise StoreFailed(f"SQLite did not take {name} = {value}: it says {got}")


def typed(error: BaseException, *, committing: bool = False) -> BaseException:
    """Our error for one of SQLite's; anything else is handed back as it is."""
    if isinstance(error, UnbindableErrors):
        return BadInput(
            f"a name or number cannot be looked for: {error}",
            hint="text is UTF-8 here, and numbers have 64 bits",
        )
    if isinstance(error, UnicodeDecodeError):
        return StoreCorrupt(f"the database holds text that is not UTF-8: {error.object[:40]!r}")
    if not isinstance(error, apsw.Error):
        return error
    what = f"{error} ({type(error).__name__})"
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
        return DiskFull(f"the disk has no room for the index of the WAL: {what}")
    if isinstance(error, apsw.FullError):
        # Full before the commit record is on disk, so the group is certainly not in.
        return DiskFull(f"the disk is full: {what}")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreBusy(f"another process has held the write lock for {limits.BUSY_TIMEOUT_MS} ms")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreCorrupt(f"the database is damaged: {what}")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError):
        return _not_writable(what)
    if committing and isinstance(error, apsw.IOError | apsw.CantOpenError | apsw.ProtocolError):
        return OutcomeUnknown(f"the disk failed while committing: {what}")
    if isinstance(error, apsw.IOError | apsw.CantOpenError | apsw.ProtocolError | apsw.NoMemError):
        return StoreFailed(f"the disk failed: {what}")
    return error


def _not_writable(what: str) -> HoldfastError:
    return NotAllowed(
        f"the database cannot be written: {what}",
        hint="check the owner and mode of the home, and that its disk is not mounted read-only",
    )
