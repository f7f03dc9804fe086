"""The whole log of a mesh, and those who read it by name."""

from __future__ import annotations

from hashlib import sha256

import pytest

from holdfast.rules.broker_rows import AUDIT, MEMBER_GRANTS, BrokerConsumer, LogPage, SnapshotRow
from holdfast.rules.errors import EpochChanged, PastEnd, Truncated, UnknownConsumer, UnknownMesh
from holdfast.rules.limits import CONSUMER_KEEP_MS_MAX
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import (
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


async def with_auditor(store: BrokerStore) -> None:
    await with_team(store)
    await store.member_put(TEAM, member(BOB, "bob", *MEMBER_GRANTS, AUDIT))


async def with_snapshot(store: BrokerStore, seq: int) -> None:
    row = SnapshotRow(
        id=f"at-{seq}", epoch=1, seq=seq, parts=0, rows=0, ready=False, made_by=ANA, began_at=NOW
    )
    await store.snapshot_begin(TEAM, row)
    await store.snapshot_commit(TEAM, row.id, sha256().digest(), NOW)


async def page(store: BrokerStore, after: int = 0, upto: int = 1000, limit: int = 1000) -> LogPage:
    return await store.log_page(TEAM, after, upto, limit, 1 << 20)


async def held(store: BrokerStore) -> list[int]:
    return [row.seq for row in (await page(store)).rows]


async def add(
    store: BrokerStore, name: str = "lake", after: int = 0, known: int = 0
) -> BrokerConsumer:
    return await store.consumer_add(TEAM, BOB, name, after, known, NOW)


async def confirm(
    store: BrokerStore, seq: int, name: str = "lake", epoch: int = 1
) -> BrokerConsumer:
    return await store.consumer_confirm(TEAM, BOB, name, epoch, seq, NOW + 5)


async def test_P1_the_log_of_a_mesh_has_everything_whomever_it_is_for(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, arriving(1), topic(2), dm(3), queued(4), arriving(5))
    found = await page(store)
    assert [(row.seq, row.id, row.raw) for row in found.rows] == [
        (n, make_id(n), b"envelope %d" % n) for n in range(1, 6)
    ]
    assert found.rows[0].broker_id == make_id(1, NOW)
    assert (found.epoch, found.first, found.last, found.to) == (1, 1, 5, 5)
    with pytest.raises(UnknownMesh):
        await store.log_page("nowhere", 0, 1, 1, 1)


async def test_P1_a_page_says_how_far_it_got(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, *(arriving(n) for n in range(1, 8)))
    some = await page(store, after=2, limit=3)
    assert ([row.seq for row in some.rows], some.to) == ([3, 4, 5], 5)
    exact = await page(store, after=2, upto=5, limit=3)
    assert ([row.seq for row in exact.rows], exact.to) == ([3, 4, 5], 5)
    # One row always fits.
    one = await store.log_page(TEAM, 2, 7, 100, 1)
    assert ([row.seq for row in one.rows], one.to) == ([3], 3)
    beyond = await page(store, after=7, upto=1 << 50)
    assert (beyond.rows, beyond.to, beyond.last) == ([], 7, 7)
    far = await page(store, after=1 << 50, upto=1 << 51)
    assert (far.rows, far.last) == ([], 7)


async def test_P1_a_page_covers_what_was_swept(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, arriving(1), topic(2), topic(3), arriving(4), topic(5))
    await store.sweep(OVER, 100)
    found = await page(store)
    assert ([row.seq for row in found.rows], found.to) == ([1, 4], 5)


async def test_P1_a_reader_is_registered_once_and_confirms_forwards(store: BrokerStore) -> None:
    await with_auditor(store)
    await accept(store, *(arriving(n) for n in range(1, 6)))
    with pytest.raises(UnknownConsumer):
        await confirm(store, 1)
    assert (await add(store)).seq == 0
    assert (await confirm(store, 3)).seq == 3
    assert (await confirm(store, 2)).seq == 3
    again = await add(store, after=1)
    assert (again.seq, again.name, again.key, again.added_at) == (3, "lake", BOB, NOW)
    with pytest.raises(PastEnd):
        await confirm(store, 6)
    with pytest.raises(EpochChanged) as caught:
        await confirm(store, 4, epoch=2)
    assert caught.value.epoch == 1
    with pytest.raises(PastEnd):
        await add(store, "other", after=6)
    # Each member has names of its own.
    await store.consumer_add(TEAM, OWNER, "lake", 5, 0, NOW)
    told = [(one.key, one.seq) for one in await store.consumer_list(TEAM)]
    assert sorted(told) == [(OWNER, 5), (BOB, 3)]
    assert await store.consumer_drop(TEAM, BOB, "lake")
    assert not await store.consumer_drop(TEAM, BOB, "lake")
    assert [one.key for one in await store.consumer_list(TEAM)] == [OWNER]


async def test_P1_what_a_reader_has_not_confirmed_is_kept_past_its_time(store: BrokerStore) -> None:
    await with_auditor(store)
    await accept(store, topic(1), dm(2), arriving(3), topic(4), arriving(5))
    await with_snapshot(store, 5)
    await add(store)
    await confirm(store, 1)
    assert (await store.sweep(TOO_LATE - 1, 100)).messages == 1
    assert await held(store) == [2, 3, 4, 5]
    await confirm(store, 4)
    assert (await store.sweep(TOO_LATE - 1, 100)).messages == 3
    assert await held(store) == [5]
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    assert mesh.first == 4
    (reader,) = await store.consumer_list(TEAM)
    assert (reader.seq, reader.lost) == (4, 0)


async def test_P1_nobody_is_waited_for_without_end_and_what_was_lost_is_noted(
    store: BrokerStore,
) -> None:
    await with_auditor(store)
    await accept(store, topic(1), dm(2), arriving(3), topic(4), topic(5), arriving(6))
    await with_snapshot(store, 3)
    await add(store)
    await confirm(store, 1)
    await add(store, "fresh", after=6)
    assert (await store.sweep(TOO_LATE, 100)).messages == 5
    assert await held(store) == [6]
    fresh, lake = await store.consumer_list(TEAM)
    assert (fresh.name, fresh.lost) == ("fresh", 0)
    assert (lake.lost, lake.lost_first, lake.lost_last) == (4, 2, 5)
    spans = [(1, 2), (2, 4), (5, 6), (6, 7)]
    assert [lake.lacks(*span) for span in spans] == [False, True, True, False]
    assert await store.orphans(10) == []


async def test_P1_what_was_lost_stays_noted_until_the_reader_knows(store: BrokerStore) -> None:
    await with_auditor(store)
    await accept(store, topic(1), topic(2), arriving(3))
    await add(store)
    await store.sweep(TOO_LATE, 100)
    # A sweep that came after it was told is not covered by what it knows.
    assert (await add(store, known=1)).lost == 2
    assert (await confirm(store, 1)).lost == 2
    assert (await add(store, known=2)).lost == 0
    assert not (await store.consumer_list(TEAM))[0].lacks(1, 4)
    await accept(store, topic(4))
    await confirm(store, 3)
    await store.sweep(TOO_LATE, 100)
    (lost,) = await store.consumer_list(TEAM)
    assert (lost.lost, lost.lost_first, lost.lost_last) == (1, 4, 4)
    # Whoever confirms it had read it before it went.
    assert (await confirm(store, 4)).lost == 0


async def test_P1_a_hole_that_was_there_before_the_reader_is_not_lost(store: BrokerStore) -> None:
    await with_auditor(store)
    await accept(store, topic(1), arriving(2), topic(3))
    await store.sweep(OVER, 100)
    await add(store)
    await store.sweep(TOO_LATE, 100)
    (reader,) = await store.consumer_list(TEAM)
    assert reader.lost == 0
    assert await held(store) == [2]


async def test_P1_a_reader_that_may_not_audit_holds_nothing_back(store: BrokerStore) -> None:
    await with_auditor(store)
    await accept(store, topic(1), topic(2))
    await add(store)
    await confirm(store, 1)
    await store.member_grant(TEAM, BOB, MEMBER_GRANTS)
    assert (await store.sweep(OVER, 100)).messages == 2
    # Should it come back, it is told.
    assert [one.lost_first for one in await store.consumer_list(TEAM)] == [2]
    await accept(store, topic(3))
    await store.member_grant(TEAM, BOB, frozenset({AUDIT}))
    assert (await store.sweep(OVER, 100)).messages == 0
    await store.member_remove(TEAM, BOB, NOW)
    assert (await store.sweep(OVER, 100)).messages == 1


async def test_P1_the_slowest_reader_counts_and_other_meshes_do_not(store: BrokerStore) -> None:
    await with_auditor(store)
    await store.mesh_register("other", "Other", ANA, "ana", "server-2", NOW)
    await store.member_put("other", member(BOB, "bob", AUDIT))
    await accept(store, topic(1), topic(2), topic(3))
    await add(store)
    await add(store, "slow")
    await store.consumer_add("other", BOB, "lake", 0, 0, NOW)
    await confirm(store, 3)
    await confirm(store, 1, "slow")
    assert (await store.sweep(OVER, 100)).messages == 1
    await confirm(store, 2, "slow")
    assert (await store.sweep(OVER, 100)).messages == 1


async def test_P1_a_reader_cannot_begin_where_changes_are_gone(store: BrokerStore) -> None:
    await with_auditor(store)
    await accept(store, *(arriving(n) for n in range(1, 5)))
    await with_snapshot(store, 2)
    await store.sweep(OVER, 100)
    with pytest.raises(Truncated) as caught:
        await add(store, after=1)
    assert caught.value.first_available == 3
    assert (await add(store, after=2)).seq == 2


async def test_P1_a_mesh_that_is_removed_takes_its_readers_with_it(store: BrokerStore) -> None:
    await with_auditor(store)
    await add(store)
    await store.mesh_remove(TEAM)
    await with_auditor(store)
    assert await store.consumer_list(TEAM) == []
