"""Dictionaries whose changes can be undone."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any


class UndoTables:
    """Named tables; every step leaves behind how to take it back."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[Any, Any]] = {}
        self.undo: list[Callable[[], None]] = []

    def undo_to(self, mark: int) -> None:
        while len(self.undo) > mark:
            self.undo.pop()()

    def _table(self, name: str) -> dict[Any, Any]:
        return self._tables.setdefault(name, {})

    def _rows(self, name: str, mesh: str) -> list[Any]:
        return [row for row in self._table(name).values() if row.mesh == mesh]

    def _put(self, name: str, key: Hashable, row: Any) -> None:
        table = self._table(name)
        if key in table:
            before = table[key]
            self.undo.append(lambda: table.__setitem__(key, before))
        else:
            self.undo.append(lambda: table.__delitem__(key))
        table[key] = row

    def _drop(self, name: str, key: Hashable) -> None:
        table = self._table(name)
        if key in table:
            before = table.pop(key)
            self.undo.append(lambda: table.__setitem__(key, before))

    def _next(self, name: str) -> int:
        """The number of the next row of a table that is numbered."""
        return max(self._table(name), default=0) + 1
