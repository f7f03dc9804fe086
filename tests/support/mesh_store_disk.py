"""The store of the bus on a disk that fails: a workload, and what must be left of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast.rules.bus.mesh_store import ArrivalVerdict
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import BUS_BLOCK
from holdfast.simulate.disk.workload import Acknowledge
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore, inline
from holdfast.storage.sqlite.integrity import check as check_database
from holdfast.storage.sqlite.store import SqliteStore
from support.mesh_stores import ANA, BEN, SetClock, signed_arrival, waiting_for

T = TypeVar("T")
BATCHES = ((ANA, (1, 2)), (BEN, (3,)), (ANA, (4, 5)))
"""Sender and numbers of what arrives; message and nonce have the same number."""


async def at_once(call: Callable[[], T]) -> T:
    return call()


async def opened(directory: Path, vfs: str | None = None, sync: str = "full") -> SqliteMeshStore:
    store = SqliteStore(directory / "bus.db", vfs=vfs, sync=sync)
    mesh_store = SqliteMeshStore(
        store,
        directory / "bus.mark",
        write=inline(store),
        in_thread=at_once,
        now_ms=SetClock().now_ms,
        file_number=lambda path: 0,
    )
    try:
        return await mesh_store.start()
    except BaseException:
        store.abort()
        raise


def prepare(directory: Path) -> None:
    async def make() -> None:
        store = await opened(directory)
        await store.accept(BEN, [signed_arrival(1, message=99, nonce=99)])
        store._store.stop()

    asyncio.run(make())


def workload(directory: Path, vfs: str, acknowledge: Acknowledge, sync: str = "full") -> None:
    async def work() -> None:
        store = await opened(directory, vfs, sync)
        try:
            for at, (peer, numbers) in enumerate(BATCHES):
                await store.accept(peer, [signed_arrival(n) for n in numbers])
                acknowledge(("arrived", peer, numbers))
                await store.enqueue_outbox(waiting_for("cleo", at))
                acknowledge(("waits", at))
                given = await store.reserve(BUS_BLOCK if at else 2)
                acknowledge(("given", given[-1]))
        finally:
            store._store.stop()

    asyncio.run(work())


def check(directory: Path, acknowledged: Sequence[object], error: BaseException | None) -> None:
    assert error is None or isinstance(error, HoldfastError), repr(error)

    async def look() -> None:
        store = await opened(directory)
        problems = check_database(store._store._con, ours=True)
        assert not problems, problems[0]
        inbox = {row.message.id for row in await store.pending_inbox(0, 100)}
        known = {item.message.id for _, item in await store.due_outbox()}
        free = (await store.reserve(1)).start
        for peer, numbers in BATCHES:
            told = ("arrived", peer, numbers) in acknowledged
            again = await store.accept(peer, [signed_arrival(n) for n in numbers])
            for number, verdict in zip(numbers, again, strict=True):
                there = signed_arrival(number).message.id in inbox
                assert there or not told, f"{number} was acknowledged and is lost"
                assert (verdict is ArrivalVerdict.NEW) is not there, f"{number}: {verdict}"
        for thing in acknowledged:
            match thing:
                case ("waits", int(number)):
                    assert waiting_for("cleo", number).message.id in known
                case ("given", int(number)):
                    assert free > number, f"{number} would be given again: {free}"
        store._store.abort()

    asyncio.run(look())
