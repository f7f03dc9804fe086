"""Other nodes in the store: whom it trusts, whom it pulls from, and what it would not take."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.errors import AlreadyExists
from holdfast.rules.filters import Filter
from holdfast.storage.ports import Store, Transaction
from support.stores import (
    PEERS_IN_ORDER,
    link_row,
    quarantine_row,
    read,
    token_row,
    zone_key,
    zone_row,
)

# --- zones ---------------------------------------------------------------------------------------


def test_Z8_a_zone_is_put_with_its_keys_and_found_by_each(store: Store) -> None:
    row = zone_row("zoë", zone_key("b", 2, 90), zone_key("a", 2), zone_key("c", 1), reads=("*",))
    stored = store.write(lambda tx: tx.zone_put(row))
    assert stored.number == 1
    assert [key.key[:1] for key in stored.keys] == [b"c", b"a", b"b"], "the oldest first"
    assert msgspec.structs.replace(stored, number=0, keys=row.keys) == row
    assert read(store, lambda tx: tx.zone_get("zoë")) == stored
    with store.read() as tx:
        assert [tx.zone_of_key(zone_key(digit).key) for digit in "abc"] == [stored] * 3
        assert tx.zone_of_key(zone_key("d").key) is None
    assert read(store, lambda tx: tx.zone_get("zoe")) is None


def test_Z8_putting_a_zone_again_changes_everything_but_its_number(store: Store) -> None:
    store.write(lambda tx: tx.zone_put(zone_row("yan")))
    first = store.write(lambda tx: tx.zone_put(zone_row("zoe", zone_key("a"), zone_key("b"))))
    changed = zone_row("zoe", zone_key("b", 5, 6), reads=(), added_at=3, blocked_at=9, number=77)
    second = store.write(lambda tx: tx.zone_put(changed))
    assert second == msgspec.structs.replace(changed, number=first.number)
    assert read(store, lambda tx: tx.zone_get("zoe")) == second
    assert read(store, lambda tx: tx.zone_of_key(zone_key("a").key)) is None, "that key is gone"
    unblocked = msgspec.structs.replace(second, blocked_at=None)
    assert store.write(lambda tx: tx.zone_put(unblocked)) == unblocked


def test_Z8_a_key_proves_one_zone_only(store: Store) -> None:
    store.write(lambda tx: tx.zone_put(zone_row("zoe", zone_key("a"))))
    with pytest.raises(AlreadyExists, match="zoe"):
        store.write(lambda tx: tx.zone_put(zone_row("yan", zone_key("b"), zone_key("a"))))

    def refused_inside(tx: Transaction) -> None:
        """The refusal itself changes nothing: whoever catches it goes on in the transaction."""
        with pytest.raises(AlreadyExists):
            tx.zone_put(zone_row("yan", zone_key("b"), zone_key("a")))

    store.write(refused_inside)
    assert read(store, lambda tx: [row.name for row in tx.zone_list()]) == ["zoe"]
    assert read(store, lambda tx: tx.zone_of_key(zone_key("b").key)) is None


def test_Z8_a_key_that_is_told_twice_holds_as_it_was_told_last(store: Store) -> None:
    row = zone_row("zoe", zone_key("a", 1), zone_key("a", 2, 50))
    stored = store.write(lambda tx: tx.zone_put(row))
    assert stored.keys == (zone_key("a", 2, 50),)
    assert read(store, lambda tx: tx.zone_get("zoe")) == stored


def test_Z6_every_zone_has_a_number_of_its_own(store: Store) -> None:
    for name in reversed(PEERS_IN_ORDER):
        store.write(lambda tx, name=name: tx.zone_put(zone_row(name)))  # type: ignore[misc]
    rows = read(store, lambda tx: tx.zone_list())
    assert tuple(row.name for row in rows) == PEERS_IN_ORDER, "by the bytes of their names"
    assert sorted(row.number for row in rows) == list(range(1, len(rows) + 1))


# --- tokens --------------------------------------------------------------------------------------


def test_Z8_a_token_is_found_by_its_digest_until_it_is_dropped(store: Store) -> None:
    rows = [token_row("b", "1", scope="all", reads=()), token_row("a", "2", expires_at=7)]
    for row in rows:
        store.write(lambda tx, row=row: tx.token_put(row))  # type: ignore[misc]
    assert read(store, lambda tx: tx.token_list()) == rows[::-1]
    assert read(store, lambda tx: tx.token_find(rows[0].digest)) == rows[0]
    assert read(store, lambda tx: tx.token_find(b"3" * 32)) is None
    assert store.write(lambda tx: tx.token_drop("b")) is True
    assert store.write(lambda tx: tx.token_drop("b")) is False
    assert read(store, lambda tx: tx.token_find(rows[0].digest)) is None


@pytest.mark.parametrize("second", [token_row("spark", "b"), token_row("other", "a")])
def test_Z8_neither_name_nor_secret_of_a_token_is_given_twice(store: Store, second: object) -> None:
    store.write(lambda tx: tx.token_put(token_row("spark", "a")))
    with pytest.raises(AlreadyExists):
        store.write(lambda tx: tx.token_put(second))  # type: ignore[arg-type]
    assert read(store, lambda tx: tx.token_list()) == [token_row("spark", "a")]


# --- links ---------------------------------------------------------------------------------------


def test_Z1_a_link_is_added_moved_and_dropped_with_its_quarantine(store: Store) -> None:
    row = link_row()
    store.write(lambda tx: tx.link_put(row))
    assert read(store, lambda tx: tx.link_get(row.name)) == row
    moved = link_row(
        url="https://[::1]:1",
        zone="yan",
        filter=Filter(subjects=("a%_",), classes=("facts",), beyond="ana"),
        paused=True,
        epoch=3,
        cursor=2**40,
        added_at=9,
        moved_at=10,
    )
    store.write(lambda tx: tx.link_put(moved))
    store.write(lambda tx: tx.link_put(link_row("a")))
    assert read(store, lambda tx: tx.link_list()) == [link_row("a"), moved], "by name"
    for link in (row.name, "a"):
        store.write(lambda tx, link=link: tx.quarantine_add(quarantine_row(link)))  # type: ignore[misc]
    assert store.write(lambda tx: tx.link_drop(row.name)) is True
    assert store.write(lambda tx: tx.link_drop(row.name)) is False
    assert read(store, lambda tx: tx.link_get(row.name)) is None
    assert read(store, lambda tx: tx.quarantine_count(row.name)) == 0
    assert read(store, lambda tx: tx.quarantine_count("a")) == 1


def test_Z6_what_was_refused_is_kept_with_the_reason(store: Store) -> None:
    rows = [quarantine_row("one", 5), quarantine_row("two", 6, raw=b""), quarantine_row("one", 7)]
    numbers = [store.write(lambda tx, row=row: tx.quarantine_add(row)) for row in rows]  # type: ignore[misc]
    assert numbers == [1, 2, 3]
    stored = [
        msgspec.structs.replace(row, number=number)
        for row, number in zip(rows, numbers, strict=True)
    ]
    with store.read() as tx:
        assert tx.quarantine_list(None, 0, 9) == stored
        assert tx.quarantine_list(None, 1, 1) == stored[1:2]
        assert tx.quarantine_list("one", 0, 9) == [stored[0], stored[2]]
        assert tx.quarantine_list("one", 1, 9) == [stored[2]]
        assert tx.quarantine_list("three", 0, 9) == []
        assert tx.quarantine_get(2) == stored[1]
        assert tx.quarantine_get(4) is None
        assert (tx.quarantine_count("one"), tx.quarantine_count("three")) == (2, 0)
        assert tx.quarantine_places("one", 1) == [(1, 5, 4), (3, 7, 4)]
        assert tx.quarantine_places("two", 1) == [(2, 6, 0)]
        assert tx.quarantine_places("one", 2) == []
    assert store.write(lambda tx: tx.quarantine_drop(3)) is True
    assert store.write(lambda tx: tx.quarantine_drop(3)) is False
    assert store.write(lambda tx: tx.quarantine_add(rows[0])) == 4, "no number twice"
