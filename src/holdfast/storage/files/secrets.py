"""Files that only their user may read: a key that others could read is mended aloud, or refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from holdfast.rules.errors import NotOurs
from holdfast.storage.files.durable import FILE_MODE, disk_errors

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def guard_secret(path: Path) -> list[str]:
    """Takes the file away from everybody but its user. Returns a sentence if that was needed;
    raises NotOurs if it cannot be done.
    """
    with disk_errors(f"look at {path}"):
        mode = stat.S_IMODE(os.stat(path).st_mode)
    if not mode & _OTHERS:
        return []
    try:
        os.chmod(path, FILE_MODE)
    except OSError as error:
        raise NotOurs(
            f"others can read {path} (mode {mode:04o}), and that cannot be changed: "
            f"{error.strerror or error}",
            hint=f"make it readable for its user alone: chmod 600 {path}",
        ) from None
    return [f"{path} had mode {mode:04o}: others could read it; it is {FILE_MODE:04o} now"]


def world_reads(path: Path) -> bool:
    """Whether every user of this machine may read a file."""
    with disk_errors(f"look at {path}"):
        return bool(os.stat(path).st_mode & stat.S_IROTH)
