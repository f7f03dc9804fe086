"""A folder on a disk or in an object store, and the small files in it, behind one interface.

    folder = Folder("s3://bucket/lake", options)
    folder.write("lake.json", b"...")

A folder may be sent to a task: it is pickled as its name and its options, and opens its file system
where it is first used. On a disk a file is replaced durably: after a power cut the old one is there
or the new one, whole. Files and folders get the modes that the umask leaves, since executors may
run as another user.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.fs

from holdfast.pipeline.lake.location import Location, locate
from holdfast.pipeline.lake.object_store import open_store
from holdfast.pipeline.lake.storage_options import storage_options
from holdfast.storage.files.durable import (
    disk_errors,
    durable_replace,
    durable_writer,
    fsync_dir,
    make_folder,
)

FILE = pyarrow.fs.FileType.File
FOLDER = pyarrow.fs.FileType.Directory
MISSING = pyarrow.fs.FileType.NotFound


def place(text: str, options: Mapping[str, str] | None = None) -> Location:
    """A place as a user names it, seen from this machine and this folder."""
    return locate(
        text,
        here=os.getcwd() if not os.path.isabs(text) else "/",
        databricks="DATABRICKS_RUNTIME_VERSION" in os.environ,
        account=storage_options(options).account,
    )


class Folder:
    """One location. Paths are relative to it; an empty path is the folder itself."""

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        self.options = storage_options(options)
        self.location = place(root, self.options)
        self.root = self.location.root

    def __reduce__(self) -> Any:
        return type(self), (self.root, self.options)

    @property
    def base(self) -> str:
        """Its path inside its file system."""
        return self.location.path

    @cached_property
    def system(self) -> pyarrow.fs.FileSystem:
        if self.location.on_disk:
            return pyarrow.fs.LocalFileSystem()
        return open_store(self.location, self.options)

    @property
    def local(self) -> Path | None:
        """Its path on the disk; None in an object store."""
        return Path(self.base) if self.location.on_disk else None

    def path(self, name: str) -> str:
        """A path for `system`."""
        return posixpath.join(self.base, name).rstrip("/")

    def name(self, path: str) -> str:
        """A path of `system` relative to this folder."""
        return path[len(self.base) :].lstrip("/")

    def kind(self, name: str = "") -> Any:
        """FILE, FOLDER or MISSING."""
        return self.system.get_file_info(self.path(name)).type

    def entries(self, name: str = "", *, recursive: bool = False) -> list[Any]:
        """What lies in a folder, with path, name and size; nothing if the folder is not there."""
        selector = pyarrow.fs.FileSelector(
            self.path(name), allow_not_found=True, recursive=recursive
        )
        return list(self.system.get_file_info(selector))

    def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """By name: the sizes of those files of these that are there."""
        if self.local is not None:
            found = self.system.get_file_info([self.path(name) for name in names])
        else:
            # A store lists a thousand files for the price of one.
            tops = {name.split("/", 1)[0] for name in names if "/" in name}
            found = [entry for top in tops for entry in self.entries(top, recursive=True)]
            alone = [self.path(name) for name in names if "/" not in name]
            found += self.system.get_file_info(alone) if alone else []
        sizes = {self.name(entry.path): entry.size for entry in found if entry.type == FILE}
        return {name: sizes[name] for name in names if name in sizes}

    def read(self, name: str) -> bytes | None:
        """A whole file; None if it is not there."""
        # In a store this is the first contact. The client waits for an answer to this question
        # without holding up the other threads, among them the one that ends jobs.
        if self.local is None and self.kind(name) != FILE:
            return None
        try:
            with self.system.open_input_file(self.path(name)) as file:
                return bytes(file.read())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, raw: bytes, *, private: bool = False) -> None:
        """Replaces a file. The folder that it lies in is made if it is not there. On a disk only
        its user may read a private one.
        """
        if self.local is None:
            with self.system.open_output_stream(self.path(name)) as out:
                out.write(raw)
            return
        target = Path(self.path(name))
        with disk_errors(f"create the folder {target.parent}"):
            target.parent.parent.mkdir(parents=True, exist_ok=True)
        make_folder(target.parent, private=False)
        durable_replace(target, raw, private=private)

    def make(self) -> None:
        """Makes the folder and those above it, if they are not there."""
        if self.local is not None:
            with disk_errors(f"create the folder {self.local.parent}"):
                self.local.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self.local, private=False)

    @contextmanager
    def writing(self, name: str) -> Iterator[Callable[[bytes], Any]]:
        """A function that writes to a file, which replaces the one of this name at the end of the
        block, or not at all on an error. On a disk its folder must be there.
        """
        if self.local is not None:
            with durable_writer(Path(self.path(name)), private=False) as local:
                yield local.write
            return
        draft = self.system.handler.draft(self.path(name))
        yield draft.write
        draft.close()

    def delete(self, name: str) -> None:
        """Removes a file, if it is there."""
        if self.kind(name) == MISSING:
            return
        self.system.delete_file(self.path(name))
        if self.local is not None:
            fsync_dir(Path(self.path(name)).parent)

    def delete_folder(self, name: str) -> None:
        """Removes a folder with all that is in it, if it is there."""
        if self.kind(name) == FOLDER:
            self.system.delete_dir(self.path(name))
