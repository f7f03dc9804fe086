"""Reading around the damage of a database.

A damaged page takes its rows with it, and SQLite ends a scan at the first one. The rows beyond are
still there. A table with row numbers is read from both ends; what remains between is halved, and
each half read from both its ends, until only the damage is left. A table without row numbers is
read from both ends only; those are small, or can be rebuilt.

Where the list of tables is gone, or the file is shorter than it says, a copy gets the list of a new
database: tables are made in the same order everywhere, so they begin at the same pages.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import apsw

from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.limits import REPAIR_PROBES_MAX
from holdfast.storage.files.durable import drafting
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.recovery.swap import remove_companions

_TOP: Final = 2**63 - 1
_ROW_BYTES_MIN: Final = 16
"""No row of ours is shorter, so a file cannot hold more rows than its size by this."""
_TRIES: Final = 64
_PAGE_BYTES: Final = 4096
_AS_BYTES: Final = "CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) ELSE {0} END"
_HEADER_CHANGES: Final = slice(24, 28)
_HEADER_PAGES: Final = slice(28, 32)
_HEADER_VALID_FOR: Final = slice(92, 96)
_DAMAGE: Final = (
    *(apsw.CorruptError, apsw.NotADBError, apsw.IOError, apsw.TooBigError, apsw.NoMemError),
    UnicodeDecodeError,
)
"""A length that no row can have, and text that is no longer text, are damage as well."""

Row = tuple[Any, ...]


@contextmanager
def damaged(path: Path, template: Path) -> Iterator[apsw.Connection]:
    """A connection that reads what it can and writes nothing; `template` is a new database."""
    connection = _readable(path)
    if connection is not None:
        with closing(connection):
            yield connection
        return
    with drafting(path.parent) as draft:
        _graft(path, template, draft.path)
        try:
            connection = _readable(draft.path)
            if connection is None:
                raise StoreCorrupt(
                    f"nothing of {path} can be read", hint="restore a backup: holdfast restore"
                )
            with closing(connection):
                yield connection
        finally:
            remove_companions(draft.path)


class Salvage:
    """One table, as far as it can be read. Iterating gives its rows, each once, in no order."""

    def __init__(self, connection: apsw.Connection, table: str) -> None:
        self._con, self._table = connection, table
        self.columns: list[str] = []
        self._key: list[str] = []
        self.damaged = False
        self._stopped = False
        self._probes = 0

    def __iter__(self) -> Iterator[Row]:
        described: list[Any] = []
        try:
            described = self._con.execute(f"PRAGMA table_info({self._table})").fetchall()
        except _DAMAGE:
            self.damaged = True
        self.columns = [column[1] for column in described]
        self._key = [c[1] for c in sorted(described, key=lambda c: c[5]) if c[5]]
        if not described:
            self.damaged = True
        elif self._has_row_numbers():
            yield from self._by_number()
        else:
            yield from self._by_key()

    def _has_row_numbers(self) -> bool:
        try:
            self._con.execute(f"SELECT rowid FROM {self._table} LIMIT 0")
        except apsw.SQLError:
            return False
        except _DAMAGE:
            self.damaged = True
        return True

    def _by_number(self) -> Iterator[Row]:
        select = f"SELECT rowid, {self._safely()} FROM {self._table} NOT INDEXED"
        between = f"{select} WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
        spans = [(-_TOP, 1, _TOP)]
        while spans and self._probes < REPAIR_PROBES_MAX:
            _, low, high = heapq.heappop(spans)
            reached = low - 1
            for row in self._until_damage(between, (low, high)):
                reached = max(reached, row[0])  # a harmed tree may give its rows in any order
                yield _texts(row[1:])
            if not self._stopped:
                continue
            self.damaged = True
            came_down_to = high + 1
            for row in self._until_damage(f"{between} DESC", (reached + 1, high)):
                came_down_to = min(came_down_to, row[0])
                yield _texts(row[1:])
            low, high, stopped = reached + 1, came_down_to - 1, self._stopped
            if high == _TOP:
                high = low + self._rows_max()
                if low == 1 and not self._leads_anywhere(between, high):
                    return
            if stopped and low < high:
                # The widest gap first: if looking has to end, it ends with small ones.
                middle = (low + high) // 2
                heapq.heappush(spans, (low - middle, low, middle))
                heapq.heappush(spans, (middle - high, middle + 1, high))

    def _leads_anywhere(self, between: str, high: int) -> bool:
        """Whether any of some places can be reached; if not, the tree has lost its root."""
        # Evenly, and closer together at the beginning: the file has room for many more rows than a
        # log with long entries has, and both its ends may be harmed.
        evenly = range(1, high, high // _TRIES + 1)
        for low in sorted({*evenly, *(1 << bit for bit in range(high.bit_length() - 1))}):
            for _ in self._until_damage(f"{between} LIMIT 1", (low, high)):
                break
            if not self._stopped:
                return True
        return False

    def _by_key(self) -> Iterator[Row]:
        key = ", ".join(self._key)
        at = [self.columns.index(name) for name in self._key]
        select = f"SELECT {self._safely()} FROM {self._table}"
        last: Row | None = None
        for found in self._until_damage(f"{select} ORDER BY {key}", ()):
            row = _texts(found)
            last = tuple(row[index] for index in at)
            yield row
        if not self._stopped:
            return
        self.damaged = True
        beyond = "" if last is None else f"WHERE ({key}) > ({', '.join('?' * len(last))})"
        down = ", ".join(f"{name} DESC" for name in self._key)
        for found in self._until_damage(f"{select} {beyond} ORDER BY {down}", last or ()):
            yield _texts(found)

    def _safely(self) -> str:
        """All columns, with texts as bytes, and a letter for the type of each: a text that is no
        longer UTF-8 would end the whole read.
        """
        values = (_AS_BYTES.format(name) for name in self.columns)
        kinds = " || ".join(f"substr(typeof({name}), 1, 1)" for name in self.columns)
        return f"{', '.join(values)}, {kinds}"

    def _until_damage(self, query: str, bindings: Row) -> Iterator[Row]:
        self._probes += 1
        self._stopped = False
        try:
            yield from self._con.execute(query, bindings)
        except _DAMAGE:
            self._stopped = True

    def _rows_max(self) -> int:
        return os.stat(self._con.filename).st_size // _ROW_BYTES_MIN


def _texts(found: Row) -> Row:
    """The row with its texts; bytes stay in the place of what is no text."""
    *values, kinds = found
    for at, kind in enumerate(kinds):
        if kind == "t":
            try:
                values[at] = values[at].decode()
            except UnicodeDecodeError:
                continue  # no table takes bytes for text: the row is lost, the next one is not
    return tuple(values)


def _readable(path: Path) -> apsw.Connection | None:
    """None if not even the list of tables can be read."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.pragma("query_only", 1)
        connection.pragma("cell_size_check", 1)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
        if not {"log", "mesh"} <= tables:
            raise apsw.CorruptError("the list of tables is not ours")
        return connection
    except _DAMAGE:
        connection.close(True)
        return None


def _graft(path: Path, template: Path, target: Path) -> None:
    """A copy of a database, and of its WAL, with the list of tables of another."""
    # SQLite refuses a list that names pages beyond the end, whatever is on them.
    pages = max(os.stat(file).st_size // _PAGE_BYTES for file in (path, template))
    copy_with_wal(path, target)
    with open(template, "rb") as source, open(target, "r+b") as copy:
        copy.truncate(pages * _PAGE_BYTES)
        for number in _list_pages(template):
            source.seek((number - 1) * _PAGE_BYTES)
            page = bytearray(source.read(_PAGE_BYTES))
            if number == 1:
                page[_HEADER_PAGES] = pages.to_bytes(4, "big")
                page[_HEADER_VALID_FOR] = page[_HEADER_CHANGES]
            copy.seek((number - 1) * _PAGE_BYTES)
            copy.write(page)


def copy_with_wal(path: Path, target: Path) -> None:
    """A database with its WAL under another name, to be worked on."""
    _copy(path, target)
    with suppress(FileNotFoundError):  # there is none, or a reader that has just left removed it
        _copy(path.with_name(f"{path.name}-wal"), target.with_name(f"{target.name}-wal"))


def _list_pages(template: Path) -> list[int]:
    """The pages that hold the list of tables."""
    with closing(connect(template, read_only=True)) as connection:
        rows: list[Any] = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'sqlite_schema' ORDER BY pageno"
        ).fetchall()
    return [number for (number,) in rows]


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as old, open(target, "wb") as new:
        while chunk := old.read(256 * _PAGE_BYTES):
            new.write(chunk)
