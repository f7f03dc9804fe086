"""What a member gets to see, page by page."""

from __future__ import annotations

import pytest

from holdfast.rules.broker_rows import DestinationRow
from holdfast.rules.errors import NotAMember, NotGranted, UnknownDestination
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import (
    ANA,
    BOB,
    EVE,
    NOW,
    OWNER,
    TEAM,
    TOPIC,
    accept,
    arriving,
    dm,
    feed,
    member,
    queued,
    seqs,
    topic,
    with_team,
)
from support.envelopes import make_id


async def test_D5_each_destination_reaches_whom_it_should(store: BrokerStore) -> None:
    await with_team(store)
    await store.subscribe(TEAM, BOB, TOPIC)
    await accept(store, arriving(1), topic(2), dm(3, BOB), dm(4, OWNER), queued(5))
    page = await feed(store, BOB)
    assert [(row.seq, row.kind, row.raw) for row in page.rows] == [
        (1, "change", b"envelope 1"),
        (2, "topic", b"envelope 2"),
        (3, "dm", b"envelope 3"),
    ]
    assert page.rows[1].broker_id == make_id(2, NOW)
    assert (page.epoch, page.after, page.to, page.last) == (1, 0, 5, 5)
    assert [(row.seq, row.kind) for row in (await feed(store, OWNER)).rows] == [
        (1, "change"),
        (4, "dm"),
    ]


async def test_D5_a_topic_is_got_from_the_subscription_on(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, topic(1), topic(2))
    assert await store.subscribe(TEAM, BOB, TOPIC) == 2
    await accept(store, topic(3))
    assert await store.subscribe(TEAM, BOB, TOPIC) == 2
    assert await store.subscriptions(TEAM, BOB) == {TOPIC: 2}
    assert seqs(await feed(store, BOB)) == [3]
    assert await store.unsubscribe(TEAM, BOB, TOPIC)
    assert not await store.unsubscribe(TEAM, BOB, TOPIC)
    assert seqs(await feed(store, BOB)) == []
    await accept(store, topic(4))
    assert await store.subscribe(TEAM, BOB, TOPIC) == 4
    assert await store.subscriptions(TEAM, ANA) == {}


async def test_D5_only_members_subscribe_and_only_to_what_was_declared(store: BrokerStore) -> None:
    await with_team(store)
    with pytest.raises(UnknownDestination):
        await store.subscribe(TEAM, BOB, "undeclared")
    with pytest.raises(UnknownDestination):
        await store.subscribe(TEAM, BOB, "work")
    with pytest.raises(NotAMember):
        await store.subscribe(TEAM, EVE, TOPIC)


async def test_D5_a_topic_that_is_dropped_takes_its_subscriptions_along(store: BrokerStore) -> None:
    await with_team(store)
    await store.subscribe(TEAM, BOB, TOPIC)
    assert await store.destination_drop(TEAM, "topic", TOPIC)
    assert not await store.destination_drop(TEAM, "topic", TOPIC)
    assert await store.subscriptions(TEAM, BOB) == {}


async def test_D5_destinations_are_declared_and_changed(store: BrokerStore) -> None:
    await with_team(store)
    changed = DestinationRow(
        kind="queue", ref="work", made_at=NOW, visibility_ms=5, deliveries_max=2
    )
    await store.destination_put(TEAM, changed)
    assert await store.destination_list(TEAM) == [
        changed,
        DestinationRow(kind="topic", ref=TOPIC, made_at=NOW),
    ]


async def test_D14_own_changes_are_not_fed_back_unless_asked_for(store: BrokerStore) -> None:
    await with_team(store)
    await store.subscribe(TEAM, ANA, TOPIC)
    await accept(store, arriving(1), arriving(2, sender=BOB, origin="bob"), topic(3), dm(4, ANA))
    assert seqs(await feed(store, ANA)) == [2, 3, 4]
    assert seqs(await feed(store, ANA, own=True)) == [1, 2, 3, 4]


async def test_D6_a_page_covers_all_up_to_where_it_says(store: BrokerStore) -> None:
    await with_team(store)
    batch = [
        arriving(n) if n % 3 == 0 else dm(n, OWNER) if n % 3 == 1 else topic(n) for n in range(30)
    ]
    await accept(store, *batch)
    after, got, pages = 0, [], 0
    while after < 30:
        page = await store.feed(TEAM, BOB, after, 3, 1_000_000, own=False)
        assert page.after == after
        assert after < page.to <= 30
        assert all(after < row.seq <= page.to for row in page.rows)
        assert len(page.rows) <= 3
        got += seqs(page)
        after, pages = page.to, pages + 1
    assert got == list(range(1, 31, 3))
    assert pages <= 5
    page = await store.feed(TEAM, BOB, 30, 3, 1_000_000, own=False)
    assert (page.to, page.rows, page.last) == (30, [], 30)


async def test_D6_a_page_ends_by_its_bytes_but_one_row_always_fits(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, *(arriving(n, raw=b"x" * 1000) for n in range(5)))
    page = await store.feed(TEAM, BOB, 0, 100, 2500, own=False)
    assert (seqs(page), page.to, page.last) == ([1, 2], 2, 5)
    page = await store.feed(TEAM, BOB, 2, 100, 10, own=False)
    assert (seqs(page), page.to) == ([3], 3)


async def test_D15_strangers_and_those_who_may_not_read_get_no_page(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, arriving(1))
    with pytest.raises(NotAMember):
        await feed(store, EVE)
    await store.member_remove(TEAM, BOB, NOW)
    with pytest.raises(NotAMember):
        await feed(store, BOB)
    await store.member_put(TEAM, member(BOB, "bob", "write"))
    with pytest.raises(NotGranted):
        await feed(store, BOB)
    with pytest.raises(NotGranted):
        await store.express(TEAM, BOB, 0, 10)


async def test_D5_what_is_urgent_can_be_read_ahead(store: BrokerStore) -> None:
    await with_team(store)
    await store.subscribe(TEAM, BOB, TOPIC)
    await accept(
        store,
        arriving(1, priority="now"),
        topic(2, priority="now"),
        topic(3),
        dm(4, BOB, priority="now"),
        dm(5, OWNER, priority="now"),
        dm(6, BOB, priority="low"),
        queued(7, priority="now"),
        dm(8, BOB, priority="now"),
    )
    page = await store.express(TEAM, BOB, 0, 100)
    assert (seqs(page), page.to, page.last) == ([2, 4, 8], 8, 8)
    page = await store.express(TEAM, BOB, 0, 2)
    assert (seqs(page), page.to) == ([2, 4], 4)
    page = await store.express(TEAM, BOB, 4, 2)
    assert (seqs(page), page.to) == ([8], 8)
    assert seqs(await feed(store, BOB)) == [1, 2, 3, 4, 6, 8]
