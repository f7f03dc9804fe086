"""What only the store in memory promises: no file, and a bound on everything."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.rules.bus.mesh_store import ArrivalVerdict
from holdfast.rules.errors import BadSequence, PeerUnreachable
from holdfast.rules.limits import BUS_NONCES_KEPT, BUS_OUTBOX_MAX, BUS_WINDOW
from support.mesh_stores import ANA, BEN, nonce_of, signed_arrival, waiting_for


def test_B2_a_full_outbox_is_an_unreachable_peer_and_keeps_what_it_has() -> None:
    async def story() -> None:
        store = MemoryMeshStore()
        for number in range(1, BUS_OUTBOX_MAX + 1):
            await store.enqueue_outbox(waiting_for("ben", number))
        with pytest.raises(PeerUnreachable):
            await store.enqueue_outbox(waiting_for("ana", 1))
        again = await store.enqueue_outbox(waiting_for("ben", 1))
        assert again == 1, "it waits already, and needs no room"
        await store.remove_outbox(1)
        await store.enqueue_outbox(waiting_for("ana", 1))
        assert len(await store.due_outbox()) == BUS_OUTBOX_MAX

    asyncio.run(story())


def test_B2_4096_nonces_are_kept_unless_it_is_told_otherwise() -> None:
    async def story() -> None:
        store = MemoryMeshStore()
        for number in range(1, BUS_NONCES_KEPT + 2):
            await store.record_nonce(nonce_of(number))
        assert BUS_NONCES_KEPT == 4096
        assert not await store.nonce_seen(nonce_of(1))
        assert await store.nonce_seen(nonce_of(2))

    asyncio.run(story())


def test_B2_fewer_nonces_than_a_window_reaches_back_are_refused() -> None:
    with pytest.raises(BadSequence):
        MemoryMeshStore(nonces_kept=BUS_WINDOW)


def test_B4_a_peer_that_floods_forgets_its_own_ids_first() -> None:
    async def story() -> None:
        store = MemoryMeshStore(ids_kept=100, inbox_max=10_000)
        await store.accept(ANA, [signed_arrival(n) for n in range(1, 31)])
        await store.accept(BEN, [signed_arrival(n, nonce=n + 10_000) for n in range(1, 2001)])
        resent = [signed_arrival(n + 100, message=n, nonce=n + 30_000) for n in range(1, 31)]
        assert await store.accept(ANA, resent) == [ArrivalVerdict.DUPLICATE] * 30
        newest = signed_arrival(5000, message=2000, nonce=50_000)
        assert await store.accept(BEN, [newest]) == [ArrivalVerdict.DUPLICATE]

    asyncio.run(story())


def test_B2_no_file_is_created_and_sqlite_is_not_needed(tmp_path: Path) -> None:
    code = """
import sys
for name in ("apsw", "sqlite3", "_sqlite3", "sqlite_vec"):
    sys.modules[name] = None  # importing it raises ImportError
import asyncio
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.rules.bus.mesh_store import OutboxMessage, SignedArrival
from holdfast.rules.bus.message import BusMessage, MessageKind
async def story():
    store = MemoryMeshStore()
    id = bytes(6) + b"\\x70\\0\\x80" + bytes(7)
    message = BusMessage(id=id, kind=MessageKind.SEND, body=b"x")
    await store.enqueue_outbox(OutboxMessage(peer="ben", message=message))
    print(await store.accept(b"k" * 32, [SignedArrival(1, bytes(24), message, True)]))
    print(len(await store.due_outbox()), list(await store.reserve(2)))
asyncio.run(story())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[1] == "1 [1, 2]"
    assert list(tmp_path.iterdir()) == []
