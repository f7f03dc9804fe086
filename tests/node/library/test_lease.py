"""A lease renews itself, knows when to stop, and guards changes by its fence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.library.aio_lease import AsyncLease
from holdfast.rules.errors import (
    BadKey,
    FenceTooOld,
    LeaseHeld,
    LeaseNotHeld,
    NoQuorum,
    OutcomeUnknown,
    OverLimit,
)
from holdfast.rules.limits import LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN
from holdfast.rules.quorum.fence import parse_order
from holdfast.rules.quorum.intents import Guard
from support.envelopes import MESH
from support.nodes import KINDS
from support.quorum_homes import QuorumHome, comes_true, run
from support.quorum_library import async_meshes, waiting_mesh

TTL_MS = LEASE_TTL_MS_MIN
LONG_MS = 60_000


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def holder(home: QuorumHome, name: str = "deploy") -> str | None:
    row = home.read(lambda tx: tx.lease_get(MESH, name))
    return None if row is None else row.holder


def test_Q4_a_lease_is_held_in_its_block_and_each_holder_has_a_higher_fence(
    kind: str, tmp_path: Path
) -> None:
    with waiting_mesh(kind, tmp_path) as (home, mesh):
        lease = mesh.lease("deploy", LONG_MS)
        with pytest.raises(LeaseNotHeld):
            lease.check()
        with lease:
            assert holder(home) == "ana"
            assert lease.check() == lease.fence
            first = lease.fence
            with pytest.raises(LeaseHeld), mesh.lease("deploy", LONG_MS):
                pass
            assert not lease.wait_ended(timeout_ms=1)
        assert holder(home) is None
        assert not lease.is_held
        assert lease.wait_ended()
        with pytest.raises(LeaseNotHeld):
            lease.check()
        with mesh.lease("deploy", LONG_MS) as second:
            assert second.fence > first


def test_Q4_whoever_waits_gets_the_lease_when_it_is_given_back(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path, "ana", "bob") as ((home, ana), (_, bob)):
            got: list[str] = []

            async def next_one() -> None:
                async with bob.lease("deploy", LONG_MS, wait_ms=LONG_MS) as lease:
                    got.append(lease.check())
                    row = home.read(lambda tx: tx.lease_get(MESH, "deploy"))
                    assert row is not None
                    assert row.renewed != row.grant, "its time counts from a renewal of its own"

            async with ana.lease("deploy", LONG_MS) as first:
                waits = asyncio.create_task(next_one())
                await comes_true(lambda: len(home.shared.entries) == 2)
                assert not got
                with pytest.raises(LeaseHeld):
                    async with bob.lease("deploy", LONG_MS, wait_ms=1):
                        pass
                fence = first.fence
            await waits
            assert got[0] > fence
            assert holder(home) is None
            row = home.read(lambda tx: tx.lease_list(MESH, "", 9))
            assert row == [], "whoever gave up waiting left the line"

    run(story)


def test_Q4_a_waiter_that_is_cancelled_leaves_the_line(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path, "ana", "bob") as ((home, ana), (_, bob)):
            async with ana.lease("deploy", LONG_MS):
                waits = asyncio.create_task(
                    bob.lease("deploy", LONG_MS, wait_ms=LONG_MS).__aenter__()
                )
                await comes_true(lambda: len(home.shared.entries) == 2)
                waits.cancel()
                await asyncio.gather(waits, return_exceptions=True)
            assert holder(home) is None

    run(story)


def test_Q4_a_lease_renews_itself_in_time(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            async_meshes(kind, tmp_path) as ((home, mesh),),
            mesh.lease("deploy", TTL_MS) as lease,
        ):
            await comes_true(lambda: len(home.shared.entries) >= 3)
            row = home.read(lambda tx: tx.lease_get(MESH, "deploy"))
            assert row is not None
            assert row.renewed != row.grant
            assert lease.fence == str(row.grant and row.grant.order)
            assert lease.is_held

    run(story)


class _Hand:
    """A monotonic clock that the test moves."""

    now = 1_000

    def __call__(self) -> int:
        return self.now


def test_Q4_a_holder_stops_believing_when_its_renewals_are_not_answered(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path) as ((home, mesh),):
            clock = _Hand()
            lease = AsyncLease(
                home.engine, MESH, mesh._quorums, "deploy", ttl_ms=LONG_MS, clock_ms=clock
            )
            async with lease:
                clock.now += LONG_MS * 2 // 3 - 1
                lease.check()
                clock.now += 1
                with pytest.raises(LeaseNotHeld):
                    lease.check()  # nobody had to tell it: a process that slept asks its clock
                assert not lease.is_held
                with pytest.raises(LeaseNotHeld):
                    await mesh.entities.put("mission", "m", {"title": "a"}, lease=lease)
                assert len(home.shared.entries) == 1

    run(story)


def test_Q4_a_lease_ends_where_no_quorum_answers(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path) as ((home, mesh),):
            async with mesh.lease("deploy", TTL_MS) as lease:
                home.shared.lose_quorum()
                await lease.ended()
                with pytest.raises(LeaseNotHeld):
                    lease.check()
            with pytest.raises(NoQuorum):
                async with mesh.lease("other", TTL_MS):
                    pass

    run(story)


def test_Q4_a_lease_that_was_taken_away_ends_with_the_next_renewal(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with (
            async_meshes(kind, tmp_path) as ((home, mesh),),
            mesh.lease("deploy", TTL_MS) as lease,
        ):
            home.clock_ms += TTL_MS
            home.order.on_change()  # the coordinator's clock says that it ran out
            await lease.ended()
            assert holder(home) is None

    run(story)


def test_Q4_a_change_under_a_lease_is_refused_after_the_lease_has_passed_on(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path) as ((home, mesh),):
            async with mesh.lease("deploy", LONG_MS) as lease:
                await mesh.entities.put("mission", "m", {"title": "a"}, lease=lease)
                old = lease.guard
            shown = Guard("deploy", *parse_order(str(old.order)))
            with pytest.raises(FenceTooOld):
                await mesh.entities.put("mission", "m", {"title": "b"}, lease=shown)
            assert home.missions() == {"m": '{"title":"a"}'}

    run(story)


def test_Q4_names_and_times_that_no_lease_can_have_are_refused(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path) as ((home, mesh),):
            for ttl_ms in (LEASE_TTL_MS_MIN - 1, LEASE_TTL_MS_MAX + 1):
                with pytest.raises(OverLimit):
                    mesh.lease("deploy", ttl_ms)
            with pytest.raises(BadKey):
                mesh.lease("")
            assert home.shared.proposed == []

    run(story)


def test_Q4_a_request_whose_answer_was_lost_is_given_up(kind: str, tmp_path: Path) -> None:
    """Else it would be granted later, and held by nobody."""

    async def story() -> None:
        async with async_meshes(kind, tmp_path) as ((home, mesh),):
            propose = home.order.propose

            async def lost(id: bytes, raw: bytes, *, timeout_ms: int) -> Any:
                home.order.propose = propose  # type: ignore[method-assign]
                home.shared.held.append(raw)
                raise OutcomeUnknown("the answer was lost")

            home.order.propose = lost  # type: ignore[method-assign]
            with pytest.raises(OutcomeUnknown):
                async with mesh.lease("deploy", LONG_MS):
                    pass
            await home.shared.release()
            assert holder(home) is None

    run(story)
