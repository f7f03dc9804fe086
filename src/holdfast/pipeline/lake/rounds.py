"""Long work in rounds: what is done is noted, so that a rerun does only the rest.

The note is a small file in the lake, `jobs/<name>.json`. It says into how many rounds the work was
cut and how many of them are done; it goes when all are. It only saves work: whoever loses it does
some of it twice, which must do no harm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow.fs

from holdfast.pipeline.lake.lake import Lake
from holdfast.storage.files.durable import durable_replace, fsync_dir, make_folder


class _Note(msgspec.Struct):
    what: str
    rounds: int
    done: int


class Rounds:
    """The rounds of one piece of work, known by what it is."""

    def __init__(self, lake: Lake, what: str) -> None:
        self._what = what
        root = f"{lake.root}/jobs"
        if "://" in root:
            self._system, self._folder = pyarrow.fs.FileSystem.from_uri(root)
        else:
            self._system, self._folder = pyarrow.fs.LocalFileSystem(), root
        self._path = f"{self._folder}/{sha256(what.encode()).hexdigest()[:32]}.json"
        self.resumed = 0
        """Rounds that an earlier run had done."""

    def run(self, rounds: int) -> Iterator[tuple[int, int]]:
        """Number and count of the rounds that are left. Each is noted as done when the next one is
        asked for. Work that was cut short goes on as it was cut, whatever `rounds` says now.
        """
        note = self._read() or _Note(self._what, max(1, rounds), 0)
        self.resumed = note.done
        for number in range(note.done, note.rounds):
            yield number, note.rounds
            note.done = number + 1
            if note.done < note.rounds:
                self._write(note)
        self._drop()

    def _read(self) -> _Note | None:
        try:
            with self._system.open_input_file(self._path) as file:
                note = msgspec.json.decode(bytes(file.read()), type=_Note)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return note if note.what == self._what and 0 <= note.done <= note.rounds else None

    def _write(self, note: _Note) -> None:
        raw = msgspec.json.encode(note)
        if isinstance(self._system, pyarrow.fs.LocalFileSystem):
            make_folder(Path(self._folder))
            durable_replace(Path(self._path), raw)
        else:
            with self._system.open_output_stream(self._path) as out:
                out.write(raw)

    def _drop(self) -> None:
        if self._system.get_file_info(self._path).type == pyarrow.fs.FileType.NotFound:
            return
        if isinstance(self._system, pyarrow.fs.LocalFileSystem):
            os.unlink(self._path)
            fsync_dir(Path(self._folder))
        else:
            self._system.delete_file(self._path)
