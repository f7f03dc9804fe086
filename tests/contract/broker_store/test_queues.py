"""Queues: one of those who take gets each message, until one of them has finished with it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.rules.broker_rows import DestinationRow, QueueCounts, TakenRow
from holdfast.rules.errors import BadInput, UnknownDestination
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import ANA, BOB, NOW, QUEUE, TEAM, accept, queued, with_team
from support.envelopes import make_id

VISIBLE_MS = 1000


async def with_queue(store: BrokerStore, deliveries_max: int = 3) -> None:
    await with_team(store)
    row = DestinationRow(
        kind="queue",
        ref=QUEUE,
        made_at=NOW,
        visibility_ms=VISIBLE_MS,
        deliveries_max=deliveries_max,
    )
    await store.destination_put(TEAM, row)


async def take(
    store: BrokerStore, most: int = 1, now_ms: int = NOW, *, first: int = 0, holder: bytes = ANA
) -> list[TakenRow]:
    leases = [bytes([first + n]) * 16 for n in range(most)]
    return await store.take(TEAM, QUEUE, holder, most, leases, now_ms)


async def settle(store: BrokerStore, one: TakenRow, how: str, now_ms: int = NOW) -> bool:
    return await store.settle(TEAM, QUEUE, one.seq, one.lease, how, "no good", now_ms)


async def counts(store: BrokerStore) -> tuple[int, int, int]:
    (row,) = await store.queue_counts(TEAM)
    return row.ready, row.taken, row.dead


async def test_D5_a_queue_serves_by_priority_and_then_by_age(store: BrokerStore) -> None:
    await with_queue(store)
    priorities = ["low", "next", "now", "low", "now", "next"]
    await accept(store, *(queued(n, priority=p) for n, p in enumerate(priorities)))
    assert [one.seq for one in await take(store, 2)] == [3, 5]
    assert [one.seq for one in await take(store, 10, first=50)] == [2, 6, 1, 4]
    assert await take(store, 10, first=90) == []


async def test_D5_what_is_taken_is_hidden_until_its_time_is_over(store: BrokerStore) -> None:
    await with_queue(store)
    await accept(store, queued(1))
    (first,) = await take(store)
    assert first == TakenRow(
        queue=QUEUE,
        seq=1,
        lease=b"\0" * 16,
        deliveries=1,
        until=NOW + VISIBLE_MS,
        broker_id=make_id(1, NOW),
        raw=b"envelope 1",
    )
    assert await take(store, 1, NOW + VISIBLE_MS - 1, first=1) == []
    (second,) = await take(store, 1, NOW + VISIBLE_MS, first=1, holder=BOB)
    assert (second.seq, second.deliveries, second.lease) == (1, 2, b"\1" * 16)
    # The first one was too slow: its lease is worth nothing now.
    assert not await settle(store, first, "done")
    assert await counts(store) == (0, 1, 0)
    assert await settle(store, second, "done")
    assert not await settle(store, second, "done")
    assert await counts(store) == (0, 0, 0)


async def test_D5_a_lease_is_good_after_its_time_while_nobody_else_has_the_message(
    store: BrokerStore,
) -> None:
    await with_queue(store)
    await accept(store, queued(1))
    (one,) = await take(store)
    assert await settle(store, one, "done", NOW + 10 * VISIBLE_MS)


async def test_D5_again_extend_and_dead_do_what_they_say(store: BrokerStore) -> None:
    await with_queue(store)
    await accept(store, queued(1), queued(2))
    one, two = await take(store, 2)
    assert await settle(store, one, "extend", NOW + 900)
    assert await take(store, 1, NOW + 999, first=8) == []
    assert await settle(store, two, "again")
    (again,) = await take(store, 5, NOW + VISIBLE_MS + 1, first=10)
    assert (again.seq, again.deliveries) == (2, 2)
    assert await settle(store, one, "dead", NOW + 950)
    (dead,) = await store.dead_letters(TEAM, QUEUE, 10)
    assert (dead.seq, dead.deliveries, dead.reason, dead.died_at) == (1, 1, "no good", NOW + 950)
    assert dead.id == make_id(1)
    assert await counts(store) == (0, 1, 1)
    with pytest.raises(BadInput):
        await settle(store, again, "perhaps")
    assert await counts(store) == (0, 1, 1)


async def test_D5_what_was_delivered_too_often_becomes_a_dead_letter(store: BrokerStore) -> None:
    await with_queue(store, deliveries_max=2)
    await accept(store, queued(1), queued(2))
    now = NOW
    for turn in (1, 2):
        (one,) = await take(store, 1, now, first=turn)
        assert (one.seq, one.deliveries) == (1, turn)
        now += VISIBLE_MS
    (other,) = await take(store, 5, now, first=20)
    assert other.seq == 2
    (dead,) = await store.dead_letters(TEAM, QUEUE, 10)
    assert (dead.seq, dead.deliveries, dead.died_at) == (1, 2, now)
    assert dead.reason
    assert await store.revive(TEAM, QUEUE, 1)
    assert not await store.revive(TEAM, QUEUE, 1)
    assert await store.dead_letters(TEAM, QUEUE, 10) == []
    (revived,) = await take(store, 1, now, first=30)
    assert (revived.seq, revived.deliveries) == (1, 1)


async def test_D5_a_sweep_gives_back_what_was_not_settled(store: BrokerStore) -> None:
    await with_queue(store, deliveries_max=2)
    await accept(store, queued(1), queued(2))
    await take(store, 1)
    await store.settle(TEAM, QUEUE, 1, b"\0" * 16, "again", "", NOW)
    await take(store, 2, first=5)
    assert (await store.sweep(NOW + VISIBLE_MS - 1, 100)).released == 0
    swept = await store.sweep(NOW + VISIBLE_MS, 100)
    assert (swept.released, swept.died) == (1, 1)
    assert await counts(store) == (1, 0, 1)
    assert [one.seq for one in await store.dead_letters(TEAM, QUEUE, 10)] == [1]


async def test_D5_many_who_take_at_once_never_get_the_same_message(store: BrokerStore) -> None:
    await with_queue(store)
    await accept(store, *(queued(n) for n in range(60)))

    async def worker(number: int) -> list[int]:
        got: list[int] = []
        turn = 0
        while True:
            leases = [bytes([number, turn, n]) + bytes(13) for n in range(4)]
            taken = await store.take(TEAM, QUEUE, bytes([number]) * 32, 4, leases, NOW)
            if not taken:
                return got
            for one in taken:
                got.append(one.seq)
                assert await settle(store, one, "done")
            turn += 1

    got = await asyncio.gather(*(worker(number) for number in range(5)))
    assert sorted(seq for each in got for seq in each) == list(range(1, 61))
    assert await counts(store) == (0, 0, 0)


async def test_D5_a_queue_that_holds_messages_cannot_be_dropped(store: BrokerStore) -> None:
    await with_queue(store)
    await accept(store, queued(1))
    with pytest.raises(BadInput):
        await store.destination_drop(TEAM, "queue", QUEUE)
    (one,) = await take(store)
    assert await settle(store, one, "dead")
    with pytest.raises(BadInput):
        await store.destination_drop(TEAM, "queue", QUEUE)
    await store.revive(TEAM, QUEUE, 1)
    (one,) = await take(store, first=3)
    await settle(store, one, "done")
    assert await store.destination_drop(TEAM, "queue", QUEUE)
    with pytest.raises(UnknownDestination):
        await take(store)
    assert await store.queue_counts(TEAM) == []


async def test_D5_no_more_is_taken_than_there_are_leases(store: BrokerStore) -> None:
    await with_queue(store)
    await accept(store, *(queued(n) for n in range(5)))
    assert len(await store.take(TEAM, QUEUE, ANA, 5, [b"a" * 16, b"b" * 16], NOW)) == 2
    assert await store.take(TEAM, QUEUE, ANA, 0, [], NOW) == []
    assert await store.queue_counts(TEAM) == [
        QueueCounts(queue=QUEUE, ready=3, taken=2, dead=0),
    ]
