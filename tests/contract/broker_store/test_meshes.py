"""Meshes, epochs, members and invites."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.rules.broker_rows import OWNER_GRANTS, DestinationRow, InviteRow
from holdfast.rules.errors import AlreadyExists, InviteEnded, UnknownMesh
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import (
    ANA,
    BOB,
    EVE,
    NOW,
    OWNER,
    TEAM,
    StoreMaker,
    accept,
    arriving,
    feed,
    member,
    queued,
    seqs,
    topic,
    with_team,
)

SECRET = b"d" * 32


def invite(uses: int = 1, expires_at: int = NOW + 1000, digest: bytes = SECRET) -> InviteRow:
    return InviteRow(
        mesh=TEAM,
        digest=digest,
        grants=frozenset({"read", "send"}),
        uses_left=uses,
        expires_at=expires_at,
        made_by=OWNER,
        made_at=NOW,
    )


async def test_D1_a_mesh_is_registered_once_and_belongs_to_its_owner(store: BrokerStore) -> None:
    first = await with_team(store)
    assert (first.epoch, first.base, first.seq, first.first) == (1, 0, 0, 1)
    assert (first.slug, first.name, first.owner, first.created_at) == (TEAM, "The team", OWNER, NOW)
    again = await store.mesh_register(TEAM, "Another", OWNER, "olga", "server-9", NOW + 5)
    assert again == first
    with pytest.raises(AlreadyExists):
        await store.mesh_register(TEAM, "Theirs", EVE, "eve", "server-3", NOW)
    assert await store.mesh_list() == [first]
    owner = await store.member_get(TEAM, OWNER)
    assert owner is not None
    assert owner.grants == OWNER_GRANTS
    assert [row.epoch for row in await store.epochs(TEAM)] == [1]


async def test_D1_a_mesh_that_is_removed_leaves_nothing_behind(store: BrokerStore) -> None:
    await with_team(store)
    await store.mesh_register("other", "Other", OWNER, "olga", "server-2", NOW)
    await accept(
        store,
        topic(1),
        queued(2),
        arriving(3),
        arriving(4, mesh="other", sender=OWNER, origin="olga"),
    )
    await store.object_add(TEAM, "ab" * 32, 0, b"piece")
    await store.invite_put(invite())
    assert await store.mesh_remove(TEAM)
    assert not await store.mesh_remove(TEAM)
    assert await store.mesh_get(TEAM) is None
    assert await store.orphans(9) == []
    while (await store.sweep(NOW, 1)).removed:
        assert await store.orphans(9) == []
    counts = await store.counts()
    assert (counts["meshes"], counts["messages"], counts["dedupe"], counts["ready"]) == (1, 1, 1, 0)
    assert await store.memberships(ANA) == []
    # The name is free again, and the new mesh is another one: it knows nothing of the old ids.
    await with_team(store)
    (answer,) = await accept(store, arriving(3))
    assert (answer.verdict.value, answer.seq) == ("created", 1)
    with pytest.raises(InviteEnded):
        await store.invite_use(SECRET, EVE, "eve", NOW)


async def test_D1_what_concerns_a_mesh_that_is_not_there_is_refused(store: BrokerStore) -> None:
    with pytest.raises(UnknownMesh):
        await store.member_put(TEAM, member(ANA, "ana"))
    with pytest.raises(UnknownMesh):
        await store.new_epoch(TEAM, "why", NOW)
    with pytest.raises(UnknownMesh):
        await feed(store)
    with pytest.raises(UnknownMesh):
        await store.invite_put(invite())
    with pytest.raises(UnknownMesh):
        await store.subscribe(TEAM, ANA, "news")
    assert await store.mesh_get(TEAM) is None
    assert await store.member_get(TEAM, ANA) is None
    assert await store.snapshot_get(TEAM) is None
    assert await store.object_size(TEAM, "ab" * 32) is None


async def test_D6_a_new_epoch_counts_on_from_what_is_known(store: BrokerStore) -> None:
    await with_team(store)
    await store.mesh_register("other", "Other", OWNER, "olga", "server-2", NOW)
    await accept(store, arriving(1), arriving(2))
    (moved,) = await store.new_epoch(TEAM, "a test", NOW + 7)
    assert (moved.slug, moved.epoch, moved.base, moved.seq) == (TEAM, 2, 2, 2)
    answers = await accept(store, arriving(3, epoch=2), arriving(4, epoch=1), arriving(5))
    assert [one.verdict.value for one in answers] == ["created", "epoch_mismatch", "created"]
    assert [(one.epoch, one.message_epoch, one.seq) for one in answers] == [
        (2, 2, 3),
        (2, 0, 0),
        (2, 2, 4),
    ]
    page = await feed(store)
    assert (page.epoch, seqs(page), page.last) == (2, [1, 2, 3, 4], 4)
    assert [(row.epoch, row.base, row.began_at) for row in await store.epochs(TEAM)] == [
        (1, 0, NOW),
        (2, 2, NOW + 7),
    ]
    assert (await store.epochs(TEAM))[1].reason == "a test"
    other = await store.mesh_get("other")
    assert other is not None
    assert other.epoch == 1
    both = await store.new_epoch(None, "all", NOW + 8)
    assert sorted((mesh.slug, mesh.epoch, mesh.base) for mesh in both) == [
        ("other", 2, 0),
        (TEAM, 3, 4),
    ]


async def test_D6_opening_again_begins_no_epoch(make_store: StoreMaker, tmp_path: Path) -> None:
    for turn in range(3):
        async with make_store(tmp_path) as store:
            await with_team(store)
            (answer,) = await accept(store, arriving(turn))
            assert (answer.epoch, answer.seq) == (1, turn + 1)


async def test_D15_members_have_names_of_their_own(store: BrokerStore) -> None:
    await with_team(store)
    with pytest.raises(AlreadyExists):
        await store.member_put(TEAM, member(EVE, "ana"))
    assert await store.member_get(TEAM, EVE) is None
    assert [row.name for row in await store.member_list(TEAM)] == ["ana", "bob", "olga"]
    await store.member_put(TEAM, member(ANA, "anna", "read"))
    found = await store.member_get(TEAM, ANA)
    assert found == member(ANA, "anna", "read")
    # The name of one who left is free.
    await store.member_remove(TEAM, BOB, NOW)
    await store.member_put(TEAM, member(EVE, "bob"))
    assert [row.key for row in await store.member_list(TEAM)] == [ANA, EVE, OWNER]
    assert [one.mesh.slug for one in await store.memberships(EVE)] == [TEAM]
    assert await store.memberships(BOB) == []


async def test_D6_what_a_member_has_got_never_goes_backwards_within_an_epoch(
    store: BrokerStore,
) -> None:
    await with_team(store)
    for epoch, seq in ((1, 5), (1, 3), (2, 4), (1, 9)):
        await store.member_got(TEAM, BOB, epoch, seq, NOW + seq)
    found = await store.member_get(TEAM, BOB)
    assert found is not None
    assert (found.got_epoch, found.got_seq) == (2, 4)
    assert found.seen_at is not None
    await store.member_got(TEAM, EVE, 1, 1, NOW)
    assert await store.member_get(TEAM, EVE) is None


async def test_D15_a_single_use_invite_makes_one_member_however_many_try(
    store: BrokerStore,
) -> None:
    await with_team(store)
    await store.invite_put(invite())
    keys = [bytes([n]) * 32 for n in range(50, 60)]
    tries = await asyncio.gather(
        *(store.invite_use(SECRET, key, f"peer-{key[0]}", NOW) for key in keys),
        return_exceptions=True,
    )
    assert tries.count(TEAM) == 1
    assert all(isinstance(one, InviteEnded) for one in tries if one != TEAM)
    joined = [key for key in keys if await store.member_get(TEAM, key)]
    assert len(joined) == 1
    row = await store.member_get(TEAM, joined[0])
    assert row is not None
    assert (row.grants, row.added_at) == (frozenset({"read", "send"}), NOW)


async def test_D15_a_counted_invite_ends_after_its_uses(store: BrokerStore) -> None:
    await with_team(store)
    await store.invite_put(invite(3))
    keys = [bytes([n]) * 32 for n in range(50, 58)]
    tries = await asyncio.gather(
        *(store.invite_use(SECRET, key, f"peer-{key[0]}", NOW) for key in keys),
        return_exceptions=True,
    )
    assert tries.count(TEAM) == 3
    assert len(await store.member_list(TEAM)) == 3 + 3
    assert [row.uses_left for row in await store.invite_list(TEAM)] in ([0], [])


async def test_D15_whoever_lost_the_answer_may_use_the_invite_again(store: BrokerStore) -> None:
    await with_team(store)
    await store.invite_put(invite())
    assert await store.invite_use(SECRET, EVE, "eve", NOW) == TEAM
    assert await store.invite_use(SECRET, EVE, "eve", NOW) == TEAM
    # A member needs none, and uses none.
    await store.invite_put(invite(1, digest=b"e" * 32))
    assert await store.invite_use(b"e" * 32, ANA, "ana", NOW) == TEAM
    assert await store.invite_use(b"e" * 32, b"f" * 32, "frank", NOW) == TEAM


async def test_D15_an_invite_that_is_over_unknown_or_dropped_lets_nobody_in(
    store: BrokerStore,
) -> None:
    await with_team(store)
    await store.invite_put(invite(5, NOW + 10))
    for secret, now_ms in ((b"?" * 32, NOW), (SECRET, NOW + 10), (SECRET, NOW + 11)):
        with pytest.raises(InviteEnded):
            await store.invite_use(secret, EVE, "eve", now_ms)
    assert await store.invite_list(TEAM) == [invite(5, NOW + 10)]
    assert await store.invite_drop(TEAM, SECRET)
    assert not await store.invite_drop(TEAM, SECRET)
    with pytest.raises(InviteEnded):
        await store.invite_use(SECRET, EVE, "eve", NOW)
    assert await store.member_get(TEAM, EVE) is None


async def test_D15_a_name_that_is_taken_costs_the_invite_nothing(store: BrokerStore) -> None:
    await with_team(store)
    await store.invite_put(invite())
    with pytest.raises(AlreadyExists):
        await store.invite_use(SECRET, EVE, "ana", NOW)
    assert await store.invite_use(SECRET, EVE, "eve", NOW) == TEAM


async def test_D7_the_mode_is_noted_in_the_store(make_store: StoreMaker, tmp_path: Path) -> None:
    async with make_store(tmp_path) as store:
        assert await store.mode() == ("retention_scoped", 30)
        await store.set_mode("permanent", 7)
        await store.ping()
    async with make_store(tmp_path) as store:
        assert await store.mode() == ("permanent", 7)


async def test_D15_a_key_finds_all_its_meshes_with_their_epochs_at_once(store: BrokerStore) -> None:
    await with_team(store)
    await store.mesh_register("apart", "Apart", EVE, "eve", "server-2", NOW)
    await store.mesh_register("beside", "Beside", ANA, "ana", "server-3", NOW)
    await store.new_epoch(TEAM, "tried", NOW + 5)
    found = await store.memberships(ANA)
    assert [one.mesh.slug for one in found] == ["beside", TEAM]
    for one in found:
        assert one.mesh == await store.mesh_get(one.mesh.slug)
        assert one.member == await store.member_get(one.mesh.slug, ANA)
        assert one.epochs == await store.epochs(one.mesh.slug)
    assert [len(one.epochs) for one in found] == [1, 2]


async def test_D16_the_store_says_where_all_meshes_stand(store: BrokerStore) -> None:
    await with_team(store)
    await store.mesh_register("apart", "Apart", EVE, "eve", "server-2", NOW)
    await accept(store, *(arriving(n) for n in range(1, 8)))
    assert [(one.mesh, one.seq, one.members, one.lag) for one in await store.standings()] == [
        ("apart", 0, 1, 0),
        (TEAM, 7, 3, 0),
    ], "a member that has confirmed nothing yet is not behind"
    await store.member_got(TEAM, ANA, 1, 7, NOW)
    await store.member_got(TEAM, BOB, 1, 4, NOW)
    assert (await store.standings())[1].lag == 3
    await store.new_epoch(TEAM, "tried", NOW)
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    (_, stands) = await store.standings()
    assert (stands.epoch, stands.base, stands.first) == (mesh.epoch, mesh.base, mesh.first)
    assert stands.lag == 7, "what was confirmed in another epoch does not count"
    await store.member_remove(TEAM, BOB, NOW)
    assert (await store.standings())[1].members == 2


async def test_D5_one_destination_is_found_among_all(store: BrokerStore) -> None:
    await with_team(store)
    assert await store.queue_meshes() == [TEAM]
    await store.mesh_register("apart", "Apart", EVE, "eve", "server-2", NOW)
    assert await store.queue_meshes() == [TEAM]
    row = DestinationRow(kind="queue", ref="more", visibility_ms=7, deliveries_max=2, made_at=NOW)
    await store.destination_put("apart", row)
    assert await store.queue_meshes() == ["apart", TEAM]
    assert await store.destination_get("apart", "queue", "more") == row
    for mesh, kind, ref in (
        ("apart", "topic", "more"),
        ("apart", "queue", "less"),
        (TEAM, "queue", "more"),
    ):
        assert await store.destination_get(mesh, kind, ref) is None


async def test_D1_a_store_belongs_to_the_first_broker_that_claims_it(
    make_store: StoreMaker, tmp_path: Path
) -> None:
    async with make_store(tmp_path) as store:
        assert await store.claim(b"a" * 32) == b"a" * 32
        assert await store.claim(b"b" * 32) == b"a" * 32
    async with make_store(tmp_path) as store:
        assert await store.claim(b"b" * 32) == b"a" * 32
        assert await store.claim(b"b" * 32, replace=True) == b"b" * 32
        assert await store.claim(b"a" * 32) == b"b" * 32
