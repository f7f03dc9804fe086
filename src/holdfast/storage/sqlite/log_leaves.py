"""The leaf hashes that stand beside the entries of the log.

Every entry gets its hash when it is appended. Entries from before hashes get theirs in small steps,
`log_seal`: only those that are sound, so that damage is not sealed with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import apsw
import msgspec

from holdfast.rules.errors import EntryDamaged
from holdfast.rules.leaf import DERIVED, columns_of, damage_of, leaf_of, leaves_of

LEAF_SINCE: Final = 8
"""The schema version that brought them."""
SEAL_JOB: Final = "leaf"
_COLUMNS: Final = ("offset", *DERIVED, "raw", "leaf")
# Text as bytes: text that is no longer UTF-8 would end the whole read. Expressions, not columns:
# what is wrong with a row is told here, not by a guard.
_READ: Final = (
    "CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) WHEN 'blob' THEN hex({0}) ELSE {0} END"
)
_TEXTS: Final = ("mesh", "op", "entity", "origin")
_SELECT: Final = (
    f"SELECT {', '.join(_READ.format(c) if c in _TEXTS else f'+{c}' for c in _COLUMNS)} "
    "FROM log NOT INDEXED"
)

Damaged = tuple[int, str]
"""An offset, and what is wrong with the entry there."""


class _Place(msgspec.Struct):
    """How far entries from before hashes have theirs."""

    next: int
    last: int


def refuse_damaged(offset: int, raw: bytes, leaf: bytes | None) -> None:
    """EntryDamaged if an entry's bytes are not those that were written."""
    if leaf is not None and (not isinstance(raw, bytes) or leaf_of(raw) != leaf):
        raise EntryDamaged(f"the entry at offset {offset} is damaged: its bytes have changed")


def refuse_damaged_rows(rows: Sequence[Any]) -> None:
    """The same for many rows, each with offset, bytes and leaf as its first and its last two."""
    raws = [row[-2] for row in rows]
    try:
        ends = list(accumulate(map(len, raws)))
        if leaves_of(b"".join(raws), ends) == b"".join([row[-1] for row in rows]):
            return
    except TypeError:
        pass  # something is no bytes: an entry from before hashes, or a damaged one
    for row in rows:
        refuse_damaged(row[0], row[-2], row[-1])


def _fields(row: Any) -> dict[str, Any]:
    fields = dict(zip(_COLUMNS, row, strict=True))
    for name in _TEXTS:
        if isinstance(fields[name], bytes):
            try:
                fields[name] = fields[name].decode()
            except UnicodeDecodeError:
                continue  # bytes where text belongs: not what was written
    return fields


def remains(connection: apsw.Connection, offset: int) -> dict[str, Any]:
    """What is left of an entry: its columns, of whatever type they are now. Empty if none is."""
    row = connection.execute(f"{_SELECT} WHERE offset = ?", (offset,)).fetchone()
    return {} if row is None else _fields(row)


class LeafReads:
    _con: apsw.Connection
    leaf_column = "leaf"
    """What to ask for: NULL in a database from before leaf hashes, which only readers meet."""

    def log_leaves(self, start: int, end: int, limit: int) -> list[bytes | None]:
        rows: list[Any] = self._con.execute(
            f"SELECT {self.leaf_column} FROM log WHERE offset >= ? AND offset < ? "
            "ORDER BY offset LIMIT ?",
            (start, end, limit),
        ).fetchall()
        return [leaf for (leaf,) in rows]

    def log_damage(self, start: int, end: int, limit: int) -> list[Damaged]:
        rows = self._con.execute(
            f"{_SELECT} WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?",
            (start, end, limit),
        )
        found = ((row[0], damage_of(_fields(row))) for row in rows)
        return [(offset, damage) for offset, damage in found if damage is not None]


class LeafWrites(LeafReads):
    def log_seal(self, rows_max: int, bytes_max: int) -> int:
        place = self._place()
        if place is None:
            return 0
        sealed, size, last = [], 0, place.last
        for row in self._con.execute(
            f"{_SELECT} WHERE offset BETWEEN ? AND ? ORDER BY offset LIMIT ?",
            (place.next, place.last, rows_max),
        ):
            fields = _fields(row)
            last = fields["offset"]
            if fields["leaf"] is None and damage_of(fields) is None:
                sealed.append((leaf_of(fields["raw"]), last))
                size += len(fields["raw"])
            if size >= bytes_max:
                break
        self._con.executemany("UPDATE log SET leaf = ? WHERE offset = ?", sealed)
        done = last - place.next + 1
        if last >= place.last:
            self._con.execute("DELETE FROM job WHERE name = ?", (SEAL_JOB,))
            return done
        cursor = msgspec.json.encode(_Place(last + 1, place.last)).decode()
        self._con.execute("UPDATE job SET cursor = ? WHERE name = ?", (cursor, SEAL_JOB))
        return done

    def log_replace(self, offset: int, raw: bytes) -> None:
        id = self._con.execute("SELECT id FROM log WHERE offset = ?", (offset,)).get
        columns = columns_of(raw, id)
        marks = ", ".join(f"{name} = ?" for name in columns)
        self._con.execute(
            f"UPDATE log SET {marks}, raw = ?, leaf = ? WHERE offset = ?",
            (*columns.values(), raw, leaf_of(raw), offset),
        )

    def _place(self) -> _Place | None:
        cursor = self._con.execute("SELECT cursor FROM job WHERE name = ?", (SEAL_JOB,)).get
        return None if cursor is None else msgspec.json.decode(str(cursor), type=_Place)
