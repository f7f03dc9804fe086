"""Entities of quorums as they stand, and which commit made which revision.

Every committed write puts a row into each of the two tables, so both are trees of their own keys
and have no second one but for children.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw
import msgspec

from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.state_rows import RevisionRow
from holdfast.rules.quorum.view import EntityRow
from holdfast.storage.quorum_state_port import EntityKey

_COLUMNS: Final = (
    *("type", "id", "revision", "parent", "deleted", "whole", "origin", "lamport"),
    *("incarnation", "lease_epoch", "coordinator", "sequence", "committed_at", "fields"),
)
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM entity"
_MANY: Final = (
    f"SELECT {', '.join(f'entity.{name}' for name in _COLUMNS)} FROM json_each(?3) AS wanted "
    "CROSS JOIN entity ON entity.mesh = ?1 AND entity.type = ?2 AND entity.id = wanted.value"
)
_REVISION_ONE: Final = "SELECT revision FROM entity WHERE mesh = ? AND type = ? AND id = ?"
_REVISIONS_NOW: Final = (
    "SELECT entity.id, entity.revision FROM json_each(?3) AS wanted "
    "CROSS JOIN entity ON entity.mesh = ?1 AND entity.type = ?2 AND entity.id = wanted.value"
)
_PUT: Final = (
    f"INSERT INTO entity (mesh, {', '.join(_COLUMNS)}) "
    f"VALUES (?, {', '.join('?' * len(_COLUMNS))}) ON CONFLICT (mesh, type, id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[2:])
)
_REVISION: Final = "SELECT type, id, revision, number, deleted, whole FROM entity_revision"
_OF: Final = "WHERE mesh = ? AND type = ? AND id = ?"
FEW: Final = 4
"""So many rows are looked up one by one, more of them by one query."""


def _entity(found: Any) -> EntityRow:
    type, id, revision, parent, deleted, whole, origin, lamport, a, b, c, d, at, fields = found
    return EntityRow(
        type=type,
        id=id,
        revision=revision,
        fields=fields.encode(),
        parent=parent,
        deleted=deleted == 1,
        whole=whole == 1,
        origin=origin,
        lamport=lamport,
        fence=FenceToken(a, b, c, d),
        committed_at=at,
    )


def _revision(found: Any) -> RevisionRow:
    type, id, revision, number, deleted, whole = found
    return RevisionRow(type, id, revision, number, bool(deleted), bool(whole))


def _by_type(keys: Sequence[EntityKey]) -> list[tuple[str, str]]:
    """Each type, with the ids that are wanted of it as JSON: without it, because to take a pair of
    texts apart costs SQLite more than to find the row.
    """
    by_type: dict[str, list[str]] = {}
    for type, id in keys:
        by_type.setdefault(type, []).append(id)
    return [(type, msgspec.json.encode(ids).decode()) for type, ids in by_type.items()]


class EntityReads:
    _con: apsw.Connection

    def entity_get(self, mesh: str, type: str, id: str) -> EntityRow | None:
        found = self._con.execute(f"{_SELECT} {_OF}", (mesh, type, id)).get
        return None if found is None else _entity(found)

    def entity_many(self, mesh: str, keys: Sequence[EntityKey]) -> dict[EntityKey, EntityRow]:
        if len(keys) <= FEW:
            # A query for a list costs as much as eight for one: it has to be read by SQLite.
            few = [row for key in keys if (row := self.entity_get(mesh, *key)) is not None]
            return {(row.type, row.id): row for row in few}
        many = {}
        for type, wanted in _by_type(keys):
            for found in self._con.execute(_MANY, (mesh, type, wanted)):
                many[type, found[1]] = _entity(found)
        return many

    def entity_revision_many(self, mesh: str, keys: Sequence[EntityKey]) -> dict[EntityKey, int]:
        found: dict[EntityKey, int] = {}
        if len(keys) <= FEW:
            for key in keys:
                revision = self._con.execute(_REVISION_ONE, (mesh, *key)).get
                if revision is not None:
                    found[key] = revision
            return found
        for type, wanted in _by_type(keys):
            for id, revision in self._con.execute(_REVISIONS_NOW, (mesh, type, wanted)):
                found[type, id] = revision
        return found

    def entity_list(
        self, mesh: str, type: str, after: str, limit: int, *, live_only: bool = True
    ) -> list[EntityRow]:
        live = "AND deleted = 0 " if live_only else ""
        rows = self._con.execute(
            f"{_SELECT} WHERE mesh = ? AND type = ? AND id > ? {live}ORDER BY id LIMIT ?",
            (mesh, type, after, limit),
        )
        return [_entity(found) for found in rows]

    def entity_children(self, mesh: str, type: str, parent: str, most: int) -> int:
        found: int = self._con.execute(
            "SELECT count(*) FROM (SELECT 1 FROM entity INDEXED BY entity_parent "
            "WHERE mesh = ? AND type = ? AND parent = ? AND parent <> '' LIMIT ?)",
            (mesh, type, parent, most),
        ).get
        return found

    def entity_revisions(
        self, mesh: str, type: str, id: str, after: int, limit: int
    ) -> list[RevisionRow]:
        rows = self._con.execute(
            f"{_REVISION} {_OF} AND revision > ? ORDER BY revision LIMIT ?",
            (mesh, type, id, after, limit),
        )
        return [_revision(found) for found in rows]

    def entity_revision_by(
        self, mesh: str, type: str, id: str, number: int, *, whole: bool = False
    ) -> RevisionRow | None:
        chosen = "AND whole = 1 " if whole else ""
        found = self._con.execute(
            f"{_REVISION} {_OF} AND number <= ? {chosen}ORDER BY revision DESC LIMIT 1",
            (mesh, type, id, number),
        ).get
        return None if found is None else _revision(found)


class EntityWrites(EntityReads):
    def entities_put(self, mesh: str, rows: Sequence[EntityRow]) -> None:
        self._con.executemany(
            _PUT,
            (
                (
                    mesh,
                    row.type,
                    row.id,
                    row.revision,
                    row.parent,
                    row.deleted,
                    row.whole,
                    row.origin,
                    row.lamport,
                    row.fence.incarnation,
                    row.fence.lease_epoch,
                    row.fence.coordinator,
                    row.fence.sequence,
                    row.committed_at,
                    row.fields.decode(),
                )
                for row in rows
            ),
        )

    def entity_revisions_add(self, mesh: str, rows: Sequence[RevisionRow]) -> None:
        self._con.executemany(
            "INSERT INTO entity_revision (mesh, type, id, revision, number, deleted, whole) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (mesh, row.type, row.id, row.revision, row.number, row.deleted, row.whole)
                for row in rows
            ),
        )
