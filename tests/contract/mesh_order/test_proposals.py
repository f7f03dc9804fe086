"""What a write can count on."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.rules.errors import IdReused, IntentAbandoned, NoQuorum, OutcomeUnknown
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.intents import IntentAbandon
from support.order_worlds import (
    OrderWorld,
    Told,
    decoded,
    propose,
    put,
    read,
    records,
    title_of,
)
from support.quorum_state import intent
from support.voter_nodes import mission, until


def test_Q3_the_same_id_is_committed_once_whoever_proposes_it(told: Told) -> None:
    async def story(world: OrderWorld) -> None:
        ana, bo, _ = world.seats
        envelope = mission("ana", "one", "once")
        first = await propose(ana, envelope)
        assert first.outcome == "applied"
        assert first.number is not None
        for seat in (ana, bo):
            await seat.order.confirm(timeout_ms=30_000)
            again = await propose(seat, envelope)
            assert (again.outcome, again.number) == ("noop_already_applied", None)
            assert again.revisions == first.revisions
            found = [one for one in decoded(seat) if one.id == envelope.id]
            assert [one.number for one in found] == [first.number]

    told(story)


def test_Q3_one_id_proposed_by_two_at_once_is_applied_once(told: Told) -> None:
    async def story(world: OrderWorld) -> None:
        ana, bo, cy = world.seats
        envelope = mission("ana", "both", "at once")
        results = await asyncio.gather(*(propose(seat, envelope) for seat in (ana, bo, ana)))
        assert {result.outcome for result in results} <= {"applied", "noop_already_applied"}
        await cy.order.confirm(timeout_ms=30_000)
        assert sum(one.id == envelope.id for one in decoded(cy)) == 1

    told(story)


def test_Q7_other_content_under_one_id_changes_nothing(told: Told) -> None:
    """Also where the proposing node has not folded the first one yet, or proposes both at once."""

    async def story(world: OrderWorld) -> None:
        ana, bo, cy = world.seats
        envelope = mission("ana", "first", "reused")
        await propose(ana, envelope)
        other = mission("bo", "second", "reused", id_of=envelope.id)
        for seat in (bo, ana):
            got = await propose(seat, other)
            assert (got.outcome, got.reason) == ("conflict_requires_merge", IdReused.code)
            assert title_of(seat, "reused") == "first"
        one = mission("cy", "one", "both")
        two = mission("cy", "two", "both", id_of=one.id)
        results = await asyncio.gather(propose(cy, one), propose(cy, two))
        assert sorted(str(result.outcome) for result in results) == [
            "applied",
            "conflict_requires_merge",
        ]

    told(story)


def test_Q6_what_was_given_up_first_is_void_for_ever(told: Told) -> None:
    async def story(world: OrderWorld) -> None:
        ana, bo, _ = world.seats
        envelope = mission("ana", "late", "void")
        id = envelope.id
        given_up = intent("intent.abandon", id_text(id), IntentAbandon(id), origin="bo")
        assert (await propose(bo, given_up)).outcome == "applied"
        late = await propose(ana, envelope)
        assert (late.outcome, late.reason) == (None, IntentAbandoned.code)
        assert title_of(ana, "void") is None

    told(story)


def test_Q4_numbers_and_fences_grow_and_are_the_same_everywhere(told: Told) -> None:
    async def story(world: OrderWorld) -> None:
        await asyncio.gather(
            *(put(seat, f"grows {at}", seat.name) for at in range(5) for seat in world.seats)
        )
        for seat in world.seats:
            await seat.order.confirm(timeout_ms=30_000)
        one, *others = (records(seat) for seat in world.seats)
        assert all(other == one for other in others)
        found = decoded(world.seats[0])
        assert [record.number for record in found] == list(range(1, len(found) + 1))
        fences = [record.fence.order for record in found]
        assert fences == sorted(set(fences))

    told(story)


def test_Q3_without_whoever_decides_nothing_is_committed_and_asking_again_settles_it(
    told: Told,
) -> None:
    async def story(world: OrderWorld) -> None:
        bo = world.seats[1]
        envelope = mission("bo", "cut off", "alone")
        await world.cut_off(bo)
        try:
            with pytest.raises((NoQuorum, OutcomeUnknown)) as refused:
                await propose(bo, envelope, timeout_ms=700)
            with pytest.raises(NoQuorum):
                await bo.order.confirm(timeout_ms=700)
            assert title_of(bo, "alone") is None
        finally:
            await world.heal()
        if refused.type is NoQuorum:
            assert await read(world.seats[0], "alone") is None
        await propose(bo, envelope)
        cy = world.seats[2]
        assert await read(cy, "alone") == "cut off"
        assert sum(one.id == envelope.id for one in decoded(cy)) == 1

    told(story)


def test_Q8_a_node_that_was_away_folds_what_it_missed_and_nothing_twice(told: Told) -> None:
    async def story(world: OrderWorld) -> None:
        ana, _, cy = world.seats
        await put(cy, "before", "kept")
        had = len(records(cy))
        await world.restart(cy)
        assert len(records(cy)) == had
        await put(ana, "before", "changed")
        assert await read(cy, "before") == "changed"
        await until(lambda: records(cy) == records(ana))

    told(story)


def test_Q8_every_fold_and_every_change_is_told(told: Told) -> None:
    async def story(world: OrderWorld) -> None:
        ana, bo, _ = world.seats
        heard: list[str | None] = []
        told_before, bo.order.on_folded = (
            bo.order.on_folded,
            lambda results: heard.extend(one.id for one in results),
        )
        try:
            envelope = mission("ana", "heard", "told")
            await propose(ana, envelope)
            await until(lambda: id_text(envelope.id) in heard)
        finally:
            bo.order.on_folded = told_before

    told(story)
