"""S3: changes that are carried out together leave what they leave one by one, to the byte."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.core import operations
from holdfast.node.core.change import DECIDED, Change, Receipt
from holdfast.node.core.runs.plain_changes import _FAMILIES, PlainChange
from holdfast.node.library.batch import BatchWork
from holdfast.node.library.node import Node
from holdfast.node.messages.send import prepare
from holdfast.rules.envelope import decode, encode
from holdfast.rules.errors import HoldfastError, IdReused, NotShared, UnknownKey, UnknownMesh
from holdfast.rules.ids import id_text
from holdfast.rules.limits import LAMPORT_MAX, RUN_BYTES_MAX, RUN_CHANGES_MAX
from holdfast.rules.order import Version
from holdfast.storage.ports import Work
from holdfast.storage.tickets import Ticket
from support.envelopes import MESH, make_id, state_set
from support.nodes import KINDS, Nodes, share, store_of
from support.seeds import seeds
from support.source import HandClock
from support.stores import memory_row
from support.tables import tables

Make = Callable[[Node], Work[Any]]


class Pair:
    """Two nodes of one name that get the same groups: the changes of one are carried out together
    where they can be, those of the other one by one.
    """

    def __init__(self, kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.joined: list[int] = []
        """How many changes each run had that was carried out together."""
        self._nodes = [Nodes(kind, folder / name, HandClock()) for name in ("runs", "singles")]
        for nodes in self._nodes:
            nodes.folder.mkdir()
        self.nodes = [nodes.open("ana", MESH, "other") for nodes in self._nodes]
        self.undone = 0
        """How often the first of them has undone a group to run it once more."""
        self._patch, self._together = patch, PlainChange.together
        self._note_undone(self.nodes[0]._opened.store.writer._engine)

    def _note_undone(self, engine: Any) -> None:
        rollback = engine.rollback

        def noted() -> None:
            self.undone += 1
            rollback()

        self._patch.setattr(engine, "rollback", noted)

    def close(self) -> None:
        for nodes in self._nodes:
            nodes.close()

    def each(self, do: Callable[[Node], object]) -> None:
        for node in self.nodes:
            do(node)

    def advance(self, ms: int) -> None:
        for nodes in self._nodes:
            nodes.clock.advance(ms)

    def _noted(self, tx: Any, changes: Any) -> Any:
        answers = self._together(tx, changes)
        self.joined += [len(answers)] * bool(answers)
        return answers

    def group(self, makes: Sequence[Make]) -> list[Receipt | str]:
        """Runs one group on both; returns the receipts and the errors, which are the same."""
        answers = []
        for node, together in zip(self.nodes, (self._noted, _never), strict=True):
            works = [make(node) for make in makes]
            tickets = [Ticket(work, _nobody) for work in works]
            writer = node._opened.store.writer
            for ticket in tickets:
                writer.enqueue(ticket)
            with self._patch.context() as patch:
                patch.setattr(PlainChange, "together", staticmethod(together))
                while writer.run_group():
                    pass
            answers.append([_told(ticket) for ticket in tickets])
        assert answers[0] == answers[1]
        runs, singles = (tables(store_of(node)) for node in self.nodes)
        assert runs == singles
        return answers[0]


def _never(tx: Any, changes: Any) -> tuple[()]:
    return ()


def _nobody(tickets: list[Ticket]) -> None: ...


def _told(ticket: Ticket) -> Receipt | str:
    if ticket.error is None:
        receipt: Receipt = ticket.result
        return receipt
    assert isinstance(ticket.error, HoldfastError)
    return f"{type(ticket.error).__name__}: {ticket.error.message}"


@pytest.fixture(params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    made = Pair(request.param, tmp_path, monkeypatch)
    yield made
    made.close()


def set_state(key: str, value: object = 1, mesh: str = MESH, **more: Any) -> Make:
    return lambda node: operations.state_set(node._engine.ctx, mesh, key, value, **more)


def delete_state(key: str, **more: Any) -> Make:
    return lambda node: operations.state_delete(node._engine.ctx, MESH, key, **more)


def remember(key: str, value: object = 1, **more: Any) -> Make:
    return lambda node: operations.memory_set(node._engine.ctx, MESH, key, value, **more)


def forget(key: str, **more: Any) -> Make:
    return lambda node: operations.memory_forget(node._engine.ctx, MESH, key, **more)


def fact(subject: str, **more: Any) -> Make:
    return lambda node: operations.fact_append(node._engine.ctx, MESH, subject, "is", 1, **more)


def task(title: str) -> Make:
    return lambda node: operations.task_create(node._engine.ctx, MESH, title)


def theirs(key: str, number: int, lamport: int) -> bytes:
    return state_set(key, number, id=make_id(number), lamport=lamport, origin="bob")


# --- the same, whatever comes --------------------------------------------------------------------


def _any_change(draw: random.Random, ids: list[str]) -> Make:
    key, kind = draw.choice("abcdefgh"), draw.randrange(12)
    more: dict[str, Any] = {}
    if draw.random() < 0.25:
        more["id"] = draw.choice(ids) if draw.random() < 0.4 else id_text(_id(draw))
        ids.append(more["id"])
    value = draw.choice((1, "é", {"a": [1, None]}, "x" * 300))
    if kind < 5:
        if draw.random() < 0.2:
            more["expect"] = draw.choice(("absent", "1@ana", "9@bob"))
        if draw.random() < 0.2:
            more["meta"] = {"why": value}
        return set_state(key, value, draw.choice((MESH, MESH, MESH, "other", "none")), **more)
    if kind < 6:
        return delete_state(key, **more)
    if kind < 9:
        tags = draw.choice(((), ("a", "b")))
        return remember(key, value, tags=tags, **more)
    if kind < 10:
        return forget(key, **more)
    return fact(key, **more) if kind < 11 else task(key)


def _id(draw: random.Random) -> bytes:
    return make_id(draw.randrange(100_000, 200_000))


def _what_else_happens(pair: Pair, draw: random.Random, number: int) -> None:
    if draw.random() < 0.5:
        key, lamport = draw.choice("abcdefgh"), draw.randrange(1, number + 9)
        raw = theirs(key, number + 1, lamport)
        pair.each(lambda node: node.apply([raw]))
    if draw.random() < 0.3:
        pair.advance(draw.choice((1, 70_000, -5)))
    if draw.random() < 0.1:
        pair.each(lambda node: store_of(node).write(lambda tx: tx.log_truncate(9, 4, 1)))


@pytest.mark.parametrize("seed", seeds(8))
def test_S3_random_groups_leave_the_same_tables_and_answers_together_and_one_by_one(
    pair: Pair, seed: int
) -> None:
    draw, ids = random.Random(seed), [id_text(make_id(900))]
    for number in range(25):
        size = draw.choice((2, 3, 8, 30))
        pair.group([_any_change(draw, ids) for _ in range(size)])
        _what_else_happens(pair, draw, number)
    assert sum(pair.joined) > 50, "many went together"
    assert not pair.undone
    assert max(pair.joined) > 4


@pytest.mark.parametrize("where", ["broker", "bus"])
def test_S3_a_shared_mesh_gets_the_same_outbox_and_streams(pair: Pair, where: str) -> None:
    def share(node: Node) -> None:
        def work(tx: Any) -> None:
            row = tx.mesh_get(MESH)
            fields = {"on_bus": True} if where == "bus" else {"kind": "shared_owner"}
            tx.mesh_change(msgspec.structs.replace(row, **fields))

        store_of(node).write(work)

    pair.each(share)
    for _ in range(3):
        pair.group([set_state("a"), remember("k"), fact("s"), set_state("b"), set_state("a", 2)])
    assert pair.joined == [5, 5, 5]


def batch(*makes: Make) -> Make:
    def make(node: Node) -> Work[Any]:
        return BatchWork([one(node) for one in makes])  # type: ignore[misc]

    return make


@pytest.mark.parametrize("seed", seeds(4))
def test_S3_batches_of_random_changes_leave_the_same_tables_and_answers(
    pair: Pair, seed: int
) -> None:
    draw, ids = random.Random(seed), [id_text(make_id(900))]
    told = []
    for number in range(25):
        batches = [
            batch(*(_any_change(draw, ids) for _ in range(draw.choice((1, 3, 9)))))
            for _ in range(draw.choice((1, 2)))
        ]
        told += pair.group([*batches, set_state("beside")])
        _what_else_happens(pair, draw, number)
    assert sum(pair.joined) > 50
    assert {isinstance(one, str) for one in told} == {True, False}, "some were refused as a whole"


def send(text: str, **more: Any) -> Make:
    def make(node: Node) -> Work[Any]:
        return prepare(node._engine, MESH, "topic", "news", text, **more)

    return make


@pytest.mark.parametrize("seed", seeds(4))
def test_D10_random_messages_leave_the_same_tables_and_answers(pair: Pair, seed: int) -> None:
    """Planted: an answer that does not look into the outbox."""
    pair.each(share)
    draw, ids = random.Random(seed), ["key"]
    for number in range(25):
        makes: list[Make] = []
        for _ in range(draw.choice((2, 5, 20))):
            more: dict[str, Any] = {"priority": draw.choice(("now", "next", "low"))}
            if draw.random() < 0.3:
                more["id"] = draw.choice(ids) if draw.random() < 0.5 else f"key {draw.random()}"
                ids.append(more["id"])
            if draw.random() < 0.1:
                makes.append(set_state("k", number))
            makes.append(send(draw.choice("ab"), **more))
        pair.group(makes)
        pair.each(partial(_refuse_some, draw.random()))
    assert sum(pair.joined) > 50
    assert not pair.undone


def _refuse_some(chance: float, node: Node) -> None:
    """The broker has refused some messages for good: those give their ids back."""

    def work(tx: Any) -> None:
        for row in tx.outbox_list(None, ("pending",), 0, 1000):
            if random.Random(f"{chance} {row.number}").random() < 0.2:
                tx.outbox_put(msgspec.structs.replace(row, state="dead", code="too_large"))

    store_of(node).write(work)


def test_D10_a_message_whose_id_is_known_goes_by_itself(pair: Pair) -> None:
    """Its answer may free that id, and a run changes nothing while it looks."""
    pair.each(share)
    pair.group([send("a", id="key"), send("b")])
    again = pair.group([send("c"), send("d"), send("a", id="key"), send("e"), send("f")])
    assert pair.joined == [2, 2, 2]
    assert [sent.duplicate for sent in again] == [False, False, True, False, False]  # type: ignore[union-attr]


def test_D10_messages_into_a_mesh_that_is_not_shared_are_refused_one_by_one(pair: Pair) -> None:
    pair.each(share)
    makes = [send("a"), send("b")]
    works = [[make(node) for make in makes] for node in pair.nodes]
    pair.each(lambda node: store_of(node).write(_unshare))
    answers = pair.group([lambda node, at=at: works[pair.nodes.index(node)][at] for at in (0, 1)])  # type: ignore[misc]
    assert [str(answer).split(":")[0] for answer in answers] == [NotShared.__name__] * 2
    assert pair.joined == [2]


def _unshare(tx: Any) -> None:
    tx.mesh_change(msgspec.structs.replace(tx.mesh_get(MESH), kind="personal"))


# --- what ends a run, and what does not ----------------------------------------------------------


def test_S3_two_values_of_one_key_in_a_run_replace_each_other_in_order(pair: Pair) -> None:
    receipts = pair.group([set_state("k", n) for n in range(5)])
    assert pair.joined == [5]
    assert [r.lamport for r in receipts if isinstance(r, Receipt)] == [1, 2, 3, 4, 5]
    node = pair.nodes[0]
    assert node.mesh(MESH).state.get("k") == 4
    bases = [decode(entry.raw).base for entry in node.log.range()]
    assert [None if base is None else base.lamport for base in bases] == [None, 1, 2, 3, 4]


def test_S18_what_replaces_another_peers_value_in_a_run_keeps_the_ledger(pair: Pair) -> None:
    """Planted: settling within the run also where the key is written again later in it."""
    pair.group([set_state("a", 1), set_state("b", 2)])
    pair.each(lambda node: node.apply([theirs("a", 1, 1), theirs("b", 2, 5), theirs("c", 3, 6)]))
    assert [row.entity for row in pair.nodes[0].conflicts()] == ["a", "b"]
    pair.group([set_state("c", 7), set_state("a", 8), set_state("c", 9), set_state("b", 9)])
    assert pair.joined == [2, 2, 2], "the second value of c waits for the next run"
    assert not list(pair.nodes[0].conflicts()), "ours has seen both"


def test_S18_a_memory_that_earlier_code_let_somebody_else_write_is_none_of_the_ledgers(
    pair: Pair,
) -> None:
    """Planted: settling it like a value of the shared state."""
    pair.group([remember("k"), set_state("k")])
    pair.each(lambda node: store_of(node).write(lambda tx: tx.clock_raise(MESH, 9)))
    row = memory_row("ana", "k", 5, "bob")
    pair.each(lambda node: store_of(node).write(lambda tx: tx.memory_put(row)))
    pair.group([remember("k", 2), remember("l")])
    assert pair.joined == [2, 2]
    assert not pair.undone


def test_S3_what_voters_decide_is_in_no_run() -> None:
    """A run does not ask whether its mesh has voters."""
    assert DECIDED.isdisjoint(_FAMILIES)


def test_S4_a_retry_in_a_run_gets_the_receipt_of_the_first_and_a_reused_id_its_error(
    pair: Pair,
) -> None:
    mine, other = id_text(make_id(1)), id_text(make_id(2))
    first = pair.group([set_state("k", 1, id=mine), fact("s", id=other), set_state("l")])
    again = pair.group(
        [
            set_state("k", 1, id=mine),
            set_state("new"),
            fact("other", id=other),
            set_state("twice", id=id_text(make_id(3))),
            set_state("twice", id=id_text(make_id(3))),
        ]
    )
    assert pair.joined == [3, 4]
    one, _, refused, new, repeated = again
    assert isinstance(one, Receipt)
    assert isinstance(first[0], Receipt)
    assert (one.duplicate, one.offset) == (True, first[0].offset)
    assert str(refused).startswith(IdReused.__name__)
    assert isinstance(new, Receipt)
    assert isinstance(repeated, Receipt)
    assert (repeated.duplicate, repeated.offset) == (True, new.offset)


def test_S3_one_that_is_refused_costs_the_others_of_its_run_nothing(pair: Pair) -> None:
    answers = pair.group([set_state("a"), delete_state("none"), forget("none"), set_state("b")])
    assert pair.joined == [4]
    assert [str(a).split(":")[0] for a in answers[1:3]] == [UnknownKey.__name__] * 2
    assert [a.lamport for a in (answers[0], answers[3]) if isinstance(a, Receipt)] == [1, 2]


def test_S4_a_run_into_a_mesh_that_is_not_there_changes_nothing(pair: Pair) -> None:
    """Planted: the run raising, for which the whole group was undone and run once more."""
    answers = pair.group([set_state("a", mesh="none"), set_state("b", mesh="none"), set_state("c")])
    assert [str(a).split(":")[0] for a in answers[:2]] == [UnknownMesh.__name__] * 2
    assert isinstance(answers[2], Receipt)
    assert not pair.undone


def test_S20_an_id_that_went_with_a_deleted_mesh_is_new_in_the_one_that_takes_its_place(
    pair: Pair,
) -> None:
    """Planted: taking it for known, because the store remembers it."""
    used = id_text(make_id(1))
    pair.group([set_state("k", id=used), set_state("l")])

    def again(node: Node) -> None:
        store_of(node).write(lambda tx: tx.log_truncate(2, 1, 1))
        node.delete_mesh(MESH)
        node.create_mesh(MESH)

    pair.each(again)
    answers = pair.group([set_state("a"), set_state("b", id=used), set_state("c"), set_state("d")])
    assert [answer.duplicate for answer in answers if isinstance(answer, Receipt)] == [False] * 4
    assert pair.joined == [2, 1, 2], "it goes by itself"


def test_S4_a_clock_that_wears_out_within_a_run_takes_what_it_took_one_by_one(pair: Pair) -> None:
    pair.each(lambda node: store_of(node).write(lambda tx: tx.clock_raise(MESH, LAMPORT_MAX - 2)))
    answers = pair.group([set_state(f"k{n}") for n in range(4)])
    assert [isinstance(answer, Receipt) for answer in answers] == [True, True, False, False]


def test_S3_a_run_ends_at_its_greatest_number_and_size(pair: Pair) -> None:
    pair.group([set_state(f"k{n}") for n in range(RUN_CHANGES_MAX + 3)])
    assert pair.joined == [RUN_CHANGES_MAX, 3]
    pair.joined.clear()
    large = "x" * (RUN_BYTES_MAX // 2)
    pair.group([fact(f"s{n}", meta=None) for n in range(2)])
    pair.group([set_state(f"large{n}", large) for n in range(5)])
    assert pair.joined == [2, 2, 2]


def test_S3_what_raises_within_a_run_undoes_the_group_which_then_runs_one_by_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the writer taking what a run answered before it raised."""
    made = pair.nodes[0]._opened.store.writer._engine.transaction
    put, calls = type(made).state_put_many, []

    def failing(self: Any, rows: Any) -> None:
        put(self, rows)
        calls.append(len(rows))
        raise RuntimeError("in the middle")

    monkeypatch.setattr(type(made), "state_put_many", failing)
    answers = pair.group([set_state("a"), delete_state("none"), set_state("b")])
    assert calls == [2]
    assert [isinstance(answer, Receipt) for answer in answers] == [True, False, True]


# --- the bytes -----------------------------------------------------------------------------------


def test_S3_the_bytes_of_a_change_are_those_of_its_envelope(pair: Pair) -> None:
    ctx = pair.nodes[0]._engine.ctx
    for make in (set_state("k", meta={"a": 1}), forget("k"), remember("k"), fact("s"), task("t")):
        change = make(pair.nodes[0])
        assert isinstance(change, Change)
        for current in (None, Version(3, "bob", make_id(1))):
            envelope = change.envelope(5, 9, ctx.now_ms(), current)
            assert change.encode(5, 9, ctx.now_ms(), current) == encode(envelope)
