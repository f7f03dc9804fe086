"""A rollback on a failing disk: everybody still hears of their own write."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rules.errors import StoreFailed, UnknownMesh
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.tickets import Ticket
from support.envelopes import MESH
from support.stores import mesh_row


class Write:
    """A write that the writer may undo and run again."""

    repeatable = True

    def __init__(self, mesh: str) -> None:
        self.mesh = mesh

    def __call__(self, tx: Transaction) -> tuple[int, int, str | None, int]:
        if self.mesh != MESH:
            tx.tick(MESH)  # so that there is something to undo
        return tx.tick(self.mesh)


@pytest.mark.parametrize("ended", [True, False])
def test_S3_a_rollback_that_fails_takes_no_answer_from_anybody(
    store: MemoryStore | SqliteStore, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    store.write(lambda tx: tx.mesh_add(mesh_row(MESH)))
    engine: Any = store.writer._engine
    rollback, failures = engine.rollback, [True]

    def failing() -> None:
        if ended or not failures:
            rollback()
        if failures:
            failures.pop()
            raise OSError("the disk failed")

    monkeypatch.setattr(engine, "rollback", failing)
    answered: list[Ticket] = []
    for mesh in (MESH, "nowhere"):
        store.writer.enqueue(Ticket(Write(mesh), answered.extend))
    store.writer.run_group()
    good, bad = answered
    if ended:
        assert good.value()[0] == 1, "run again, each in its savepoint"
        with pytest.raises(UnknownMesh):
            bad.value()
    else:
        for ticket in answered:
            assert ticket.error is not None
        with pytest.raises(StoreFailed):
            store.write(Write(MESH))
        rollback()
