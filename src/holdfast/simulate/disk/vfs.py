"""SQLite's door to a simulated disk: apsw's VFS classes over the real unix VFS and real files.

Locks, the write-ahead log and its shared memory pass through, so SQLite runs unchanged. A VFS
belongs to one life of the process. After a crash it is dead: its connections can only be closed.
Closing them changes no file any more, because the files have got new inodes, and SQLite leaves a
database alone that was moved away under it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import apsw

from holdfast.simulate.disk.call_log import CallLog
from holdfast.simulate.disk.faults import Kind, Op, sqlite_error
from holdfast.simulate.disk.platter import (
    SECTOR_BYTES,
    Cut,
    DirectorySynced,
    FileWritten,
    Synced,
    SyncFailed,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer  # in collections.abc from Python 3.12 on

BASE: Final = "unix"
# Losing these loses nothing, so they are neither counted nor failed.
_TEMPORARY: Final = (
    apsw.SQLITE_OPEN_TEMP_DB
    | apsw.SQLITE_OPEN_TRANSIENT_DB
    | apsw.SQLITE_OPEN_TEMP_JOURNAL
    | apsw.SQLITE_OPEN_SUBJOURNAL
)
# With the first sync of these the unix VFS syncs the directory, whether it made or found them.
_SYNCS_DIRECTORY: Final = (
    apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
)


class Generation(apsw.VFS):
    """The VFS of one life of the process; the next life registers another under the same name."""

    def __init__(self, name: str, call_log: CallLog) -> None:
        self.call_log = call_log
        self.alive = True
        super().__init__(name, BASE)

    def die(self) -> None:
        self.alive = False
        self.unregister()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or flags[0] & _TEMPORARY:
            return apsw.VFSFile(BASE, name, flags)
        with self.call_log.lock:
            if not self.alive:
                raise sqlite_error("open", "ioerr")
            return _File(self, name, path, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self.call_log.lock:
            if not self.alive:
                return  # a dead process closes its connections; the files are not its own any more
            kind = self.call_log.enter("delete", filename)
            if kind is not None:
                raise sqlite_error("delete", kind)
            super().xDelete(filename, syncdir)
            self.call_log.delete(filename)
            if syncdir:
                self.call_log.witness(DirectorySynced(os.path.dirname(filename)))


class _File(apsw.VFSFile):
    """One open file of one connection."""

    def __init__(
        self,
        generation: Generation,
        name: str | apsw.URIFilename | None,
        path: str,
        flags: list[int],
    ) -> None:
        call_log = generation.call_log
        creates = bool(flags[0] & apsw.SQLITE_OPEN_CREATE) and not os.path.exists(path)
        kind = call_log.enter("open", path, creates=creates)
        if kind is not None:
            raise sqlite_error("open", kind)
        super().__init__(BASE, name, flags)
        self._generation = generation
        self._call_log = call_log
        self._path = path
        self._owes_directory_sync = bool(flags[0] & _SYNCS_DIRECTORY)
        if creates:
            self._file = call_log.create(path)
        elif path in call_log.names:
            self._file = call_log.names[path]
        else:
            # Through this handle: to open and close the file once more would drop SQLite's locks.
            size = super().xFileSize()
            self._file = call_log.find(path, super().xRead(size, 0) if size else b"")
        call_log.handles += 1
        self._open = True

    def xRead(self, amount: int, offset: int) -> bytes:
        self._pass_or_fail("read")
        return super().xRead(amount, offset)

    def xFileSize(self) -> int:
        self._pass_or_fail("size")
        return super().xFileSize()

    def xWrite(self, data: Buffer, offset: int) -> None:
        with self._call_log.lock:
            kind = self._enter("write")
            content = bytes(data)
            if kind == "full":
                content = content[: len(content) // 2 // SECTOR_BYTES * SECTOR_BYTES]
            if content and kind != "ioerr":
                super().xWrite(content, offset)
                self._call_log.witness(FileWritten(self._file, offset, content))
            if kind is not None:
                raise sqlite_error("write", kind)

    def xTruncate(self, newsize: int) -> None:
        with self._call_log.lock:
            kind = self._enter("truncate")
            if kind is not None:
                raise sqlite_error("truncate", kind)
            super().xTruncate(newsize)
            self._call_log.witness(Cut(self._file, newsize))

    def xSync(self, flags: int) -> None:
        with self._call_log.lock:
            kind = self._enter("sync")
            if kind is not None:
                if self._generation.alive:
                    self._call_log.witness(SyncFailed(self._file))
                raise sqlite_error("sync", kind)
            # No real sync: the witness decides what survives, and a real one costs the most time.
            self._call_log.witness(Synced(self._file))
            if self._owes_directory_sync:
                self._owes_directory_sync = False
                self._call_log.witness(DirectorySynced(os.path.dirname(self._path)))

    def xClose(self) -> None:
        with self._call_log.lock:
            if self._open and self._generation.alive:
                self._call_log.handles -= 1
            self._open = False
        super().xClose()

    def _pass_or_fail(self, op: Op) -> None:
        """For calls that change nothing; a dead process may still read its old files."""
        if not self._generation.alive:
            return
        with self._call_log.lock:
            kind = self._call_log.enter(op, self._path)
        if kind is not None:
            raise sqlite_error(op, kind)

    def _enter(self, op: Op) -> Kind | None:
        """A dead process gets an error for every write: else it might acknowledge what is lost."""
        return self._call_log.enter(op, self._path) if self._generation.alive else "ioerr"
