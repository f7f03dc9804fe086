"""S6: what arrives is taken together with what would come of it one by one, to the byte."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.core.intake import Applied, Intake
from holdfast.node.core.runs import plain_arrivals
from holdfast.node.core.runs.plain_arrivals import BatchPart, take_plain
from holdfast.rules.bodies import Body, MemorySet, Nothing, StateSet, encode_body
from holdfast.rules.envelope import Base, Envelope, encode
from holdfast.rules.fingerprint import fingerprint
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Transaction
from support.envelopes import MESH, fact_append, make_id, state_set
from support.nodes import KINDS, Nodes, store_of
from support.seeds import seeds
from support.source import HandClock
from support.tables import tables

BODIES: dict[str, Callable[[bytes], Body]] = {
    "state.set": lambda value: StateSet(value),
    "state.delete": lambda value: Nothing(),
    "memory.set": lambda value: MemorySet(value, ("t",)),
    "memory.forget": lambda value: Nothing(),
}


class Pair:
    """Two nodes of one name that get the same batches: one takes them together where it can, the
    other one by one.
    """

    def __init__(self, kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.taken: list[int] = []
        """How many arrivals each run had; less than nothing for one that could not be taken."""
        self._patch = patch
        self._nodes = [Nodes(kind, folder / name, HandClock()) for name in ("runs", "singles")]
        for nodes in self._nodes:
            nodes.folder.mkdir()
        self.nodes = [nodes.open("ana", MESH, "other") for nodes in self._nodes]

    def close(self) -> None:
        for nodes in self._nodes:
            nodes.close()

    def take(self, batch: Sequence[bytes], **more: Any) -> Sequence[Applied]:
        answers = []
        for node, single in zip(self.nodes, (False, True), strict=True):
            with self._patch.context() as patch:
                if single:
                    patch.setattr(plain_arrivals, "plain_runs", _one_by_one)
                else:
                    patch.setattr(plain_arrivals, "take_plain", self._noted)
                work = Intake(node._engine.ctx, batch, **more)
                answers.append(store_of(node).write(work))
        together, by_one = ([_told(one) for one in answer] for answer in answers)
        assert together == by_one
        runs, singles = (tables(store_of(node)) for node in self.nodes)
        assert runs == singles
        return answers[0]

    def _noted(self, tx: Any, ctx: Any, run: Any, via: int) -> Any:
        taken = take_plain(tx, ctx, run, via)
        self.taken.append(len(run) if taken is not None else -len(run))
        return taken


def _one_by_one(tx: Any, batch: Any) -> Iterator[BatchPart]:
    yield BatchPart(batch, None)


def _told(one: Applied) -> tuple[object, ...]:
    return one.raw_id, one.outcome, one.offset, repr(one.error)


@pytest.fixture(params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    made = Pair(request.param, tmp_path, monkeypatch)
    yield made
    made.close()


def made(op: str, key: str, number: int, lamport: int, **more: Any) -> bytes:
    fields: dict[str, Any] = {"origin": "bob", "mesh": MESH, "base": None, **more}
    body = encode_body(BODIES[op](b'"%d"' % fields.pop("value", number)))
    origin = fields["origin"]
    envelope = Envelope(
        id=make_id(number),
        op=op,
        entity=key,
        owner=origin if op.startswith("memory") else "",
        epoch=1,
        seq=number,
        lamport=lamport,
        created_at=1,
        fingerprint=fingerprint(kind=op, ref=key, body=body),
        body=body,
        **fields,
    )
    return encode(envelope)


def _any_arrival(draw: random.Random, number: int, before: list[bytes]) -> bytes:
    if before and draw.random() < 0.12:
        return draw.choice(before)
    chance = draw.random()
    if chance < 0.04:
        return b"no envelope"
    if chance < 0.1:
        return fact_append("s", "is", number, id=make_id(number), lamport=number, origin="bob")
    op, lamport = draw.choice(tuple(BODIES)), draw.randrange(2, number + 30)
    base = None
    if op.startswith("state") and draw.random() < 0.5:
        base = Base(draw.randrange(1, lamport), draw.choice(("bob", "cyd", "ana")))
    return made(
        *(
            op,
            f"k{draw.randrange(40)}",
            number,
            lamport if draw.random() < 0.99 else LAMPORT_MAX - 2,
        ),
        origin=draw.choice(("bob", "bob", "cyd", "ana")),
        mesh=draw.choice((MESH,) * 12 + ("other", "none")),
        base=base,
        value=draw.randrange(9),
    )


@pytest.mark.parametrize("seed", seeds(8))
def test_S6_random_pages_leave_the_same_tables_and_answers_together_and_one_by_one(
    pair: Pair, seed: int
) -> None:
    draw, number = random.Random(seed), 0
    before: list[bytes] = []
    for size in (1, 40, 5) * 4:
        page: list[bytes] = []
        for _ in range(size):
            number += 1
            page.append(_any_arrival(draw, number, before + page))
        pair.take(page, via=draw.choice((0, 3)))
        before += page
        for node in pair.nodes:
            node.mesh(MESH).state.set(f"k{number % 40}", number)
            if number % 3 == 0:
                store_of(node).write(lambda tx: tx.forget_below(MESH, 4))
    assert sum(pair.taken) >= 8, "some went together"


def test_S6_a_run_ends_before_a_key_an_id_or_a_mesh_that_came_in_it(pair: Pair) -> None:
    """Planted: two versions of one key in one run, of which the ledger then knows too much."""
    first = [made("state.set", f"k{n}", n, n + 5) for n in range(1, 6)]
    again = made("state.set", "k1", 7, 20, origin="cyd")
    elsewhere = [made("state.set", f"k{n}", n, n, mesh="other") for n in range(11, 15)]
    pair.take([*first, again, *elsewhere, *first[:4], *elsewhere])
    assert pair.taken == [5, 4], "what is alone goes by itself"
    pair.take([made("memory.set", f"k{n}", n, n) for n in range(21, 24)])
    assert pair.taken == [5, 4], "and few do"


def test_S18_versions_of_others_in_a_run_are_settled_by_the_ledger(pair: Pair) -> None:
    for node in pair.nodes:
        for key in "abcd":
            node.mesh(MESH).state.set(key, "ours")
    page = [made("state.set", key, n, n) for n, key in enumerate("abcd", 1)]
    later = [
        made("state.set", key, n + 10, n + 10, origin="cyd") for n, key in enumerate("abcd", 1)
    ]
    applied = pair.take([*page, *later])
    assert pair.taken == [4, 4]
    assert {one.outcome for one in applied[4:]} == {Outcome.APPLIED}
    assert len(list(pair.nodes[0].conflicts())) > 3


def test_S17_what_may_be_forgotten_is_taken_one_by_one(pair: Pair) -> None:
    """Planted: a run that asks nobody whether its deletions were forgotten."""
    for node in pair.nodes:
        store_of(node).write(lambda tx: tx.clock_raise(MESH, 50))
        store_of(node).write(lambda tx: tx.forget_below(MESH, 6))
    applied = pair.take([made("state.set", f"k{n}", n, n + 4) for n in range(1, 6)])
    assert [one.error is None for one in applied] == [False, False, True, True, True]
    assert pair.taken == []


def test_S4_a_stamp_that_is_absurd_is_refused_alone(pair: Pair) -> None:
    page = [made("memory.set", f"k{n}", n, n) for n in range(1, 5)]
    applied = pair.take([*page, made("memory.set", "far", 9, LAMPORT_MAX - 2)])
    assert [one.error is None for one in applied] == [True] * 4 + [False]


def test_B3_what_a_run_brings_counts_in_its_streams(pair: Pair) -> None:
    def share(tx: Transaction) -> None:
        row = tx.mesh_get(MESH)
        assert row is not None
        tx.mesh_change(msgspec.structs.replace(row, on_bus=True))

    for node in pair.nodes:
        store_of(node).write(share)
    page = [made("state.set", f"k{n}", n, n) for n in range(1, 6)]
    pair.take(page)
    pair.take([state_set("k", 1, id=make_id(40), lamport=9, origin="dan")])
    assert pair.taken == [5]
