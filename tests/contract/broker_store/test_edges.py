"""Where stores of both kinds were found to break, or to differ."""

from __future__ import annotations

import pytest

from holdfast.rules.broker_rows import DestinationRow, InviteRow
from holdfast.rules.errors import InviteEnded
from holdfast.rules.limits import DAY_MS, FEED_BYTES, TAKE_BYTES
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import (
    ANA,
    BOB,
    EVE,
    KEEP_MS,
    NOW,
    OWNER,
    QUEUE,
    TEAM,
    accept,
    arriving,
    dm,
    queued,
    with_team,
)
from support.envelopes import make_id

DIGEST = b"d" * 32


def lease(number: int) -> bytes:
    return bytes([number]) * 16


async def test_D5_a_dead_letter_of_another_mesh_cannot_be_revived(store: BrokerStore) -> None:
    await with_team(store)
    await store.mesh_register("other", "", EVE, "eve", "server-2", NOW)
    await store.destination_put("other", DestinationRow(kind="queue", ref=QUEUE, made_at=NOW))
    await accept(store, queued(1, mesh="other", sender=EVE, origin="eve"))
    (taken,) = await store.take("other", QUEUE, EVE, 1, [lease(1)], NOW)
    assert await store.settle("other", QUEUE, taken.seq, lease(1), "dead", "bad", NOW)
    # As a store that puts mesh and seq into one number would count on.
    for beyond in (2**40 + taken.seq, 2**63 - 1):
        assert not await store.revive(TEAM, QUEUE, beyond)
        assert not await store.settle(TEAM, QUEUE, beyond, lease(1), "done", "", NOW)
    assert len(await store.dead_letters("other", QUEUE, 10)) == 1


async def test_D5_a_feed_behind_every_seq_is_empty(store: BrokerStore) -> None:
    await with_team(store)
    page = await store.feed(TEAM, BOB, 2**63 - 1, 10, 1000, own=False)
    assert (page.rows, page.to) == ([], 2**63 - 1)


async def test_D15_a_grant_does_not_bring_back_who_was_removed(store: BrokerStore) -> None:
    await with_team(store)
    await store.member_got(TEAM, BOB, 1, 0, NOW)
    changed = await store.member_grant(TEAM, BOB, frozenset({"read"}))
    assert changed is not None
    assert (changed.grants, changed.got_epoch) == (frozenset({"read"}), 1)
    assert await store.member_remove(TEAM, BOB, NOW)
    assert await store.member_grant(TEAM, BOB, frozenset({"read", "write"})) is None
    assert await store.member_get(TEAM, BOB) is None


async def test_D15_invites_of_a_removed_member_are_over(store: BrokerStore) -> None:
    await with_team(store)
    for by, digest in ((BOB, DIGEST), (OWNER, b"o" * 32)):
        await store.invite_put(
            InviteRow(
                mesh=TEAM,
                digest=digest,
                grants=frozenset({"read"}),
                uses_left=5,
                expires_at=NOW + DAY_MS,
                made_by=by,
                made_at=NOW,
            )
        )
    await store.member_remove(TEAM, BOB, NOW)
    with pytest.raises(InviteEnded):
        await store.invite_use(DIGEST, BOB, "bob", NOW)
    assert await store.invite_use(b"o" * 32, EVE, "eve", NOW) == TEAM


async def test_D15_who_was_removed_comes_back_only_by_a_newer_invite(store: BrokerStore) -> None:
    await with_team(store)
    for digest, made_at in ((DIGEST, NOW), (b"n" * 32, NOW + 2)):
        await store.invite_put(
            InviteRow(
                mesh=TEAM,
                digest=digest,
                grants=frozenset({"read"}),
                uses_left=5,
                expires_at=NOW + DAY_MS,
                made_by=OWNER,
                made_at=made_at,
            )
        )
    assert await store.invite_use(DIGEST, EVE, "eve", NOW) == TEAM
    assert await store.member_remove(TEAM, EVE, NOW + 1)
    with pytest.raises(InviteEnded):
        await store.invite_use(DIGEST, EVE, "eve", NOW + 1)
    assert await store.member_get(TEAM, EVE) is None
    assert await store.invite_use(b"n" * 32, EVE, "eve", NOW + 3) == TEAM


async def test_D5_what_is_taken_at_once_has_a_size(store: BrokerStore) -> None:
    await with_team(store)
    large = b"x" * (TAKE_BYTES // 4)
    await accept(store, *(queued(n, raw=large) for n in range(1, 9)))
    leases = [lease(n) for n in range(8)]
    taken = await store.take(TEAM, QUEUE, BOB, 8, leases, NOW)
    assert [one.seq for one in taken] == [1, 2, 3, 4]
    rest = await store.take(TEAM, QUEUE, BOB, 8, leases, NOW)
    assert [one.seq for one in rest] == [5, 6, 7, 8]


async def test_D5_worn_out_messages_die_on_the_way_to_those_behind_them(store: BrokerStore) -> None:
    await with_team(store)
    await store.destination_put(
        TEAM, DestinationRow(kind="queue", ref=QUEUE, made_at=NOW, deliveries_max=1)
    )
    await accept(store, *(queued(n) for n in range(1, 7)))
    leases = [lease(n) for n in range(4)]
    for one in await store.take(TEAM, QUEUE, BOB, 4, leases, NOW):
        await store.settle(TEAM, QUEUE, one.seq, one.lease, "again", "", NOW)
    assert [one.seq for one in await store.take(TEAM, QUEUE, BOB, 2, leases, NOW)] == [5, 6]
    assert [one.seq for one in await store.dead_letters(TEAM, QUEUE, 9)] == [1, 2, 3, 4]


async def test_D5_urgent_messages_come_in_pages_of_a_size(store: BrokerStore) -> None:
    await with_team(store)
    large = b"x" * (FEED_BYTES // 2)
    await accept(store, *(dm(n, raw=large, priority="now") for n in range(1, 6)))
    page = await store.express(TEAM, BOB, 0, 100)
    assert ([row.seq for row in page.rows], page.to) == ([1, 2], 2)
    assert [row.seq for row in (await store.express(TEAM, BOB, 2, 100)).rows] == [3, 4]


async def test_D7_ids_are_kept_for_what_is_told_now_also_those_of_before(
    store: BrokerStore,
) -> None:
    await with_team(store)
    await store.set_mode("retention_scoped", 3)
    await accept(store, dm(1), dedupe_ms=3 * DAY_MS)
    # From here on nodes are told 30 days, and retry for as long.
    await store.set_mode("retention_scoped", 30)
    for at in (NOW + KEEP_MS, NOW + KEEP_MS + 5 * DAY_MS, NOW + 31 * DAY_MS - 1):
        assert (await store.sweep(at, 100)).dedupe == 0
    assert (await accept(store, dm(1), now_ms=at))[0].verdict == "duplicate"
    assert (await store.sweep(NOW + 31 * DAY_MS, 100)).dedupe == 1


async def test_D4_an_epoch_that_no_mesh_can_have_is_refused_alone(store: BrokerStore) -> None:
    await with_team(store)
    answers = await accept(store, arriving(1), arriving(2, epoch=2**63 - 1), arriving(3))
    assert [one.verdict for one in answers] == ["created", "epoch_mismatch", "created"]
    assert (await store.known(TEAM, [(make_id(2), ANA)])) == [None]
