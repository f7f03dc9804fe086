"""The fold of the entry that ends an order: what is committed behind it counts nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.node.core.commit import CommitRun
from holdfast.rules.quorum.intents import MOVE, ORDER, OrderMove
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Store
from support.commits import context, entry, with_quorum
from support.envelopes import MESH
from support.nodes import KINDS
from support.quorum_state import change, intent, operation
from support.stores import make_store

TAG = b"n" * 16


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = make_store(request.param, tmp_path)
    yield made
    made.stop()


def test_Q4_what_an_engine_commits_behind_the_end_of_its_order_is_fenced(store: Store) -> None:
    with_quorum(store)
    ctx = context()
    move = intent(MOVE, ORDER, OrderMove(1, "etcd", TAG), origin="ana")
    late = change(operation("put", "mission", "m", {"title": "late"}))
    first = change(operation("put", "mission", "m", {"title": "first"}))
    run = [entry(first, 1), entry(move, 2), entry(late, 3)]
    results = store.write(CommitRun(ctx, MESH, run))
    assert [one.outcome for one in results] == ["applied", "applied", "rejected_fenced"]
    assert [one.number for one in results] == [1, 2, None]
    assert [one.ends_order for one in results] == [False, True, False]
    with store.read() as reader:
        row = reader.quorum_get(MESH)
    assert row is not None
    assert (row.engine, row.incarnation, row.tag, row.applied, row.number) == (
        *("etcd", 2, TAG, 0, 2),
    )

    # In a run of its own as well, however high its index and its epoch are.
    again = entry(late, 900)
    again = replace(again, fence=replace(again.fence, lease_epoch=99))
    (fenced,) = store.write(CommitRun(ctx, MESH, [again], 950))
    assert fenced.outcome is Outcome.REJECTED_FENCED
    with store.read() as reader:
        assert reader.quorum_get(MESH) == row, "the next order counts from its own beginning"

    # It was not decided by that: the next order commits it, under a newer fence.
    taken = entry(late, 1)
    taken = replace(taken, fence=replace(taken.fence, incarnation=2))
    (done,) = store.write(CommitRun(ctx, MESH, [taken]))
    assert (done.outcome, done.number) == (Outcome.APPLIED, 3)


def test_Q4_a_move_counts_once_whoever_proposes_it_again(store: Store) -> None:
    with_quorum(store)
    move = intent(MOVE, ORDER, OrderMove(1, "etcd", TAG), origin="ana")
    other = intent(MOVE, ORDER, OrderMove(1, "embedded", b"x" * 16), origin="bob")
    run = [entry(move, 1), entry(move, 2), entry(other, 3)]
    results = store.write(CommitRun(context(), MESH, run))
    assert [one.ends_order for one in results] == [True, False, False]
    with store.read() as reader:
        row = reader.quorum_get(MESH)
    assert row is not None
    assert (row.engine, row.tag, row.number) == ("etcd", TAG, 1)
