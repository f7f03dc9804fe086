"""The four mistakes that a store of the bus is most likely to make, each made on purpose: the looks
of `support.mesh_store_disk` and of the suite must find them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.rules.bus.mesh_store import ArrivalVerdict, PeerKey, SignedArrival
from holdfast.rules.limits import BUS_BLOCK, BUS_WINDOW
from holdfast.simulate.disk.powerloss import cut_power, record
from holdfast.simulate.disk.workload import Acknowledge
from holdfast.storage.sqlite.bus import mesh_store as module
from holdfast.storage.sqlite.bus.mark import BusMark
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from holdfast.storage.sqlite.bus.nonce_ring import NonceRing
from support import mesh_store_disk as disk
from support.mesh_stores import ANA, nonce_of, signed_arrival

pytestmark = pytest.mark.faults


def problems() -> list[str]:
    recording = record(disk.workload, prepare=disk.prepare)
    report = cut_power(recording, lambda at, told: disk.check(at, told, None), samples=0)
    return [failure.problem for failure in report.failures]


def test_B4_a_mark_that_is_stored_before_its_row_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = SqliteMeshStore.accept

    async def accept(
        self: SqliteMeshStore,
        peer: PeerKey,
        arrivals: Sequence[SignedArrival],
        *,
        window: bool = False,
        name: str = "",
    ) -> list[ArrivalVerdict]:
        before = await self.last_seq(peer) or 0
        if arrivals[-1].sequence > before:
            await self.advance_seq(peer, arrivals[-1].sequence)
            await self.write_rows(
                lambda tx: (
                    tx.connection.execute(
                        "UPDATE bus_mark SET highest = ? WHERE peer = ?", (before, peer)
                    ).get
                )
            )
        return await real(self, peer, arrivals, window=window, name=name)

    monkeypatch.setattr(SqliteMeshStore, "accept", accept)
    assert any("REPLAY" in problem or "replay" in problem for problem in problems())


def test_B4_an_acknowledgement_before_the_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = disk.workload

    def hasty(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        for peer, numbers in disk.BATCHES[:1]:
            acknowledge(("arrived", peer, numbers))
        real(directory, vfs, acknowledge)

    monkeypatch.setattr(disk, "workload", hasty)
    assert any("acknowledged and is lost" in problem for problem in problems())


def test_B3_a_number_that_is_given_again_after_a_restore_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(path: Path, mark: BusMark) -> None:
        """Notes nothing outside the database."""

    async def story() -> list[int]:
        given: list[int] = []
        for restored in (False, True):
            if restored:
                shutil.copy(tmp_path / "copy", tmp_path / "bus.db")
            store = await disk.opened(tmp_path)
            if not restored:
                await store.reserve(1)
                store._store.stop()
                shutil.copy(tmp_path / "bus.db", tmp_path / "copy")
                store = await disk.opened(tmp_path)
            given += await store.reserve(3 * BUS_BLOCK)
            store._store.stop()
        return given

    given = asyncio.run(story())
    assert len(given) == len(set(given))
    for path in tmp_path.iterdir():
        path.unlink()
    monkeypatch.setattr(module, "write_bus_mark", nothing)
    monkeypatch.setattr(module, "why_doubt", lambda found, mark: None)
    given = asyncio.run(story())
    assert len(given) > len(set(given)), "without the mark the numbers repeat"


def test_B3_a_nonce_that_is_forgotten_early_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def remembered() -> bool:
        store = await SqliteMeshStore.open(tmp_path / "bus.db", nonces_kept=BUS_WINDOW + 1)
        for first in range(1, BUS_WINDOW + 2, 205):
            batch = [signed_arrival(n, keep=False) for n in range(first, first + 205)]
            await store.accept(ANA, batch)
        found = await store.nonce_seen(nonce_of(1))
        await store.close()
        (tmp_path / "bus.db").unlink()
        return found

    assert asyncio.run(remembered())
    real = NonceRing._forget
    monkeypatch.setattr(NonceRing, "_forget", lambda self, most: real(self, most + 1))
    assert not asyncio.run(remembered())
