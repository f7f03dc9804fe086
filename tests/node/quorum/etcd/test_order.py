"""Orders of real nodes in a real etcd: who coordinates, what a restart does, what a recovery does,
and what is told apart. What every order promises is in tests/contract/mesh_order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.node.quorum.etcd.coordination import OrderTiming
from holdfast.node.quorum.etcd.forgetting import OrderForgetting
from holdfast.node.quorum.etcd.orders import place_job
from holdfast.protocol.etcd_json import RANGE, RangeAnswer, RangeRequest
from holdfast.rules.envelope import encode
from holdfast.rules.errors import (
    AlreadyExists,
    BadEnvelope,
    BadInput,
    Conflict,
    MustRejoin,
    NoQuorum,
    NoVoters,
    OutcomeUnknown,
    StoreClosed,
    TooOld,
    Unreachable,
)
from holdfast.transport.etcd_address import next_scope, with_scope
from support.daemon import make_home
from support.envelopes import MESH
from support.etcd_orders import ENOUGH_MS, OrderNode, forward, new_scope
from support.etcd_server import HOST, etcd_server
from support.fake_etcd import FakeEtcd
from support.order_worlds import (
    EtcdSeat,
    EtcdWorld,
    bounded,
    decoded,
    propose,
    put,
    read,
    records,
    title_of,
)
from support.voter_nodes import mission, until

SLOW = OrderTiming(beat_ms=60_000, lost_ms=600_000)
"""Nobody looks by itself: a test says when."""


@asynccontextmanager
async def world_of(folder: Path, timing: OrderTiming | None = None) -> AsyncIterator[EtcdWorld]:
    world = EtcdWorld(timing) if timing else EtcdWorld()
    try:
        await world.start(folder)
        yield world
    finally:
        await world.close()


def told(
    folder: Path,
    story: Callable[[EtcdWorld], Awaitable[None]],
    timing: OrderTiming | None = None,
) -> None:
    async def run() -> None:
        async with world_of(folder, timing) as world:
            await story(world)

    asyncio.run(bounded(run()))


def test_Q4_a_node_takes_over_from_a_coordinator_that_shows_no_signs_of_life(
    tmp_path: Path,
) -> None:
    async def story(world: EtcdWorld) -> None:
        ana, bo, cy = world.seats
        await until(lambda: ana.order.part == "coordinator")
        assert [seat.order.part for seat in (bo, cy)] == ["member", "member"]
        epoch = ana.order.status().lease_epoch
        await ana.down()
        changed = asyncio.Event()
        bo.order.on_change = cy.order.on_change = changed.set
        # Nobody has to wait for that: any node appends under the epoch that there is.
        assert (await put(bo, "m", "meanwhile")).outcome == "applied"
        await until(lambda: "coordinator" in (bo.order.part, cy.order.part))
        assert changed.is_set(), "who waits hears of it"
        await until(lambda: bo.order.status().lease_epoch == epoch + 1)

        await ana.up()
        await until(lambda: ana.order.status().has_quorum)
        await ana.order.coordination.look()
        assert ana.order.part == "member", "it does not take back what is well led"
        await put(ana, "m", "after it")
        fences = [one.fence for one in decoded(ana)]
        assert [fence.lease_epoch for fence in fences] == [epoch, epoch + 1]
        assert fences[0].coordinator == "ana" != fences[1].coordinator

    told(tmp_path, story)


def test_Q4_a_restart_takes_a_new_epoch_before_it_coordinates(tmp_path: Path) -> None:
    async def story(world: EtcdWorld) -> None:
        ana, bo, _ = world.seats
        await until(lambda: ana.order.part == "coordinator")
        await put(bo, "m", "one")
        await ana.down()
        await ana.up()
        assert ana.order.part == "member", "what it led before does not count"
        await until(lambda: ana.order.part == "coordinator")
        await put(bo, "m", "two")
        assert [one.fence.lease_epoch for one in decoded(bo)] == [1, 2]

    told(tmp_path, story, SLOW)


def test_Q13_operators_hand_coordination_over(tmp_path: Path) -> None:
    async def story(world: EtcdWorld) -> None:
        ana, bo, cy = world.seats
        await until(lambda: ana.order.part == "coordinator")
        await bo.operators.transfer(MESH, "cy", timeout_ms=ENOUGH_MS)
        await until(lambda: cy.order.part == "coordinator" and ana.order.part == "member")
        with pytest.raises(AlreadyExists):
            await bo.operators.transfer(MESH, "cy", timeout_ms=ENOUGH_MS)
        await bo.operators.step_down(MESH)
        await until(lambda: cy.order.part == "member")
        await until(lambda: "coordinator" in (ana.order.part, bo.order.part))
        with pytest.raises(NoQuorum, match="nobody"):
            await bo.operators.transfer(MESH, "nobody", timeout_ms=500)
        for change in (bo.operators.add, bo.operators.remove):
            with pytest.raises(BadInput, match="members of its own"):
                await change(MESH, "cy")
        with pytest.raises(NoVoters):
            await bo.operators.transfer("other", None, timeout_ms=500)

    told(tmp_path, story)


def test_Q3_an_order_is_begun_once_and_joined_by_name(tmp_path: Path) -> None:
    async def story(world: EtcdWorld) -> None:
        ana = world.seats[0]
        with pytest.raises(AlreadyExists):
            await ana.operators.init(MESH, ana.address(world.scope))
        dee = EtcdSeat(make_home(tmp_path / "dee", "dee", MESH), "dee", etcd_server().ports[0])
        await dee.up()
        try:
            # Another mesh of the same name is not mixed up with this one.
            with pytest.raises(AlreadyExists, match="already") as taken:
                await dee.operators.init(MESH, dee.address(world.scope))
            free = with_scope(dee.address(world.scope), next_scope(world.scope))
            assert f"holdfast quorum init {MESH} --engine '{free}'" in str(taken.value.hint)
            with pytest.raises(AlreadyExists) as taken:
                await dee.operators.check_free(MESH, dee.address(world.scope))
            assert f"holdfast quorum move {MESH} --engine '{free}'" in str(taken.value.hint)
            assert dee.engine.read("job", lambda tx: tx.job_get(place_job(MESH))) is None
            for address in ("etcd://far.example:2379?tls=off", f"etcd://u:p@{HOST}", "etcd://"):
                with pytest.raises(BadInput) as refused:
                    await dee.operators.init(MESH, address)
                assert "u:p" not in str(refused.value)
            with pytest.raises(NoVoters):
                _ = dee.order
            await put(ana, "m", "known")
            await dee.operators.init(MESH, dee.address(world.scope, join="yes"))
            assert await read(dee, "m") == "known"
            assert records(dee) == records(ana)
        finally:
            await dee.close()

    told(tmp_path, story)


def test_Q10_a_member_that_others_told_of_commits_joins_behind_them(tmp_path: Path) -> None:
    async def story(world: EtcdWorld) -> None:
        ana, bo, _ = world.seats
        await put(ana, "m", "one")
        assert await read(bo, "m") == "one"
        # As a member has it that follows pages of commits.
        await bo.orders.end(MESH)
        bo.forget_engine()
        with pytest.raises(AlreadyExists):
            await bo.operators.init(MESH, bo.address(world.scope))
        await put(ana, "m", "two")
        await bo.operators.init(MESH, bo.address(world.scope, join="yes"))
        assert await read(bo, "m") == "two"
        assert records(bo) == records(ana)
        await bo.orders.end(MESH)
        bo.forget_engine()
        other = await _older_scope(etcd_server().address())
        await bo.operators.init(MESH, bo.address(other, join="yes"))
        await until(lambda: bo.order.part == "failed")

    told(tmp_path, story)


def test_Q8_whoever_is_stopped_while_an_order_ends_leaves_no_connection(tmp_path: Path) -> None:
    """A move may end the order in an etcd while its node goes down."""

    async def story(world: EtcdWorld) -> None:
        ana = world.seats[0]
        gateway = ana.order.gateway
        ending = asyncio.ensure_future(ana.orders.end(MESH))
        await asyncio.sleep(0)
        assert (ana.orders.order(MESH), ending.done()) == (None, False), "it is in the middle"
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        with pytest.raises(StoreClosed):
            await gateway.call(RANGE, RangeRequest(key=b"k"), RangeAnswer, until=0.0)

    told(tmp_path, story)


def test_Q6_whoever_waits_for_what_stands_behind_the_end_of_an_order_is_told_so(
    tmp_path: Path,
) -> None:
    """Its answer from the etcd may come before the end is folded here, or after."""

    async def story(world: EtcdWorld) -> None:
        fold = world.seats[0].order.fold
        never = fold.position + 1000
        early = asyncio.ensure_future(fold.reached(never))
        await asyncio.sleep(0)
        fold.close()
        for waiting in (early, fold.reached(never)):
            with pytest.raises(NoQuorum, match="has ended here"):
                await waiting
        await fold.reached(fold.position)

    told(tmp_path, story, SLOW)


def test_Q3_an_init_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        server, scope = etcd_server(), new_scope()
        seat = EtcdSeat(make_home(tmp_path / "ana", "ana", MESH), "ana", server.ports[0])
        await seat.up()
        try:
            # The order is begun, and no answer to anything ever comes.
            lost = forward(server.ports[0], lose=lambda asked: True)
            async with FakeEtcd(lost) as fake:
                address = f"etcd://{HOST}:{fake.port}?allow-old-version=yes&scope={scope}"
                with pytest.raises(OutcomeUnknown):
                    await seat.operators.init(MESH, address, timeout_ms=1500)
            assert seat.engine.read("row", lambda tx: tx.quorum_get(MESH)) is None
            await seat.operators.init(MESH, seat.address(scope))
            assert (await put(seat, "m", "begun once")).outcome == "applied"
        finally:
            await seat.close()

    asyncio.run(bounded(story()))


def test_Q3_what_was_not_sent_is_no_quorum_and_what_may_have_been_is_unknown(
    tmp_path: Path,
) -> None:
    async def story(world: EtcdWorld) -> None:
        ana, bo, _ = world.seats
        with pytest.raises(BadEnvelope):
            await ana.order.propose(bytes(16), encode(mission("ana", "x")), timeout_ms=500)
        await put(bo, "m", "before")
        await world.cut_off(bo)
        with pytest.raises(NoQuorum):
            await propose(bo, mission("bo", "never sent"), timeout_ms=300)
        await world.heal()
        await bo.order.confirm(timeout_ms=ENOUGH_MS)

        bo.lose_answers()
        envelope = mission("bo", "sent")
        with pytest.raises(OutcomeUnknown):
            await propose(bo, envelope, timeout_ms=700)
        with pytest.raises(NoQuorum):
            await bo.order.confirm(timeout_ms=300)
        bo.cut()
        bo.mend()
        settled = await propose(bo, envelope)
        assert settled.outcome in ("applied", "noop_already_applied")
        assert [one.id for one in decoded(bo)].count(envelope.id) == 1
        assert len(decoded(bo)) == 2

    told(tmp_path, story)


def test_Q4_a_recovery_begins_a_new_incarnation_that_all_go_on_with(tmp_path: Path) -> None:
    async def story(world: EtcdWorld) -> None:
        ana, bo, cy = world.seats
        await put(ana, "m", "one")
        await bo.operators.recover(MESH)
        await put(bo, "m", "two")
        await put(cy, "m", "three")
        assert await read(ana, "m") == "three"
        found = decoded(ana)
        assert [one.fence.incarnation for one in found] == [1, 2, 2]
        assert [one.number for one in found] == [1, 2, 3]
        epochs = [one.fence.lease_epoch for one in found]
        assert epochs == sorted(epochs)
        await until(lambda: records(ana) == records(bo) == records(cy))
        # Who comes later goes through both of them.
        dee = EtcdSeat(make_home(tmp_path / "dee", "dee", MESH), "dee", etcd_server().ports[0])
        await dee.up()
        await dee.operators.init(MESH, dee.address(world.scope, join="yes"))
        assert await read(dee, "m") == "three"
        assert records(dee) == records(ana)
        await dee.close()

    told(tmp_path, story)


def test_Q4_after_the_etcd_was_set_back_only_a_recovery_goes_on(tmp_path: Path) -> None:
    """An etcd that was restored from an older backup: here another one, with less in it."""

    async def story() -> None:
        server = etcd_server()
        async with world_of(tmp_path) as world:
            ana, bo, cy = world.seats
            await put(ana, "m", "one")
            await put(ana, "m", "two")
            for seat in world.seats:
                assert await read(seat, "m") == "two"
            # Cy has missed something, and then the etcd has forgotten most.
            await cy.down()
            await put(ana, "m", "three")
            assert await read(bo, "m") == "three"
            older = await _older_scope(server.address())
            for seat in (ana, bo):
                await seat.move_to(older)
                await until(lambda: seat.order.part == "failed")  # noqa: B023
                with pytest.raises(NoQuorum, match="no part"):
                    await put(seat, "m", "lost")
            await cy.up(older)
            await ana.operators.recover(MESH)
            assert (await put(ana, "m", "four")).outcome == "applied"
            await until(lambda: bo.order.part != "failed")
            assert await read(bo, "m") == "four"
            assert records(bo) == records(ana)
            assert [one.fence.incarnation for one in decoded(bo)] == [1, 1, 1, 2]
            await until(lambda: cy.order.part == "must_rejoin")
            with pytest.raises(NoQuorum):
                await put(cy, "m", "of another past")
            with pytest.raises(Conflict):
                await cy.operators.recover(MESH)
            assert title_of(cy, "m") == "two"

    asyncio.run(bounded(story()))


def test_Q4_a_node_finds_out_that_the_etcd_has_another_past(tmp_path: Path) -> None:
    """Restored from a backup, and written to since: it has come further than this node."""

    async def story(world: EtcdWorld) -> None:
        ana, bo, _ = world.seats
        await put(ana, "m", "one")
        await bo.order.confirm(timeout_ms=ENOUGH_MS)
        await bo.down()
        other = OrderNode(etcd_server().address(), scope := new_scope(), "ana")
        await other.order.begin(1, timeout_ms=ENOUGH_MS)
        await other.order.coordinate(timeout_ms=ENOUGH_MS)
        await other.append(b"of another past")
        await other.gateway.close()
        await bo.up(scope)
        await until(lambda: bo.order.part == "failed")
        with pytest.raises(NoQuorum, match="no part"):
            await put(bo, "m", "mixed up")

    told(tmp_path, story)


async def _older_scope(address: str) -> str:
    """An order that has just begun."""
    scope = new_scope()
    node = OrderNode(address, scope, "ana")
    await node.order.begin(1, timeout_ms=ENOUGH_MS)
    await node.gateway.close()
    return scope


def test_Q6_an_id_that_the_order_has_forgotten_is_known_to_the_store(tmp_path: Path) -> None:
    async def story(world: EtcdWorld) -> None:
        ana = world.seats[0]
        old = mission("ana", "old", "m")
        await propose(ana, old)
        never = mission("ana", "never", "n")
        kept = mission("ana", "kept", "m")
        await propose(ana, kept)
        forgetting = OrderForgetting(ana.order.gateway, ana.order.etcd, step_ms=ENOUGH_MS)
        before_ms = int.from_bytes(kept.id[:6], "big")
        async for _ in forgetting.forget(ana.order.fold.position, before_ms):
            pass
        again = await propose(ana, old)
        assert (again.outcome, again.number) == ("noop_already_applied", None)
        with pytest.raises(TooOld):
            await propose(ana, never)

    told(tmp_path, story)


def test_Q3_an_etcd_that_is_not_there_keeps_no_home_from_opening(tmp_path: Path) -> None:
    async def story() -> None:
        seat = EtcdSeat(make_home(tmp_path / "ana", "ana", MESH), "ana", etcd_server().ports[0])
        scope = new_scope()
        await seat.up()
        seat.cut()
        with pytest.raises(Unreachable):
            await seat.operators.init(MESH, seat.address(scope), timeout_ms=300)
        seat.mend()
        await seat.operators.init(MESH, seat.address(scope))
        await put(seat, "m", "kept")
        await seat.down()
        seat.cut()
        await seat.up()
        assert title_of(seat, "m") == "kept"
        with pytest.raises(NoQuorum):
            await seat.order.confirm(timeout_ms=300)
        assert not seat.order.status().has_quorum
        seat.mend()
        await until(lambda: seat.order.status().has_quorum)
        await seat.order.confirm(timeout_ms=ENOUGH_MS)
        await seat.close()

    asyncio.run(bounded(story()))


def test_Q8_after_a_long_outage_nobody_waits_for_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.quorum.etcd.order.backoff_ms", lambda *_: 3_600_000)

    async def story() -> None:
        seat = EtcdSeat(
            make_home(tmp_path / "ana", "ana", MESH),
            "ana",
            etcd_server().ports[0],
            OrderTiming(beat_ms=100, lost_ms=300),
        )
        await seat.up()
        await seat.operators.init(MESH, seat.address(new_scope()))
        await put(seat, "m", "before")
        seat.cut()
        await until(lambda: seat.order.follow_state == "waiting")
        seat.mend()
        await until(lambda: seat.order.status().has_quorum)
        assert (await put(seat, "m", "after")).outcome == "applied"
        await seat.close()

    asyncio.run(bounded(story()))


def test_Q10_who_lacks_the_commits_before_an_order_does_not_follow_it(tmp_path: Path) -> None:
    async def story() -> None:
        scope = new_scope()
        node = OrderNode(etcd_server().address(), scope, "far")
        fence = "0000000001.0000000000000000003.0000000000000000007@far"
        await node.order.begin(2, commits=7, fence=fence, timeout_ms=ENOUGH_MS)
        await node.gateway.close()
        seat = EtcdSeat(make_home(tmp_path / "ana", "ana", MESH), "ana", etcd_server().ports[0])
        await seat.up()
        with pytest.raises(MustRejoin):
            await seat.operators.init(MESH, seat.address(scope, join="yes"))
        assert seat.engine.read("row", lambda tx: tx.quorum_get(MESH)) is None
        await seat.close()

    asyncio.run(bounded(story()))
