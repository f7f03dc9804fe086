"""A disk without room for any commit, until somebody frees some."""

from __future__ import annotations

import apsw

from holdfast.node.core.engine import NodeEngine
from holdfast.storage.sqlite.store import SqliteStore


class FullDisk:
    """Every commit of a node's store fails as on a full disk, until `relieve` was called as often
    as it takes."""

    def __init__(self, engine: NodeEngine, *, hopeless: bool = False) -> None:
        store = engine.store
        assert isinstance(store, SqliteStore)
        writes = store.writer._engine
        self.full = True
        self.tries = 0
        self.reliefs = 0
        self._hopeless = hopeless
        self._commit = writes.commit
        writes.commit = self._try  # type: ignore[method-assign]
        engine.relieve = self._relieve

    def _try(self) -> None:
        self.tries += 1
        if self.full:
            raise apsw.FullError("database or disk is full")
        self._commit()

    def _relieve(self) -> None:
        self.reliefs += 1
        self.full = self._hopeless
