"""The queue in front of the writer has an end, and whoever meets it is told."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rules.errors import StoreBusy
from holdfast.storage import group_commit
from holdfast.storage.group_commit import Ticket
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore


def test_S3_more_writes_than_the_queue_holds_are_refused_and_the_others_go_on(
    store: MemoryStore | SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "QUEUE_OPS_MAX", 3)
    answered: list[Any] = []
    tickets = [Ticket(lambda tx: tx.epoch(), answered.extend) for _ in range(5)]
    for ticket in tickets[:3]:
        store.writer.enqueue(ticket)
    with pytest.raises(StoreBusy, match="3 writes wait already"):
        store.writer.submit(tickets[3:])
    assert store.writer.run_group() == 3
    assert answered == tickets[:3]
