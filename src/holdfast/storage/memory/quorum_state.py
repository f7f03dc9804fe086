"""What quorums have committed, in memory."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.rules.commit_columns import TYPE, CommitColumns, cut, record_columns
from holdfast.rules.push_columns import unpacked
from holdfast.rules.quorum.commit_record import intent_of, void_intent
from holdfast.rules.quorum.degraded_read import SharedSnapshot
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.state_rows import (
    STAGED,
    CommitRow,
    QueueNote,
    QuorumRow,
    RevisionRow,
    WaitingConflict,
    placed_offset,
)
from holdfast.rules.quorum.view import EntityRow, IntentRecord, LeaseRow, NodeRow
from holdfast.storage.memory.entities import MemoryEntities

_FOLDED: Final = ("entity", "entity_revision", "void", "lease", "quorum_node")
"""Tables whose keys begin with the mesh, and whose rows do not name it."""
_NAMED: Final = ("waiting_conflict", "task_event")
"""Tables whose keys begin with the mesh, and whose rows name it too."""


class MemoryQuorumState(MemoryEntities):
    """Standings, commits, leases, nodes, conflicts, notes of the queue, snapshots."""

    def quorum_get(self, mesh: str) -> QuorumRow | None:
        return self._table("quorum").get(mesh)

    def quorum_list(self) -> list[QuorumRow]:
        return sorted(self._table("quorum").values(), key=lambda row: row.mesh.encode())

    def commit_at(self, offset: int) -> CommitRow | None:
        return self._table("commit").get(offset)

    def commit_of(self, mesh: str, id: bytes) -> CommitRow | None:
        return next((row for row in self._commits(mesh) if row.id == id), None)

    def commit_range(self, mesh: str, start: int, limit: int) -> list[CommitRow]:
        return [row for row in self._commits(mesh) if row.number >= start][:limit]

    def commit_by_head(self, mesh: str, offset: int) -> int:
        return max((row.number for row in self._commits(mesh) if row.head <= offset), default=0)

    def commit_lowest(self) -> int:
        return min((at for at in self._table("commit") if at > -STAGED // 2), default=0)

    def voids(self, mesh: str, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        rows = [(id, number) for (of, id), number in self._table("void").items() if of == mesh]
        return sorted([row for row in rows if row[0] > after])[:limit]

    def intents_known(self, mesh: str, ids: Sequence[bytes]) -> dict[bytes, IntentRecord]:
        found: dict[bytes, IntentRecord] = {}
        commits = {row.number: row for row in self._commits(mesh)}
        by_id = {row.id: row for row in commits.values()}
        for id in ids:
            number = self._table("void").get((mesh, id))
            if id in by_id:
                found[id] = intent_of(by_id[id].record)
            elif number is not None:
                found[id] = void_intent(id, commits[number].record)
        return found

    def intents_are_new(self, mesh: str, ids: Sequence[bytes]) -> bool:
        return not self.intents_known(mesh, ids)

    def lease_get(self, mesh: str, name: str) -> LeaseRow | None:
        return self._table("lease").get((mesh, name))

    def lease_list(self, mesh: str, after: str, limit: int) -> list[LeaseRow]:
        rows = [row for (of, _), row in self._table("lease").items() if of == mesh]
        later = [row for row in rows if row.name.encode() > after.encode()]
        return sorted(later, key=lambda row: row.name.encode())[:limit]

    def node_get(self, mesh: str, peer: str) -> NodeRow | None:
        return self._table("quorum_node").get((mesh, peer))

    def node_list(self, mesh: str) -> list[NodeRow]:
        rows = [row for (of, _), row in self._table("quorum_node").items() if of == mesh]
        return sorted(rows, key=lambda row: row.peer.encode())

    def waiting_conflict_count(self, mesh: str) -> int:
        return sum(row.resolved_at is None for row in self._rows("waiting_conflict", mesh))

    def waiting_conflicts(
        self, mesh: str, after: int, limit: int, *, open_only: bool = True
    ) -> list[WaitingConflict]:
        rows = [
            row
            for row in self._rows("waiting_conflict", mesh)
            if row.number > after and not (open_only and row.resolved_at is not None)
        ]
        return sorted(rows, key=lambda row: row.number)[:limit]

    def queue_note(self, number: int) -> QueueNote | None:
        return self._table("queue_note").get(number)

    def queue_counts(self, lane: str) -> dict[str, int]:
        notes = self._table("queue_note")
        counts: Counter[str] = Counter()
        for row in self._table("outbox").values():
            note = notes.get(row.number)
            if row.lane == lane and note is not None and not note.resolved_by:
                counts[row.state] += 1
        return dict(counts)

    def queue_newest(self) -> int:
        newest = max(self._table("queue_note"), default=0)
        row = self._table("outbox").get(newest)
        return 0 if row is None else int(row.created_at)

    def snapshot_latest(self, mesh: str, source: str | None = None) -> SharedSnapshot | None:
        rows: list[SharedSnapshot] = self._rows("mesh_snapshot", mesh)
        wanted = [row for row in rows if source in (None, row.source)]
        return max(wanted, key=lambda row: (row.captured_at, row.source.encode()), default=None)

    def quorum_put(self, row: QuorumRow) -> None:
        self._put("quorum", row.mesh, row)

    def commits_add(self, rows: Sequence[CommitRow]) -> None:
        for row in rows:
            assert row.offset not in self._table("commit"), "an entry is committed once"
            self._put("commit", row.offset, row)

    def columns_put(
        self, mesh: str, run: CommitColumns, fence: FenceToken, number: int, offset: int
    ) -> array[int]:
        ids = run.entity_list()
        stands = self.entity_revision_many(mesh, [(TYPE, id) for id in ids])
        revisions = array("q")
        for id in ids:
            stands[TYPE, id] = revision = stands.get((TYPE, id), 0) + 1
            revisions.append(revision)
        columns = zip(ids, run.origin_list(), unpacked(run.stamps), strict=True)
        for place, (id, origin, lamport) in enumerate(columns):
            row = EntityRow(
                type=TYPE,
                id=id,
                revision=revisions[place],
                fields=run.row(place),
                origin=origin,
                lamport=lamport,
                fence=fence.further(place),
                committed_at=unpacked(run.times)[place],
            )
            self.entities_put(mesh, [row])
        for place, id in enumerate(ids):
            made = RevisionRow(
                TYPE, id, revisions[place], number + place, deleted=False, whole=True
            )
            self.entity_revisions_add(mesh, [made])
        records, spans = record_columns(mesh, run, fence=fence, number=number, revisions=revisions)
        for place, (intent, span) in enumerate(zip(run.id_list(), unpacked(spans), strict=True)):
            at, record = offset + place, cut(records, span)
            self.commits_add([CommitRow(at, mesh, number + place, intent, at, record)])
        return revisions

    def voids_add(self, mesh: str, rows: Sequence[tuple[bytes, int]]) -> None:
        for id, number in rows:
            self._put("void", (mesh, id), number)

    def committed_clear(self, mesh: str) -> None:
        for table in (*_FOLDED, *_NAMED):
            self._take(table, mesh)
        for row in self._commits(mesh):
            self._drop("commit", row.offset)

    def committed_move(self, source: str, mesh: str, head: int) -> None:
        for table in (*_FOLDED, *_NAMED):
            self._take(table, mesh)
            for key, row in self._take(table, source):
                named = msgspec.structs.replace(row, mesh=mesh) if table in _NAMED else row
                self._put(table, (mesh, *key[1:]), named)
        self._take("task", mesh)
        lowest = self.commit_lowest()
        for row in self._commits(source):
            self._drop("commit", row.offset)
            offset = placed_offset(row.offset, lowest)
            moved = msgspec.structs.replace(row, mesh=mesh, head=head, offset=offset)
            self._put("commit", offset, moved)

    def _take(self, table: str, mesh: str) -> list[tuple[Any, Any]]:
        found = [(key, row) for key, row in self._table(table).items() if key[0] == mesh]
        for key, _ in found:
            self._drop(table, key)
        return found

    def lease_put(self, mesh: str, row: LeaseRow) -> None:
        if row.holder:
            self._put("lease", (mesh, row.name), row)
        else:
            self._drop("lease", (mesh, row.name))

    def node_put(self, mesh: str, row: NodeRow) -> None:
        self._put("quorum_node", (mesh, row.peer), row)

    def waiting_conflict_add(self, row: WaitingConflict) -> None:
        self._put("waiting_conflict", (row.mesh, row.number), row)

    def waiting_conflict_resolve(
        self, mesh: str, number: int, resolution: str, now_ms: int
    ) -> bool:
        row = self._table("waiting_conflict").get((mesh, number))
        if row is None or row.resolved_at is not None:
            return False
        changed = msgspec.structs.replace(row, resolved_at=now_ms, resolution=resolution)
        self._put("waiting_conflict", (mesh, number), changed)
        return True

    def queue_note_put(self, row: QueueNote) -> None:
        self._put("queue_note", row.number, row)

    def snapshot_put(self, row: SharedSnapshot) -> bool:
        before = self._table("mesh_snapshot").get((row.mesh, row.source))
        if before is not None and before.captured_at > row.captured_at:
            return False
        self._put("mesh_snapshot", (row.mesh, row.source), row)
        return True

    def _commits(self, mesh: str) -> list[CommitRow]:
        return sorted(self._rows("commit", mesh), key=lambda row: row.number)
