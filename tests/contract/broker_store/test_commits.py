"""What quorums have committed, at a broker: each number once, one order, no holes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from holdfast.protocol.commit_page import CheckedPage, CommitPage, check_page
from holdfast.protocol.quorum_snapshot import VERSION, SnapshotHeader
from holdfast.rules.broker_rows import BrokerOrder
from holdfast.rules.errors import CommitForked, HoldfastError, PastEnd, UnknownMesh
from holdfast.storage.broker.port import BrokerStore
from holdfast.storage.broker.postgres.store import PostgresBrokerStore
from support.broker_stores import ANA, NOW, TEAM, StoreMaker, Vandal, feed, with_team
from support.commit_pages import mission, page_of, voter_with
from support.envelopes import MESH
from support.quorum_state import fence

ORDER = [mission(name) for name in "abcde"]
SHA = "ab" * 32
ALL = 1 << 30


def order_page(first: int = 1, limit: int = 512, **changed: object) -> CheckedPage:
    """A page of five commits, as a voter of the test's mesh gives it."""
    page = page_of(voter_with(ORDER), first, limit)
    return check_page(msgspec.structs.replace(page, **changed))


def header(number: int, **changed: object) -> SnapshotHeader:
    page: CommitPage = page_of(voter_with(ORDER))
    fields = (VERSION, MESH, page.incarnation, page.tag, number, number, fence(number), 1)
    return msgspec.structs.replace(SnapshotHeader(*fields), **changed)


async def numbers(store: BrokerStore, first: int = 1) -> int:
    return len(await store.commit_lines(TEAM, first, ALL, ALL))


async def looks(store: BrokerStore) -> int:
    """How often a store has looked how far meshes are, which PostgreSQL does on each connection
    that listens; once at least.
    """
    if not isinstance(store, PostgresBrokerStore):
        return 0
    async with asyncio.timeout(60):
        while not store._news.looks:
            await asyncio.sleep(0.01)
    return store._news.looks


async def test_Q3_the_same_page_of_three_voters_is_stored_once(store: BrokerStore) -> None:
    await with_team(store)
    heard: list[str] = []
    looked = await looks(store)
    store.on_news(lambda mesh, seq: heard.append(mesh))
    assert await store.commit_order(TEAM) is None
    for page in (order_page(1, 2), order_page(), order_page(), order_page(2, 2)):
        order = await store.commits_add(TEAM, page, NOW)
    assert order is not None
    assert (order.first, order.last, order.fence) == (1, 5, str(fence(5)))
    assert await store.commit_order(TEAM) == order
    lines = await store.commit_lines(TEAM, 1, ALL, ALL)
    assert [(one.record, one.raw) for one in lines] == [
        (one.record_bytes, one.raw) for one in order_page().lines
    ]
    await asyncio.sleep(0)  # a store in threads tells it through the loop
    again = await looks(store) - looked  # each rings for the mesh once at most
    assert 2 <= len(heard) <= 2 + again, "the order grew twice"
    assert set(heard) == {TEAM}


async def test_Q3_pages_of_a_broker_end_by_rows_and_by_size(store: BrokerStore) -> None:
    await with_team(store)
    await store.commits_add(TEAM, order_page(), NOW)
    assert len(await store.commit_lines(TEAM, 2, 3, ALL)) == 3
    assert len(await store.commit_lines(TEAM, 2, 9, 1)) == 1
    assert await store.commit_lines(TEAM, 6, 9, ALL) == []


async def test_Q3_a_member_hears_with_its_feed_how_many_commits_there_are(
    store: BrokerStore,
) -> None:
    await with_team(store)
    assert (await feed(store, ANA)).commits == 0
    await store.commits_add(TEAM, order_page(), NOW)
    assert (await feed(store, ANA)).commits == 5


async def test_Q4_a_fork_and_a_gap_are_refused_and_change_nothing(store: BrokerStore) -> None:
    await with_team(store)
    kept = await store.commits_add(TEAM, order_page(1, 3), NOW)
    other = page_of(voter_with([mission("x"), *ORDER]))
    last = page_of(voter_with([*ORDER[:3], mission("x")]), 4)
    lies: list[tuple[type[HoldfastError], CheckedPage]] = [
        (CommitForked, check_page(other)),  # another entry under a number
        (CommitForked, order_page(tag=b"another group...")),
        (PastEnd, order_page(5)),
    ]
    for error, page in lies:
        with pytest.raises(error):
            await store.commits_add(TEAM, page, NOW)
    assert await store.commit_order(TEAM) == kept
    # Two that are both next: the first one to come stands.
    await store.commits_add(TEAM, order_page(4, 1), NOW)
    with pytest.raises(CommitForked):
        await store.commits_add(TEAM, check_page(last), NOW)
    assert await numbers(store) == 4
    with pytest.raises(UnknownMesh):
        await store.commits_add("nowhere", order_page(), NOW)


async def test_Q4_a_commit_whose_fence_is_not_newer_is_refused(store: BrokerStore) -> None:
    await with_team(store)
    await store.commit_state(TEAM, header(3, fence=fence(9)), "embedded", SHA, 7)
    with pytest.raises(CommitForked):
        await store.commits_add(TEAM, order_page(4), NOW)


async def test_Q3_a_state_may_be_behind_the_commits_or_ahead_of_them(store: BrokerStore) -> None:
    await with_team(store)
    await store.commits_add(TEAM, order_page(1, 3), NOW)

    async def put(number: int, **changed: object) -> BrokerOrder:
        one = header(number, **changed)
        order = await store.commit_state(TEAM, one, "embedded", f"{number:064x}", number)
        assert order is not None
        return order

    behind = await put(2)
    assert (behind.first, behind.last, behind.state_number) == (1, 3, 2)
    assert (await put(1)).state_number == 2  # the later one stays
    with pytest.raises(CommitForked):
        await put(4, fence=fence(2))
    with pytest.raises(CommitForked):
        await put(4, tag=b"another group...")
    ahead = await put(4)
    assert (ahead.first, ahead.last, ahead.fence) == (5, 4, str(fence(4)))
    assert (ahead.state_sha256, ahead.state_size) == (f"{4:064x}", 4)
    assert await numbers(store) == 0
    # What it covers is known, and the next commit follows it.
    grown = await store.commits_add(TEAM, order_page(), NOW)
    assert grown is not None
    assert (grown.first, grown.last, await numbers(store)) == (5, 5, 1)


async def test_Q3_commits_go_in_their_time_and_only_as_far_as_a_state_covers_them(
    store: BrokerStore,
) -> None:
    await with_team(store)
    await store.commits_add(TEAM, order_page(1, 2), NOW + 10)
    await store.commits_add(TEAM, order_page(3), NOW + 20)
    assert (await store.sweep(NOW + 99, 100)).commits == 0
    await store.commit_state(TEAM, header(4), "embedded", SHA, 7)
    assert (await store.sweep(NOW + 9, 100)).commits == 0
    assert (await store.sweep(NOW + 10, 1)).commits == 1
    assert (await store.sweep(NOW + 10, 100)).commits == 1
    assert (await store.sweep(NOW + 99, 100)).commits == 2
    order = await store.commit_order(TEAM)
    assert order is not None
    assert (order.first, order.last, await numbers(store)) == (5, 5, 1)
    assert await store.inconsistencies() == []


async def test_Q3_an_order_with_a_hole_is_found(store: BrokerStore, vandal: Vandal) -> None:
    await with_team(store)
    await store.commits_add(TEAM, order_page(), NOW)
    assert await store.inconsistencies() == []
    await vandal.lose_commit(store, TEAM, 3)
    assert [one for one in await store.inconsistencies() if "holes" in one] != []


async def test_Q3_commits_survive_a_new_start_and_go_with_their_mesh(
    make_store: StoreMaker, tmp_path: Path
) -> None:
    async with make_store(tmp_path) as store:
        await with_team(store)
        kept = await store.commits_add(TEAM, order_page(), NOW)
    async with make_store(tmp_path) as store:
        assert await store.commit_order(TEAM) == kept
        assert await numbers(store) == 5
        await store.mesh_remove(TEAM)
        while (await store.sweep(NOW, 100)).removed:
            pass
        await with_team(store)
        assert (await store.commit_order(TEAM), await numbers(store)) == (None, 0)
