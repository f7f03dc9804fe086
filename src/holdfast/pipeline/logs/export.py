"""The log in an export: its last lines, in the order of their offsets.

The file is checked from end to end once, where the work is planned. After that a range is found by
binary search: the line after any place in the file says whether the range begins before or after
it. So a task that reads one part of an export does not read the other parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final
from uuid import UUID

import msgspec
import pyarrow as pa

from holdfast.pipeline.logs.arrow import from_lists, in_order, uuid_texts
from holdfast.pipeline.logs.log import LogBounds, OpenedLog, ReadCommit, check_range, reading
from holdfast.protocol.export_lines import CommittedLine, Header, LogLine, Trailer, check_file
from holdfast.rules.errors import BadInput, BadValue, HoldfastError, StoreFailed
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.ids import ID_BYTES
from holdfast.rules.limits import (
    COMMIT_PAGE_ROWS,
    EXPORT_LINE_BYTES_MAX,
    KIB,
    SOURCE_BATCH_BYTES,
    SOURCE_BATCH_ROWS,
)
from holdfast.rules.rows import Columns

_lines: Final = msgspec.json.Decoder(LogLine)
_commit: Final = msgspec.json.Decoder(CommittedLine)
_header: Final = msgspec.json.Decoder(Header)
_trailer: Final = msgspec.json.Decoder(Trailer)
_TAIL_BYTES: Final = 4 * KIB
_BAD: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Kind(msgspec.Struct):
    """The part of a line that says whether it is an entry of the log, and which."""

    kind: str = ""
    offset: int = 0


_kind: Final = msgspec.json.Decoder(_Kind)


class ExportLog(OpenedLog):
    """The log in a JSONL export."""

    def __init__(self, location: str, path: Path, options: dict[str, str]) -> None:
        super().__init__(location, options)
        self._path = path
        self._checked: tuple[tuple[int, int, int], LogBounds] | None = None

    def place(self) -> LogBounds:
        """Reads and checks the whole file, again only if it has changed."""
        with self._open() as file:
            status = self._path.stat()
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._checked is None or self._checked[0] != state:
                try:
                    check_file(file)
                except HoldfastError as error:
                    raise type(error)(
                        f"{self.location}: {error.message}", hint="export the home again"
                    ) from None
                self._checked = state, self._place(file)
            return self._checked[1]

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        if start >= stop:
            return
        with self._open() as file:
            place = self._place(file)
            with reading(place.log, self.location, epoch, start, stop):
                check_range(place, epoch, start, stop)
                end = _tail(file)[0]
                _find(file, start, end)
            while True:
                with reading(place.log, self.location, epoch, start, stop):
                    lines = _take(file, stop, end)
                    if not lines:
                        return
                    batch = _batch(place, [line for line in lines if _passes(filter, line)])
                    if not in_order(batch.column("offset"), start, stop):
                        raise BadValue("the lines of the log are out of order")
                    start = lines[-1].offset + 1
                if batch.num_rows:
                    yield batch

    def commits(self, known: Mapping[str, int]) -> Iterator[list[ReadCommit]]:
        piece: list[ReadCommit] = []
        with self._open() as file:
            for raw in file:  # they stand before the log
                kind = _kind.decode(raw).kind
                if kind == "log":
                    break
                if kind != "commit":
                    continue
                line = _commit.decode(raw)
                if line.number > known.get(line.mesh, 0):
                    piece.append(ReadCommit(line.record, line.raw))
                if len(piece) >= COMMIT_PAGE_ROWS:
                    yield piece
                    piece = []
        if piece:
            yield piece

    def _open(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise StoreFailed(f"{self.location} cannot be opened: {error.strerror}") from None

    def _place(self, file: BinaryIO) -> LogBounds:
        file.seek(0)
        try:
            header = _header.decode(file.readline(EXPORT_LINE_BYTES_MAX))
        except _BAD:
            raise BadInput(f"{self.location} is not an export of Holdfast") from None
        if header.head >= header.first and not _tail(file)[1].counts.get("log"):
            raise BadInput(
                f"the export {self.location} holds no lines of the log",
                hint="export with the log, which is the default, and with the meshes that it is of",
            )
        name = self._options.get("name") or header.peer
        return LogBounds(name, header.epoch, header.first, header.head)


def _tail(file: BinaryIO) -> tuple[int, Trailer]:
    """Where the last line begins, and what it says."""
    size = file.seek(0, 2)
    begin = max(0, size - _TAIL_BYTES)
    file.seek(begin)
    lines = file.read().rstrip(b"\n").rsplit(b"\n", 1)
    try:
        return begin + len(lines[0]) + 1, _trailer.decode(lines[-1])
    except _BAD:
        raise BadValue(
            "the file does not end as an export does: it was cut off", hint="export the home again"
        ) from None


def _find(file: BinaryIO, start: int, end: int) -> None:
    """Seeks to the first entry with an offset of `start` or more, or to the end of the lines."""
    low, high = 0, end  # the line begins in [low, high]
    while low < high:
        middle = (low + high) // 2
        begin, line = _line_from(file, middle, end)
        if begin >= end or (line.kind == "log" and line.offset >= start):
            high = middle
        else:
            low = middle + 1
    file.seek(_line_from(file, low, end)[0])


def _line_from(file: BinaryIO, place: int, end: int) -> tuple[int, _Kind]:
    """The first line that begins at or after a byte of the file, and where it begins."""
    begin = 0
    if place:
        file.seek(place - 1)
        begin = place - 1 + len(file.readline())
    if begin >= end:
        return end, _Kind()
    file.seek(begin)
    try:
        return begin, _kind.decode(file.readline())
    except _BAD as error:
        raise BadValue(f"the line at byte {begin} cannot be read: {error}") from None


def _take(file: BinaryIO, stop: int, end: int) -> list[LogLine]:
    """The next entries before the offset `stop`, at most one batch."""
    taken: list[LogLine] = []
    size = 0
    while len(taken) < SOURCE_BATCH_ROWS and size < SOURCE_BATCH_BYTES and file.tell() < end:
        raw = file.readline()
        size += len(raw)
        try:
            line = _lines.decode(raw)
        except _BAD as error:
            raise BadValue(
                f"the line before byte {file.tell()} is not one of the log: {error}"
            ) from None
        if line.offset >= stop:
            break
        taken.append(line)
    return taken


def _passes(filter: Filter, line: LogLine) -> bool:
    says = line.says
    return filter.passes(says.mesh, says.op, says.entity, says.origin, "")


def _id(text: str) -> bytes:
    """The id that a line says; zeroes, which no id is, if it says none."""
    try:
        return UUID(text).bytes
    except ValueError:
        return bytes(ID_BYTES)


def _batch(place: LogBounds, lines: list[LogLine]) -> pa.RecordBatch:
    # `says` repeats for people what the bytes say; `unpack` compares the two.
    headers = [line.says for line in lines]
    columns = Columns(
        offset=[line.offset for line in lines],
        id=[],
        mesh=[header.mesh for header in headers],
        op=[header.op for header in headers],
        entity=[header.entity for header in headers],
        origin=[header.origin for header in headers],
        lamport=[header.lamport for header in headers],
        recorded_at=[line.recorded_at for line in lines],
        raw=[line.raw for line in lines],
        upto=lines[-1].offset if lines else 0,
    )
    ids = uuid_texts(b"".join(_id(header.id) for header in headers))
    return from_lists(place.log, place.epoch, columns, ids)
