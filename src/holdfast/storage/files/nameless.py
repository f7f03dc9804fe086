"""Bytes that are too many for memory and that nobody needs after this process.

The file has lost its name when it is first written, so it is gone with the process, however that
ends; one that died between the two is found by its temporary name like any other draft.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.rules.errors import OverLimit, StoreClosed
from holdfast.storage.files.durable import create_temporary, disk_errors


class NamelessFile:
    """Written from its beginning to its end, then read anywhere. One thread at a time uses it."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        """OverLimit for what would make it longer than `bytes_max`."""
        self._bytes_max = bytes_max
        self.size = 0
        with disk_errors(f"create a file in {folder}"):
            self._fd, path = create_temporary(folder)
            try:
                os.unlink(path)
            except OSError:
                os.close(self._fd)
                raise

    def write(self, data: bytes) -> None:
        if self.size + len(data) > self._bytes_max:
            raise OverLimit(f"more than {self._bytes_max} bytes for a nameless file")
        rest = memoryview(data)
        with disk_errors("write a nameless file"):
            while rest:
                rest = rest[os.write(self._open(), rest) :]
        self.size += len(data)

    def read(self, offset: int, most: int) -> bytes:
        """So many bytes from there on; fewer only at its end."""
        parts: list[bytes] = []
        with disk_errors("read a nameless file"):
            while most > 0 and (part := os.pread(self._open(), most, offset)):
                parts.append(part)
                offset, most = offset + len(part), most - len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Gives its room back. Twice is once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self) -> int:
        if self._fd < 0:
            raise StoreClosed("the nameless file is closed")
        return self._fd
