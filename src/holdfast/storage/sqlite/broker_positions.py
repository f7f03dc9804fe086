"""Where entries of the log stand at their broker: epoch and seq, by mesh (table `heard`).

A node that learns that its broker has gone back in time finds here what the broker may have lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw


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
        self._con.executemany(
            "INSERT INTO heard (mesh, epoch, seq, offset) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            ((mesh, epoch, seq, offset) for seq, offset in rows),
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
