"""The conflict ledger and the warnings."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.storage.ports import Store, Transaction
from support.stores import conflict_row, read, version, warning_row


def numbers(store: Store, mesh: str | None, *, open_only: bool, after: int = 0) -> list[int]:
    rows = read(
        store, lambda tx: tx.conflict_list(mesh, open_only=open_only, after=after, limit=99)
    )
    return [row.number for row in rows]


def test_S18_a_conflict_is_numbered_and_comes_back_as_it_was(store: Store) -> None:
    one = store.write(lambda tx: tx.conflict_add(conflict_row("é")))
    two = store.write(lambda tx: tx.conflict_add(conflict_row("k")))
    assert (one, two) == (1, 2)
    found = read(store, lambda tx: tx.conflict_get(1))
    assert found == msgspec.structs.replace(conflict_row("é"), number=1)
    assert read(store, lambda tx: tx.conflict_get(3)) is None


def test_S18_conflicts_are_listed_by_mesh_and_by_whether_they_are_open(store: Store) -> None:
    for mesh in ("a", "b", "a", "b"):
        store.write(lambda tx, mesh=mesh: tx.conflict_add(conflict_row(mesh=mesh)))  # type: ignore[misc]
    store.write(lambda tx: tx.conflict_resolve(3, "restored as x", 77))
    assert numbers(store, None, open_only=False) == [1, 2, 3, 4]
    assert numbers(store, None, open_only=True) == [1, 2, 4]
    assert numbers(store, "a", open_only=True) == [1]
    assert numbers(store, "a", open_only=False, after=1) == [3]
    assert numbers(store, "c", open_only=False) == []
    resolved = read(store, lambda tx: tx.conflict_get(3))
    assert resolved is not None
    assert (resolved.resolved_at, resolved.resolution) == (77, "restored as x")
    page = read(store, lambda tx: tx.conflict_list(None, open_only=True, after=1, limit=1))
    assert [row.number for row in page] == [2]


def test_S18_the_entries_about_an_entity_can_be_found_changed_and_dropped(store: Store) -> None:
    wanted = ("team", "state", "k")
    assert read(store, lambda tx: tx.conflicts_of(*wanted)) == []
    for entity in ("j", "k", "l", "k"):
        store.write(lambda tx, entity=entity: tx.conflict_add(conflict_row(entity)))  # type: ignore[misc]
    found = read(store, lambda tx: tx.conflicts_of(*wanted))
    assert found == [msgspec.structs.replace(conflict_row("k"), number=n) for n in (2, 4)]
    for at, other in enumerate(("other", "memory", "m")):
        asked = (*wanted[:at], other, *wanted[at + 1 :])
        assert read(store, lambda tx, asked=asked: tx.conflicts_of(*asked)) == []  # type: ignore[misc]
    about = found[0].loser
    assert read(store, lambda tx: tx.conflicts_of(*wanted, about)) == found
    assert read(store, lambda tx: tx.conflicts_of(*wanted, about._replace(lamport=99))) == []
    changed = msgspec.structs.replace(
        found[0],
        reason="another",
        winner=version(9),
        loser=version(8, "bob"),
        loser_op="state.delete",
        loser_body=b"\x90",
        base_lamport=7,
        base_peer="é",
        found_at=77,
    )
    store.write(lambda tx: tx.conflict_change(changed))
    assert read(store, lambda tx: tx.conflict_get(2)) == changed
    assert read(store, lambda tx: tx.conflict_get(1)) == msgspec.structs.replace(
        conflict_row("j"), number=1
    )
    store.write(lambda tx: tx.conflict_resolve(2, "dismissed", 80))
    store.write(lambda tx: tx.conflict_drop(4))
    assert [row.number for row in read(store, lambda tx: tx.conflicts_of(*wanted))] == [2]


def test_S10_warnings_are_taken_once_in_order(store: Store) -> None:
    rows = [warning_row("t1"), warning_row("t2", "other"), warning_row("t3")]
    for row in rows:
        store.write(lambda tx, row=row: tx.warning_add(row))  # type: ignore[misc]
    assert read(store, lambda tx: tx.warning_list(None)) == rows
    assert read(store, lambda tx: tx.warning_list("other")) == [rows[1]]
    assert store.write(lambda tx: tx.warnings_take("team")) == [rows[0], rows[2]]
    assert store.write(lambda tx: tx.warnings_take("team")) == []
    assert store.write(lambda tx: tx.warnings_take(None)) == [rows[1]]
    assert read(store, lambda tx: tx.warning_list(None)) == []


def test_S10_a_warning_that_was_not_taken_for_good_is_told_again(store: Store) -> None:
    store.write(lambda tx: tx.warning_add(warning_row("t1")))

    def work(tx: Transaction) -> None:
        assert tx.warnings_take(None)
        raise RuntimeError("the answer was never given")

    with pytest.raises(RuntimeError):
        store.write(work)
    assert read(store, lambda tx: tx.warning_list(None)) == [warning_row("t1")]
