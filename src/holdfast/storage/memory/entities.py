"""Entities of quorums and their revisions, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.rules.quorum.state_rows import RevisionRow
from holdfast.rules.quorum.view import EntityRow
from holdfast.storage.memory.undo import UndoTables
from holdfast.storage.quorum_state_port import EntityKey


class MemoryEntities(UndoTables):
    """Entities as they stand, and which commit made which revision."""

    def entity_get(self, mesh: str, type: str, id: str) -> EntityRow | None:
        return self._table("entity").get((mesh, type, id))

    def entity_many(self, mesh: str, keys: Sequence[EntityKey]) -> dict[EntityKey, EntityRow]:
        table = self._table("entity")
        return {key: table[mesh, *key] for key in keys if (mesh, *key) in table}

    def entity_revision_many(self, mesh: str, keys: Sequence[EntityKey]) -> dict[EntityKey, int]:
        return {key: row.revision for key, row in self.entity_many(mesh, keys).items()}

    def entity_list(
        self, mesh: str, type: str, after: str, limit: int, *, live_only: bool = True
    ) -> list[EntityRow]:
        rows = [
            row
            for (of, kind, id), row in self._table("entity").items()
            if (of, kind) == (mesh, type)
            and id.encode() > after.encode()
            and not (live_only and row.deleted)
        ]
        return sorted(rows, key=lambda row: row.id.encode())[:limit]

    def entity_children(self, mesh: str, type: str, parent: str, most: int) -> int:
        children = [
            row
            for (of, kind, _), row in self._table("entity").items()
            if (of, kind, row.parent) == (mesh, type, parent)
        ]
        return min(len(children), most)

    def entity_revisions(
        self, mesh: str, type: str, id: str, after: int, limit: int
    ) -> list[RevisionRow]:
        rows = self._revisions(mesh, type, id)
        return [row for row in rows if row.revision > after][:limit]

    def entity_revision_by(
        self, mesh: str, type: str, id: str, number: int, *, whole: bool = False
    ) -> RevisionRow | None:
        rows = [
            row
            for row in self._revisions(mesh, type, id)
            if row.number <= number and (row.whole or not whole)
        ]
        return rows[-1] if rows else None

    def entities_put(self, mesh: str, rows: Sequence[EntityRow]) -> None:
        for row in rows:
            self._put("entity", (mesh, row.type, row.id), row)

    def entity_revisions_add(self, mesh: str, rows: Sequence[RevisionRow]) -> None:
        for row in rows:
            key = (mesh, row.type, row.id, row.revision)
            assert key not in self._table("entity_revision"), "a revision is made once"
            self._put("entity_revision", key, row)

    def _revisions(self, mesh: str, type: str, id: str) -> list[RevisionRow]:
        found = [
            row
            for (of, kind, name, _), row in self._table("entity_revision").items()
            if (of, kind, name) == (mesh, type, id)
        ]
        return sorted(found, key=lambda row: row.revision)
