"""A peer that fills its share of the inbox is stopped there, and nowhere else."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.received import ReceivedRequest
from holdfast.rules.limits import BUS_BUFFER_BYTES
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from support.bus_pairs import bound, join, run


async def _answer(request: ReceivedRequest) -> bytes:
    return request.body


def test_B5_a_peer_whose_share_of_the_inbox_is_full_still_answers_and_is_answered() -> None:
    async def story() -> None:
        ana = await bound("ana", "ben")
        ben = await bound("ben", "ana", store=MemoryMeshStore(inbox_max=2000))
        await join(ana, ben)
        ana.serve("echo", _answer)
        ben.serve("echo", _answer)
        sends = [asyncio.create_task(ana.send("ben", bytes(1024))) for _ in range(2000)]
        await ben.router.context.until(lambda: ben.status().counts.get("inbox_full"), 10_000)
        assert (await ben.request("ana", "echo", "a", timeout_ms=5000)).text == "a"
        assert (await ana.request("ben", "echo", "b", priority="now", timeout_ms=5000)).text == "b"
        assert not all(one.done() for one in sends)
        waiting = len(await ben.router.context.store.pending_inbox(0, 5000))
        assert 700 < waiting < 1000, "more was stored than its share, or it was not stopped"
        async with ben.subscribe() as messages:  # there is room again: everything comes
            came = [(await anext(messages)).id for _ in sends]
        assert came == [(await one).id for one in sends]
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B5_large_bodies_fill_a_buffer_by_their_bytes_and_arrive_in_order(tmp_path: Path) -> None:
    async def story() -> None:
        store = await SqliteMeshStore.open(tmp_path / "bus.db")
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", store=store)
        await join(ana, ben)
        bodies = [bytes([number]) * (3 << 19) for number in range(14)]
        for body in bodies:
            assert (await ana.send("ben", body)).state == "delivered"
        async with ben.subscribe() as messages:  # all of them wait for it
            most = 0
            for body in bodies:
                assert (await anext(messages)).body == body
                for _ in range(50):
                    await asyncio.sleep(0)
                most = max(most, messages.waiting)
            assert most == BUS_BUFFER_BYTES // len(bodies[0]) + 1
        for bus in (ana, ben):
            await bus.close()
        await store.close()

    run(story())
