"""One seed, one story."""

from __future__ import annotations

import doctest

import pytest

from holdfast.rules.ids import check_id, id_time_ms
from holdfast.simulate.world import world as module
from holdfast.simulate.world.world import LOG_LINES_MAX, START_MS, World


def _story(seed: int) -> tuple[str, list[bytes]]:
    """Messages that cause more messages, ids, and a wall clock that jumps."""
    world = World(seed)
    minted: list[bytes] = []

    def arrive(hops: int) -> None:
        minted.append(world.new_id())
        if hops:
            for _ in range(world.rng.randrange(1, 3)):
                world.at(world.rng.randrange(200), arrive, hops - 1, name=f"hop {hops - 1}")
        elif world.rng.random() < 0.2:
            world.now_ms += world.rng.randrange(-5000, 5000)

    world.at(0, arrive, 8)
    world.run()
    return world.digest, minted


def test_R1_the_same_seed_tells_the_same_story() -> None:
    stories = [_story(seed) for seed in range(30)]
    assert stories == [_story(seed) for seed in range(30)]
    assert len({digest for digest, _ in stories}) == 30


def test_R1_the_digest_covers_every_line_also_those_no_longer_kept() -> None:
    def lines(first: str) -> World:
        world = World(1)
        world.note(first)
        for _ in range(LOG_LINES_MAX):
            world.note("the same")
        return world

    one, other = lines("one"), lines("other")
    assert list(one.log) == list(other.log)
    assert one.digest != other.digest


def test_R1_events_happen_by_time_and_then_in_the_order_of_planning() -> None:
    world = World(0)
    happened: list[tuple[int, str]] = []
    for delay, name in ((20, "c"), (10, "a"), (20, "d"), (10, "b")):
        world.at(delay, lambda name=name: happened.append((world.ticks, name)), name=name)
    assert world.run() == 4
    assert happened == [(10, "a"), (10, "b"), (20, "c"), (20, "d")]
    assert [line.split()[-1] for line in world.log] == ["a", "b", "c", "d"]


def test_R1_running_until_a_tick_stops_there_and_leaves_the_rest() -> None:
    world = World(0)
    ticks: list[int] = []

    def beat() -> None:
        ticks.append(world.ticks)
        world.at(10, beat)

    world.at(10, beat)
    assert world.run(until=35) == 3
    assert (ticks, world.ticks, world.events) == ([10, 20, 30], 35, 3)
    world.run(until=40)
    assert ticks == [10, 20, 30, 40]
    assert world.run(until=5) == 0
    assert world.ticks == 40, "ticks never go back"


def test_R1_a_cancelled_event_does_not_happen() -> None:
    world = World(0)
    happened: list[str] = []
    timeout = world.at(50, happened.append, "timeout")
    world.at(10, timeout.cancel)
    assert world.run(until=100) == 1
    assert happened == []
    assert not world.step()
    timeout.cancel()


def test_R1_the_wall_clock_jumps_and_the_ticks_do_not() -> None:
    world = World(0)
    skewed = world.clock(skew_ms=-3000)
    world.run(until=500)
    assert world.now_ms == START_MS + 500
    world.now_ms -= 3_600_000
    assert world.now_ms == START_MS + 500 - 3_600_000
    assert skewed() == world.clock()() - 3000
    world.run(until=1500)
    assert (world.ticks, world.now_ms) == (1500, START_MS + 1500 - 3_600_000)
    assert "jumps by -3600000" in world.log[-1]


def test_R1_ids_come_from_the_simulated_clock_and_the_seed() -> None:
    world, twin = World(3), World(3)
    world.run(until=77)
    twin.run(until=77)
    minted = [check_id(world.new_id()) for _ in range(100)]
    assert minted == [twin.new_id() for _ in range(100)]
    assert len(set(minted)) == 100
    assert {id_time_ms(raw) for raw in minted} == {START_MS + 77}
    assert World(4).new_id()[6:] != World(3).new_id()[6:]


def test_R1_a_forked_source_of_chance_is_not_disturbed_by_others() -> None:
    world, busy = World(3), World(3)
    busy.rng.random()
    busy.fork("node a").random()
    assert world.fork("node b").random() == busy.fork("node b").random()
    assert world.fork("node a").random() != world.fork("node b").random()


def test_R1_an_error_says_in_which_world_and_when_it_happened() -> None:
    world = World(42)
    world.at(7, lambda: 1 // 0, name="divide")
    with pytest.raises(ZeroDivisionError) as caught:
        world.run()
    assert caught.value.__notes__ == ["in the world of seed 42, 7 #1 divide"]


def test_R1_the_example_in_the_documentation_runs() -> None:
    results = doctest.testmod(module)
    assert results.attempted >= 3
    assert results.failed == 0
