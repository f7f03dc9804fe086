"""Rows that a node refused: counted by reason, and kept in a folder for the user to correct.

With a folder, each task writes its refused rows into a file of its own: on each line a JSON object
with the row, its id and the reason. The file is named by the write, the batch and the part, so that
a repeat replaces it; files of an earlier attempt that no part wrote again are removed when the
batch is committed. Without a folder, the write fails with the first row of each reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from typing import Any, Final

import msgspec

from holdfast.pipeline.lake.folder import Folder
from holdfast.pipeline.sink.ids import Write
from holdfast.pipeline.sink.rows import SinkRow

_NAME_CHARS: Final = 60
_SHOWN_CHARS: Final = 300
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class RefusedTally:
    """Counts the refused rows of one part, and writes them to its file if there is one."""

    def __init__(self, draft: _LazyDraft | None) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        """By reason: the message for the first row."""
        self._draft = draft

    def add(self, row: SinkRow, code: str, message: str) -> None:
        self.counts[code] += 1
        if code not in self.first:
            self.first[code] = f"{message} [row {_short(row)}]"
        if self._draft is not None:
            line = {"reason": code, "message": message, "id": row.id or None, "row": row.shown()}
            self._draft.write(msgspec.json.encode(line) + b"\n")


@contextmanager
def tallying(folder: Folder | None, write: Write, part: int) -> Iterator[RefusedTally]:
    """A tally for one part. At the end of the block its file is complete, or removed if no row was
    refused.
    """
    if folder is None:
        yield RefusedTally(None)
        return
    place, name = folder_of(folder, write), file_name(write, part)
    with ExitStack() as stack:
        draft = _LazyDraft(place, name, stack)
        yield RefusedTally(draft)
    if not draft.begun:
        place.delete(name)  # an earlier attempt may have left one


class _LazyDraft:
    """A file that is created when the first line is written."""

    def __init__(self, folder: Folder, name: str, stack: ExitStack) -> None:
        self._folder, self._name, self._stack = folder, name, stack
        self._write: Callable[[bytes], Any] | None = None

    @property
    def begun(self) -> bool:
        return self._write is not None

    def write(self, line: bytes) -> None:
        if self._write is None:
            self._folder.make()
            self._write = self._stack.enter_context(self._folder.writing(self._name))
        self._write(line)


def folder_of(folder: Folder, write: Write) -> Folder:
    """The folder for the files of a write: its name with safe characters, and a hash of it."""
    readable = _UNSAFE.sub("_", write.name)[:_NAME_CHARS]
    name = f"{readable}-{sha256(write.name.encode()).hexdigest()[:8]}"
    return Folder(f"{folder.root}/{name}", folder.options)


def file_name(write: Write, part: int) -> str:
    return f"{_prefix(write)}{part:05}.jsonl"


def remove_others(folder: Folder, write: Write, parts: Collection[int]) -> None:
    """Removes the files of other parts than these, which an earlier attempt has left."""
    kept = {file_name(write, part) for part in parts}
    place = folder_of(folder, write)
    for entry in place.entries():
        ours = entry.base_name.startswith(_prefix(write)) and entry.base_name.endswith(".jsonl")
        if ours and entry.base_name not in kept:
            place.delete(entry.base_name)


def summary(tallies: Sequence[tuple[dict[str, int], dict[str, str]]]) -> str:
    """All reasons of all parts as text: how often each occurred, and one example."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for part_counts, part_first in tallies:
        counts.update(part_counts)
        first = {**part_first, **first}
    return "; ".join(f"{code} {count} ({first[code]})" for code, count in counts.most_common())


def _prefix(write: Write) -> str:
    return f"batch-{write.batch:09}-part-"


def _short(row: SinkRow) -> str:
    text = msgspec.json.encode(row.shown()).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
