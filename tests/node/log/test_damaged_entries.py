"""Readers of a damaged entry: an error that names it, and never its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.node.exchange.export import export
from holdfast.node.library.node import Node, open_node
from holdfast.node.recovery.repair import rollback_migration
from holdfast.node.upkeep.sweep import sweep
from holdfast.rules.errors import EntryDamaged
from holdfast.rules.filters import Filter
from holdfast.storage.sqlite.log_leaves import LEAF_SINCE
from support.keeping import MESH, make_home, team


def change(home: Path, statement: str) -> None:
    with closing(apsw.Connection(str(home / "data.db"))) as connection:
        connection.execute(statement)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Of its entries, the third has one byte that changed; it can still be decoded."""
    with make_home(tmp_path / "home") as made:
        for number in range(4):
            team(made).state.set(f"key {number}", "value")
        made.log.add_consumer("reader")
    change(
        tmp_path / "home",
        "UPDATE log SET raw = CAST(replace(CAST(raw AS TEXT), 'value', 'valve') AS BLOB) "
        "WHERE offset = 3",
    )
    with open_node(tmp_path / "home") as opened:
        yield opened


READERS: dict[str, Callable[[Node], Any]] = {
    "range": lambda node: list(node.log.range()),
    "tail": lambda node: node.log.tail(),
    "fetch": lambda node: node.log.fetch("reader"),
    "batch": lambda node: node.log.batch("reader"),
    "as of a moment": lambda node: team(node).state.as_of(offset=4),
    "as of, one key": lambda node: team(node).state.as_of("key 2", offset=4),
    "export": lambda node: export(node, BytesIO()),
}


@pytest.mark.parametrize("reader", READERS)
def test_S12_a_reader_of_a_damaged_entry_is_told_its_offset_and_what_to_do(
    node: Node, reader: str
) -> None:
    with pytest.raises(EntryDamaged, match="offset 3") as told:
        READERS[reader](node)
    assert "doctor --repair" in told.value.hint


def test_S12_damage_does_not_spread_past_a_filter(node: Node) -> None:
    with node._engine.store.read() as tx, pytest.raises(EntryDamaged, match="offset 3"):
        tx.log_page(1, 99, 99, 1 << 20, Filter(meshes=(MESH,)))
    with node._engine.store.read() as tx, pytest.raises(EntryDamaged, match="offset 3"):
        tx.log_columns(1, 99, 99, 1 << 20, Filter(meshes=(MESH,)))
    with node._engine.store.read() as tx:
        assert tx.log_page(1, 3, 99, 1 << 20, Filter()).offsets == [1, 2]
        assert tx.log_page(4, 99, 99, 1 << 20, Filter()).offsets == [4]


def test_P3_whoever_compares_sees_a_damaged_entry_as_it_is_now(node: Node) -> None:
    with node._engine.store.read() as tx:
        page = tx.log_columns(1, 99, 99, 1 << 20, Filter(meshes=(MESH,)), damaged=True)
    assert page.offset == [1, 2, 3, 4]
    assert [b"valve" in raw for raw in page.raw] == [False, False, True, False]


# --- entries from before hashes ------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A home from before hashes, whose third entry is damaged."""
    home = tmp_path / "home"
    with make_home(home) as node:
        for number in range(7):
            team(node).state.set(f"key {number}", "x" * 300)
    rollback_migration(home, LEAF_SINCE)
    change(home, "UPDATE log SET entity = 'other' WHERE offset = 3")
    return home


def leaves(node: Node) -> list[bool]:
    found = node._engine.read("test", lambda tx: tx.log_leaves(1, 99, 99))
    return [leaf is not None for leaf in found]


def test_S11_entries_from_before_get_their_hash_in_steps_that_a_kill_may_part(old: Path) -> None:
    with open_node(old) as node:
        assert leaves(node) == [False] * 7
        team(node).state.set("new", 1)
        assert leaves(node) == [False] * 7 + [True]
        step = partial(node._engine.store.write, lambda tx: tx.log_seal(2, 1 << 20))
        assert step() == 2
        assert leaves(node) == [True, True, False, False, False, False, False, True]
    with open_node(old) as node:
        assert node._engine.store.write(lambda tx: tx.log_seal(99, 1)) == 2, "one, then its bytes"
        sweep(node._engine)
        assert leaves(node) == [True, True, False, True, True, True, True, True], (
            "what is damaged is not sealed"
        )
        assert node._engine.store.write(lambda tx: tx.log_seal(99, 99)) == 0
        assert node._engine.read("test", lambda tx: tx.job_get("leaf")) is None
        found = node._engine.read("test", lambda tx: tx.log_damage(1, 99, 99))
        assert found == [(3, "its entity is not the one in its bytes")]


def test_S11_a_schema_that_went_back_and_on_seals_again(old: Path) -> None:
    with open_node(old) as node:
        sweep(node._engine)
    rollback_migration(old, LEAF_SINCE)
    with open_node(old) as node:
        assert not any(leaves(node))
        sweep(node._engine)
        assert sum(leaves(node)) == 6
