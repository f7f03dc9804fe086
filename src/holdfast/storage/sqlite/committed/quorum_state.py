"""What quorums have committed: where this node stands with each, commit records, leases, nodes that
are lost, conflicts that wait, notes of the queue, snapshots.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import apsw
import msgspec

from holdfast.rules.quorum.commit_record import intent_of, void_intent
from holdfast.rules.quorum.degraded_read import SharedSnapshot
from holdfast.rules.quorum.fence import FenceToken, parse_token
from holdfast.rules.quorum.state_rows import (
    LOST,
    STAGED,
    CommitRow,
    QueueNote,
    QuorumRow,
    WaitingConflict,
)
from holdfast.rules.quorum.view import Clash, IntentRecord, LeaseRow, LeaseWaiter, NodeRow
from holdfast.rules.reconcile import Outcome
from holdfast.storage.sqlite.columns import FLAG, Codec, RowColumns
from holdfast.storage.sqlite.committed.entities import FEW, EntityReads, EntityWrites

if TYPE_CHECKING:
    from holdfast.rules.commit_columns import CommitColumns

_FENCE: Final = Codec(
    lambda token: None if token is None else str(token),
    lambda text: None if text is None else parse_token(text),
)


def _packed(kind: Any) -> Codec:
    return Codec(msgspec.msgpack.encode, msgspec.msgpack.Decoder(kind).decode)


_QUORUM: Final = RowColumns("quorum", QuorumRow, fence=_FENCE)
_COMMIT: Final = RowColumns("quorum_commit", CommitRow)
_LEASE: Final = RowColumns(
    "quorum_lease",
    LeaseRow,
    grant=_FENCE,
    renewed=_FENCE,
    waiting=_packed(tuple[LeaseWaiter, ...]),
)
_NODE: Final = RowColumns("quorum_node", NodeRow, lost=FLAG, fence=_FENCE)
_CONFLICT: Final = RowColumns(
    "quorum_conflict", WaitingConflict, clashes=_packed(tuple[Clash, ...])
)
_OUTCOME: Final = Codec(None, lambda text: None if text is None else Outcome(text))
_NOTE: Final = RowColumns(
    "quorum_queue",
    QueueNote,
    outcome=_OUTCOME,
    fence=_FENCE,
    earlier_fences=_packed(tuple[FenceToken, ...]),
)
_SNAPSHOT: Final = RowColumns("mesh_snapshot", SharedSnapshot)
_KNOWN: Final = (
    "SELECT c.id, c.record, 0 FROM json_each(?2) AS wanted CROSS JOIN quorum_commit AS c "
    "INDEXED BY quorum_commit_id ON c.mesh = ?1 AND c.id = unhex(wanted.value) "
    "UNION ALL SELECT v.id, c.record, 1 FROM json_each(?2) AS wanted CROSS JOIN quorum_void AS v "
    "ON v.mesh = ?1 AND v.id = unhex(wanted.value) CROSS JOIN quorum_commit AS c "
    "INDEXED BY quorum_commit_number ON c.mesh = ?1 AND c.number = v.number"
)


_ANY_BETWEEN: Final = (
    "SELECT EXISTS (SELECT 1 FROM quorum_commit INDEXED BY quorum_commit_id "
    "WHERE mesh = ?1 AND id BETWEEN ?2 AND ?3) "
    "OR EXISTS (SELECT 1 FROM quorum_void WHERE mesh = ?1 AND id BETWEEN ?2 AND ?3)"
)
_KNOWN_ONE: Final = (
    "SELECT record FROM quorum_commit INDEXED BY quorum_commit_id WHERE mesh = ? AND id = ?"
)
_VOID_ONE: Final = "SELECT number FROM quorum_void WHERE mesh = ? AND id = ?"
_BY_NUMBER: Final = "SELECT record FROM quorum_commit WHERE mesh = ? AND number = ?"
_PLACE_COMMITS: Final = (
    f"UPDATE quorum_commit SET mesh = ?1, head = ?2, offset = iif(offset > {-STAGED}, "
    f"offset + {STAGED}, ?4 - (-offset - {STAGED}) % {LOST}) WHERE mesh = ?3"
)
"""As `placed_offset` says."""
_FOLDED: Final = (
    *("entity", "entity_revision", "quorum_void", "quorum_lease", "quorum_node"),
    *("quorum_conflict", "task_event"),
)
"""Tables of what a fold makes, but for commit records, which only grow, and tasks."""


def _of_mesh(columns: RowColumns[Any], key: str) -> str:
    """Puts a row whose struct does not name its mesh."""
    changed = [name for name in columns.names if name != key]
    return (
        f"INSERT INTO {columns.table} (mesh, {columns.sql}) VALUES (?, {columns.marks}) "
        f"ON CONFLICT (mesh, {key}) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in changed)
    )


_PUT_QUORUM: Final = _QUORUM.upsert("mesh")
_PUT_LEASE: Final = _of_mesh(_LEASE, "name")
_PUT_NODE: Final = _of_mesh(_NODE, "peer")
_PUT_SNAPSHOT: Final = (
    f"{_SNAPSHOT.upsert('mesh, source')} WHERE excluded.captured_at >= mesh_snapshot.captured_at"
)


class CommittedReads(EntityReads):
    _con: apsw.Connection

    def quorum_get(self, mesh: str) -> QuorumRow | None:
        return _QUORUM.find(self._con, "WHERE mesh = ?", (mesh,))

    def quorum_list(self) -> list[QuorumRow]:
        return _QUORUM.select(self._con, "ORDER BY mesh")

    def commit_at(self, offset: int) -> CommitRow | None:
        return _COMMIT.find(self._con, "WHERE offset = ?", (offset,))

    def commit_of(self, mesh: str, id: bytes) -> CommitRow | None:
        return _COMMIT.find(self._con, "WHERE mesh = ? AND id = ?", (mesh, id))

    def commit_range(self, mesh: str, start: int, limit: int) -> list[CommitRow]:
        return _COMMIT.select(
            self._con,
            "WHERE mesh = ? AND number >= ? ORDER BY number LIMIT ?",
            (mesh, start, limit),
        )

    def commit_by_head(self, mesh: str, offset: int) -> int:
        # Heads grow with the numbers, so a search by halves finds it in either.
        low, high = (
            0,
            self._con.execute(
                "SELECT coalesce(max(number), 0) FROM quorum_commit WHERE mesh = ?", (mesh,)
            ).get,
        )
        while low < high:
            middle = (low + high + 1) // 2
            head = self._con.execute(
                "SELECT head FROM quorum_commit WHERE mesh = ? AND number = ?", (mesh, middle)
            ).get
            if head <= offset:
                low = middle
            else:
                high = middle - 1
        return int(low)

    def commit_lowest(self) -> int:
        found = self._con.execute(
            "SELECT min(offset) FROM quorum_commit WHERE offset > ?", (-STAGED // 2,)
        ).get
        return 0 if found is None else int(found)

    def voids(self, mesh: str, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        rows = self._con.execute(
            "SELECT id, number FROM quorum_void WHERE mesh = ? AND id > ? ORDER BY id LIMIT ?",
            (mesh, after, limit),
        )
        return list(rows)

    def intents_known(self, mesh: str, ids: Sequence[bytes]) -> dict[bytes, IntentRecord]:
        if len(ids) <= FEW:
            few = ((id, self._intent(mesh, id)) for id in ids)
            return {id: record for id, record in few if record is not None}
        wanted = msgspec.json.encode([id.hex() for id in ids]).decode()
        return {
            id: void_intent(id, record) if void else intent_of(record)
            for id, record, void in self._con.execute(_KNOWN, (mesh, wanted))
        }

    def intents_are_new(self, mesh: str, ids: Sequence[bytes]) -> bool:
        # Ids begin with their time, and intents are committed soon after they are made. So most
        # runs lie behind all that was committed, and two looks tell.
        least, most = min(ids), max(ids)
        if not self._con.execute(_ANY_BETWEEN, (mesh, least, most)).get:
            return True
        return not self.intents_known(mesh, ids)

    def _intent(self, mesh: str, id: bytes) -> IntentRecord | None:
        record = self._con.execute(_KNOWN_ONE, (mesh, id)).get
        if record is not None:
            return intent_of(record)
        by = self._con.execute(_VOID_ONE, (mesh, id)).get
        record = None if by is None else self._con.execute(_BY_NUMBER, (mesh, by)).get
        return None if record is None else void_intent(id, record)

    def lease_get(self, mesh: str, name: str) -> LeaseRow | None:
        return _LEASE.find(self._con, "WHERE mesh = ? AND name = ?", (mesh, name))

    def lease_list(self, mesh: str, after: str, limit: int) -> list[LeaseRow]:
        return _LEASE.select(
            self._con, "WHERE mesh = ? AND name > ? ORDER BY name LIMIT ?", (mesh, after, limit)
        )

    def node_get(self, mesh: str, peer: str) -> NodeRow | None:
        return _NODE.find(self._con, "WHERE mesh = ? AND peer = ?", (mesh, peer))

    def node_list(self, mesh: str) -> list[NodeRow]:
        return _NODE.select(self._con, "WHERE mesh = ? ORDER BY peer", (mesh,))

    def waiting_conflict_count(self, mesh: str) -> int:
        found = self._con.execute(
            "SELECT count(*) FROM quorum_conflict INDEXED BY quorum_conflict_open "
            "WHERE mesh = ? AND resolved_at IS NULL",
            (mesh,),
        ).get
        return int(found)

    def waiting_conflicts(
        self, mesh: str, after: int, limit: int, *, open_only: bool = True
    ) -> list[WaitingConflict]:
        chosen = "AND resolved_at IS NULL " if open_only else ""
        return _CONFLICT.select(
            self._con,
            f"WHERE mesh = ? AND number > ? {chosen}ORDER BY number LIMIT ?",
            (mesh, after, limit),
        )

    def queue_note(self, number: int) -> QueueNote | None:
        return _NOTE.find(self._con, "WHERE number = ?", (number,))

    def queue_counts(self, lane: str) -> dict[str, int]:
        rows = self._con.execute(
            "SELECT state, count(*) FROM quorum_queue AS note CROSS JOIN spool USING (number) "
            "WHERE lane = ? AND resolved_by = '' GROUP BY state",
            (lane,),
        )
        return dict(rows)

    def queue_newest(self) -> int:
        found = self._con.execute(
            "SELECT created_at FROM spool WHERE number = (SELECT max(number) FROM quorum_queue)"
        ).get
        return 0 if found is None else int(found)

    def snapshot_latest(self, mesh: str, source: str | None = None) -> SharedSnapshot | None:
        return _SNAPSHOT.find(
            self._con,
            "WHERE mesh = ?1 AND (?2 IS NULL OR source = ?2) "
            "ORDER BY captured_at DESC, source DESC LIMIT 1",
            (mesh, source),
        )


class CommittedWrites(CommittedReads, EntityWrites):
    def quorum_put(self, row: QuorumRow) -> None:
        self._con.execute(_PUT_QUORUM, _QUORUM.values(row))

    def commits_add(self, rows: Sequence[CommitRow]) -> None:
        self._con.executemany(_COMMIT.insert, map(_COMMIT.values, rows))

    def columns_put(
        self, mesh: str, run: CommitColumns, fence: FenceToken, number: int, offset: int
    ) -> array[int]:
        from holdfast.storage.sqlite.committed.column_writes import put_columns

        return put_columns(self._con, mesh, run, fence, number, offset)

    def voids_add(self, mesh: str, rows: Sequence[tuple[bytes, int]]) -> None:
        self._con.executemany(
            "INSERT INTO quorum_void (mesh, id, number) VALUES (?, ?, ?)",
            ((mesh, *row) for row in rows),
        )

    def committed_clear(self, mesh: str) -> None:
        for table in (*_FOLDED, "quorum_commit"):
            self._con.execute(f"DELETE FROM {table} WHERE mesh = ?", (mesh,))

    def committed_move(self, source: str, mesh: str, head: int) -> None:
        for table in _FOLDED:
            self._con.execute(f"DELETE FROM {table} WHERE mesh = ?", (mesh,))
            self._con.execute(f"UPDATE {table} SET mesh = ? WHERE mesh = ?", (mesh, source))
        self._con.execute("DELETE FROM task WHERE mesh = ?", (mesh,))
        self._con.execute(_PLACE_COMMITS, (mesh, head, source, min(self.commit_lowest(), 0)))

    def lease_put(self, mesh: str, row: LeaseRow) -> None:
        if row.holder:
            self._con.execute(_PUT_LEASE, (mesh, *_LEASE.values(row)))
        else:
            self._con.execute(
                "DELETE FROM quorum_lease WHERE mesh = ? AND name = ?", (mesh, row.name)
            )

    def node_put(self, mesh: str, row: NodeRow) -> None:
        self._con.execute(_PUT_NODE, (mesh, *_NODE.values(row)))

    def waiting_conflict_add(self, row: WaitingConflict) -> None:
        self._con.execute(_CONFLICT.insert, _CONFLICT.values(row))

    def waiting_conflict_resolve(
        self, mesh: str, number: int, resolution: str, now_ms: int
    ) -> bool:
        self._con.execute(
            "UPDATE quorum_conflict SET resolved_at = ?, resolution = ? "
            "WHERE mesh = ? AND number = ? AND resolved_at IS NULL",
            (now_ms, resolution, mesh, number),
        )
        return self._con.changes() > 0

    def queue_note_put(self, row: QueueNote) -> None:
        self._con.execute(_NOTE.upsert("number"), _NOTE.values(row))

    def snapshot_put(self, row: SharedSnapshot) -> bool:
        self._con.execute(_PUT_SNAPSHOT, _SNAPSHOT.values(row))
        return self._con.changes() > 0
