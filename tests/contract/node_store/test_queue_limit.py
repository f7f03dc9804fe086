"""The queue in front of the writer has an end, and whoever meets it is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.rules.errors import StoreBusy
from holdfast.storage import group_commit
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.tickets import Ticket
from support.waiting import until


def test_S3_the_queue_takes_what_it_has_room_for_and_a_thread_that_finds_none_is_refused(
    store: MemoryStore | SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "QUEUE_OPS_MAX", 3)
    answered: list[Any] = []
    tickets = [Ticket(lambda tx: tx.epoch(), answered.extend) for _ in range(5)]

    def fill() -> None:
        assert store.writer.submit(tickets) == 3
        with ThreadPoolExecutor(1) as other:
            refused = other.submit(store.write, lambda tx: tx.epoch()).exception()
        assert isinstance(refused, StoreBusy)
        assert refused.message == "3 writes wait already"

    store.writer.between_groups(fill, None)
    until(lambda: answered == tickets[:3])
