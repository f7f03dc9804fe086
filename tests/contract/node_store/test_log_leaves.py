"""The leaf hashes beside the entries: at every way in, and what they find."""

from __future__ import annotations

from hashlib import sha256

from holdfast.storage.ports import Store
from support.envelopes import MESH, make_id, state_set
from support.stores import append, arrived, read


def test_S12_every_way_into_the_log_leaves_the_hash_of_rfc_6962(store: Store) -> None:
    store.write(lambda tx: append(tx, 1))
    store.write(lambda tx: tx.log_append_new([arrived(2), arrived(3)], 5))
    raws = [entry.raw for entry in read(store, lambda tx: tx.log_range(1, 9, 9))]
    leaves = read(store, lambda tx: tx.log_leaves(1, 9, 9))
    assert leaves == [sha256(b"\0" + raw).digest() for raw in raws]
    assert len(leaves) == 3
    assert read(store, lambda tx: tx.log_leaves(2, 9, 1)) == leaves[1:2]


def test_S12_a_log_in_order_has_no_damage_and_nothing_to_seal(store: Store) -> None:
    store.write(lambda tx: append(tx, 1))
    assert read(store, lambda tx: tx.log_damage(1, 9, 9)) == []
    assert store.write(lambda tx: tx.log_seal(9, 9)) == 0


def test_S12_an_entry_can_be_replaced_in_its_place(store: Store) -> None:
    for number in (1, 2, 3):
        store.write(lambda tx, n=number: append(tx, n, now_ms=n))  # type: ignore[misc]
    other = state_set("other", 9, id=make_id(9), lamport=9, origin="eve")
    store.write(lambda tx: tx.log_replace(2, other))
    entry = read(store, lambda tx: tx.log_get(2))
    assert entry is not None
    assert (entry.id, entry.entity, entry.lamport, entry.origin) == (make_id(9), "other", 9, "eve")
    assert (entry.mesh, entry.op, entry.recorded_at) == (MESH, "state.set", 2)
    assert entry.raw == other
    assert read(store, lambda tx: tx.log_find(make_id(9))) == entry
    assert read(store, lambda tx: tx.log_find(make_id(2))) is None
    assert read(store, lambda tx: tx.log_leaves(2, 3, 9)) == [sha256(b"\0" + other).digest()]
    assert read(store, lambda tx: tx.log_damage(1, 9, 9)) == []
