"""The end of a mesh, as every store keeps it."""

from __future__ import annotations

import pytest

from holdfast.rules.errors import AlreadyExists, UnknownMesh
from holdfast.storage.mesh_end_port import ErasePlace
from holdfast.storage.ports import Store, Transaction
from support.stores import append, mesh_row, read, state_row, with_mesh


def erase(store: Store, mesh: str) -> int:
    gone = 0
    place: ErasePlace | None = ErasePlace()
    while place is not None:
        at = place
        erased = store.write(lambda tx, at=at: tx.mesh_erase(mesh, at, 2, 7))  # type: ignore[misc]
        gone, place = gone + erased.rows, erased.next
    return gone


def filled(tx: Transaction) -> None:
    for number in range(1, 8):
        mesh = ("old", "new")[number % 2]
        append(tx, number, mesh=mesh)
        tx.state_put(state_row(f"k{number}", mesh=mesh))
        tx.tick(mesh)


def test_S20_a_mesh_that_ends_is_found_by_nobody_and_its_rows_go(store: Store) -> None:
    with_mesh(store, "old", "new")
    store.write(filled)
    assert read(store, lambda tx: tx.ended_mesh("old")) is None
    assert read(store, lambda tx: (tx.log_last_of("old"), tx.log_count_of("old"))) == (6, 3)
    begun = store.write(lambda tx: tx.mesh_end_begin("old", 5))
    assert (begun.lamport, begun.seq, begun.head, begun.ended_at) == (3, 3, 7, None)
    assert read(store, lambda tx: tx.mesh_get("old")) is None
    assert [row.slug for row in read(store, lambda tx: tx.mesh_list())] == ["new"]
    for write in (
        lambda tx: tx.tick("old"),
        lambda tx: tx.tick_merged("old", 9, 1),
        lambda tx: tx.clock_raise("old", 9),
        lambda tx: tx.mesh_change(mesh_row("old")),
    ):
        with pytest.raises(UnknownMesh):
            store.write(write)
    with pytest.raises(AlreadyExists, match="being deleted"):
        store.write(lambda tx: tx.mesh_add(mesh_row("old")))
    assert erase(store, "old") >= 6
    store.write(lambda tx: tx.mesh_end_done("old", 8))
    assert read(store, lambda tx: tx.state_scan("old", "", "", 9)) == []
    assert len(read(store, lambda tx: tx.state_scan("new", "", "", 9))) == 4
    assert [one.offset for one in read(store, lambda tx: tx.log_range(1, 99, 99))] == [1, 3, 5, 7]
    assert read(store, lambda tx: tx.log_holes(1, 99)) == [(2, 2), (4, 4), (6, 6)]
    assert read(store, lambda tx: tx.log_bounds()) == (1, 7)


def test_S20_an_ended_mesh_counts_what_comes_and_goes_on_when_it_is_back(store: Store) -> None:
    with_mesh(store, "old", "new")
    store.write(filled)
    store.write(lambda tx: tx.mesh_end_begin("old", 5))
    erase(store, "old")
    store.write(lambda tx: tx.mesh_end_done("old", 8))
    store.write(lambda tx: tx.ended_mesh_dropped("old", 3))
    (ended,) = read(store, lambda tx: tx.ended_meshes())
    assert (ended.mesh, ended.ended_at, ended.dropped) == ("old", 8, 3)
    store.write(lambda tx: tx.mesh_add(mesh_row("old")))
    assert store.write(lambda tx: tx.tick("old")) == (4, 4, None, 0)


def test_S20_neighbouring_holes_are_one_and_go_with_the_log_before_them(store: Store) -> None:
    with_mesh(store, "old", "new")

    def fill(tx: Transaction) -> None:
        for number, mesh in enumerate(("new", "old", "old", "old", "new", "new"), 1):
            append(tx, number, mesh=mesh)

    store.write(fill)
    store.write(lambda tx: tx.mesh_end_begin("old", 5))
    erase(store, "old")
    assert read(store, lambda tx: tx.log_holes(1, 99)) == [(2, 4)]
    assert read(store, lambda tx: tx.log_holes(3, 99)) == [(3, 4)]
    while store.write(lambda tx: tx.log_truncate(6, 100, 9)):
        pass
    assert read(store, lambda tx: tx.log_holes(1, 99)) == []
    assert read(store, lambda tx: tx.log_bounds()) == (6, 6)
