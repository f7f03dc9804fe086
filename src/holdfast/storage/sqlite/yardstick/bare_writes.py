"""The rows of a write, inserted ready made: log and state, and the clock of the mesh once a commit.

`holdfast bench` and the project's own benches measure ours beside it, on the same disk in the same
minute, so that their ratio tells of us and not of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.storage.sqlite.connection import connect

_LOG_ROW: Final = (
    "INSERT INTO log (id, mesh, op, entity, origin, lamport, recorded_at, raw) "
    "VALUES (?, ?, 'state.set', ?, ?, ?, ?, ?)"
)
_STATE_ROW: Final = (
    "INSERT INTO state (mesh, key, value, lamport, peer, id, offset, updated_at, tombstone) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)"
)


class BareWrites:
    """The database of a throw-away home, in which one value was written to one mesh. Its node must
    be closed; that value goes, and rows like it come.
    """

    def __init__(self, database: Path, *, sync: str) -> None:
        self._connection = connect(database, sync=sync)
        execute = self._connection.execute
        (row,) = execute("SELECT mesh, origin, raw FROM log WHERE op = 'state.set'").fetchall()
        self._mesh, self._peer, self._raw = row
        (self._value,) = execute("SELECT value FROM state").fetchall()[0]
        execute("DELETE FROM log")
        execute("DELETE FROM state")
        self._number = 0

    def commit(self, rows: Sequence[tuple[bytes, str]]) -> None:
        """One transaction of these ids and keys."""
        execute, mesh, peer, number = (
            self._connection.execute,
            self._mesh,
            self._peer,
            self._number,
        )
        execute("BEGIN IMMEDIATE")
        for id, key in rows:
            number += 1
            execute(_LOG_ROW, (id, mesh, key, peer, number, number, self._raw))
            execute(_STATE_ROW, (mesh, key, self._value, number, peer, id, number, number))
        execute("UPDATE mesh SET lamport = ?, seq = ?", (number, number))
        execute("COMMIT")
        self._number = number

    def close(self) -> None:
        self._connection.close()
