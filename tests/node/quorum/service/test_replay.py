"""Writes that wait: in their order, each decided once, and every failure with its name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.core.write_queue import queue_get, queue_list
from holdfast.node.quorum.api import ReplaySummary
from holdfast.node.quorum.service.surfaces import SharedMeshStore
from holdfast.rules.errors import (
    DiskFull,
    ForgedOrigin,
    HoldfastError,
    NoQuorum,
    OverLimit,
    StoreFailed,
    TooMany,
)
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.quorum.write_queue import QueuedWrite, WriteFailure, WriteStatus
from holdfast.rules.reconcile import Outcome
from support.envelopes import MESH, make_id
from support.nodes import KINDS
from support.quorum_homes import (
    QuorumHome,
    comes_true,
    operation,
    quorum_homes,
    run,
)
from support.quorum_state import change

IDS = [id_text(make_id(number)) for number in range(60, 70)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows(home: QuorumHome) -> list[QueuedWrite]:
    return [row for _, row in home.read(lambda tx: queue_list(tx, MESH, 0, 5_000))]


def row_of(home: QuorumHome, id: str) -> QueuedWrite:
    row = home.read(lambda tx: queue_get(tx, MESH, parse_id(id)))
    assert row is not None
    return row


async def all_end(home: QuorumHome) -> None:
    await comes_true(lambda: all(row.ended_at is not None for row in rows(home)))


def test_Q6_waiting_writes_go_in_their_order_as_soon_as_a_quorum_is_heard(
    kind: str, tmp_path: Path
) -> None:
    """By (created_at, id): of one moment the lower id first, whoever came first."""

    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.lose_quorum()
            for id in (IDS[3], IDS[1], IDS[2]):
                await ana.put("m", id, id=id, timeout_ms=1)
            ana.clock.advance(5)
            await ana.put("m", IDS[0], id=IDS[0], timeout_ms=1)
            ana.shared.proposed.clear()
            ana.shared.regain()
            await all_end(ana)
            sent = [id_text(id) for id in ana.shared.proposed]
            assert sent == [IDS[1], IDS[2], IDS[3], IDS[0]]
            assert ana.missions() == {"m": f'{{"title":"{IDS[0]}"}}'}
            assert {row.status for row in rows(ana)} == {WriteStatus.APPLIED}
            assert {row.outcome for row in rows(ana)} == {Outcome.APPLIED}

    run(story)


def test_Q6_every_attempt_counts_and_is_fenced_anew(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, _bob):
            ana.shared.unknown = True
            await ana.put("m", id=IDS[0])
            await comes_true(lambda: row_of(ana, IDS[0]).attempts > 0)
            first = row_of(ana, IDS[0])
            ana.shared.elect("bob")
            tried = first.attempts
            await comes_true(lambda: row_of(ana, IDS[0]).attempts > tried)
            ana.shared.unknown = False
            ana.shared.lose()
            ana.shared.changed()
            await all_end(ana)
            last = row_of(ana, IDS[0])
            assert last.attempts >= 3
            assert last.fence is not None
            assert last.fence.coordinator == "bob"
            assert [token.coordinator for token in last.earlier_fences] == ["ana"]

    run(story)


def test_Q8_nothing_is_tried_before_members_and_coordinator_are_known(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.lose_quorum()
            await ana.put("m", id=IDS[0])
            ana.order.knows_coordinator = False
            ana.shared.proposed.clear()
            ana.shared.regain()
            summary = await ana.api.replay(MESH)
            assert summary == ReplaySummary(pending=1)
            assert row_of(ana, IDS[0]).attempts == 0
            assert ana.shared.proposed == []
            ana.order.knows_coordinator = True
            ana.shared.changed()
            await all_end(ana)

    run(story)


def _failing(home: QuorumHome, error: HoldfastError, times: int) -> None:
    propose = home.order.propose
    left = times

    async def fails(id: bytes, raw: bytes, *, timeout_ms: int) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error
        return await propose(id, raw, timeout_ms=timeout_ms)

    home.order.propose = fails  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "error",
    [NoQuorum("gone"), TooMany("later"), StoreFailed("500"), DiskFull("507", hint="")],
    ids=lambda error: str(error.http_status),
)
def test_Q6_outages_are_tried_again(kind: str, tmp_path: Path, error: HoldfastError) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            _failing(ana, error, 2)
            told = await ana.put("m", id=IDS[0])
            assert (told.state, told.reason) == ("queued", error.code)
            await all_end(ana)
            row = row_of(ana, IDS[0])
            assert (row.status, row.attempts) == (WriteStatus.APPLIED, 2)

    run(story)


@pytest.mark.parametrize("error", [ForgedOrigin("403"), OverLimit("400")])
def test_Q6_a_permanent_failure_ends_a_row_at_once_and_the_next_has_its_turn(
    kind: str, tmp_path: Path, error: HoldfastError
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            await ana.api.pause(MESH)
            ana.shared.lose_quorum()
            await ana.put("a", id=IDS[0])
            await ana.put("b", id=IDS[1])
            ana.shared.regain()
            _failing(ana, error, 1)
            await ana.api.resume(MESH)
            await all_end(ana)
            row = row_of(ana, IDS[0])
            assert (row.status, row.reason, row.attempts) == (WriteStatus.FAILED, error.code, 1)
            assert row_of(ana, IDS[1]).status is WriteStatus.APPLIED
            state = await ana.api.get_mesh_degraded_read_state(MESH)
            assert (state.queue_depth, state.failed_write_count) == (1, 1)
            with pytest.raises(type(error)):
                await ana.put("a", id=IDS[0])

    run(story)


@pytest.mark.parametrize("error", [ForgedOrigin("403"), OverLimit("400")])
def test_Q6_a_permanent_failure_is_never_queued(
    kind: str, tmp_path: Path, error: HoldfastError
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            _failing(ana, error, 1)
            with pytest.raises(type(error)):
                await ana.put("m")
            assert rows(ana) == []

    run(story)


def test_Q7_each_outcome_of_a_replay_is_recorded(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            await ana.put("m", "one")
            await ana.api.pause(MESH)
            ana.order.cut = True
            await ana.put("m", "mine", base=1, id=IDS[0])
            await ana.put("m", "theirs", base=1, id=IDS[1])
            orphan = operation("put", "slice", "s", {"title": "t", "milestoneId": "none"})
            await ana.change(orphan, id=IDS[2])
            await ana.put("n", id=IDS[3])
            await bob.put("m", "theirs", base=1)
            ana.order.cut = False
            await ana.api.resume(MESH)
            await all_end(ana)
            found = {id_text(row.id): (row.status, row.outcome, row.reason) for row in rows(ana)}
            assert found == {
                IDS[0]: ("failed", Outcome.CONFLICT_REQUIRES_MERGE, "revision_moved"),
                IDS[1]: ("applied", Outcome.SUPERSEDED, ""),
                IDS[2]: ("failed", None, "orphaned"),
                IDS[3]: ("applied", Outcome.APPLIED, ""),
            }

    run(story)


def test_Q6_a_later_write_overtakes_none_that_waits(kind: str, tmp_path: Path) -> None:
    """Else the older one would be applied over the newer one, both without a base."""

    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.lose_quorum()
            await ana.put("m", "older", id=IDS[0])
            ana.shared.has_quorum = True
            told = await ana.put("m", "newer", id=IDS[1])
            assert told.state == "committed"
            assert row_of(ana, IDS[0]).status is WriteStatus.APPLIED
            assert ana.missions() == {"m": '{"title":"newer"}'}

    run(story)


def test_Q6_a_later_write_is_queued_behind_those_that_still_wait(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.unknown = True
            await ana.put("m", "older", id=IDS[0])
            told = await ana.put("m", "newer", id=IDS[1], timeout_ms=20)
            assert told.state == "queued"
            ana.shared.unknown = False
            ana.shared.changed()
            await all_end(ana)
            await ana.shared.release()
            assert ana.missions() == {"m": '{"title":"newer"}'}

    run(story)


def test_Q13_replay_stands_still_while_it_is_paused_also_after_a_restart(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.lose_quorum()
            await ana.put("m", id=IDS[0])
            await ana.api.pause(MESH)
            await ana.api.close()
            again = QuorumHome(ana.node, ana.shared)
            await again.api.start()
            ana.shared.regain()
            assert await again.api.replay(MESH) == ReplaySummary(pending=1)
            assert (await again.put("other")).state == "committed", "it passes by what is paused"
            assert row_of(again, IDS[0]).attempts == 0
            await again.api.resume(MESH)
            await all_end(again)
            await again.api.close()

    run(story)


def test_Q6_replay_for_one_node_takes_its_rows_only(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, _bob):
            ana.shared.lose_quorum()
            await ana.put("m", id=IDS[0])
            summary = await ana.api.replay_pending_writes_for_node("bob")
            assert summary == ReplaySummary(pending=1)
            ana.shared.has_quorum = True
            assert await ana.api.replay(MESH, node="bob") == ReplaySummary(pending=1)
            assert await ana.api.replay(MESH) == ReplaySummary(attempted=1, applied=1)

    run(story)


def test_Q6_a_node_that_is_back_starts_the_replay(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, _bob):
            ana.shared.lose_quorum()
            await ana.put("m", id=IDS[0])
            ana.shared.has_quorum = True
            ana.api.on_node_recovered("bob", "offline")
            await all_end(ana)

    run(story)


def test_Q6_more_rows_than_a_page_of_one_moment_keep_their_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes("memory", tmp_path) as (ana,):
            count = CHUNK_ROWS + 5
            ids = [id_text(make_id(10_000 + number)) for number in range(count)]
            ana.shared.lose_quorum()
            await asyncio.gather(*(ana.put("m", id=id) for id in reversed(ids)))
            ana.shared.proposed.clear()
            ana.shared.regain()
            await all_end(ana)
            assert [id_text(id) for id in ana.shared.proposed] == ids

    run(story)


def test_Q6_rows_that_another_program_adds_are_tried_when_it_says_so(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            put = operation("put", "mission", "m", {"title": "t"})
            made = change(put, origin="ana", id=parse_id(IDS[0]))
            store = SharedMeshStore(ana.engine, MESH)
            await asyncio.to_thread(store.enqueue_mesh_write, made, WriteFailure(503))
            await ana.api.queue_changed(MESH)
            await all_end(ana)
            assert ana.missions() == {"m": '{"title":"t"}'}

    run(story)


class Dying:
    """A process that dies at one of its steps: a write or a proposal. From then on nothing that it
    began ever ends, and nothing that it still wants happens.
    """

    def __init__(self, at: int, *, done: bool) -> None:
        """`done`: the step itself still happens, and nobody learns of it."""
        self.left, self.done = at, done
        self.dead = asyncio.Event()

    async def step(self, act: Callable[[], Awaitable[Any]]) -> Any:
        if self.dead.is_set():
            await asyncio.Event().wait()
        self.left -= 1
        if self.left >= 0:
            return await act()
        self.dead.set()
        if self.done:
            await act()
        await asyncio.Event().wait()

    def write(self, inner: Any) -> Any:
        def write(name: str, work: Any) -> Awaitable[Any]:
            async def act() -> Any:
                return await inner(name, work)

            return self.step(act)

        return write

    def kill(self, home: QuorumHome) -> None:
        propose = home.order.propose

        async def proposes(id: bytes, raw: bytes, *, timeout_ms: int) -> Any:
            return await self.step(lambda: propose(id, raw, timeout_ms=timeout_ms))

        home.order.propose = proposes  # type: ignore[method-assign]


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_Q8_a_crash_at_any_step_loses_no_write_that_was_told_and_applies_none_twice(
    kind: str, tmp_path: Path, done: bool
) -> None:
    async def life(home: QuorumHome, told: list[str]) -> None:
        await home.api.start()
        home.shared.unknown = True
        told.append((await home.put("m", "a", id=IDS[0])).id)
        home.shared.unknown = False
        home.shared.lose_quorum()
        told.append((await home.put("m", "b", id=IDS[1], timeout_ms=1)).id)
        home.shared.regain()
        await all_end(home)
        told.append((await home.put("m", "c", id=IDS[2])).id)

    async def story() -> None:
        for at in range(100):
            folder = tmp_path / str(at)
            dying = Dying(at, done=done)
            told: list[str] = []
            async with quorum_homes(kind, folder, start=False, write=dying.write) as (ana,):
                dying.kill(ana)
                living = asyncio.create_task(life(ana, told))
                dead = asyncio.create_task(dying.dead.wait())
                await asyncio.wait({living, dead}, return_when=asyncio.FIRST_COMPLETED)
                living.cancel()
                await asyncio.gather(living, return_exceptions=True)
                dead.cancel()
                await ana.api.close()
                await _after_restart(ana, told)
            if not dying.dead.is_set():
                break
        assert at > 8, "a crash was tried at every step"

    async def _after_restart(ana: QuorumHome, told: list[str]) -> None:
        shared = ana.shared
        again = QuorumHome(ana.node, shared)
        await again.api.start()
        shared.unknown, shared.has_quorum = False, True
        shared.changed()
        await all_end(again)
        await shared.release()
        for id in told:
            assert (await again.put("m", "abc"[IDS.index(id)], id=id)).state == "committed"
        known = again.read(lambda tx: tx.intents_known(MESH, [parse_id(id) for id in IDS]))
        assert {id_text(id) for id in known} >= set(told)
        history = again.read(lambda tx: tx.entity_revisions(MESH, "mission", "m", 0, 99))
        assert len(history) == len(known), "each was applied once"
        if told:
            title = "abc"[len(known) - 1]
            assert again.missions() == {"m": f'{{"title":"{title}"}}'}
        await again.api.close()

    run(story)
