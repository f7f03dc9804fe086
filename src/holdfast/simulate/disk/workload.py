"""Where a workload plays: scratch directories, and the shape of a workload.

A workload opens a database in `directory` through the VFS that it is given, changes it, and calls
`acknowledge` with each thing that it would have reported as safe. It may raise: disks fail. It
should close what it opened; what it leaves open is cut off as if its process had been killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.simulate.disk.platter import Image

Acknowledge = Callable[[object], None]
Workload = Callable[[Path, str, Acknowledge], None]
Prepare = Callable[[Path], None]

_MEMORY: Final = "/dev/shm"


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that goes away again, in memory where the system offers that."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=parent) as directory:
        # Resolved, because SQLite resolves links too and paths are compared.
        yield Path(directory).resolve()


def empty(directory: Path) -> None:
    """Removes all that is in a directory."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def lay_out(image: Image) -> None:
    """Writes the files of an image; nothing may be in their places."""
    for path in sorted(image.directories):
        os.makedirs(path, mode=0o700, exist_ok=True)
    for path in {os.path.dirname(path) for path in image.files} - image.directories:
        os.makedirs(path, mode=0o700, exist_ok=True)
    for path, content in image.files.items():
        write_new(path, content)


def write_new(path: str, content: bytes) -> None:
    """Writes a private file, as the store does, but not durably: the simulator never crashes."""
    with open(path, "xb", opener=_private) as file:
        file.write(content)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def describe(error: BaseException) -> str:
    """One line for a report."""
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"
