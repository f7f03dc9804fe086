"""Forgetting in time, and the check that finds what should not be missing."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest

from holdfast.rules.broker_rows import (
    AcceptVerdict,
    BrokerSwept,
    InviteRow,
    PushedEnvelope,
    SnapshotRow,
)
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import Truncated
from holdfast.rules.limits import DAY_MS, KNOWN_PAST_MS
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import (
    ANA,
    BOB,
    DEDUPE_MS,
    KEEP_MS,
    NOW,
    OWNER,
    QUEUE,
    TEAM,
    TOPIC,
    Vandal,
    accept,
    arriving,
    dm,
    feed,
    queued,
    seqs,
    topic,
    verdicts,
    with_team,
)
from support.envelopes import make_id, message_send


async def with_snapshot(store: BrokerStore, seq: int) -> None:
    row = SnapshotRow(
        id=f"at-{seq}",
        epoch=1,
        seq=seq,
        parts=0,
        rows=0,
        ready=False,
        made_by=ANA,
        began_at=NOW,
    )
    await store.snapshot_begin(TEAM, row)
    await store.snapshot_commit(TEAM, row.id, sha256().digest(), NOW)


async def test_D7_messages_past_their_time_go_and_their_ids_stay(store: BrokerStore) -> None:
    await with_team(store)
    await store.subscribe(TEAM, BOB, TOPIC)
    await accept(store, topic(1), dm(2))
    await accept(store, topic(3), now_ms=NOW + 1)
    assert await store.sweep(NOW + KEEP_MS - 1, 100) == BrokerSwept()
    assert (await store.sweep(NOW + KEEP_MS, 100)).messages == 2
    assert seqs(await feed(store)) == [3]
    assert await store.orphans(10) == []
    answers = await accept(store, topic(1), topic(2, fingerprint=b"x" * 32), topic(3))
    assert [(one.verdict.value, one.seq, one.history_available) for one in answers] == [
        ("duplicate", 1, False),
        ("idempotency_key_reused", 2, False),
        ("duplicate", 3, True),
    ]
    counts = await store.counts()
    assert (counts["messages"], counts["dedupe"]) == (1, 3)


async def test_D7_a_foreseen_sweep_is_what_a_sweep_then_does_and_changes_nothing(
    store: BrokerStore,
) -> None:
    await with_team(store)
    await store.subscribe(TEAM, BOB, TOPIC)
    await accept(store, *(arriving(n) for n in range(1, 4)), topic(5), dm(6))
    await with_snapshot(store, 2)
    await store.sweep(NOW, 100)
    news: list[tuple[str, int]] = []
    store.on_news(lambda mesh, seq: news.append((mesh, seq)))
    for at in (NOW + KEEP_MS - 1, NOW + KEEP_MS, NOW + DEDUPE_MS + DAY_MS):
        before = await store.counts(), await store.mesh_get(TEAM)
        foreseen = await store.foresee_sweep(at, 100)
        assert await store.foresee_sweep(at, 100) == foreseen
        assert (await store.counts(), await store.mesh_get(TEAM)) == before
        assert await store.sweep(at, 100) == foreseen
    assert foreseen.dedupe == 4, "two changes, a topic and a dm"
    assert (await store.foresee_sweep(at, 100)) == BrokerSwept()
    assert news == []


async def test_D7_ids_are_known_one_day_longer_than_promised(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, topic(1))
    await store.sweep(NOW + KEEP_MS, 100)
    late = NOW + DEDUPE_MS + DAY_MS
    assert (await store.sweep(late - 1, 100)).dedupe == 0
    assert verdicts(await accept(store, topic(1), now_ms=late - 1)) == ["duplicate"]
    assert (await store.sweep(late, 100)).dedupe == 1
    (answer,) = await accept(store, topic(1), now_ms=late)
    assert (answer.verdict, answer.seq) == (AcceptVerdict.CREATED, 2)
    assert await store.orphans(10) == []


async def test_D7_in_permanent_mode_no_id_is_ever_forgotten(store: BrokerStore) -> None:
    await with_team(store)
    far = NOW + 100 * DEDUPE_MS
    await accept(store, topic(1), dedupe_ms=None)
    await accept(store, topic(2))
    await store.set_mode("permanent", 30)
    swept = await store.sweep(far, 100)
    assert (swept.messages, swept.dedupe) == (2, 0)
    assert verdicts(await accept(store, topic(1), topic(2), now_ms=far)) == ["duplicate"] * 2
    # What was accepted for ever stays so when the mode is changed.
    await store.set_mode("retention_scoped", 30)
    assert (await store.sweep(far, 100)).dedupe == 1
    assert verdicts(await accept(store, topic(1), now_ms=far)) == ["duplicate"]


async def test_D7_the_id_of_what_is_still_held_is_never_forgotten(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, arriving(1))
    far = NOW + 100 * DEDUPE_MS
    assert await store.sweep(far, 100) == BrokerSwept()
    assert verdicts(await accept(store, arriving(1), now_ms=far)) == ["duplicate"]
    assert await store.orphans(10) == []


async def test_D7_changes_go_only_as_far_as_a_snapshot_holds_them(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, *(arriving(n) for n in range(1, 7)), topic(7))
    far = NOW + KEEP_MS
    assert (await store.sweep(far, 100)).messages == 1
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    assert (mesh.first, mesh.seq) == (1, 7)
    assert seqs(await feed(store)) == [1, 2, 3, 4, 5, 6]
    await with_snapshot(store, 4)
    assert (await store.sweep(far - 1, 100)).messages == 0
    assert (await store.sweep(far, 100)).messages == 4
    assert (await store.sweep(far, 100)).messages == 0
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    assert (mesh.first, mesh.seq) == (5, 7)
    for after in (0, 3):
        with pytest.raises(Truncated) as caught:
            await feed(store, BOB, after)
        assert caught.value.first_available == 5
    assert seqs(await feed(store, BOB, 4)) == [5, 6]
    (again,) = await accept(store, arriving(2))
    assert (again.verdict, again.seq, again.history_available) == (
        AcceptVerdict.DUPLICATE,
        2,
        False,
    )
    assert await store.orphans(10) == []


async def test_D7_changes_go_up_to_the_last_that_is_over(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, arriving(1))
    await accept(store, arriving(2), now_ms=NOW + 1000)
    # The wall clock went back: the third one is older by its time than the second.
    await accept(store, arriving(3))
    await accept(store, arriving(4), now_ms=NOW + 1000)
    await with_snapshot(store, 4)
    assert (await store.sweep(NOW + KEEP_MS, 100)).messages == 3
    assert (await store.sweep(NOW + KEEP_MS + 999, 100)).messages == 0
    assert (await store.sweep(NOW + KEEP_MS + 1000, 100)).messages == 1


async def test_D7_a_message_that_waits_in_a_queue_outlives_its_time(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, *(queued(n) for n in range(1, 5)))
    leases = [bytes([n]) * 16 for n in range(3)]
    far = NOW + KEEP_MS
    done, dead, held = await store.take(TEAM, QUEUE, ANA, 3, leases, far - 10)
    await store.settle(TEAM, QUEUE, done.seq, done.lease, "done", "", far)
    await store.settle(TEAM, QUEUE, dead.seq, dead.lease, "dead", "why", far)
    assert (await store.sweep(far, 100)).messages == 2
    assert await store.dead_letters(TEAM, QUEUE, 10) == []
    assert await store.settle(TEAM, QUEUE, held.seq, held.lease, "done", "", far)
    (waiting,) = await store.take(TEAM, QUEUE, ANA, 1, leases, far)
    assert (waiting.seq, waiting.raw) == (4, b"envelope 4")
    assert await store.orphans(10) == []


async def test_D7_a_sweep_takes_no_more_than_it_is_told_and_gets_there(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, *(topic(n) for n in range(25)))
    far = NOW + KEEP_MS + DEDUPE_MS + DAY_MS
    swept = [await store.sweep(far, 10) for _ in range(4)]
    assert [one.messages for one in swept] == [10, 10, 5, 0]
    assert sum(one.dedupe for one in swept) == 25
    assert max(one.dedupe for one in swept) <= 10
    counts = await store.counts()
    assert (counts["messages"], counts["dedupe"]) == (0, 0)


async def test_D7_invites_that_are_over_are_swept(store: BrokerStore) -> None:
    await with_team(store)
    for number in (1, 2):
        row = InviteRow(
            mesh=TEAM,
            digest=bytes([number]) * 32,
            grants=frozenset({"read"}),
            uses_left=1,
            expires_at=NOW + number,
            made_by=OWNER,
            made_at=NOW,
        )
        await store.invite_put(row)
    assert (await store.sweep(NOW, 100)).invites == 0
    assert (await store.sweep(NOW + 1, 100)).invites == 1
    assert [row.digest for row in await store.invite_list(TEAM)] == [b"\2" * 32]


async def test_D7_the_orphan_check_finds_both_kinds_and_nothing_else(
    store: BrokerStore, vandal: Vandal
) -> None:
    await with_team(store)
    await store.mesh_register("other", "Other", ANA, "ana", "server-2", NOW)
    await accept(
        store, *(topic(n) for n in range(1, 6)), *(arriving(n, mesh="other") for n in (1,))
    )
    assert await store.orphans(10) == []
    await vandal.lose_message(store, TEAM, 2)
    await vandal.lose_dedupe(store, TEAM, make_id(4))
    found = await store.orphans(10)
    assert sorted((one.mesh, one.seq, one.id) for one in found) == [
        (TEAM, 2, make_id(2)),
        (TEAM, 4, make_id(4)),
    ]
    assert len({one.what for one in found}) == 2
    assert len(await store.orphans(1)) == 1


def _real(number: int, **fields: Any) -> PushedEnvelope:
    """A message whose bytes are a message, so that its row can be made again from them."""
    raw = message_send("topic", TOPIC, b"message %d" % number, id=make_id(number), origin="ana")
    mark = decode_trusted(raw).fingerprint
    return topic(number, **{"raw": raw, "fingerprint": mark, "priority": "next", **fields})


async def test_D7_ids_are_made_again_from_messages_and_lost_messages_may_come_again(
    store: BrokerStore, vandal: Vandal
) -> None:
    await with_team(store)
    await store.set_mode("retention_scoped", 30)
    batch = [_real(number) for number in range(1, 6)]
    first = await accept(store, *batch)
    assert await store.inconsistencies() == []
    assert await store.repair_orphans(10) == []
    await vandal.lose_message(store, TEAM, 2)
    await vandal.lose_dedupe(store, TEAM, make_id(3))
    await vandal.move_dedupe(store, TEAM, make_id(4), 77)
    assert len(await store.repair_orphans(1)) == 1, "as many as are asked for"
    while await store.repair_orphans(1):
        pass
    assert await store.orphans(10) == []
    assert await store.inconsistencies() == []
    again = await accept(store, *batch, now_ms=NOW + 5)
    assert verdicts(again) == ["duplicate", "created", "duplicate", "duplicate", "duplicate"]
    for at in (0, 2, 3, 4):
        assert msgspec.structs.replace(again[at], verdict=first[at].verdict) == first[at]
    other = await accept(store, _real(3, fingerprint=b"x" * 32))
    assert verdicts(other) == ["idempotency_key_reused"], "the fingerprint is that of the message"
    assert await vandal.destination_of(store, TEAM, make_id(3)) == ("topic", TOPIC)
    # And it ends in its time, as the one that was lost would have.
    await store.sweep(NOW + KEEP_MS + 5, 100)
    swept = await store.sweep(NOW + DEDUPE_MS + 2 * DAY_MS, 100)
    assert swept.dedupe == 5


async def test_D7_of_two_messages_under_one_id_the_dedupe_row_names_the_right_one(
    store: BrokerStore, vandal: Vandal
) -> None:
    await with_team(store)
    await accept(store, _real(1), _real(2), arriving(3))
    await vandal.lose_dedupe(store, TEAM, make_id(1))
    await accept(store, _real(1))
    await vandal.lose_dedupe(store, TEAM, make_id(3))
    assert await store.repair_orphans(10) == []
    found = sorted((one.seq, one.what) for one in await store.orphans(10))
    assert [seq for seq, _ in found] == [1, 3], "two under one id; and what cannot be read"


async def test_D7_a_dedupe_row_says_where_its_message_went_also_when_that_is_gone(
    store: BrokerStore, vandal: Vandal
) -> None:
    await with_team(store)
    await accept(store, arriving(1), topic(2), dm(3), queued(4), topic(5))
    await accept(store, topic(6))
    expected = [("change", ""), ("topic", TOPIC), ("dm", BOB.hex()), ("queue", QUEUE)]
    expected += [("topic", TOPIC)] * 2
    for at, one in enumerate(expected, 1):
        assert await vandal.destination_of(store, TEAM, make_id(at)) == one
    await store.sweep(NOW + KEEP_MS + 1, 100)
    assert await vandal.destination_of(store, TEAM, make_id(2)) == ("topic", TOPIC)


async def test_D7_tables_that_do_not_belong_together_are_told(
    store: BrokerStore, vandal: Vandal
) -> None:
    await with_team(store)
    await accept(store, queued(1), queued(2))
    assert await store.inconsistencies() == []
    assert await store.schema() > 0
    await vandal.lose_message(store, TEAM, 2)
    found = await store.inconsistencies()
    assert any(line.startswith("a queue lists what is no message: team/work/2") for line in found)


# --- a clock that was wrong ----------------------------------------------------------------------


async def test_D7_what_does_not_count_makes_nothing_old(store: BrokerStore) -> None:
    """Stored by a clock that was 400 days behind, and swept by one that is right."""
    await with_team(store)
    behind = NOW - 400 * DAY_MS
    await accept(store, topic(1), dm(2), now_ms=behind)
    assert await store.sweep(NOW, 100, 400 * DAY_MS) == BrokerSwept()
    assert verdicts(await accept(store, topic(1))) == ["duplicate"]
    assert (await store.sweep(NOW + KEEP_MS, 100, 400 * DAY_MS)).messages == 2
    much = NOW + 100 * DAY_MS
    assert (await store.sweep(much, 100)).dedupe == 2, "and then everything has had its time"


async def test_D5_a_lease_of_a_clock_that_was_ahead_ends_in_time(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, queued(1), queued(2))
    ahead = NOW + 400 * DAY_MS
    (first,) = await store.take(TEAM, QUEUE, BOB, 1, [b"a" * 16], ahead)
    (second,) = await store.take(TEAM, QUEUE, BOB, 1, [b"b" * 16], NOW)
    visibility_ms = first.until - ahead
    assert await store.cut_leases(NOW) == 1, "only what lasts for too long"
    assert await store.cut_leases(NOW) == 0
    assert await store.settle(TEAM, QUEUE, second.seq, second.lease, "done", "", NOW)
    assert await store.take(TEAM, QUEUE, ANA, 1, [b"c" * 16], NOW + visibility_ms - 1) == []
    (again,) = await store.take(TEAM, QUEUE, ANA, 1, [b"d" * 16], NOW + visibility_ms)
    assert (again.seq, again.deliveries) == (first.seq, 2)


@pytest.mark.parametrize("leapt", [1, 5])
async def test_D7_a_change_of_a_clock_that_was_ahead_holds_back_no_other(
    store: BrokerStore, leapt: int
) -> None:
    await with_team(store)
    for number in range(1, leapt + 1):
        await accept(store, arriving(number), now_ms=NOW + 400 * DAY_MS)
    for number in range(leapt + 1, leapt + 4):
        await accept(store, arriving(number))
    await with_snapshot(store, leapt + 2)
    assert (await store.sweep(NOW + KEEP_MS - 1, 2)).messages == 0
    swept = 0
    while done := (await store.sweep(NOW + KEEP_MS, 2)).messages:
        swept += done
    assert swept == leapt + 2, "all that the snapshot covers"
    assert await store.orphans(10) == []


async def test_D7_a_store_with_a_server_has_its_clock(store: BrokerStore) -> None:
    first, second = await store.server_ms(), await store.server_ms()
    if first is not None:
        assert second is not None
        assert KNOWN_PAST_MS < first <= second
