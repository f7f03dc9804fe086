"""Vectors as rows, and their models. The search itself is in `vector_index`."""

from __future__ import annotations

import apsw

from holdfast.rules.order import Version
from holdfast.rules.rows import ModelRow, VectorRow
from holdfast.rules.vectors import Model
from holdfast.storage.sqlite import vector_index
from holdfast.storage.sqlite.columns import FLAG, TEXT, RowColumns

_ROW = RowColumns(VectorRow, metadata=TEXT, tombstone=FLAG, live=FLAG)
_MODEL = RowColumns(ModelRow)
_OF_KEY = "mesh = ? AND owner = ? AND key = ? AND model = ?"


def _model(row: ModelRow) -> Model:
    return Model(
        provider=row.provider,
        name=row.name,
        version=row.version,
        dim=row.dim,
        quantization=row.quantization,
    )


class VectorReads:
    _con: apsw.Connection

    def vector_live(self, mesh: str, owner: str, key: str, model: str) -> VectorRow | None:
        row = self._con.execute(
            f"SELECT {_ROW.sql} FROM vector WHERE {_OF_KEY} AND live = 1", (mesh, owner, key, model)
        ).get
        return _ROW.one(row)

    def vector_newest(self, mesh: str, owner: str, key: str, model: str) -> Version | None:
        row = self._con.execute(
            f"SELECT lamport, peer, id FROM vector WHERE {_OF_KEY} "
            "ORDER BY lamport DESC, peer DESC, id DESC LIMIT 1",
            (mesh, owner, key, model),
        ).get
        return None if row is None else Version(*row)

    def vector_scan(
        self, mesh: str, model: str | None, after: int, limit: int, *, live_only: bool
    ) -> list[tuple[int, VectorRow]]:
        rows = self._con.execute(
            f"SELECT row, {_ROW.sql} FROM vector WHERE row > ?1 AND mesh = ?2 "
            f"AND (?3 IS NULL OR model = ?3) {'AND live = 1 ' if live_only else ''}"
            "ORDER BY row LIMIT ?4",
            (after, mesh, model, limit),
        )
        return [(number, _ROW.row(values)) for number, *values in rows]

    def vector_search(
        self, mesh: str, model: Model, packed: bytes, limit: int, *, exact: bool
    ) -> list[tuple[VectorRow, float]]:
        hits = vector_index.search(self._con, model, mesh, packed, limit, exact=exact)
        found = []
        for number, distance in hits:
            row = self._con.execute(f"SELECT {_ROW.sql} FROM vector WHERE row = ?", (number,)).get
            found.append((_ROW.row(row), distance))
        return found

    def model_list(self) -> list[ModelRow]:
        rows = self._con.execute(f"SELECT {_MODEL.sql} FROM vector_model ORDER BY created_at, id")
        return _MODEL.rows(rows)


class VectorWrites(VectorReads):
    def vector_add(self, row: VectorRow, model: Model) -> None:
        vector_index.ensure_table(self._con, model, row.updated_at)
        number = self._insert(row)
        if row.live:
            vector_index.put(self._con, model, number, row.mesh, row.embedding)

    def vector_retire(self, mesh: str, owner: str, key: str, model: str) -> None:
        number = self._con.execute(
            f"SELECT row FROM vector WHERE {_OF_KEY} AND live = 1", (mesh, owner, key, model)
        ).get
        if number is None:
            return
        self._con.execute("UPDATE vector SET live = 0 WHERE row = ?", (number,))
        known = self._con.execute(
            f"SELECT {_MODEL.sql} FROM vector_model WHERE id = ?", (model,)
        ).get
        if known is not None:
            vector_index.remove(self._con, _model(_MODEL.row(known)), number, mesh)

    def vector_bury(self, row: VectorRow) -> None:
        self._insert(row)

    def model_mark(
        self, model: str, *, deprecated_at: int | None = None, last_read_at: int | None = None
    ) -> None:
        self._con.execute(
            "UPDATE vector_model SET deprecated_at = coalesce(?, deprecated_at), "
            "last_read_at = nullif(max(coalesce(last_read_at, 0), coalesce(?, 0)), 0) WHERE id = ?",
            (deprecated_at, last_read_at, model),
        )

    def model_drop(self, model: str) -> None:
        vector_index.drop_table(self._con, model)

    def _insert(self, row: VectorRow) -> int:
        self._con.execute(_ROW.insert("vector"), _ROW.values(row))
        return self._con.last_insert_rowid()
