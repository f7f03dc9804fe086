"""Makes sure of what a bad end left in the write-ahead log, before anybody builds on it.

SQLite takes every whole transaction that it finds in the log for committed. After a bad end that is
more than was ever made durable. A killed process may have written a commit and not come to its
sync. And after a sync that *failed*, the system shows pages that it takes for clean and will never
write. Both look well until the power goes: then the log ends at the first such page, and whatever
was acknowledged after it is lost with it.

So the bytes of the log are written once more, in their places, and synced. It happens under the
write lock, so nobody appends or starts the log over meanwhile; readers see the same bytes as
before. To open and close the log's file is safe: SQLite's locks are on the other two.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from holdfast.rules.limits import BLOB_CHUNK_BYTES
from holdfast.storage.files.durable import disk_errors, flush
from holdfast.storage.sqlite.connection import connect, shut, typed


def rewrite_wal(database: Path, wal: Path, *, vfs: str | None = None) -> None:
    """Call it when a log was left behind and no other process has the database open."""
    connection = connect(database, vfs=vfs)
    try:
        connection.execute("BEGIN IMMEDIATE")
        _write_again(wal)
        connection.execute("ROLLBACK")
    except apsw.Error as error:
        raise typed(error) from error
    finally:
        shut(connection)


def _write_again(path: Path) -> None:
    with disk_errors(f"write {path} again"):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            while chunk := os.read(fd, BLOB_CHUNK_BYTES):
                os.lseek(fd, -len(chunk), os.SEEK_CUR)
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            flush(fd, path)
        finally:
            os.close(fd)
