"""A broker on a disk that is really full: it starts, serves what it has, sweeps, and comes back."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.rules.errors import DiskFull
from holdfast.rules.limits import DAY_MS, MIB, SWEEP_ROWS
from holdfast.storage.broker.sqlite import SqliteBrokerStore
from holdfast.storage.broker.sqlite.room import BrokerRoom
from support.broker_stores import BOB, NOW, TEAM, accept, arriving, dm, feed, seqs, with_team
from support.broker_up import broker_at
from support.small_disk import fill, mounted

pytestmark = pytest.mark.faults

BALLAST_BYTES = 10 * MIB
"""More than a WAL, as outside of tests."""
LATER = NOW + 400 * DAY_MS


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, 48 * 1024) as place:
        yield place


async def accept_until_full(store: SqliteBrokerStore) -> int:
    for number in range(1, 10_000):
        try:
            await accept(store, dm(number, raw=bytes(100_000)))
        except DiskFull:
            return number - 1
    raise AssertionError("the disk never got full")


def test_D7_a_full_broker_refuses_serves_sweeps_and_takes_in_again(small_disk: Path) -> None:
    async def live() -> None:
        now_s = 0.0
        room = BrokerRoom(
            small_disk / "b",
            keeps_ballast=True,
            ballast_bytes=BALLAST_BYTES,
            clock=lambda: now_s,
        )
        store = SqliteBrokerStore(small_disk / "b", room=room)
        await store.open(NOW)
        try:
            await with_team(store)
            assert room.ballast.present(), "it is laid where there is room"
            taken = await accept_until_full(store)
            assert taken > 100
            assert not room.ballast.present(), "it is given up at the end"
            with pytest.raises(DiskFull, match="takes in nothing before"):
                await accept(store, dm(taken + 2))
            page = await feed(store, BOB)
            assert seqs(page), "what it has is served"
            swept = 0
            while done := (await store.sweep(LATER, SWEEP_ROWS)).messages:
                swept += done
            assert swept == taken
            with pytest.raises(DiskFull):
                await accept(store, dm(taken + 2))  # it looks once in a second
            now_s = 1.0
            (answer,) = await accept(store, dm(taken + 2))
            assert answer.seq == taken + 1
        finally:
            await store.close()

    asyncio.run(live())


def test_D7_a_broker_starts_and_serves_on_a_disk_without_a_free_byte(small_disk: Path) -> None:
    folder = small_disk / "b"

    async def prepare() -> None:
        store = SqliteBrokerStore(folder)
        await store.open(NOW)
        await with_team(store)
        await accept(store, arriving(1), arriving(2))
        await store.close()

    with broker_at(folder):
        pass  # its key, its name, and where a broker notes what it sees
    asyncio.run(prepare())
    filler = fill(small_disk)
    with broker_at(folder) as up:
        with urllib.request.urlopen(f"{up.url}/healthz") as answer:
            assert answer.status == 200
        store = up.daemon.broker.store
        assert seqs(up.ask(lambda: feed(store, BOB))) == [1, 2]
        with pytest.raises(DiskFull):
            up.ask(lambda: accept(store, arriving(3, raw=bytes(50_000))))
        assert seqs(up.ask(lambda: feed(store, BOB))) == [1, 2]
    filler.unlink()
    with broker_at(folder) as up:
        store = up.daemon.broker.store
        up.ask(lambda: accept(store, arriving(3)))
        assert seqs(up.ask(lambda: feed(store, BOB))) == [1, 2, 3]
        mesh = up.ask(lambda: store.mesh_get(TEAM))
        assert mesh.epoch == 1, "nobody doubts: nothing has gone back"
