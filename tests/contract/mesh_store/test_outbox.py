"""What waits for peers that are away."""

from __future__ import annotations

from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.bus.message import MessageKind
from holdfast.rules.limits import DAY_MS
from support.mesh_stores import NOW, SetClock, waiting_for


async def test_B4_what_waits_is_due_in_the_order_in_which_it_came(store: MeshStore) -> None:
    items = [waiting_for("ben", 1), waiting_for("ana", 2), waiting_for("ben", 3)]
    ids = [await store.enqueue_outbox(item) for item in items]
    assert await store.due_outbox() == list(zip(ids, items, strict=True))
    assert await store.outbox_peers() == ["ben", "ana"]
    assert [id for id, _ in await store.outbox_of("ben", 10)] == [ids[0], ids[2]]
    await store.remove_outbox(ids[0])
    await store.remove_outbox(ids[0])
    assert [id for id, _ in await store.due_outbox()] == ids[1:]
    await store.remove_many([ids[2], 999])
    assert await store.outbox_peers() == ["ana"]


async def test_B4_a_message_waits_once_for_a_peer(store: MeshStore) -> None:
    first = await store.enqueue_outbox(waiting_for("ben", 1))
    assert await store.enqueue_outbox(waiting_for("ben", 1)) == first
    assert await store.enqueue_outbox(waiting_for("ana", 1)) != first
    assert len(await store.due_outbox()) == 2


async def test_B4_an_id_that_a_caller_gave_belongs_to_its_first_request(store: MeshStore) -> None:
    ids = [b"%016d" % number for number in range(3)]
    for id in reversed(ids):
        assert await store.claim_id(id, b"a" + id + bytes(15), NOW + DAY_MS) == b"a" + id + bytes(
            15
        )
    for id in ids:
        assert await store.claim_id(id, b"b" * 32, NOW + DAY_MS) == b"a" + id + bytes(15)
    assert await store.claim_id(b"%016d" % 9, b"c" * 32, NOW + DAY_MS) == b"c" * 32


async def test_B4_urgent_messages_overtake_and_order_is_kept_within_a_priority(
    store: MeshStore,
) -> None:
    low = await store.enqueue_outbox(waiting_for("ben", 1, priority="low"))
    next_1 = await store.enqueue_outbox(waiting_for("ben", 2))
    now_1 = await store.enqueue_outbox(waiting_for("ben", 3, priority="now"))
    next_2 = await store.enqueue_outbox(waiting_for("ben", 4))
    now_2 = await store.enqueue_outbox(waiting_for("ben", 5, priority="now"))
    ids = [id for id, _ in await store.outbox_of("ben", 10)]
    assert ids == [now_1, now_2, next_1, next_2, low]
    assert [id for id, _ in await store.outbox_of("ben", 2)] == [now_1, now_2]
    skipped = await store.outbox_of("ben", 2, skip={now_1, next_1})
    assert [id for id, _ in skipped] == [now_2, next_2]


async def test_B4_what_was_tried_in_vain_waits_and_counts(
    store: MeshStore, clock: SetClock
) -> None:
    id = await store.enqueue_outbox(waiting_for("ben", 1))
    other = await store.enqueue_outbox(waiting_for("ben", 2))
    assert await store.next_outbox("ben") is None
    await store.put_back(id, NOW + 50)
    await store.put_back(999, NOW + 5)
    assert [found for found, _ in await store.outbox_of("ben", 10)] == [other]
    assert await store.next_outbox("ben") == NOW + 50
    assert await store.outbox_peers() == ["ben"]
    clock.at = NOW + 50
    found = await store.outbox_of("ben", 10)
    assert [(one, item.attempts) for one, item in found] == [(id, 1), (other, 0)]
    assert await store.next_outbox("ben") is None


async def test_B4_what_has_expired_is_not_sent_and_is_told_once(
    store: MeshStore, clock: SetClock
) -> None:
    await store.enqueue_outbox(waiting_for("ben", 1, expires_at=NOW + 10))
    kept = await store.enqueue_outbox(waiting_for("ben", 2))
    assert await store.expire_outbox() == []
    clock.at = NOW + 10
    assert [id for id, _ in await store.outbox_of("ben", 10)] == [kept]
    expired = await store.expire_outbox()
    assert [item.message for item in expired] == [waiting_for("ben", 1).message]
    assert await store.expire_outbox() == []


async def test_B4_a_clock_that_leaps_ahead_ends_nothing_that_waits(
    store: MeshStore, clock: SetClock
) -> None:
    waiting = [waiting_for("ben", 1, expires_at=NOW + 7 * DAY_MS)]
    waiting.append(waiting_for("ben", 2, kind=MessageKind.REQUEST, expires_at=NOW + DAY_MS))
    ids = [await store.enqueue_outbox(one) for one in waiting]
    assert await store.expire_outbox() == []
    for at in (NOW + 400 * DAY_MS, NOW + 401 * DAY_MS, NOW + 2 * DAY_MS, NOW):
        clock.at = at
        assert await store.expire_outbox() == []
        assert [id for id, _ in await store.outbox_of("ben", 9)] == ids
        assert [id for id, _ in await store.due_outbox()] == ids
    assert store.counted.now_ms() - NOW < DAY_MS


async def test_B4_what_a_peer_will_never_take_is_not_tried_again(store: MeshStore) -> None:
    id = await store.enqueue_outbox(waiting_for("ben", 1))
    await store.give_up(id, "not_allowed", "ben does not want it")
    await store.give_up(999, "not_allowed", "there is none")
    assert await store.due_outbox() == []
    assert await store.outbox_of("ben", 10) == []
    assert await store.outbox_peers() == []


async def test_B5_requests_without_a_reply_are_found(store: MeshStore) -> None:
    await store.enqueue_outbox(waiting_for("ben", 1))
    asked = waiting_for("ana", 2, kind=MessageKind.REQUEST, ttl_ms=30_000)
    id = await store.enqueue_outbox(asked)
    assert await store.outbox_requests() == [(id, asked)]
    await store.put_back(id, NOW + 50)
    assert [found for found, _ in await store.outbox_requests()] == [id]
    await store.remove_outbox(id)
    assert await store.outbox_requests() == []


async def test_B4_durable_subscriptions_are_kept_by_name(store: MeshStore) -> None:
    assert await store.interests() == {}
    await store.keep_interest("ben", ["news.*", "builds"])
    await store.keep_interest("", ["alerts"])
    await store.keep_interest("ana", ["x"])
    await store.keep_interest("ben", ["builds"])
    await store.keep_interest("ana", [])
    assert await store.interests() == {"ben": ["builds"], "": ["alerts"]}
