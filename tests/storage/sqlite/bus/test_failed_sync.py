"""What a store of the bus has answered survives a disk that once failed to sync."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from holdfast.rules.bus.mesh_store import OutboxMessage
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.errors import HoldfastError
from holdfast.simulate.disk.disk import SimulatedDisk
from holdfast.simulate.disk.faults import DiskCall, Kind
from holdfast.simulate.disk.files import watch_files
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore, inline, open_alone
from holdfast.storage.sqlite.store import SqliteStore


class SyncsFail:
    """While `bad`, the log of the database cannot be synced."""

    bad = False

    def __call__(self, call: DiskCall) -> Kind | None:
        return "ioerr" if self.bad and call.op == "sync" and call.file.endswith("-wal") else None


def _message(number: int) -> OutboxMessage:
    id = bytes((1, *bytes(5), 0x70, 0, 0x80, *bytes(6), number))
    return OutboxMessage(peer="bob", message=BusMessage(id=id, kind=MessageKind.SEND))


class Life:
    """One process that has the store open."""

    def __init__(self, folder: Path, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.database: SqliteStore = open_alone(folder / "bus.db", disk.name)
        self.store = SqliteMeshStore(
            self.database,
            folder / "bus.mark",
            write=inline(self.database),
            file_number=lambda path: 1,
        )
        asyncio.run(self.store.start())

    def put(self, number: int) -> None:
        asyncio.run(self.store.enqueue_outbox(_message(number)))

    def waiting(self) -> list[int]:
        rows = asyncio.run(self.store.outbox_of("bob", 100))
        return [item.message.id[-1] for _, item in rows]

    def die(self, rng: random.Random, *, power_loss: bool) -> None:
        self.disk.crash(rng, power_loss=power_loss)
        self.database.abort()


@pytest.mark.parametrize("seed", range(8))
def test_B4_what_was_answered_after_a_failed_sync_and_a_reopening_is_there_without_power(
    seed: int, tmp_path: Path
) -> None:
    plan, rng = SyncsFail(), random.Random(seed)
    with SimulatedDisk(plan, seed=seed) as disk, watch_files(disk, tmp_path):
        life = Life(tmp_path, disk)
        life.put(1)
        plan.bad = True
        with pytest.raises(HoldfastError):
            life.put(2)
        plan.bad = False
        life.die(rng, power_loss=False)
        life = Life(tmp_path, disk)
        life.put(3)
        life.die(rng, power_loss=True)
        life = Life(tmp_path, disk)
        assert {1, 3} <= set(life.waiting())
        life.die(rng, power_loss=False)
