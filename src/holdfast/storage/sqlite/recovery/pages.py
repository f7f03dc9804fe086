"""Rows from the pages themselves, where the way to them is broken.

A table is a tree: its rows lie in leaf pages, and damage above them takes the way to all of these,
not the rows. So the pages of the file are looked through one by one, and leaf pages are read as
https://www.sqlite.org/fileformat2.html describes them. Only cells that their page lists are taken,
and no page that is marked as free: what was deleted stays deleted.

Nothing here says to which table a row belongs. The caller must know its rows when it sees them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Final

import apsw

from holdfast.rules.limits import ENVELOPE_BYTES_MAX

_LEAF: Final = 0x0D
_HEADER_BYTES: Final = 100
_PAYLOAD_BYTES_MAX: Final = 2 * ENVELOPE_BYTES_MAX
_INT_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class _NotARow(Exception):
    """These bytes are something else."""


def scan_pages(path: Path, columns: Container[int]) -> Iterator[tuple[int, list[Any]]]:
    """Row number and values of every row with so many columns. The row number's own column is None.

    Several numbers may be right: a row that is older than a column of its table ends before it.
    The file must be whole by itself: `absorb` a WAL before.
    """
    with open(path, "rb") as file:
        pages = _Pages(file)
        free = pages.free()
        for number in range(1, pages.count + 1):
            if number not in free:
                yield from pages.rows(number, columns)


def absorb(path: Path) -> None:
    """Takes the WAL of a copy into the copy, however damaged it is."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.CorruptError, apsw.NotADBError):
            return  # the newest pages are then missing, as the caller finds out


class _Pages:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        header = file.read(_HEADER_BYTES).ljust(_HEADER_BYTES, b"\0")
        size = int.from_bytes(header[16:18], "big")
        self._size = 65536 if size == 1 else size
        if self._size < 512 or self._size & (self._size - 1):
            self._size = 4096
        self._usable = self._size - header[20]
        file.seek(0, 2)
        self.count = file.tell() // self._size

    def free(self) -> set[int]:
        """The pages on the free list, as far as it can be followed."""
        found: set[int] = set()
        trunk = int.from_bytes(self._page(1)[32:36], "big")
        while 0 < trunk <= self.count and trunk not in found:
            page = self._page(trunk)
            found.add(trunk)
            count = min(int.from_bytes(page[4:8], "big"), self._usable // 4 - 2)
            found.update(int.from_bytes(page[8 + 4 * i : 12 + 4 * i], "big") for i in range(count))
            trunk = int.from_bytes(page[:4], "big")
        return found

    def rows(self, number: int, columns: Container[int]) -> Iterator[tuple[int, list[Any]]]:
        page = self._page(number)
        start = _HEADER_BYTES if number == 1 else 0
        if len(page) < self._size or page[start] != _LEAF:
            return
        cells = int.from_bytes(page[start + 3 : start + 5], "big")
        for index in range(min(cells, self._usable // 4)):
            at = start + 8 + 2 * index
            try:
                rowid, payload = self._cell(page, int.from_bytes(page[at : at + 2], "big"))
                values = _record(payload, columns)
            except (_NotARow, IndexError, UnicodeDecodeError):
                continue
            yield rowid, values

    def _cell(self, page: bytes, at: int) -> tuple[int, bytes]:
        size, at = _varint(page, at)
        rowid, at = _varint(page, at)
        if not 0 < size <= _PAYLOAD_BYTES_MAX:
            raise _NotARow
        local = self._local(size)
        payload = page[at : at + local]
        if local == size:
            return rowid, payload
        parts, rest = [payload], size - local
        follow = int.from_bytes(page[at + local : at + local + 4], "big")
        while rest > 0:
            if not 1 < follow <= self.count:
                raise _NotARow
            overflow = self._page(follow)
            parts.append(overflow[4 : 4 + min(rest, self._usable - 4)])
            rest -= self._usable - 4
            follow = int.from_bytes(overflow[:4], "big")
        return rowid, b"".join(parts)

    def _local(self, size: int) -> int:
        """How much of a row is in its own page."""
        most = self._usable - 35
        if size <= most:
            return size
        least = (self._usable - 12) * 32 // 255 - 23
        fitting = least + (size - least) % (self._usable - 4)
        return fitting if fitting <= most else least

    def _page(self, number: int) -> bytes:
        self._file.seek((number - 1) * self._size)
        return self._file.read(self._size)


def _record(payload: bytes, columns: Container[int]) -> list[Any]:
    header, at = _varint(payload, 0)
    types = []
    while at < header:
        kind, at = _varint(payload, at)
        types.append(kind)
    if len(types) not in columns or at != header:
        raise _NotARow
    values = []
    for kind in types:
        value, at = _value(payload, at, kind)
        values.append(value)
    if at != len(payload):
        raise _NotARow
    return values


def _value(payload: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (0, 8, 9):
        return (None if kind == 0 else kind - 8), at
    if kind in _INT_BYTES:
        end = at + _INT_BYTES[kind]
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if kind < 12:
        raise _NotARow  # floating point, which no table looked for here has
    end = at + (kind - 12) // 2
    if end > len(payload):
        raise _NotARow
    raw = payload[at:end]
    return (raw.decode() if kind % 2 else raw), end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(9):
        byte = data[at + count]
        if count == 8:
            return (value << 8) | byte, at + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at + count + 1
    raise AssertionError("nine bytes end every number")
