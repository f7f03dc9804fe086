"""Meshes over the bus in the store: the owner's list, what this node was given, and invites."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.bus.meshes.membership import (
    BusAddressRow,
    BusCapabilityRow,
    BusInviteRow,
    BusMeshRow,
)
from holdfast.storage.ports import Store, Transaction
from support.stores import read, with_mesh

ROW = BusMeshRow(mesh="team", owner=b"o" * 32, members=b"list", capability=b"c", joined_at=5)


def invite(digit: str, mesh: str = "team", made_at: int = 1) -> BusInviteRow:
    return BusInviteRow(
        digest=digit.encode() * 32,
        mesh=mesh,
        grants=("read", "relay"),
        uses_left=2,
        expires_at=9,
        made_at=made_at,
    )


def test_B6_how_a_mesh_is_shared_over_the_bus_is_kept_changed_and_dropped(store: Store) -> None:
    slugs = ("team", "zebra", "b")
    with_mesh(store, *slugs)

    def put(tx: Transaction) -> None:
        for slug in slugs:
            tx.bus_mesh_put(msgspec.structs.replace(ROW, mesh=slug))

    store.write(put)
    with store.read() as tx:
        assert tx.bus_mesh_get("team") == ROW
        assert tx.bus_mesh_get("nowhere") is None
        assert [row.mesh for row in tx.bus_mesh_list()] == ["b", "team", "zebra"]
    newer = msgspec.structs.replace(ROW, members=b"another", capability=b"")
    store.write(lambda tx: tx.bus_mesh_put(newer))
    assert read(store, lambda tx: tx.bus_mesh_get("team")) == newer
    assert store.write(lambda tx: tx.bus_mesh_drop("team"))
    assert not store.write(lambda tx: tx.bus_mesh_drop("team"))
    assert read(store, lambda tx: tx.bus_mesh_get("team")) is None


def test_B6_invites_are_found_by_digest_and_go_with_their_mesh(store: Store) -> None:
    with_mesh(store, "team", "b")

    def put(tx: Transaction) -> None:
        for slug in ("team", "b"):
            tx.bus_mesh_put(msgspec.structs.replace(ROW, mesh=slug))
        for row in (invite("z"), invite("a", made_at=2), invite("m", "b")):
            tx.bus_invite_put(row)

    store.write(put)
    with store.read() as tx:
        assert tx.bus_invite_get(b"z" * 32) == invite("z")
        assert tx.bus_invite_get(b"q" * 32) is None
        assert tx.bus_invite_list("team") == [invite("z"), invite("a", made_at=2)]
        assert len(tx.bus_invite_list(None)) == 3
    used = msgspec.structs.replace(invite("z"), uses_left=1)
    store.write(lambda tx: tx.bus_invite_put(used))
    assert read(store, lambda tx: tx.bus_invite_get(b"z" * 32)) == used
    assert store.write(lambda tx: tx.bus_invite_drop(b"a" * 32))
    assert not store.write(lambda tx: tx.bus_invite_drop(b"a" * 32))
    store.write(lambda tx: tx.bus_mesh_drop("team"))
    assert read(store, lambda tx: tx.bus_invite_list(None)) == [invite("m", "b")]


def test_B6_where_a_member_was_reached_is_kept(store: Store) -> None:
    row = BusAddressRow(key=b"k" * 32, addresses=("10.0.0.1:7430", "[::1]:1"), seen_at=5)
    store.write(lambda tx: tx.bus_address_put(msgspec.structs.replace(row, addresses=())))
    store.write(lambda tx: tx.bus_address_put(row))
    assert read(store, lambda tx: tx.bus_address_get(b"k" * 32)) == row
    assert read(store, lambda tx: tx.bus_address_get(b"x" * 32)) is None
    assert store.write(lambda tx: tx.bus_address_drop(b"k" * 32))
    assert not store.write(lambda tx: tx.bus_address_drop(b"k" * 32))


def test_B6_a_failed_transaction_leaves_members_and_invites_as_they_were(store: Store) -> None:
    with_mesh(store, "team")
    store.write(lambda tx: tx.bus_mesh_put(ROW))

    def fails(tx: Transaction) -> None:
        tx.bus_invite_put(invite("a"))
        tx.bus_mesh_drop("team")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.write(fails)
    assert read(store, lambda tx: (tx.bus_mesh_get("team"), tx.bus_invite_list(None))) == (ROW, [])


def test_B6_capabilities_are_kept_changed_and_dropped_by_id(store: Store) -> None:
    row = BusCapabilityRow(
        id=b"i" * 16,
        kind="given",
        name="bo",
        key=b"k" * 32,
        capability=b"c",
        added_at=2,
        expires_at=9,
    )
    older = msgspec.structs.replace(row, id=b"z" * 16, kind="held", added_at=1)
    for one in (row, older):
        store.write(lambda tx, one=one: tx.bus_capability_put(one))  # type: ignore[misc]
    assert read(store, lambda tx: tx.bus_capability_list()) == [older, row]
    gone = msgspec.structs.replace(row, kind="revoked")
    store.write(lambda tx: tx.bus_capability_put(gone))
    assert store.write(lambda tx: tx.bus_capability_drop(older.id))
    assert not store.write(lambda tx: tx.bus_capability_drop(older.id))
    assert read(store, lambda tx: tx.bus_capability_list()) == [gone]
