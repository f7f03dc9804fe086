"""A peer that fills its share of the inbox is stopped there, and nowhere else."""

from __future__ import annotations

import asyncio

from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.received import ReceivedRequest
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
