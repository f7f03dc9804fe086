"""A strong write: committed, refused by a typed error, queued, or honestly unknown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.node.core import commit_view
from holdfast.node.core.write_queue import queue_get, queue_list
from holdfast.node.quorum.service.lane import ADD, LoopWrite
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import (
    BadEntity,
    BadEnvelope,
    IdReused,
    IntentAbandoned,
    LeaseHeld,
    NoQuorum,
    NoVoters,
    Orphaned,
    OutcomeUnknown,
    OverLimit,
    RevisionMoved,
)
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import QUORUM_WAIT_MS_MAX
from holdfast.rules.quorum.intents import IntentAbandon, LeaseAcquire
from holdfast.rules.quorum.write_queue import WriteStatus
from holdfast.rules.reconcile import Outcome
from support.envelopes import MESH, make_id
from support.nodes import KINDS
from support.quorum_homes import QuorumHome, comes_true, operation, quorum_homes, run

ID = id_text(make_id(77))
SOON_MS = 50


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_Q7_the_newest_conflicts_wait_and_older_ones_are_settled_when_the_list_is_full(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_view, "QUORUM_CONFLICTS_OPEN_MAX", 3)

    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            await ana.put("m", "first")
            for number in range(5):
                with pytest.raises(RevisionMoved):
                    await ana.put("m", f"late {number}", base=0)
            for home in (ana, bob):
                waiting = home.read(lambda tx: tx.waiting_conflicts(MESH, 0, 99))
                assert [one.number for one in waiting] == [4, 5, 6]
                every = home.read(lambda tx: tx.waiting_conflicts(MESH, 0, 99, open_only=False))
                assert [one.resolution for one in every[:2]] == [commit_view.NOT_DECIDED] * 2

    run(story)


def test_Q3_a_committed_write_is_in_every_store_with_its_fence(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            first = await bob.put("m", "one", base=0)
            second = await ana.put("m", "two", base=1)
            assert (first.state, first.outcome, first.number) == ("committed", "applied", 1)
            assert [one.revision for one in second.revisions] == [2]
            assert first.fence < second.fence
            assert ana.missions() == bob.missions() == {"m": '{"title":"two"}'}

    run(story)


def test_Q3_a_refusal_is_raised_by_its_reason_and_stays_on_record(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            orphan = operation("put", "slice", "s", {"title": "t", "milestoneId": "none"})
            for _ in range(2):
                with pytest.raises(Orphaned):
                    await ana.change(orphan, id=ID)
            assert len(ana.shared.entries) == 1, "the second answer came from the record"
            await ana.put("m")
            with pytest.raises(RevisionMoved):
                await ana.put("m", "other", base=7)
            assert len(ana.read(lambda tx: tx.waiting_conflicts(MESH, 0, 9))) == 1

    run(story)


def test_Q3_what_no_rule_allows_is_refused_before_anybody_votes(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            with pytest.raises(BadEntity):
                await ana.change(operation("put", "mission", "m", {}))
            with pytest.raises(BadEnvelope):
                await ana.intend("state.set", "k")
            with pytest.raises(BadEnvelope):
                await ana.api.intend(MESH, "entity.change", "mission/m", b"\x00")
            with pytest.raises(OverLimit):
                await ana.intend("lease.acquire", "deploy", LeaseAcquire(1))
            with pytest.raises(NoVoters):
                await ana.api.intend("other", "entity.change", "mission/m", b"")
            for wrong in (-1, QUORUM_WAIT_MS_MAX + 1):
                with pytest.raises(Exception, match="no time to wait"):
                    await ana.put("m", timeout_ms=wrong)
            assert ana.shared.proposed == []

    run(story)


def test_Q3_the_same_id_is_the_same_write_and_other_content_is_refused(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            first = await ana.put("m", "one", id=ID)
            again = await ana.put("m", "one", id=ID)
            assert (again.outcome, again.number) == (Outcome.NOOP_ALREADY_APPLIED, first.number)
            assert (again.fence, again.revisions) == (first.fence, first.revisions)
            with pytest.raises(IdReused):
                await ana.put("m", "two", id=ID)
            ana.node.mesh(MESH).state.set("k", 1, id=id_text(make_id(5)))
            with pytest.raises(IdReused):
                await ana.put("m", "two", id=id_text(make_id(5)))
            assert len(ana.shared.proposed) == 1

    run(story)


def test_Q3_two_callers_with_one_id_at_a_time_send_one_envelope(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.gate.clear()
            both = [asyncio.create_task(ana.put("m", "one", id=ID)) for _ in range(2)]
            other = asyncio.create_task(ana.put("m", "two", id=ID))
            with pytest.raises(IdReused):
                await other
            ana.shared.gate.set()
            receipts = await asyncio.gather(*both)
            assert {one.number for one in receipts} == {1}
            assert len({entry.raw for entry in ana.shared.entries}) == 1
            assert ana.missions() == {"m": '{"title":"one"}'}

    run(story)


def test_Q3_without_a_quorum_the_write_is_on_the_disk_before_the_caller_is_told(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.lose_quorum()
            told = await ana.put("m", id=ID)
            assert (told.state, told.reason, told.outcome) == ("queued", "no_quorum", None)
            row = ana.read(lambda tx: queue_get(tx, MESH, parse_id(ID)))
            assert row is not None
            assert (row.status, row.reason) == (WriteStatus.PENDING, "no_quorum")
            assert ana.missions() == {}
            again = await ana.put("m", id=ID, timeout_ms=1)
            assert again.state == "queued"
            assert len(ana.read(lambda tx: queue_list(tx, MESH, 0, 9))) == 1
            with pytest.raises(IdReused):
                await ana.put("m", "other", id=ID)

    run(story)


def test_Q3_a_lost_answer_is_queued_and_decided_once(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.unknown = True
            told = await ana.put("m", "one", id=ID)
            assert (told.state, told.reason) == ("queued", "outcome_unknown")
            ana.shared.unknown = False
            await ana.shared.release()
            row = ana.read(lambda tx: queue_get(tx, MESH, parse_id(ID)))
            assert row is not None
            assert (row.status, row.outcome) == (WriteStatus.APPLIED, Outcome.APPLIED)
            again = await ana.put("m", "one", id=ID)
            assert again.outcome is Outcome.NOOP_ALREADY_APPLIED
            assert ana.missions() == {"m": '{"title":"one"}'}

    run(story)


def test_Q3_an_answer_that_comes_while_the_write_is_queued_is_given(
    kind: str, tmp_path: Path
) -> None:
    """The fold may be faster than the caller's time-out: then nothing waits."""

    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            propose = ana.order.propose

            async def late(id: bytes, raw: bytes, *, timeout_ms: int) -> object:
                await propose(id, raw, timeout_ms=timeout_ms)
                raise OutcomeUnknown("the answer was lost, and the fold was not")

            ana.order.propose = late  # type: ignore[method-assign,assignment]
            told = await ana.put("m", id=ID)
            assert (told.state, told.number) == ("committed", 1)
            assert ana.read(lambda tx: queue_list(tx, MESH, 0, 9)) == []

    run(story)


def test_Q13_a_minority_that_rejects_queues_nothing(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            await ana.settings(minority="reject")
            ana.shared.lose_quorum()
            with pytest.raises(NoQuorum):
                await ana.put("m")
            assert ana.read(lambda tx: queue_list(tx, MESH, 0, 9)) == []

    run(story)


async def _rejecting(ana: QuorumHome) -> None:
    """The next answer is lost, and only the next."""
    await ana.settings(minority="reject")
    propose = ana.order.propose

    async def once(id: bytes, raw: bytes, *, timeout_ms: int) -> object:
        ana.order.propose = propose  # type: ignore[method-assign]
        ana.shared.held.append(raw)
        raise OutcomeUnknown("the answer was lost")

    ana.order.propose = once  # type: ignore[method-assign,assignment]


def test_Q13_a_write_of_unknown_outcome_is_given_up_where_none_may_be_queued(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            await _rejecting(ana)
            with pytest.raises(NoQuorum, match="given up"):
                await ana.put("m", id=ID)
            await ana.shared.release()
            assert ana.missions() == {}, "it came too late"
            with pytest.raises(IntentAbandoned):
                await ana.put("m", id=ID)

    run(story)


def test_Q13_a_write_that_was_committed_before_it_was_given_up_is_told_so(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            await _rejecting(ana)
            lost = ana.order.propose

            async def committed(id: bytes, raw: bytes, *, timeout_ms: int) -> object:
                ana.order.propose = lost  # type: ignore[method-assign]
                try:
                    return await lost(id, raw, timeout_ms=timeout_ms)
                finally:
                    await ana.shared.release()

            ana.order.propose = committed  # type: ignore[method-assign,assignment]
            told = await ana.put("m", id=ID)
            assert told.state == "committed"
            assert ana.missions() == {"m": '{"title":"t"}'}

    run(story)


def test_Q13_what_cannot_even_be_given_up_is_told_as_unknown(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            await ana.settings(minority="reject")
            ana.shared.unknown = True
            with pytest.raises(OutcomeUnknown, match="may be committed"):
                await ana.put("m", id=ID)

    run(story)


def test_Q3_a_lease_is_never_queued(kind: str, tmp_path: Path) -> None:
    """Taken an hour later it would be held for nobody."""

    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            await ana.intend("lease.acquire", "deploy", LeaseAcquire(5_000))
            with pytest.raises(LeaseHeld):
                await bob.intend("lease.acquire", "deploy", LeaseAcquire(5_000))
            ana.shared.lose_quorum()
            with pytest.raises(NoQuorum):
                await bob.intend("lease.acquire", "deploy", LeaseAcquire(5_000))
            ana.shared.has_quorum, ana.shared.unknown = True, True
            with pytest.raises(OutcomeUnknown):
                await bob.intend("lease.acquire", "deploy", LeaseAcquire(5_000))
            assert bob.read(lambda tx: queue_list(tx, MESH, 0, 9)) == []

    run(story)


def test_Q3_a_slow_quorum_ends_at_the_time_that_the_caller_gave(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.gate.clear()
            told = await ana.put("m", id=ID, timeout_ms=SOON_MS)
            assert (told.state, told.reason) == ("queued", "outcome_unknown")

    run(story)


def test_Q7_giving_a_waiting_write_up_ends_its_row(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            await ana.api.pause(MESH)
            ana.shared.lose_quorum()
            await ana.put("m", id=ID)
            ana.shared.regain()
            raw = parse_id(ID)
            await ana.intend("intent.abandon", ID, IntentAbandon(raw))
            row = ana.read(lambda tx: queue_get(tx, MESH, raw))
            assert row is not None
            assert (row.status, row.reason) == (WriteStatus.FAILED, IntentAbandoned.code)

    run(story)


def test_Q2_stamps_of_intents_grow_and_take_no_number_of_their_origin(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.node.mesh(MESH).state.set("k", 1)
            await asyncio.gather(*(ana.put(f"m{at}") for at in range(5)))
            receipt = ana.node.mesh(MESH).state.set("k", 2)
            rows = ana.read(lambda tx: tx.entity_list(MESH, "mission", "", 9))
            stamps = sorted(row.lamport for row in rows)
            assert len(set(stamps)) == 5
            assert stamps[0] > 1
            assert receipt.lamport > stamps[-1]
            entry = ana.read(lambda tx: tx.log_get(receipt.offset))
            assert entry is not None
            assert decode_trusted(entry.raw).seq == 2

    run(story)


def test_Q3_a_caller_that_is_cancelled_while_its_write_is_kept_leaves_no_forgotten_row(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        kept = asyncio.Event()

        def slow(write: LoopWrite) -> LoopWrite:
            def slowly(name: str, work: Any, /) -> Any:
                async def act() -> Any:
                    if name == ADD:
                        kept.set()
                        await asyncio.sleep(0)
                    return await write(name, work)

                return act()

            return cast(LoopWrite, slowly)

        async with quorum_homes(kind, tmp_path, write=slow) as (ana,):
            ana.shared.lose_quorum()
            asks = asyncio.create_task(ana.put("m", id=ID))
            await kept.wait()
            asks.cancel()
            await asyncio.gather(asks, return_exceptions=True)
            ana.shared.regain()
            await comes_true(lambda: ana.missions() != {})

    run(story)
