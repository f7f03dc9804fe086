"""Rows that a node refused: counted by reason, and kept in a folder for the user to correct.

With a folder, each task writes its refused rows into a file of its own: on each line a JSON object
with the row, its id and the reason. The file is named by the write, the batch and the part, so that
a repeat replaces it; files of an earlier attempt that no part wrote again are removed when the
batch is committed. Without a folder, the write fails with the first row of each reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from holdfast.pipeline.sink.ids import Write
from holdfast.pipeline.sink.rows import SinkRow
from holdfast.storage.files.durable import Draft, durable_writer, make_folder

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
def tallying(folder: str | None, write: Write, part: int) -> Iterator[RefusedTally]:
    """A tally for one part. At the end of the block its file is complete, or removed if no row was
    refused.
    """
    if folder is None:
        yield RefusedTally(None)
        return
    path = folder_of(folder, write) / file_name(write, part)
    with ExitStack() as stack:
        draft = _LazyDraft(path, stack)
        yield RefusedTally(draft)
    if not draft.begun:
        path.unlink(missing_ok=True)  # an earlier attempt may have left one


class _LazyDraft:
    """A file that is created when the first line is written."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        self._draft: Draft | None = None

    @property
    def begun(self) -> bool:
        return self._draft is not None

    def write(self, line: bytes) -> None:
        if self._draft is None:
            folder = self._path.parent
            folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(folder)
            self._draft = self._stack.enter_context(durable_writer(self._path))
        self._draft.write(line)


def folder_of(folder: str, write: Write) -> Path:
    """The folder for the files of a write: its name with safe characters, and a hash of it."""
    readable = _UNSAFE.sub("_", write.name)[:_NAME_CHARS]
    return Path(folder) / f"{readable}-{sha256(write.name.encode()).hexdigest()[:8]}"


def file_name(write: Write, part: int) -> str:
    return f"{_prefix(write)}{part:05}.jsonl"


def remove_others(folder: str, write: Write, parts: Collection[int]) -> None:
    """Removes the files of other parts than these, which an earlier attempt has left."""
    kept = {file_name(write, part) for part in parts}
    for path in sorted(folder_of(folder, write).glob(f"{_prefix(write)}*.jsonl")):
        if path.name not in kept:
            path.unlink(missing_ok=True)


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
