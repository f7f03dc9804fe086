"""Watches the plain files beside the database, so that crashes and faults reach them too.

Holdfast keeps large content in files of its own, made durable by a temporary name, a sync, a
rename and a sync of the folder. Each of these steps can fail or be lost, and forgetting one shows
only when the power goes. While `watch_files` is active, the functions of `os` by which such files
are written report to a simulated disk if the path lies below `root`, and behave as ever otherwise:

    with SimulatedDisk() as disk, watch_files(disk, home):
        ...

Seen are `os.open`, `write`, `ftruncate`, `fsync`, `fdatasync`, `rename`, `replace`, `unlink`,
`remove`, `mkdir` and `rmdir`, and what `pathlib` builds on them. Not seen are Python's own `open()`
for writing, links, memory maps, and calls relative to a directory descriptor. A directory itself
cannot be renamed here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.simulate.disk.call_log import CallLog
from holdfast.simulate.disk.faults import Op, system_error
from holdfast.simulate.disk.platter import (
    SECTOR_BYTES,
    Cut,
    DirectorySynced,
    FileWritten,
    Synced,
    SyncFailed,
)

_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_WATCHED: Final = (
    *("open", "write", "ftruncate", "fsync", "fdatasync"),
    *("rename", "replace", "unlink", "remove", "mkdir", "rmdir"),
)


@contextmanager
def watch_files(call_log: CallLog, root: Path) -> Iterator[None]:
    """Lets the disk see what this process does to files below `root`; several watches may nest."""
    watch = _Watch(call_log, str(root.resolve()))
    for name in _WATCHED:
        setattr(os, name, getattr(watch, name))
    try:
        yield
    finally:
        for name in _WATCHED:
            setattr(os, name, watch.real[name])


class _Opened(NamedTuple):
    path: str
    file: int | None
    """None is a directory."""
    device: int
    inode: int
    life: int


class _Watch:
    def __init__(self, call_log: CallLog, root: str) -> None:
        self.real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in _WATCHED}
        self._call_log = call_log
        self._root = root + os.sep
        self._opened: dict[int, _Opened] = {}

    def open(self, path: _Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        watched = self._below(path, dir_fd)
        if watched is None:
            fd: int = self.real["open"](path, flags, mode, dir_fd=dir_fd)
            # Given out again, perhaps with the inode of a file that was removed here.
            self._opened.pop(fd, None)
            return fd
        with self._call_log.lock:
            creates = bool(flags & os.O_CREAT) and not os.path.lexists(watched)
            self._enter_or_fail("open", watched, creates=creates)
            fd = self.real["open"](path, flags, mode)
            status = os.fstat(fd)
            is_directory = os.path.isdir(watched)
            file = None if is_directory else self._number(watched, creates)
            self._opened[fd] = _Opened(
                watched, file, status.st_dev, status.st_ino, self._call_log.life
            )
            if file is not None and flags & os.O_TRUNC and not creates:
                self._call_log.witness(Cut(file, 0))
            return fd

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
        opened = self._known(fd)
        if opened is None or opened.file is None:
            written: int = self.real["write"](fd, data)
            return written
        with self._call_log.lock:
            kind = self._call_log.enter("write", opened.path)
            content = bytes(data)
            if kind == "full":
                content = content[: len(content) // 2 // SECTOR_BYTES * SECTOR_BYTES]
            if kind != "ioerr":
                written = self.real["write"](fd, content)
                offset = os.lseek(fd, 0, os.SEEK_CUR) - written
                self._call_log.witness(FileWritten(opened.file, offset, content[:written]))
            if kind is not None:
                raise system_error(kind, opened.path)
            return written

    def ftruncate(self, fd: int, length: int) -> None:
        opened = self._known(fd)
        if opened is None or opened.file is None:
            self.real["ftruncate"](fd, length)
            return
        with self._call_log.lock:
            self._enter_or_fail("truncate", opened.path)
            self.real["ftruncate"](fd, length)
            self._call_log.witness(Cut(opened.file, length))

    def fsync(self, fd: int) -> None:
        opened = self._known(fd)
        if opened is None:
            self.real["fsync"](fd)
            return
        with self._call_log.lock:
            kind = self._call_log.enter("sync", opened.path)
            if kind is not None:
                if opened.file is not None:
                    self._call_log.witness(SyncFailed(opened.file))
                raise system_error(kind, opened.path)
            if opened.file is None:
                self._call_log.witness(DirectorySynced(opened.path))
            else:
                self._call_log.witness(Synced(opened.file))

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def replace(
        self,
        src: _Path,
        dst: _Path,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        source, target = self._below(src, src_dir_fd), self._below(dst, dst_dir_fd)
        if source is None or target is None:
            self.real["replace"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        assert not os.path.isdir(source), "a directory cannot be renamed on a watched disk"
        with self._call_log.lock:
            self._enter_or_fail("rename", target)
            if os.path.lexists(source):
                self._number(source, creates=False)
            self.real["replace"](src, dst)
            self._call_log.move(source, target)

    rename = replace

    def unlink(self, path: _Path, *, dir_fd: int | None = None) -> None:
        self._change("unlink", "delete", self._call_log.delete, dir_fd, path)

    remove = unlink

    def mkdir(self, path: _Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._change("mkdir", "mkdir", self._call_log.make_directory, dir_fd, path, mode)

    def rmdir(self, path: _Path, *, dir_fd: int | None = None) -> None:
        self._change("rmdir", "delete", self._call_log.delete, dir_fd, path)

    def _change(
        self,
        name: str,
        op: Op,
        record: Callable[[str], None],
        dir_fd: int | None,
        path: _Path,
        *more: int,
    ) -> None:
        """Calls the real function; on a watched path the call may fail, and is recorded."""
        watched = self._below(path, dir_fd)
        if watched is None:
            self.real[name](path, *more, dir_fd=dir_fd)
            return
        with self._call_log.lock:
            self._enter_or_fail(op, watched)
            self.real[name](path, *more)
            record(watched)

    def _below(self, path: _Path, dir_fd: int | None) -> str | None:
        """The absolute path if it is ours to watch."""
        if dir_fd is not None or self._call_log.backstage:
            return None
        absolute = os.path.abspath(os.fsdecode(path))
        return absolute if f"{absolute}{os.sep}".startswith(self._root) else None

    def _known(self, fd: int) -> _Opened | None:
        """What we opened under this number, unless it was closed and given out again since."""
        opened = self._opened.get(fd)
        if opened is None or self._call_log.backstage:
            return None
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (opened.device, opened.inode):
            return None
        if opened.life != self._call_log.life:
            raise system_error("ioerr", opened.path)  # opened by a process that has died since
        return opened

    def _number(self, path: str, creates: bool) -> int:
        if creates:
            return self._call_log.create(path)
        known = self._call_log.names.get(path)
        return self._call_log.find(path, Path(path).read_bytes()) if known is None else known

    def _enter_or_fail(self, op: Op, path: str, *, creates: bool = False) -> None:
        kind = self._call_log.enter(op, path, creates=creates)
        if kind is not None:
            raise system_error(kind, path)
