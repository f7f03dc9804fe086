"""A folder on a disk or in an object store, and the small files in it, behind one interface.

A location with `://` is an object store that Arrow can reach; any other is a folder on a disk. On a
disk a file is replaced durably: after a power cut the old one is there or the new one, whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.fs

from holdfast.storage.files.durable import durable_replace, fsync_dir, make_folder

FILE = pyarrow.fs.FileType.File
FOLDER = pyarrow.fs.FileType.Directory
MISSING = pyarrow.fs.FileType.NotFound


class Folder:
    """One location. Paths are relative to it; an empty path is the folder itself."""

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        if "://" in location:
            self.system, self.base = pyarrow.fs.FileSystem.from_uri(location)
        else:
            self.system, self.base = pyarrow.fs.LocalFileSystem(), os.path.abspath(location)

    @property
    def local(self) -> Path | None:
        """Its path on the disk; None in an object store."""
        on_disk = isinstance(self.system, pyarrow.fs.LocalFileSystem)
        return Path(self.base) if on_disk else None

    def path(self, name: str) -> str:
        return f"{self.base}/{name}".rstrip("/")

    def kind(self, name: str = "") -> Any:
        """FILE, FOLDER or MISSING."""
        return self.system.get_file_info(self.path(name)).type

    def entries(self, name: str = "", *, recursive: bool = False) -> list[Any]:
        """What lies in a folder, with path, name and size; nothing if the folder is not there."""
        selector = pyarrow.fs.FileSelector(
            self.path(name), allow_not_found=True, recursive=recursive
        )
        return list(self.system.get_file_info(selector))

    def read(self, name: str) -> bytes | None:
        """A whole file; None if it is not there."""
        try:
            with self.system.open_input_file(self.path(name)) as file:
                return bytes(file.read())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, raw: bytes) -> None:
        """Replaces a file. The folder that it lies in is made if it is not there."""
        if self.local is None:
            with self.system.open_output_stream(self.path(name)) as out:
                out.write(raw)
            return
        target = Path(self.path(name))
        target.parent.parent.mkdir(parents=True, exist_ok=True)
        make_folder(target.parent)
        durable_replace(target, raw)

    def delete(self, name: str) -> None:
        """Removes a file, if it is there."""
        if self.kind(name) == MISSING:
            return
        self.system.delete_file(self.path(name))
        if self.local is not None:
            fsync_dir(Path(self.path(name)).parent)
