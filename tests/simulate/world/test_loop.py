"""The loop of a simulated process: asyncio as ever, in the time of a world."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.simulate.world import loop as loops
from holdfast.simulate.world.loop import SimulatedLoop
from holdfast.simulate.world.seeds import PromiseBroken
from holdfast.simulate.world.world import World

HOUR_S = 3600


def test_R1_an_hour_of_a_simulated_loop_passes_at_once() -> None:
    world = World(1)
    loop = SimulatedLoop(world, "ana")

    async def wait() -> float:
        began = loop.time()
        await asyncio.sleep(HOUR_S)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return loop.time() - began

    assert loop.run_until_complete(wait()) == pytest.approx(HOUR_S + 5, abs=0.002)
    loop.close()


def test_R1_a_timer_of_a_simulated_loop_never_rings_before_its_time() -> None:
    world = World(3)
    loop = SimulatedLoop(world, "ana")

    async def wait(seconds: float) -> None:
        deadline = loop.time() + seconds
        rounds = 0
        while loop.time() < deadline:
            rounds += 1
            await asyncio.sleep(deadline - loop.time())
        assert rounds == 1

    for number in range(200):
        loop.run_until_complete(wait(number / 7 + 0.001))
    loop.close()


def test_R1_tasks_of_a_simulated_loop_run_in_the_order_in_which_they_were_made() -> None:
    loop = SimulatedLoop(World(1), "ana")
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)
        await asyncio.sleep(0)
        order.append(number)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(note(number))

    loop.run_until_complete(all_of_them())
    assert order == [0, 1, 2, 0, 1, 2]
    loop.close()


def _threads(seed: int) -> list[int]:
    """The order in which eight functions are done that were handed to threads."""
    loop = SimulatedLoop(World(seed), "ana")
    order: list[int] = []

    async def hand_over(number: int) -> None:
        order.append(await asyncio.to_thread(lambda: number))

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(hand_over(number))

    loop.run_until_complete(all_of_them())
    loop.close()
    return order


def test_R1_when_a_thread_has_finished_is_drawn_from_the_seed() -> None:
    orders = [_threads(seed) for seed in range(5)]
    assert orders == [_threads(seed) for seed in range(5)]
    assert len({tuple(order) for order in orders}) > 1
    assert all(sorted(order) == list(range(8)) for order in orders)


def test_R1_an_error_in_a_thread_reaches_the_task_that_waits() -> None:
    loop = SimulatedLoop(World(1), "ana")

    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        loop.run_until_complete(asyncio.wait_for(_in_thread(fail), 1))
    loop.close()


async def _in_thread(act: object) -> None:
    await asyncio.get_running_loop().run_in_executor(None, act)  # type: ignore[arg-type]


def test_R1_what_a_callback_raises_and_nobody_handles_breaks_the_world() -> None:
    world = World(1)
    loop = SimulatedLoop(world, "ana")
    loop.call_soon(lambda: 1 / 0)
    with pytest.raises(PromiseBroken, match=r"ana: .*ZeroDivisionError"):
        world.run()
    loop.close()


def test_R1_what_a_task_raises_and_nobody_awaits_breaks_the_world() -> None:
    world = World(1)
    loop = SimulatedLoop(world, "ana")

    async def fail() -> None:
        raise ValueError("nobody looks")

    loop.create_task(fail())
    loop.call_later(1, lambda: None)
    with pytest.raises(PromiseBroken, match="nobody looks"):
        world.run()
    loop.close()


def test_R1_a_loop_that_spins_while_no_time_passes_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "TURNS_AT_ONE_TICK_MAX", 50)
    world = World(1)
    loop = SimulatedLoop(world, "ana")

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(PromiseBroken, match="no time passes"):
        world.run()
    loop.close()


def test_R1_a_process_dies_between_any_two_callbacks_and_nothing_of_it_runs_again() -> None:
    for life in range(1, 12):
        world = World(1)
        done: list[str] = []
        loop = SimulatedLoop(world, "ana", goes_on=lambda: loop.handles < life)  # noqa: B023

        async def work(name: str) -> None:
            try:
                for step in range(3):
                    done.append(f"{name}{step}")  # noqa: B023
                    await asyncio.sleep(0.001)
            finally:
                loop.call_soon(done.append, "after death")  # noqa: B023

        for name in ("a", "b"):
            loop.create_task(work(name))
        world.run()
        at_death = list(done)
        assert loop.over == (loop.handles >= life)
        loop.abandon()
        world.run()
        assert done == at_death
        assert "after death" not in done or not loop.over or life > 8


def test_R1_a_dead_process_leaves_no_task_and_tells_no_trouble() -> None:
    world = World(1)
    loop = SimulatedLoop(world, "ana")
    closed: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("finally")
            await asyncio.sleep(1)

    loop.create_task(stubborn())
    world.run()
    assert len(loop.tasks) == 1
    loop.abandon()
    assert closed == ["finally"]
    assert not loop.tasks


def test_R1_a_task_that_waits_for_ever_is_told_apart_from_one_that_takes_long() -> None:
    loop = SimulatedLoop(World(1), "ana")

    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(PromiseBroken, match="ends before"):
        loop.run_until_complete(wait())
    loop.abandon()
