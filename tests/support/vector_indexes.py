"""The vector index on SQLite, and a plain one to compare it with.

The plain one measures every vector it holds: slow, and so simple that it is right.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import Protocol

import apsw

from holdfast.rules.errors import UnknownModel
from holdfast.rules.vectors import Model, check_limit, check_packed, distance
from holdfast.storage.sqlite import vector_index as vectors


class VectorIndex(Protocol):
    def ensure_table(self, model: Model, now_ms: int) -> None:
        """Registers the model. Doing so again, or elsewhere at the same time, changes nothing."""

    def put(self, model: Model, rowid: int, mesh: str, packed: bytes) -> None:
        """Adds a vector, or replaces the one with this number. UnknownModel if not registered."""

    def remove(self, model: Model, rowid: int, mesh: str) -> bool:
        """Takes a vector out; False if it was not there."""

    def search(
        self, model: Model, mesh: str, packed: bytes, limit: int, *, exact: bool = False
    ) -> list[tuple[int, float]]:
        """The nearest vectors of a mesh with their Euclidean distances, nearest first; equal
        distances by number. Empty for a model that is not registered.

        Unless `exact`, a large index may miss some: see `rules.sketches`.
        """

    def count(self, model: Model, mesh: str) -> int: ...

    def drop_table(self, model_id: str) -> bool:
        """Forgets a model and all its vectors; False if it was not registered."""


class MemoryVectorIndex:
    """A `VectorIndex` that lasts as long as the process."""

    def __init__(self) -> None:
        self._models: dict[str, dict[int, tuple[str, bytes]]] = {}
        """By fingerprint: the vectors by number, each with its mesh."""

    def ensure_table(self, model: Model, now_ms: int) -> None:
        self._models.setdefault(model.fingerprint, {})

    def put(self, model: Model, rowid: int, mesh: str, packed: bytes) -> None:
        check_packed(packed, model.dim)
        vectors = self._models.get(model.fingerprint)
        if vectors is None:
            raise UnknownModel(f"the model {model.provider}:{model.name} is not registered")
        vectors[rowid] = (mesh, packed)

    def remove(self, model: Model, rowid: int, mesh: str) -> bool:
        vectors = self._models.get(model.fingerprint, {})
        found = rowid in vectors and vectors[rowid][0] == mesh
        if found:
            del vectors[rowid]
        return found

    def search(
        self, model: Model, mesh: str, packed: bytes, limit: int, *, exact: bool = False
    ) -> list[tuple[int, float]]:
        check_limit(limit)
        check_packed(packed, model.dim)
        near = nsmallest(
            limit,
            (
                (distance(vector, packed), rowid)
                for rowid, (home, vector) in self._models.get(model.fingerprint, {}).items()
                if home == mesh
            ),
        )
        return [(rowid, far) for far, rowid in near]

    def count(self, model: Model, mesh: str) -> int:
        vectors = self._models.get(model.fingerprint, {})
        return sum(home == mesh for home, _ in vectors.values())

    def drop_table(self, model_id: str) -> bool:
        return self._models.pop(model_id, None) is not None


class SqliteVectorIndex:
    """A `VectorIndex` on one connection."""

    def __init__(self, con: apsw.Connection) -> None:
        self.con = con

    def ensure_table(self, model: Model, now_ms: int) -> None:
        vectors.ensure_table(self.con, model, now_ms)

    def put(self, model: Model, rowid: int, mesh: str, packed: bytes) -> None:
        vectors.put(self.con, model, rowid, mesh, packed)

    def remove(self, model: Model, rowid: int, mesh: str) -> bool:
        return vectors.remove(self.con, model, rowid, mesh)

    def search(
        self, model: Model, mesh: str, packed: bytes, limit: int, *, exact: bool = False
    ) -> list[tuple[int, float]]:
        return vectors.search(self.con, model, mesh, packed, limit, exact=exact)

    def count(self, model: Model, mesh: str) -> int:
        return counted(self.con, model, mesh)

    def drop_table(self, model_id: str) -> bool:
        return vectors.drop_table(self.con, model_id)


def counted(con: apsw.Connection, model: Model, mesh: str) -> int:
    """How many vectors of a mesh the index on SQLite counts."""
    query = "SELECT live FROM vector_mesh WHERE model = ? AND mesh = ?"
    return int(con.execute(query, (model.fingerprint, mesh)).get or 0)
