"""Vectors as rows, and their models. The search itself is in `vector_index`."""

from __future__ import annotations

import apsw

from holdfast.rules.order import Version
from holdfast.rules.rows import ModelRow, VectorRow
from holdfast.rules.vectors import Model
from holdfast.rules.vectors import distance as exactly
from holdfast.storage.sqlite import vector_index
from holdfast.storage.sqlite.columns import FLAG, TEXT, RowColumns

_ROW = RowColumns("vector", VectorRow, metadata=TEXT, tombstone=FLAG, live=FLAG)
_MODEL = RowColumns("vector_model", ModelRow)
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
        return _ROW.find(self._con, f"WHERE {_OF_KEY} AND live = 1", (mesh, owner, key, model))

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
        self,
        mesh: str,
        model: Model,
        packed: bytes,
        limit: int,
        *,
        exact: bool,
        owner: str | None = None,
    ) -> list[tuple[VectorRow, float]]:
        hits = vector_index.search(self._con, model, mesh, packed, limit, exact=exact, owner=owner)
        found = []
        for number, distance in hits:
            row = _ROW.find(self._con, "WHERE row = ?", (number,))
            assert row is not None, "the index holds rows of the table, and no others"
            found.append((row, distance))
        if model.quantization == "int8":
            # The extension adds up in single precision: of a long vector the last digits are off.
            exact_ones = [
                (row, exactly(row.embedding, packed, model.quantization)) for row, _ in found
            ]
            found = sorted(exact_ones, key=lambda hit: hit[1])
        return found

    def model_list(self) -> list[ModelRow]:
        return _MODEL.select(self._con, "ORDER BY created_at, id")


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
        registered = _MODEL.find(self._con, "WHERE id = ?", (model,))
        if registered is not None:
            vector_index.remove(self._con, _model(registered), number, mesh)

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
        self._con.execute(_ROW.insert, _ROW.values(row))
        return self._con.last_insert_rowid()
