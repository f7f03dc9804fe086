"""Blobs stay while a process copies them.

A backup copies the database first and the blobs that it names after that. Between the two a sweep
could remove one of them. So a process that copies holds this lock with others, and a process that
removes needs it alone, does not wait for it and tries again another time:

    copies    with holding(paths): …
    removes   with free(paths) as nobody_copies: if nobody_copies: …

The kernel drops the lock with the process, whatever killed it. Two who use it in one process see
each other as two processes would.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.storage.files.durable import FILE_MODE, close_unlocked, disk_errors
from holdfast.storage.files.home import HomePaths


@contextmanager
def holding(paths: HomePaths) -> Iterator[None]:
    """Keeps all blobs within the block. Waits for a removal that is under way: milliseconds."""
    with _opened(paths) as fd:
        with disk_errors(f"lock {paths.backup_lock}"):
            fcntl.flock(fd, fcntl.LOCK_SH)
        yield


@contextmanager
def free(paths: HomePaths) -> Iterator[bool]:
    """True if no process copies now; then none begins to within the block."""
    with _opened(paths) as fd:
        with disk_errors(f"lock {paths.backup_lock}"):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            except BlockingIOError:
                alone = False
        yield alone


@contextmanager
def _opened(paths: HomePaths) -> Iterator[int]:
    with disk_errors(f"open {paths.backup_lock}"):
        fd = os.open(paths.backup_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
    try:
        yield fd
    finally:
        close_unlocked(fd)
