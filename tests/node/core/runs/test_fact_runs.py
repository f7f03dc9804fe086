"""Z7: facts that come in columns leave the same behind as those that come one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.node.core.intake import Applied, AppliedFacts, Intake
from holdfast.node.core.receive import incoming
from holdfast.rules import arrivals, compiled
from holdfast.rules.arrivals import Arrivals, read_arrivals
from holdfast.rules.errors import UnknownMesh
from holdfast.rules.fact_columns import FactColumns
from holdfast.rules.leaf import leaf_of
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Transaction
from support.envelopes import MESH, fact_append, make_id, state_set
from support.nodes import KINDS, Nodes, store_of
from support.seeds import seeds
from support.source import HandClock
from support.tables import tables

pytestmark = pytest.mark.skipif(compiled.part is None, reason="there is no compiled part")


class Pair:
    """Two nodes of one name that get the same batches, one in columns and the other one by one."""

    def __init__(self, kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.columns = self.appended = 0
        """Columns that came, and batches that were appended as a whole."""
        self._nodes = [Nodes(kind, folder / name, HandClock()) for name in ("columns", "singles")]
        for nodes in self._nodes:
            nodes.folder.mkdir()
        self.nodes = [nodes.open("ana", MESH, "other") for nodes in self._nodes]

    def close(self) -> None:
        for nodes in self._nodes:
            nodes.close()

    def forget(self, *ids: bytes) -> None:
        def work(tx: Transaction) -> None:
            for id in ids:
                tx.forgotten_add(id, bytes(32), 1)

        for node in self.nodes:
            store_of(node).write(work)

    def take(self, batch: Sequence[bytes]) -> Sequence[Applied]:
        quick, slow = self.nodes
        found = read_arrivals(batch)
        self.columns += sum(isinstance(part, FactColumns) for part in arrivals.parts_of(found))
        at_once = store_of(quick).write(Intake.of(quick._engine.ctx, found, 3))
        self.appended += isinstance(at_once, AppliedFacts)
        one_by_one = store_of(slow).write(Intake.of(slow._engine.ctx, self._singles(batch), 3))
        assert list(map(_told, at_once)) == list(map(_told, one_by_one))
        one, other = (tables(store_of(node)) for node in self.nodes)
        assert one == other
        return at_once

    def _singles(self, batch: Sequence[bytes]) -> Arrivals:
        with self._patch.context() as patch:
            patch.setattr(compiled, "part", None)
            patch.setattr(arrivals, "read_fact", lambda raw: None)
            return read_arrivals(batch)


def _told(one: Applied) -> tuple[object, ...]:
    return one.raw_id, one.outcome, one.offset, repr(one.error)


@pytest.fixture(params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    made = Pair(request.param, tmp_path, monkeypatch)
    yield made
    made.close()


SUBJECTS = ("s", "é", "é" * 20, "x" * 32, "x" * 255, "x" * 256, "x" * 1024)


def some(numbers: range, origin: str = "bob", mesh: str = MESH) -> list[bytes]:
    return [
        fact_append(
            SUBJECTS[n % 7], "is", [n, n / 4], id=make_id(n), lamport=n, origin=origin, mesh=mesh
        )
        for n in numbers
    ]


def test_Z7_columns_are_appended_as_a_whole_with_their_leaf_hashes(pair: Pair) -> None:
    batch = some(range(1, 40)) + some(range(40, 60), "zoe", "other") + some(range(60, 90))
    found = pair.take(batch)
    assert (pair.columns, pair.appended) == (1, 1)
    assert [one.offset for one in found] == list(range(1, 90))
    assert found[3:5] == [found[3], found[4]]
    assert found[-1].id == found[88].id
    with store_of(pair.nodes[0]).read() as tx:
        assert tx.log_leaves(1, 99, 99) == [leaf_of(raw) for raw in batch]
        assert [entry.entity for entry in tx.log_range(1, 8, 9)] == [
            SUBJECTS[n % 7] for n in range(1, 8)
        ]


def test_Z7_columns_with_an_id_that_is_known_are_taken_in_pieces(pair: Pair) -> None:
    pair.take(some(range(30, 31)))
    again = pair.take(some(range(1, 200)))
    assert [one.outcome for one in again].count(Outcome.NOOP_ALREADY_APPLIED) == 1
    pair.forget(make_id(777))
    assert not isinstance(pair.take(some(range(700, 800))), AppliedFacts)
    twice = some(range(300, 330))
    assert not isinstance(pair.take([*twice, twice[4]]), AppliedFacts)
    assert isinstance(pair.take(some(range(400, 420))), AppliedFacts)


def test_Z7_columns_of_a_mesh_that_is_not_here_are_refused_one_by_one(pair: Pair) -> None:
    found = pair.take(some(range(1, 20)) + some(range(20, 40), mesh="absent"))
    assert {type(one.error) for one in found} == {type(None), UnknownMesh}


@pytest.mark.parametrize("seed", seeds(4))
def test_Z7_columns_and_single_facts_come_to_the_same(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    number = 0
    known: list[bytes] = []
    for _ in range(12):
        batch: list[bytes] = []
        for _ in range(chance.randrange(1, 5)):
            length = chance.choice((1, 20, 40, 60))
            origin, mesh = chance.choice(("bob", "zoe", "ana")), chance.choice((MESH, "other"))
            run = some(range(number + 1, number + length + 1), origin, mesh)
            number += length
            if chance.random() < 0.2:
                run[0] = fact_append("s", "is", 1, id=make_id(number + 10**6), lamport=2**62)
            if chance.random() < 0.2:
                batch.append(state_set("k", number, id=make_id(number + 10**7), lamport=number))
            if chance.random() < 0.1:
                pair.forget(make_id(number))
            if known and chance.random() < 0.2:
                run.insert(chance.randrange(len(run)), chance.choice(known))
            batch += run
        pair.take(batch)
        known += batch
    assert pair.columns > 5


def test_Z7_columns_that_are_too_large_for_a_transaction_are_cut(pair: Pair) -> None:
    large = [fact_append("s", "is", "x" * 300_000, id=make_id(n), lamport=n) for n in range(1, 21)]
    sizes = []
    for piece in incoming(pair.nodes[0]._engine.ctx, large):
        sizes.append(len(store_of(pair.nodes[0]).write(piece)))
    assert sizes == [7, 7, 6]
