"""Every row of a database that may be damaged, checked against what its tables declare.

SQLite checks the type of a value when it is written. A flipped byte in the head of a row makes a
number of a text, or nothing at all, and SQLite gives it as it is. Code that reads rows believes
their types. So the doctor reads through this guard, which knows the tables as our own scripts make
them, not as the damaged file describes them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import apsw

from holdfast.rules.errors import StoreCorrupt
from holdfast.storage.sqlite import migrations

_TYPES: Final = {"INTEGER": int, "TEXT": str, "BLOB": bytes, "REAL": float}

Column = tuple[str, type | None, bool]
"""Its name, the type of its values, and whether it may be NULL."""


def guard_rows(connection: apsw.Connection) -> None:
    """From now on a row that is not as declared raises StoreCorrupt where it is read."""
    guard = _Guard()
    connection.exec_trace = guard.begin
    connection.row_trace = guard.row


@cache
def _declared() -> dict[tuple[str, str], tuple[type | None, bool]]:
    connection = apsw.Connection(":memory:")
    migrations.migrate(connection)
    found = {}
    tables: list[Any] = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table'"
    ).fetchall()
    for (table,) in tables:
        for _, name, kind, required, _, key in connection.execute(f"PRAGMA table_info({table})"):
            found[table, name] = (_TYPES.get(kind), not required and not key)
    connection.close()
    return found


class _Guard:
    def __init__(self) -> None:
        self._columns: dict[int, list[Column]] = {}

    def begin(self, cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        known = _declared()
        self._columns[id(cursor)] = [
            (f"{table}.{name}", *known.get((table, name), (None, True)))
            for _, _, _, table, name in cursor.description_full
        ]
        return True

    def row(self, cursor: apsw.Cursor, row: Any) -> Any:
        for value, (name, kind, optional) in zip(row, self._columns[id(cursor)], strict=True):
            fits = optional if value is None else kind is None or type(value) is kind
            if not fits:
                what = "nothing" if value is None else type(value).__name__
                raise StoreCorrupt(f"a row is damaged: {name} holds {what}")
        return row
