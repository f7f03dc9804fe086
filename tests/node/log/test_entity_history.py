"""The past of entities: every revision with its commit, and what it held."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.log.entity_history import conflict_sides, entity_as_of, entity_history
from holdfast.node.log.history import AsOf
from holdfast.rules.envelope import encode
from holdfast.rules.errors import BadInput, Truncated, UnknownEntity
from holdfast.rules.quorum.intents import OperationKind
from holdfast.rules.quorum.view import EntityRow
from holdfast.storage.ports import Store
from support.commits import commit, entry, with_quorum
from support.envelopes import MESH
from support.nodes import KINDS
from support.quorum_state import change, fence, operation
from support.seeds import seeds
from support.source import START_MS
from support.stores import append, make_store


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = make_store(request.param, tmp_path)
    yield with_quorum(made)
    made.stop()


def fields_at(store: Store, offset: int) -> bytes | None:
    with store.read() as tx:
        row = entity_as_of(tx, MESH, "mission", "m", AsOf(offset=offset), START_MS)
    return None if row is None else row.fields


@pytest.mark.parametrize("seed", seeds(2))
def test_S19_every_revision_can_be_read_again_as_it_was(store: Store, seed: int) -> None:
    draw, index = random.Random(seed), 0
    stood: list[tuple[int, EntityRow]] = []
    for _ in range(30):
        entries = []
        for _ in range(draw.choice((1, 1, 3))):
            index += 1
            kinds: tuple[OperationKind, ...] = ("put", "patch", "patch", "delete")
            name, kind = draw.choice("abc"), draw.choice(kinds)
            fields = {"title": str(index), draw.choice("xyz"): index} if kind != "delete" else {}
            gone = ("w",) if kind == "patch" and draw.random() < 0.5 else ()
            fields |= {"w": 1} if kind == "put" else {}
            made = operation(kind, "mission", name, fields, removed=gone)
            entries.append(entry(change(made), index))
        commit(store, entries)
        with store.read() as tx:
            head, rows = tx.log_bounds()[1], tx.entity_list(MESH, "mission", "", 9, live_only=False)
            stood += [(head, row) for row in rows]
    assert len(stood) > 60
    with store.read() as tx:
        for head, row in stood:
            found = entity_as_of(tx, MESH, row.type, row.id, AsOf(offset=head), START_MS)
            assert found == (None if row.deleted else row)


def test_S19_an_intent_that_waited_in_the_log_is_there_from_its_commit_on(store: Store) -> None:
    one = change(operation("put", "mission", "m", {"title": "first"}), origin="dan")
    store.write(
        lambda tx: tx.log_append(one.id, MESH, one.op, one.entity, "dan", 1, 1, encode(one))
    )
    store.write(lambda tx: append(tx, 40))
    commit(store, [entry(one, 1)])
    store.write(lambda tx: append(tx, 41))
    second = change(operation("patch", "mission", "m", {"more": 1}, base=1))
    commit(store, [entry(second, 2)])
    found = [fields_at(store, offset) for offset in range(5)]
    first = b'{"title":"first"}'
    assert found == [None, None, first, first, b'{"more":1,"title":"first"}']


def test_Q13_the_history_names_the_commit_of_each_revision(store: Store) -> None:
    changes = [
        change(operation("put", "mission", "m", {"title": "a"})),
        change(operation("patch", "mission", "m", {"title": "b"}, base=1), origin="cyd"),
        change(operation("delete", "mission", "m")),
        change(operation("put", "mission", "m", {"title": "c"}, base=0)),
    ]
    commit(store, [entry(one, at, fence(at * 10)) for at, one in enumerate(changes, 1)])
    with store.read() as tx:
        past = entity_history(tx, MESH, "mission", "m")
        assert [(one.revision, one.deleted, one.whole) for one in past] == [
            (1, False, True),
            (2, False, False),
            (3, True, True),
            (4, False, True),
        ]
        assert [one.commit.fence for one in past] == [fence(at * 10) for at in (1, 2, 3, 4)]
        assert [one.commit.id for one in past] == [one.id for one in changes]
        assert [one.offset for one in past] == [1, 2, 3, 4]
        assert entity_history(tx, MESH, "mission", "m", after=2, limit=1) == past[2:3]
        with pytest.raises(UnknownEntity):
            entity_history(tx, MESH, "mission", "none")


def test_S19_a_lamport_is_no_place_in_commit_order(store: Store) -> None:
    with store.read() as tx, pytest.raises(BadInput, match="commit order"):
        entity_as_of(tx, MESH, "mission", "m", AsOf(lamport=3), START_MS)


def test_S17_what_was_truncated_is_said_to_be_gone_and_the_present_stays(store: Store) -> None:
    first = change(operation("put", "mission", "m", {"title": "a"}))
    second = change(operation("put", "mission", "m", {"title": "b"}))
    commit(store, [entry(first, 1), entry(second, 2)])
    store.write(lambda tx: tx.log_truncate(2, 9, START_MS))
    with pytest.raises(Truncated):
        fields_at(store, 1)
    assert fields_at(store, 2) == b'{"title":"b"}'
    (again,) = commit(store, [entry(first, 3)])
    assert again.outcome == "noop_already_applied", "its record outlives its bytes"


def test_Q7_a_conflict_shows_both_sides(store: Store) -> None:
    commit(
        store,
        [
            entry(change(operation("put", "mission", "m", {"title": "a"})), 1),
            entry(change(operation("put", "mission", "m", {"title": "b"}, base=1)), 2),
            entry(change(operation("put", "mission", "m", {"title": "c"}, base=1)), 3),
        ],
    )
    with store.read() as tx:
        (waiting,) = tx.waiting_conflicts(MESH, 0, 9)
        assert (waiting.number, waiting.clashes[0].fields) == (3, ("title",))
        (side,) = conflict_sides(tx, waiting)
        assert side.wanted.fields == b'{"title":"c"}'
        assert side.stands is not None
        assert side.stands.fields == b'{"title":"b"}'
