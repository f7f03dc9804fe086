"""The whole log of a mesh, and those who read it by name."""

from __future__ import annotations

from hashlib import sha256

import pytest

from holdfast.rules.broker_rows import AUDIT, MEMBER_GRANTS, BrokerConsumer, LogPage, SnapshotRow
from holdfast.rules.errors import EpochChanged, PastEnd, Truncated, UnknownConsumer, UnknownMesh
from holdfast.rules.limits import CONSUMER_KEEP_MS_MAX
from holdfast.storage.broker.port import BrokerStore
from support.desks import (
    ANA,
    BOB,
    KEEP_MS,
    NOW,
    OWNER,
    TEAM,
    accept,
    arriving,
    dm,
    member,
    queued,
    topic,
    with_team,
)
from support.envelopes import make_id

OVER = NOW + KEEP_MS
TOO_LATE = OVER + CONSUMER_KEEP_MS_MAX


async def with_auditor(desk: BrokerStore) -> None:
    await with_team(desk)
    await desk.member_put(TEAM, member(BOB, "bob", *MEMBER_GRANTS, AUDIT))


async def with_snapshot(desk: BrokerStore, seq: int) -> None:
    row = SnapshotRow(
        id=f"at-{seq}", epoch=1, seq=seq, parts=0, rows=0, ready=False, made_by=ANA, began_at=NOW
    )
    await desk.snapshot_begin(TEAM, row)
    await desk.snapshot_commit(TEAM, row.id, sha256().digest(), NOW)


async def page(desk: BrokerStore, after: int = 0, upto: int = 1000, limit: int = 1000) -> LogPage:
    return await desk.log_page(TEAM, after, upto, limit, 1 << 20)


async def held(desk: BrokerStore) -> list[int]:
    return [row.seq for row in (await page(desk)).rows]


async def add(
    desk: BrokerStore, name: str = "lake", after: int = 0, known: int = 0
) -> BrokerConsumer:
    return await desk.consumer_add(TEAM, BOB, name, after, known, NOW)


async def confirm(
    desk: BrokerStore, seq: int, name: str = "lake", epoch: int = 1
) -> BrokerConsumer:
    return await desk.consumer_confirm(TEAM, BOB, name, epoch, seq, NOW + 5)


async def test_P1_the_log_of_a_mesh_has_everything_whomever_it_is_for(desk: BrokerStore) -> None:
    await with_team(desk)
    await accept(desk, arriving(1), topic(2), dm(3), queued(4), arriving(5))
    found = await page(desk)
    assert [(row.seq, row.id, row.raw) for row in found.rows] == [
        (n, make_id(n), b"envelope %d" % n) for n in range(1, 6)
    ]
    assert found.rows[0].broker_id == make_id(1, NOW)
    assert (found.epoch, found.first, found.last, found.to) == (1, 1, 5, 5)
    with pytest.raises(UnknownMesh):
        await desk.log_page("nowhere", 0, 1, 1, 1)


async def test_P1_a_page_says_how_far_it_got(desk: BrokerStore) -> None:
    await with_team(desk)
    await accept(desk, *(arriving(n) for n in range(1, 8)))
    some = await page(desk, after=2, limit=3)
    assert ([row.seq for row in some.rows], some.to) == ([3, 4, 5], 5)
    exact = await page(desk, after=2, upto=5, limit=3)
    assert ([row.seq for row in exact.rows], exact.to) == ([3, 4, 5], 5)
    # One row always fits.
    one = await desk.log_page(TEAM, 2, 7, 100, 1)
    assert ([row.seq for row in one.rows], one.to) == ([3], 3)
    beyond = await page(desk, after=7, upto=1 << 50)
    assert (beyond.rows, beyond.to, beyond.last) == ([], 7, 7)
    far = await page(desk, after=1 << 50, upto=1 << 51)
    assert (far.rows, far.last) == ([], 7)


async def test_P1_a_page_covers_what_was_swept(desk: BrokerStore) -> None:
    await with_team(desk)
    await accept(desk, arriving(1), topic(2), topic(3), arriving(4), topic(5))
    await desk.sweep(OVER, 100)
    found = await page(desk)
    assert ([row.seq for row in found.rows], found.to) == ([1, 4], 5)


async def test_P1_a_reader_is_registered_once_and_confirms_forwards(desk: BrokerStore) -> None:
    await with_auditor(desk)
    await accept(desk, *(arriving(n) for n in range(1, 6)))
    with pytest.raises(UnknownConsumer):
        await confirm(desk, 1)
    assert (await add(desk)).seq == 0
    assert (await confirm(desk, 3)).seq == 3
    assert (await confirm(desk, 2)).seq == 3
    again = await add(desk, after=1)
    assert (again.seq, again.name, again.key, again.added_at) == (3, "lake", BOB, NOW)
    with pytest.raises(PastEnd):
        await confirm(desk, 6)
    with pytest.raises(EpochChanged) as caught:
        await confirm(desk, 4, epoch=2)
    assert caught.value.epoch == 1
    with pytest.raises(PastEnd):
        await add(desk, "other", after=6)
    # Each member has names of its own.
    await desk.consumer_add(TEAM, OWNER, "lake", 5, 0, NOW)
    told = [(one.key, one.seq) for one in await desk.consumer_list(TEAM)]
    assert sorted(told) == [(OWNER, 5), (BOB, 3)]
    assert await desk.consumer_drop(TEAM, BOB, "lake")
    assert not await desk.consumer_drop(TEAM, BOB, "lake")
    assert [one.key for one in await desk.consumer_list(TEAM)] == [OWNER]


async def test_P1_what_a_reader_has_not_confirmed_is_kept_past_its_time(desk: BrokerStore) -> None:
    await with_auditor(desk)
    await accept(desk, topic(1), dm(2), arriving(3), topic(4), arriving(5))
    await with_snapshot(desk, 5)
    await add(desk)
    await confirm(desk, 1)
    assert (await desk.sweep(TOO_LATE - 1, 100)).messages == 1
    assert await held(desk) == [2, 3, 4, 5]
    await confirm(desk, 4)
    assert (await desk.sweep(TOO_LATE - 1, 100)).messages == 3
    assert await held(desk) == [5]
    mesh = await desk.mesh_get(TEAM)
    assert mesh is not None
    assert mesh.first == 4
    (reader,) = await desk.consumer_list(TEAM)
    assert (reader.seq, reader.lost) == (4, 0)


async def test_P1_nobody_is_waited_for_without_end_and_what_was_lost_is_noted(
    desk: BrokerStore,
) -> None:
    await with_auditor(desk)
    await accept(desk, topic(1), dm(2), arriving(3), topic(4), topic(5), arriving(6))
    await with_snapshot(desk, 3)
    await add(desk)
    await confirm(desk, 1)
    await add(desk, "fresh", after=6)
    assert (await desk.sweep(TOO_LATE, 100)).messages == 5
    assert await held(desk) == [6]
    fresh, lake = await desk.consumer_list(TEAM)
    assert (fresh.name, fresh.lost) == ("fresh", 0)
    assert (lake.lost, lake.lost_first, lake.lost_last) == (4, 2, 5)
    spans = [(1, 2), (2, 4), (5, 6), (6, 7)]
    assert [lake.lacks(*span) for span in spans] == [False, True, True, False]
    assert await desk.orphans(10) == []


async def test_P1_what_was_lost_stays_noted_until_the_reader_knows(desk: BrokerStore) -> None:
    await with_auditor(desk)
    await accept(desk, topic(1), topic(2), arriving(3))
    await add(desk)
    await desk.sweep(TOO_LATE, 100)
    # A sweep that came after it was told is not covered by what it knows.
    assert (await add(desk, known=1)).lost == 2
    assert (await confirm(desk, 1)).lost == 2
    assert (await add(desk, known=2)).lost == 0
    assert not (await desk.consumer_list(TEAM))[0].lacks(1, 4)
    await accept(desk, topic(4))
    await confirm(desk, 3)
    await desk.sweep(TOO_LATE, 100)
    (lost,) = await desk.consumer_list(TEAM)
    assert (lost.lost, lost.lost_first, lost.lost_last) == (1, 4, 4)
    # Whoever confirms it had read it before it went.
    assert (await confirm(desk, 4)).lost == 0


async def test_P1_a_hole_that_was_there_before_the_reader_is_not_lost(desk: BrokerStore) -> None:
    await with_auditor(desk)
    await accept(desk, topic(1), arriving(2), topic(3))
    await desk.sweep(OVER, 100)
    await add(desk)
    await desk.sweep(TOO_LATE, 100)
    (reader,) = await desk.consumer_list(TEAM)
    assert reader.lost == 0
    assert await held(desk) == [2]


async def test_P1_a_reader_that_may_not_audit_holds_nothing_back(desk: BrokerStore) -> None:
    await with_auditor(desk)
    await accept(desk, topic(1), topic(2))
    await add(desk)
    await confirm(desk, 1)
    await desk.member_grant(TEAM, BOB, MEMBER_GRANTS)
    assert (await desk.sweep(OVER, 100)).messages == 2
    # Should it come back, it is told.
    assert [one.lost_first for one in await desk.consumer_list(TEAM)] == [2]
    await accept(desk, topic(3))
    await desk.member_grant(TEAM, BOB, frozenset({AUDIT}))
    assert (await desk.sweep(OVER, 100)).messages == 0
    await desk.member_remove(TEAM, BOB, NOW)
    assert (await desk.sweep(OVER, 100)).messages == 1


async def test_P1_the_slowest_reader_counts_and_other_meshes_do_not(desk: BrokerStore) -> None:
    await with_auditor(desk)
    await desk.mesh_register("other", "Other", ANA, "ana", "server-2", NOW)
    await desk.member_put("other", member(BOB, "bob", AUDIT))
    await accept(desk, topic(1), topic(2), topic(3))
    await add(desk)
    await add(desk, "slow")
    await desk.consumer_add("other", BOB, "lake", 0, 0, NOW)
    await confirm(desk, 3)
    await confirm(desk, 1, "slow")
    assert (await desk.sweep(OVER, 100)).messages == 1
    await confirm(desk, 2, "slow")
    assert (await desk.sweep(OVER, 100)).messages == 1


async def test_P1_a_reader_cannot_begin_where_changes_are_gone(desk: BrokerStore) -> None:
    await with_auditor(desk)
    await accept(desk, *(arriving(n) for n in range(1, 5)))
    await with_snapshot(desk, 2)
    await desk.sweep(OVER, 100)
    with pytest.raises(Truncated) as caught:
        await add(desk, after=1)
    assert caught.value.first_available == 3
    assert (await add(desk, after=2)).seq == 2


async def test_P1_a_mesh_that_is_removed_takes_its_readers_with_it(desk: BrokerStore) -> None:
    await with_auditor(desk)
    await add(desk)
    await desk.mesh_remove(TEAM)
    await with_auditor(desk)
    assert await desk.consumer_list(TEAM) == []
