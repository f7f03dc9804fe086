"""Whatever fails in a store, whoever calls the bus gets a `BusError`, in time, and can close it."""

from __future__ import annotations

import asyncio
import errno
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from holdfast.bus.bus import Bus
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.received import ReceivedRequest
from holdfast.bus.static_peers import StaticPeers
from holdfast.protocol.bus_frames import FrameKind
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.errors import BusError, DiskFull, StoreBusy, StoreCorrupt
from holdfast.service.clock import SystemClock
from holdfast.simulate.disk.disk import SimulatedDisk
from holdfast.simulate.disk.faults import DiskCall, Kind
from holdfast.simulate.disk.files import watch_files
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore, inline, open_alone
from support.bus_pairs import bound, join, run
from support.seeds import seeds

T = TypeVar("T")

ERRORS: list[Callable[[], Exception]] = [
    lambda: OSError(errno.ENOSPC, "no space left on device"),
    lambda: DiskFull("the disk is full"),
    lambda: StoreBusy("another process has it"),
    lambda: StoreCorrupt("a page cannot be read"),
    lambda: KeyError("a fault of the store itself"),
]
CALLS = sorted(
    name
    for name in vars(MeshStore)
    if not name.startswith("_") and name not in ("close", "counted")
)


UNUSED = {
    *("advance_seq", "due_outbox", "next_out_seq", "nonce_seen", "record_nonce", "remove_outbox"),
    *("give_up", "has_room", "outbox_peers"),
}
"""Of the eight calls the bus uses two itself. The last line is for refused messages, full inboxes,
and people.
"""


class FailingStore:
    """A store of which some calls fail, while `bad`."""

    def __init__(self, inner: MeshStore, fails: str, error: Callable[[], Exception]) -> None:
        self._inner, self._fails, self._error = inner, fails, error
        self.bad = False
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name == "counted":
            return call

        async def checked(*given: Any, **named: Any) -> Any:
            if self.bad and name == self._fails:
                self.failed += 1
                raise self._error()
            return await call(*given, **named)

        return checked


async def _echo(request: ReceivedRequest) -> bytes:
    return request.body


async def _open_durably(bus: Bus) -> None:
    async with bus.subscribe("more.*", durable=True):
        pass


async def _take_one(bus: Bus) -> None:
    async with bus.subscribe(">") as messages, asyncio.timeout(0.2):
        await anext(messages)


async def _reissue(bus: Bus) -> None:
    for one in bus.outstanding():
        await bus.reissue(one.id)


def _public_calls(bus: Bus, peer: str) -> list[Callable[[], Awaitable[object]]]:
    """Every call of the bus that can reach its store."""
    return [
        lambda: bus.send(peer, "x", wait_ms=50),
        lambda: bus.send(peer, "x", id=SystemClock().new_id(), wait_ms=50),
        lambda: bus.publish("news.x", "x", wait_ms=50),
        lambda: bus.request(peer, "echo", "x", timeout_ms=50),
        lambda: bus.request(None, "echo", "x", timeout_ms=50, wait_ms=20),
        lambda: _reissue(bus),
        lambda: _open_durably(bus),
        lambda: bus.forget("mine.*"),
        lambda: _take_one(bus),
        lambda: bus.settle(),
        lambda: bus.refresh_peers(),
        lambda: bus.peers(),
        lambda: bus.connected(peer, wait_ms=20),
        lambda: bus.ping(peer, wait_ms=20),
        lambda: bus.send(peer, "y", wait_ms=0),
    ]


async def _bear(call: Callable[[], Awaitable[object]], wrong: list[str], what: str) -> None:
    try:
        async with asyncio.timeout(5):
            await call()
    except BusError:
        pass
    except TimeoutError as error:  # only `_take_one` has a right to it: nothing came
        if "_take_one" not in what:
            wrong.append(f"{what}: {error!r}")
    except Exception as error:
        wrong.append(f"{what}: {error!r}")


async def _through_everything(store: MeshStore, turn_bad: Callable[[bool], None]) -> list[str]:
    """What callers got that is no `BusError`."""
    wrong: list[str] = []
    ana = await bound("ana", "ben", store=store)
    ben = await bound("ben", "ana")
    ben.serve("echo", _echo)
    ana.serve("echo", _echo)
    async with ben.subscribe("news.*", durable=True), ana.subscribe("mine.*", durable=True):
        await join(ana, ben)
        await ana.send("ben", "well")
        await ben.send("ana", "well")
        turn_bad(True)
        for at, call in enumerate(_public_calls(ana, "ben")):
            await _bear(call, wrong, f"{getattr(call, '__qualname__', '')} {at}")
            if ana.router.link_to("ben") is None:  # a store that fails ends links
                with suppress(BusError):
                    await join(ana, ben)
        await _bear(lambda: ben.send("ana", "to it", wait_ms=50), wrong, "to it")
        await _bear(lambda: _cut_under_way(ana, ben), wrong, "cut")
        await _bear(ana.close, wrong, "close")
    await _bear(lambda: _bind_again(store, ben), wrong, "bind")
    turn_bad(False)
    await ben.close()
    return wrong


async def _cut_under_way(ana: Bus, ben: Bus) -> None:
    """A link ends while a message is under way, and another one comes."""
    link = await join(ana, ben)
    link.other.drops = lambda kind: kind is FrameKind.ACK
    await asyncio.wait([asyncio.create_task(ana.send("ben", "z", wait_ms=0))], timeout=0.02)
    link.cut()
    await asyncio.sleep(0)
    await join(ana, ben)
    await asyncio.sleep(0)


async def _bind_again(store: MeshStore, ben: Bus) -> None:
    async with await bound("ana", "ben", store=store) as ana:
        await join(ana, ben)
        await ana.send("ben", "again", wait_ms=50)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("seed", seeds(1))
def test_B2_errors_of_a_store_reach_callers_as_bus_errors_only(
    kind: str, seed: int, tmp_path: Path
) -> None:
    rng, unused = random.Random(seed), list[str]()

    async def story(name: str, error: Callable[[], Exception], folder: Path) -> list[str]:
        inner: MeshStore = (
            MemoryMeshStore() if kind == "memory" else await SqliteMeshStore.open(folder / "bus.db")
        )
        failing = FailingStore(inner, name, error)

        def turn(bad: bool) -> None:
            failing.bad = bad

        wrong = await _through_everything(cast(MeshStore, failing), turn)
        await inner.close()
        if not failing.failed:
            unused.append(name)
        return [f"{name} fails: {one}" for one in wrong]

    async def all_calls() -> None:
        found: list[str] = []
        for at, name in enumerate(CALLS):
            folder = tmp_path / name
            folder.mkdir()
            found += await story(name, ERRORS[(at + rng.randrange(5)) % len(ERRORS)], folder)
        assert found == []
        assert set(unused) == UNUSED

    run(all_calls())


@pytest.mark.parametrize("turns", range(6))
def test_B2_a_bus_that_is_closed_while_it_counts_tries_leaves_no_call_of_its_store(
    turns: int,
) -> None:
    """So many turns of the loop after a link ended with a message under way. A call that was made
    and never awaited would warn in whatever test runs when memory is cleaned up.
    """
    made: list[Coroutine[Any, Any, Any]] = []

    class Recorded(MemoryMeshStore):
        def put_back(self, *given: Any) -> Any:
            made.append(super().put_back(*given))
            return made[-1]

    async def story() -> None:
        ana, ben = await bound("ana", "ben", store=Recorded()), await bound("ben", "ana")
        link = await join(ana, ben)
        link.other.drops = lambda kind: kind is FrameKind.ACK
        sending = asyncio.create_task(ana.send("ben", "z", wait_ms=0))
        while not any(kind is FrameKind.PARCEL for kind, _, _ in link.sent):
            await asyncio.sleep(0)
        link.cut()
        for _ in range(turns):
            await asyncio.sleep(0)
        await ana.close()
        await ben.close()
        await asyncio.wait([sending])
        sending.exception()

    run(story())
    states = [inspect.getcoroutinestate(one) for one in made]
    assert states == [inspect.CORO_CLOSED] * len(made)


class Broken:
    """A disk that fails from a moment on."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.bad = kind, False

    def __call__(self, call: DiskCall) -> Kind | None:
        if not self.bad or call.op in ("open", "delete", "size"):
            return None
        return self.kind if self.kind == "ioerr" or call.needs_space else None


@pytest.mark.parametrize("kind", ["ioerr", "full"])
def test_B2_a_disk_that_fails_reaches_callers_as_bus_errors_only(
    kind: Kind, tmp_path: Path
) -> None:
    plan = Broken(kind)

    async def at_once(work: Callable[[], T]) -> T:
        return work()

    async def story() -> None:
        database = open_alone(tmp_path / "bus.db", disk.name)
        store = SqliteMeshStore(
            database,
            tmp_path / "bus.mark",
            write=inline(database),
            in_thread=at_once,
            file_number=lambda path: 1,
        )
        await store.start()

        def turn(bad: bool) -> None:
            plan.bad = bad

        assert await _through_everything(store, turn) == []
        database.abort()

    with SimulatedDisk(plan, seed=1) as disk, watch_files(disk, tmp_path):
        run(story())


def test_B6_a_link_is_used_although_where_the_peer_was_found_cannot_be_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def full(self: StaticPeers, key: bytes, address: str) -> None:
        raise DiskFull("the disk is full")

    monkeypatch.setattr(StaticPeers, "note_address", full)

    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana")
        await join(ana, ben)
        assert (
            await ben.send("ana", b"to the one who dialled", wait_ms=20_000)
        ).state == "delivered"
        assert (await ana.send("ben", b"and back", wait_ms=20_000)).state == "delivered"
        await ana.close()
        await ben.close()

    run(story())
