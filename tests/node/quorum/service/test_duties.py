"""What a coordinator does: leases end, nodes are lost and back, tasks of lost nodes move on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.rules.bodies import TaskCreate, TaskTurn
from holdfast.rules.errors import LeaseNotHeld
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import QUORUM_DUTIES_AT_ONCE, QUORUM_LOST_AFTER_MS
from holdfast.rules.quorum.intents import LeaseAcquire, LeaseRelease, LeaseRenew
from support.envelopes import MESH, make_id
from support.nodes import KINDS
from support.quorum_homes import QuorumHome, comes_true, quorum_homes, run

TTL_MS = 10_000
LOST_MS = QUORUM_LOST_AFTER_MS
TASKS = [id_text(make_id(number)) for number in range(800, 804)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def holder(home: QuorumHome, name: str = "deploy") -> str | None:
    row = home.read(lambda tx: tx.lease_get(MESH, name))
    return None if row is None else row.holder


def lost(home: QuorumHome) -> set[str]:
    return {row.peer for row in home.read(lambda tx: tx.node_list(MESH)) if row.lost}


def holders(home: QuorumHome) -> dict[str, str | None]:
    rows = home.read(lambda tx: tx.task_scan(MESH, None, "", 99))
    return {row.task: row.claimed_by for row in rows}


async def acquire(home: QuorumHome, *, wait: bool = False, name: str = "deploy") -> bytes:
    receipt = await home.intend("lease.acquire", name, LeaseAcquire(TTL_MS, wait))
    return parse_id(receipt.id)


async def later(*homes: QuorumHome, ms: int) -> None:
    """Monotonic time passes, and whoever has duties looks."""
    for home in homes:
        home.clock_ms += ms
    for home in homes:
        home.order.on_change()


def test_Q4_a_lease_that_is_not_renewed_is_passed_on(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob", "cyd") as (ana, bob, cyd):
            await acquire(bob)
            waiting = await acquire(cyd, wait=True)
            granted = asyncio.create_task(
                cyd.api.lease_granted(MESH, "deploy", waiting, timeout_ms=60_000)
            )
            await later(ana, ms=TTL_MS - 1)
            assert holder(ana) == "bob"
            await later(ana, ms=1)
            assert await granted
            assert holder(ana) == holder(bob) == "cyd"

    run(story)


def test_Q4_a_renewal_counts_from_when_it_was_folded(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            session = await acquire(bob)
            await later(ana, ms=TTL_MS - 1)
            await bob.intend("lease.renew", "deploy", LeaseRenew(session, TTL_MS))
            await later(ana, ms=TTL_MS - 1)
            await bob.intend("lease.renew", "deploy", LeaseRenew(session, TTL_MS))
            assert holder(ana) == "bob"
            await later(ana, ms=TTL_MS)
            await comes_true(lambda: holder(ana) is None)
            with pytest.raises(LeaseNotHeld):
                await bob.intend("lease.renew", "deploy", LeaseRenew(session, TTL_MS))

    run(story)


def test_Q4_a_new_coordinator_counts_anew_and_a_deposed_one_ends_nothing(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            await acquire(bob)
            await later(ana, ms=TTL_MS // 2)
            ana.shared.elect("bob")
            await comes_true(lambda: bob.api._seats[MESH].duties._office is not None)
            entries = len(ana.shared.entries)
            await later(ana, ms=TTL_MS * 5)
            await later(bob, ms=TTL_MS - 1)
            await ana.put("m")
            assert len(ana.shared.entries) == entries + 1, "nobody proposed an expiry"
            await later(bob, ms=1)
            await comes_true(lambda: holder(bob) is None)

    run(story)


def test_Q4_a_coordinator_that_is_elected_again_has_forgotten_its_old_times(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            duties = ana.api._seats[MESH].duties
            await later(ana, bob, ms=5)
            session = await acquire(bob)
            await comes_true(lambda: duties._office == (1, 1))
            await later(ana, ms=TTL_MS - 1)
            ana.shared.elect("bob")
            await comes_true(lambda: duties._office is None)
            await bob.intend("lease.renew", "deploy", LeaseRenew(session, TTL_MS))
            ana.shared.elect("ana")
            await comes_true(lambda: duties._office == (1, 3))
            await later(ana, ms=TTL_MS - 1)
            await ana.put("m")
            assert holder(ana) == "bob"
            await later(ana, ms=1)
            await comes_true(lambda: holder(ana) is None)

    run(story)


def test_Q4_an_expiry_that_finds_no_quorum_is_tried_again(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            await acquire(bob)
            ana.shared.unknown = True
            ana.shared.proposed.clear()
            await later(ana, ms=TTL_MS)
            await comes_true(lambda: bool(ana.shared.proposed))
            ana.shared.unknown = False
            ana.shared.lose()
            await later(ana, ms=TTL_MS)
            await comes_true(lambda: holder(ana) is None)

    run(story)


def test_Q4_whoever_waits_is_told_when_time_is_over_or_its_place_is_gone(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            await acquire(ana)
            session = await acquire(bob, wait=True)
            assert not await bob.api.lease_granted(MESH, "deploy", session, timeout_ms=1)
            waits = asyncio.create_task(
                bob.api.lease_granted(MESH, "deploy", session, timeout_ms=60_000)
            )
            await asyncio.sleep(0)
            await bob.intend("lease.release", "deploy", LeaseRelease(session))
            with pytest.raises(LeaseNotHeld):
                await waits

    run(story)


def test_Q12_a_silent_node_is_lost_by_a_decision_and_says_itself_that_it_is_back(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob", "cyd") as (ana, bob, cyd):
            ana.order.heard["cyd"] = LOST_MS - 1
            await later(ana, ms=1)
            await ana.put("m")
            assert lost(ana) == set()
            cyd.order.cut = True
            ana.order.heard["cyd"] = LOST_MS
            await later(ana, ms=1)
            await comes_true(lambda: lost(ana) == lost(bob) == {"cyd"})
            cyd.order.cut = False
            await cyd.order.fold()  # it reads that it is lost
            await comes_true(lambda: lost(ana) == lost(bob) == set())
            await ana.put("n")
            assert lost(bob) == set(), "it is believed, whatever the coordinator has heard"

    run(story)


def test_Q12_the_coordinator_says_that_a_node_is_back_when_it_hears_of_it(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        heard = {"dan": LOST_MS}

        async with quorum_homes(kind, tmp_path, "ana", "bob", "dan", heard=lambda mesh: heard) as (
            ana,
            bob,
            dan,
        ):
            await without_vote(ana, dan)
            dan.order.cut = True
            await later(ana, ms=LOST_MS)
            await comes_true(lambda: lost(bob) == {"dan"})
            heard["dan"] = 5
            ana.api.on_node_recovered("dan", "offline")
            await comes_true(lambda: lost(bob) == set())

    run(story)


async def without_vote(ana: QuorumHome, dan: QuorumHome) -> None:
    """Dan is a member that has no vote, and holds a task."""
    ana.order._shared.voteless.add("dan")
    await dan.intend("task.create", TASKS[0], TaskCreate("build"), id=TASKS[0])
    await dan.intend("task.claim", TASKS[0], TaskTurn(0))


def test_Q12_a_member_without_a_vote_is_lost_if_it_holds_a_task_and_its_task_moves_on(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        heard = {"dan": None, "eve": LOST_MS * 9}
        names = ("ana", "bob", "dan")
        async with quorum_homes(kind, tmp_path, *names, heard=lambda mesh: heard) as (
            ana,
            bob,
            dan,
        ):
            await ana.settings(handoff="reassign-to-local")
            await without_vote(ana, dan)
            dan.order.cut = True
            # No link ever stood: its silence counts from when ana began to coordinate.
            await later(ana, ms=LOST_MS - 1)
            await ana.put("m")
            assert lost(bob) == set()
            await later(ana, ms=1)
            await comes_true(lambda: holders(bob) == {TASKS[0]: "ana"})
            assert lost(bob) == {"dan"}, "eve is silent and holds nothing"

    run(story)


def test_Q12_a_new_coordinator_gives_a_member_without_a_vote_time_to_find_it(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        heard = {"dan": LOST_MS * 9}
        names = ("ana", "bob", "dan")
        async with quorum_homes(kind, tmp_path, *names, heard=lambda mesh: heard) as (
            ana,
            bob,
            dan,
        ):
            await without_vote(ana, dan)
            dan.order.cut = True
            ana.order._shared.elect("bob")
            await comes_true(lambda: bob.api._seats[MESH].duties._office is not None)
            await later(bob, ms=LOST_MS - 1)
            await bob.put("m")
            assert lost(bob) == set()
            await later(bob, ms=1)
            await comes_true(lambda: lost(ana) == {"dan"})

    run(story)


def test_Q12_how_long_a_silence_may_last_is_a_setting_of_the_mesh(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob", "cyd") as (ana, _bob, cyd):
            cyd.order.cut = True
            ana.order.heard["cyd"] = 500
            await later(ana, ms=1)
            await ana.put("m")
            assert lost(ana) == set()
            await ana.settings(lostAfterMs=500)
            await comes_true(lambda: lost(ana) == {"cyd"})

    run(story)


async def _with_tasks(ana: QuorumHome, cyd: QuorumHome) -> None:
    for task in TASKS:
        await cyd.intend("task.create", task, TaskCreate("build"), id=task)
        await cyd.intend("task.claim", task, TaskTurn(0))
    assert set(holders(ana).values()) == {"cyd"}
    cyd.order.cut = True
    ana.order.heard["cyd"] = LOST_MS


def test_Q12_tasks_of_a_lost_node_are_parked_unless_the_mesh_says_otherwise(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob", "cyd") as (ana, bob, cyd):
            await _with_tasks(ana, cyd)
            await later(ana, ms=1)
            await comes_true(lambda: lost(ana) == {"cyd"})
            await ana.put("m")
            assert set(holders(ana).values()) == {"cyd"}
            await ana.settings(handoff="reassign-to-local")
            await comes_true(lambda: set(holders(bob).values()) == {"ana"})

    run(story)


def test_Q12_tasks_of_a_lost_node_are_spread_over_the_healthy_ones(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob", "cyd") as (ana, bob, cyd):
            await ana.settings(handoff="reassign-any-healthy")
            await _with_tasks(ana, cyd)
            await later(ana, ms=1)
            await comes_true(lambda: "cyd" not in holders(bob).values())
            assert sorted(str(one) for one in holders(bob).values()) == ["ana"] * 2 + ["bob"] * 2

    run(story)


def test_Q12_a_node_that_does_not_coordinate_has_no_such_duties(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob", "cyd") as (ana, bob, cyd):
            bob.order.heard["cyd"] = LOST_MS * 9
            await later(bob, cyd, ms=LOST_MS * 9)
            await ana.put("m")
            assert len(ana.shared.entries) == 1
            assert lost(ana) == set()

    run(story)


def test_Q4_more_leases_than_go_at_a_time_all_expire(tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes("memory", tmp_path) as (ana,):
            names = [f"n{number}" for number in range(QUORUM_DUTIES_AT_ONCE + 3)]
            await asyncio.gather(*(acquire(ana, name=name) for name in names))
            await later(ana, ms=TTL_MS)
            await comes_true(lambda: not ana.read(lambda tx: tx.lease_list(MESH, "", 9)))

    run(story)
