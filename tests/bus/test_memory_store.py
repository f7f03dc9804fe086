"""What only the store in memory promises: no file, and a bound on everything."""

from __future__ import annotations

import asyncio

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
