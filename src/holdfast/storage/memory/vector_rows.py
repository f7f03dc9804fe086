"""Vectors and their models in memory; a search looks at every vector."""

from __future__ import annotations

import msgspec

from holdfast.rules.order import Version, order_key
from holdfast.rules.rows import ModelRow, VectorRow
from holdfast.rules.vectors import Model, check_packed, distance
from holdfast.storage.memory.undo import UndoTables


class MemoryVectors(UndoTables):
    """Vectors and models."""

    def vector_live(self, mesh: str, owner: str, key: str, model: str) -> VectorRow | None:
        found = self._vectors_of(mesh, owner, key, model)
        return next((row for _, row in found if row.live), None)

    def vector_newest(self, mesh: str, owner: str, key: str, model: str) -> Version | None:
        versions = [row.version for _, row in self._vectors_of(mesh, owner, key, model)]
        return max(versions, key=order_key, default=None)

    def vector_scan(
        self, mesh: str, model: str | None, after: int, limit: int, *, live_only: bool
    ) -> list[tuple[int, VectorRow]]:
        rows = [
            (number, row)
            for number, row in sorted(self._table("vector").items())
            if number > after
            and row.mesh == mesh
            and (model is None or row.model == model)
            and (row.live or not live_only)
        ]
        return rows[:limit]

    def vector_search(
        self,
        mesh: str,
        model: Model,
        packed: bytes,
        limit: int,
        *,
        exact: bool,
        owner: str | None = None,
    ) -> list[tuple[VectorRow, float]]:
        check_packed(packed, model.dim, model.quantization)
        fingerprint = model.fingerprint
        hits = [
            (distance(row.embedding, packed, model.quantization), number, row)
            for number, row in self._table("vector").items()
            if row.live
            and row.mesh == mesh
            and row.model == fingerprint
            and owner in (None, row.owner)
        ]
        hits.sort(key=lambda hit: hit[:2])
        return [(row, far) for far, _, row in hits[:limit]]

    def model_list(self) -> list[ModelRow]:
        return sorted(self._table("model").values(), key=lambda row: (row.created_at, row.id))

    def vector_add(self, row: VectorRow, model: Model) -> None:
        if row.model not in self._table("model"):
            registered = ModelRow(
                id=row.model,
                provider=model.provider,
                name=model.name,
                version=model.version,
                dim=model.dim,
                quantization=model.quantization,
                created_at=row.updated_at,
            )
            self._put("model", row.model, registered)
        self._put("vector", self._next("vector"), row)

    def vector_retire(self, mesh: str, owner: str, key: str, model: str) -> None:
        for number, row in self._vectors_of(mesh, owner, key, model):
            if row.live:
                self._put("vector", number, msgspec.structs.replace(row, live=False))

    def vector_bury(self, row: VectorRow) -> None:
        self._put("vector", self._next("vector"), row)

    def model_mark(
        self, model: str, *, deprecated_at: int | None = None, last_read_at: int | None = None
    ) -> None:
        row = self._table("model").get(model)
        if row is None:
            return
        marked = msgspec.structs.replace(
            row,
            deprecated_at=row.deprecated_at if deprecated_at is None else deprecated_at,
            last_read_at=max(row.last_read_at or 0, last_read_at or 0) or None,
        )
        self._put("model", model, marked)

    def model_drop(self, model: str) -> None:
        self._drop("model", model)

    def _vectors_of(
        self, mesh: str, owner: str, key: str, model: str
    ) -> list[tuple[int, VectorRow]]:
        return [
            (number, row)
            for number, row in self._table("vector").items()
            if (row.mesh, row.owner, row.key, row.model) == (mesh, owner, key, model)
        ]
