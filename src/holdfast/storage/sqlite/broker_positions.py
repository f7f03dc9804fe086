"""Where entries of the log stand at their broker: epoch and seq, by mesh (table `heard`).

A node that learns that its broker has gone back in time finds here what the broker may have lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

import apsw

_RUN_MIN: Final = 8
"""Rows whose seqs follow each other are added by one statement, if they are so many."""
_ADD: Final = "INSERT INTO heard (mesh, epoch, seq, offset)"
_INT64: Final = apsw.SQLITE_CARRAY_INT64


def _runs(rows: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """Parts in which each has the seq behind the last one's, as nearly always."""
    begin = 0
    for at in range(1, len(rows)):
        if rows[at][0] != rows[at - 1][0] + 1:
            yield rows[begin:at]
            begin = at
    if rows:
        yield rows[begin:]


class BrokerPositionReads:
    _con: apsw.Connection

    def broker_positions_above(
        self, mesh: str, epoch: int, seq: int, after_seq: int, limit: int
    ) -> list[tuple[int, int]]:
        rows: list[Any] = self._con.execute(
            "SELECT seq, offset FROM heard WHERE mesh = ? AND epoch = ? AND seq > ? "
            "ORDER BY seq LIMIT ?",
            (mesh, epoch, max(seq, after_seq), limit),
        ).fetchall()
        return [(row[0], row[1]) for row in rows]

    def broker_positions_at(self, offset: int) -> list[tuple[str, int]]:
        rows: list[Any] = self._con.execute(
            "SELECT mesh, seq FROM heard WHERE offset = ? ORDER BY mesh, epoch DESC, seq", (offset,)
        ).fetchall()
        return [(row[0], row[1]) for row in rows]

    def broker_positions_epochs(self, mesh: str) -> list[int]:
        # One step of the index for each epoch, however many seqs it has.
        rows = self._con.execute(
            "WITH RECURSIVE held(epoch) AS (SELECT min(epoch) FROM heard WHERE mesh = :mesh "
            "UNION ALL SELECT (SELECT min(epoch) FROM heard WHERE mesh = :mesh "
            "AND epoch > held.epoch) FROM held WHERE held.epoch IS NOT NULL) "
            "SELECT epoch FROM held WHERE epoch IS NOT NULL",
            {"mesh": mesh},
        )
        return [epoch for (epoch,) in rows]


class BrokerPositionWrites(BrokerPositionReads):
    def broker_positions_add(self, mesh: str, epoch: int, rows: Sequence[tuple[int, int]]) -> None:
        for run in _runs(rows):
            if len(run) < _RUN_MIN:
                self._con.executemany(
                    f"{_ADD} VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    ((mesh, epoch, seq, offset) for seq, offset in run),
                )
                continue
            offsets = array("q", [offset for _, offset in run]).tobytes()
            # Its rows are numbered from 1 on. `WHERE true` tells SQLite that ON begins no join.
            self._con.execute(
                f"{_ADD} SELECT ?2, ?3, ?4 + rowid, value FROM carray(?1) WHERE true "
                "ON CONFLICT DO NOTHING",
                (apsw.carray(offsets, flags=_INT64), mesh, epoch, run[0][0] - 1),
            )

    def broker_positions_sweep(self, below_offset: int, most: int) -> int:
        self._con.execute(
            "DELETE FROM heard WHERE (mesh, epoch, seq) IN (SELECT mesh, epoch, seq FROM heard "
            "WHERE offset < ? ORDER BY offset, mesh, epoch, seq LIMIT ?)",
            (below_offset, most),
        )
        return self._con.changes()

    def broker_positions_drop(self, mesh: str, most: int) -> int:
        self._con.execute(
            "DELETE FROM heard WHERE (mesh, epoch, seq) IN (SELECT mesh, epoch, seq FROM heard "
            "WHERE mesh = ? ORDER BY epoch, seq LIMIT ?)",
            (mesh, most),
        )
        return self._con.changes()
