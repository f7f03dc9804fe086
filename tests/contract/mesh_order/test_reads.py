"""What a confirmed read can count on, alone and in histories of many clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from holdfast.storage.ports import Transaction
from support.linearizability import Call, Register, culprits, expect_linearizable, judge
from support.order_worlds import (
    ENOUGH_MS,
    OrderSeat,
    OrderWorld,
    Told,
    decoded,
    propose,
    put,
    read,
    title_of,
)
from support.seeds import seeds
from support.voter_nodes import mission, until

CLIENTS, CALLS, KEYS = 6, 20, 2
Read = Callable[[OrderSeat, str], Awaitable[Any]]


def test_Q9_a_confirmed_read_sees_what_was_acknowledged_before_it(told: Told) -> None:
    async def story(world: OrderWorld) -> None:
        ana, bo, cy = world.seats
        for turn in range(8):
            writer, reader = (ana, bo, cy)[turn % 3], (bo, cy, ana)[turn % 3]
            await put(writer, "newest", f"{turn}")
            assert await read(reader, "newest") == f"{turn}"
        status = cy.order.status()
        assert status.confirmed_ms is not None
        assert status.coordinator in {seat.name for seat in world.seats}
        assert status.has_quorum
        assert status.applied <= status.committed

    told(story)


def test_Q9_a_confirmed_read_waits_for_a_fold_that_lags(told: Told) -> None:
    async def story(world: OrderWorld) -> None:
        ana, _, cy = world.seats
        await put(ana, "lags", "old")
        assert await read(cy, "lags") == "old"
        let_on, held = threading.Event(), threading.Event()

        def hold(tx: Transaction) -> None:
            held.set()
            assert let_on.wait(60)

        # Another write of this home has the store: nothing is folded meanwhile.
        holding = asyncio.create_task(asyncio.to_thread(cy.engine.write, "test", hold))
        reading = None
        try:
            await asyncio.to_thread(held.wait, 60)
            await put(ana, "lags", "new")
            upto = ana.order.status().applied
            reading = asyncio.create_task(read(cy, "lags"))
            await until(lambda: cy.order.status().committed >= upto)
            assert title_of(cy, "lags") == "old"
        finally:
            let_on.set()
            await holding
        assert await reading == "new"

    told(story)


class History:
    """Calls of clients on registers, each of which is an entity."""

    def __init__(self, world: OrderWorld, seed: int, read: Read) -> None:
        self.world, self.random, self.read = world, Random(seed), read
        self.name = f"register {seed}"
        self.calls: list[Call] = []
        self.ids: dict[bytes, int] = {}

    async def run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(CLIENTS)))

    async def _client(self, number: int) -> None:
        seat = self.world.seats[number % 3]
        clock = asyncio.get_running_loop().time
        for turn in range(CALLS):
            id = number * CALLS + turn
            key = f"{self.name} {self.random.randrange(KEYS)}"
            began = clock()
            if self.random.random() < 0.5:
                answer = await self.read(seat, key)
                self.calls.append(Call(id, key, began, clock(), ("read",), answer))
                continue
            envelope = mission(seat.name, f"{id}", key)
            self.ids[envelope.id] = id
            made = await propose(seat, envelope)
            assert made.outcome == "applied", made
            call = Call(id, key, began, clock(), ("write", f"{id}"), None, made.number)
            self.calls.append(call)


@pytest.mark.parametrize("seed", seeds(2))
def test_Q3_Q9_histories_of_many_clients_are_linearizable(told: Told, seed: int) -> None:
    async def story(world: OrderWorld) -> None:
        history = History(world, seed, read)
        await history.run()
        expect_linearizable(history.calls, Register())
        # And by the numbers of the commits, as every node has them.
        await world.seats[2].order.confirm(timeout_ms=ENOUGH_MS)
        log = [
            (one.number, history.ids[one.id])
            for one in decoded(world.seats[2])
            if one.id in history.ids
        ]
        writes = [call for call in history.calls if call.asked[0] == "write"]
        for key in {call.key for call in writes}:
            of_key = [call for call in writes if call.key == key]
            ids = {call.id for call in of_key}
            assert not culprits(of_key, [one for one in log if one[1] in ids], Register())

    told(story)


def test_R2_a_read_of_what_a_node_had_before_is_found_out(told: Told) -> None:
    """The control: without it the checker could accept anything."""

    async def story(world: OrderWorld) -> None:
        first: dict[str, Any] = {}

        async def stale(seat: OrderSeat, id: str) -> Any:
            now = title_of(seat, id)
            if now is not None:
                first.setdefault(id, now)
            return first.get(id)

        history = History(world, 4711, stale)
        await history.run()
        verdicts = [one.verdict for one in judge(history.calls, Register())]
        assert "violated" in verdicts

    told(story)
