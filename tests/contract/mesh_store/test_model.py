"""Random use of a durable store beside one in memory that never ends: restarts and older copies of
the file make no difference that they should not make.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.rules.bus.mesh_store import MeshStore, OutboxMessage
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from support.mesh_stores import ANA, BEN, NOW, SetClock, signed_arrival, waiting_for

PEERS = st.sampled_from((ANA, BEN))
NUMBERS = st.integers(1, 40)
ARRIVAL = st.builds(signed_arrival, NUMBERS, NUMBERS, NUMBERS, keep=st.booleans())
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("accept"), PEERS, st.lists(ARRIVAL, max_size=6), st.booleans()),
        st.tuples(st.just("send"), st.sampled_from(("ana", "ben")), NUMBERS),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("put back"), st.integers(0, 9), st.integers(0, 50)),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("time"), st.integers(0, 40)),
        st.tuples(st.just("expire")),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


class Pair:
    """The store that is tried, and the one that it is compared with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, SetClock()
        self.model = MemoryMeshStore(now_ms=self.clock.now_ms)
        self.ids: list[tuple[int, int]] = []
        """The ids of items in the outbox, in the store and in the model."""
        self.given = 0

    async def start(self) -> None:
        self.store = await SqliteMeshStore.open(self.folder / "bus.db", now_ms=self.clock.now_ms)

    async def both(self, ask: Callable[[MeshStore], Awaitable[object]]) -> None:
        assert await ask(self.store) == await ask(self.model)

    async def send(self, peer: str, number: int) -> None:
        expires = NOW + number if number % 3 == 0 else None
        item = waiting_for(peer, number, expires_at=expires)
        here, there = await self.store.enqueue_outbox(item), await self.model.enqueue_outbox(item)
        known = dict(self.ids)
        assert known.get(here, there) == there
        if here not in known:
            self.ids.append((here, there))

    async def restart(self) -> None:
        await self.store.close()
        await self.start()
        number = await self.store.next_out_seq()
        assert number > self.given
        self.given = number

    async def look(self) -> None:
        """Everything that can be asked is the same."""
        for peer in (ANA, BEN):
            await self.both(lambda store, peer=peer: store.last_seq(peer))  # type: ignore[misc]
        assert await _inbox(self.store) == await _inbox(self.model)
        for name in ("ana", "ben"):
            here = await self.store.outbox_of(name, 100)
            there = await self.model.outbox_of(name, 100)
            assert [item for _, item in here] == [item for _, item in there]
            assert (
                dict(self.ids).items()
                >= dict(zip([id for id, _ in here], [id for id, _ in there], strict=True)).items()
            )
            await self.both(lambda store, name=name: store.next_outbox(name))  # type: ignore[misc]

    async def step(self, step: tuple[object, ...]) -> None:
        match step:
            case ("accept", bytes(key), list(arrivals), bool(window)):
                await self.both(lambda store: store.accept(key, arrivals, window=window))
            case ("send", str(peer), int(number)):
                await self.send(peer, number)
            case ("remove", int(at)) if self.ids:
                here, there = self.ids[at % len(self.ids)]
                await self.store.remove_outbox(here)
                await self.model.remove_outbox(there)
                await self.store.remove_outbox(here)
            case ("put back", int(at), int(later)) if self.ids:
                here, there = self.ids[at % len(self.ids)]
                await self.store.put_back(here, self.clock.at + later)
                await self.model.put_back(there, self.clock.at + later)
            case ("finish", int(at)):
                for store in (self.store, self.model):
                    rows = await store.pending_inbox(0, 100)
                    await store.finish_inbox([row.number for row in rows[at : at + 2]])
            case ("time", int(later)):
                self.clock.at += later
            case ("expire",):
                here_, there_ = await self.store.expire_outbox(), await self.model.expire_outbox()
                assert sorted(map(_named, here_)) == sorted(map(_named, there_))
            case ("restart",):
                await self.restart()


def _named(item: OutboxMessage) -> tuple[str, bytes]:
    return item.peer, item.message.id


async def _inbox(store: MeshStore) -> list[object]:
    return [(row.sender, row.message, row.received_at) for row in await store.pending_inbox(0, 99)]


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_B2_a_durable_store_does_what_one_in_memory_would(steps: list[tuple[object, ...]]) -> None:
    async def story(folder: Path) -> None:
        pair = Pair(folder)
        await pair.start()
        for step in steps:
            await pair.step(step)
            await pair.look()
        await pair.store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))
