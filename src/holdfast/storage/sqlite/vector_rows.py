"""Vectors as rows, and their models. The search itself is in `vectors`."""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.rules.order import Version
from holdfast.rules.rows import ModelRow, VectorRow
from holdfast.rules.vectors import Model
from holdfast.storage.sqlite import vector_index

_ROW = (
    "row, mesh, owner, key, model, content, metadata, embedding, lamport, peer, id, offset, "
    "updated_at, tombstone, live"
)
_MODEL = "id, provider, name, version, dim, quantization, created_at, deprecated_at, last_read_at"
_OF_KEY = "mesh = ? AND owner = ? AND key = ? AND model = ?"


def _vector(row: Any) -> VectorRow:
    return VectorRow(
        mesh=row[1],
        owner=row[2],
        key=row[3],
        model=row[4],
        content=row[5],
        metadata=row[6].encode(),
        embedding=row[7],
        lamport=row[8],
        peer=row[9],
        id=row[10],
        offset=row[11],
        updated_at=row[12],
        tombstone=bool(row[13]),
        live=bool(row[14]),
    )


def _model_row(row: Any) -> ModelRow:
    return ModelRow(
        id=row[0],
        provider=row[1],
        name=row[2],
        version=row[3],
        dim=row[4],
        quantization=row[5],
        created_at=row[6],
        deprecated_at=row[7],
        last_read_at=row[8],
    )


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
            f"SELECT {_ROW} FROM vector WHERE {_OF_KEY} AND live = 1", (mesh, owner, key, model)
        ).get
        return None if row is None else _vector(row)

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
            f"SELECT {_ROW} FROM vector WHERE row > ?1 AND mesh = ?2 "
            f"AND (?3 IS NULL OR model = ?3) {'AND live = 1 ' if live_only else ''}"
            "ORDER BY row LIMIT ?4",
            (after, mesh, model, limit),
        )
        return [(row[0], _vector(row)) for row in rows]

    def vector_search(
        self, mesh: str, model: Model, packed: bytes, limit: int, *, exact: bool
    ) -> list[tuple[VectorRow, float]]:
        hits = vector_index.search(self._con, model, mesh, packed, limit, exact=exact)
        found = []
        for number, distance in hits:
            row = self._con.execute(f"SELECT {_ROW} FROM vector WHERE row = ?", (number,)).get
            found.append((_vector(row), distance))
        return found

    def model_list(self) -> list[ModelRow]:
        rows = self._con.execute(f"SELECT {_MODEL} FROM vector_model ORDER BY created_at, id")
        return [_model_row(row) for row in rows]


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
        known = self._con.execute(f"SELECT {_MODEL} FROM vector_model WHERE id = ?", (model,)).get
        if known is not None:
            vector_index.remove(self._con, _model(_model_row(known)), number, mesh)

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
        self._con.execute(
            f"INSERT INTO vector ({_ROW}) VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.mesh,
                row.owner,
                row.key,
                row.model,
                row.content,
                row.metadata.decode(),
                row.embedding,
                row.lamport,
                row.peer,
                row.id,
                row.offset,
                row.updated_at,
                row.tombstone,
                row.live,
            ),
        )
        return self._con.last_insert_rowid()
