"""A file of nothing that keeps the last bytes of a disk for the way back.

Deleting writes, too: on a disk without a free byte a database can neither confirm nor forget. So a
file lies in the home whose only worth is the space that it takes. When a commit meets a full disk
it is released, and what makes room again has room to work in.

It has no content, so it needs no care at a crash: half of one is not `present`, and laying it again
completes it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Final

from holdfast.rules.limits import BALLAST_BYTES, BALLAST_ROOM_FACTOR, MIB
from holdfast.storage.files.durable import FILE_MODE, disk_errors

_BLOCK: Final = 512
"""What `st_blocks` counts in, whatever the file system's own blocks are."""
_CANNOT_ALLOCATE: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class Ballast:
    """The ballast of one home; the Raft logs in it have another one."""

    def __init__(self, home: Path, *, size: int = BALLAST_BYTES, name: str = "ballast") -> None:
        self.path = home / name
        self.size = size

    def present(self) -> bool:
        """Is it there, with all its bytes on the disk?"""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return False
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_size == self.size
            and status.st_blocks * _BLOCK >= self.size
        )

    def lay(self) -> bool:
        """Takes the space, unless there is too little of it. True if it is there now."""
        if self.present():
            return True
        if free_bytes(self.path.parent) < BALLAST_ROOM_FACTOR * self.size:
            return False
        with disk_errors(f"lay the ballast {self.path}"):
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            fd = os.open(self.path, flags, FILE_MODE)
            try:
                os.fchmod(fd, FILE_MODE)
                self._take_space(fd)
            except BaseException:
                # Half of it would take space and be of no use.
                os.ftruncate(fd, 0)
                raise
            finally:
                os.close(fd)
        return self.present()

    def release(self) -> bool:
        """Gives the space back. True if there was any."""
        with disk_errors(f"release the ballast {self.path}"):
            try:
                status = os.lstat(self.path)
                if not stat.S_ISREG(status.st_mode):
                    return False  # not ours: cutting it would cut what it leads to
                # Some file systems need space to remove a name; none needs it to cut a file.
                os.truncate(self.path, 0)
                os.unlink(self.path)
            except FileNotFoundError:
                return False
        return status.st_blocks > 0

    def _take_space(self, fd: int) -> None:
        if sys.platform != "darwin":  # it has no such call
            try:
                os.posix_fallocate(fd, 0, self.size)
            except OSError as error:
                if error.errno not in _CANNOT_ALLOCATE:
                    raise
            if os.fstat(fd).st_blocks * _BLOCK >= self.size:
                return
        # Noise: a file system that compresses keeps zeroes in no space at all.
        written = 0
        while written < self.size:
            part = os.urandom(min(MIB, self.size - written))
            written += os.pwrite(fd, part, written)


def free_bytes(folder: Path) -> int:
    """What the file system has left for us, which may be less than for its superuser."""
    with disk_errors(f"look at the file system of {folder}"):
        status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
