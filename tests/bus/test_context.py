"""What a bus runs by itself: begun at once where nothing has to be waited for, and never lost."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.bus.context import BusContext
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from support.bus_pairs import run


def _context() -> BusContext:
    return BusContext(BusOptions(name="ana"), b"a" * 32, MemoryMeshStore(), StaticPeers())


def test_B2_what_is_begun_at_once_goes_on_as_a_task_and_gets_its_answer_error_and_end() -> None:
    async def story() -> None:
        context, seen = _context(), list[str]()
        answer, refusal = (asyncio.get_running_loop().create_future() for _ in range(2))

        async def work() -> None:
            seen.append("begun")
            try:
                seen.append(await answer)
                await asyncio.sleep(0)
                with pytest.raises(OSError, match="no disk"):
                    await refusal
                seen.append("refused")
                await asyncio.Event().wait()
            finally:
                seen.append("ended")

        context.spawn_at_once(work(), "work")
        assert seen == ["begun"]
        answer.set_result("answered")
        refusal.set_exception(OSError("no disk"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen == ["begun", "answered", "refused"]
        await context.end_tasks()
        assert seen[-1] == "ended"
        assert context.counts["faults"] == 0

    run(story())


def test_B2_a_fault_before_the_first_wait_or_after_it_is_counted_and_harms_nobody() -> None:
    async def story() -> None:
        context = _context()

        async def faulty(waits: bool) -> None:
            if waits:
                await asyncio.sleep(0)
            raise OSError("no disk")

        context.spawn_at_once(faulty(False), "early")
        assert context.counts["faults"] == 1
        context.spawn_at_once(faulty(True), "late")
        for _ in range(4):
            await asyncio.sleep(0)
        assert context.counts["faults"] == 2

    run(story())
