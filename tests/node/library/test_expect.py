"""Compare-and-set: a write that names the stamp that it expects to find."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.node.core import operations
from holdfast.node.library.documents import prepare, read_change
from holdfast.node.library.node import Node
from holdfast.rules.errors import BadInput, IdReused, StampMoved
from holdfast.rules.ids import id_text
from holdfast.rules.order import Stamp
from holdfast.storage.tickets import Ticket
from support.nodes import Nodes, deliver, store_of, team

ID = "018bcfe5-6800-7000-8000-0000000000aa"


def test_S5_a_write_with_the_present_stamp_is_made(node: Node) -> None:
    mesh = team(node)
    first = mesh.state.set("k", 1, expect=holdfast.ABSENT)
    entry = mesh.state.entry("k")
    assert entry is not None
    assert entry.stamp == first.stamp
    second = mesh.state.set("k", 2, expect=entry.stamp)
    third = mesh.state.set("k", 3, expect=str(second.stamp))
    mesh.state.delete("k", expect=third.stamp)
    assert mesh.state.set("k", 4, expect=holdfast.ABSENT).offset == 5
    mesh.memory.set("k", 1, expect="absent")
    remembered = mesh.memory.get("k")
    assert remembered is not None
    mesh.memory.set("k", 2, expect=remembered.stamp)
    mesh.memory.forget("k", expect=Stamp(7, "ana"))
    assert node.log.head().offset == 8


def test_S5_a_write_with_another_stamp_is_a_conflict_that_writes_nothing(node: Node) -> None:
    mesh = team(node)
    mesh.state.set("k", 1)
    mesh.memory.set("k", 1)
    tries: list[tuple[Any, Stamp | None]] = [
        (lambda: mesh.state.set("k", 2, expect=Stamp(1, "ben")), Stamp(1, "ana")),
        (lambda: mesh.state.set("k", 2, expect="absent"), Stamp(1, "ana")),
        (lambda: mesh.state.delete("k", expect=Stamp(2, "ana")), Stamp(1, "ana")),
        (lambda: mesh.state.set("other", 2, expect=Stamp(1, "ana")), None),
        (lambda: mesh.state.delete("other", expect=Stamp(1, "ana")), None),
        (lambda: mesh.memory.set("k", 2, expect=Stamp(1, "ana")), Stamp(2, "ana")),
        (lambda: mesh.memory.set("k", 2, expect="absent"), Stamp(2, "ana")),
        (lambda: mesh.memory.forget("k", expect=Stamp(1, "ana")), Stamp(2, "ana")),
        (lambda: mesh.memory.forget("other", expect=Stamp(1, "ana")), None),
    ]
    for attempt, present in tries:
        with pytest.raises(StampMoved) as refused:
            attempt()
        assert refused.value.present == present
        assert (refused.value.exit_code, refused.value.http_status) == (5, 409)
        shown = "is absent" if present is None else f"is at {present}, not "
        assert shown in refused.value.message
    assert (node.log.head().offset, mesh.clock().lamport) == (2, 2)


def test_S5_what_was_deleted_is_absent(node: Node) -> None:
    mesh = team(node)
    stamp = mesh.state.set("k", 1).stamp
    gone = mesh.state.delete("k").stamp
    for expect in (stamp, gone):
        with pytest.raises(StampMoved, match="is absent, not at"):
            mesh.state.set("k", 2, expect=expect)
    mesh.state.set("k", 2, expect=holdfast.ABSENT)


def test_S3_of_two_writes_in_one_group_that_expect_the_same_stamp_one_is_made(node: Node) -> None:
    """The check is made in the transaction: before it, both would pass."""
    stamp = team(node).state.set("k", 0).stamp
    writer = node._opened.store.writer
    answered: list[Ticket] = []
    for value in (1, 2):
        change = operations.state_set(node._engine.ctx, "team", "k", value, expect=stamp)
        writer.enqueue(Ticket(change, answered.extend))
    writer.run_group()
    assert [type(ticket.error) for ticket in answered] == [type(None), StampMoved]
    assert team(node).state.get("k") == 1


def test_S3_a_retry_with_the_same_id_gets_its_first_receipt(node: Node) -> None:
    """By then its own write stands there, which is not what it expects."""
    mesh = team(node)
    first = mesh.state.set("k", 1, expect=holdfast.ABSENT, id=ID)
    again = mesh.state.set("k", 1, expect=holdfast.ABSENT, id=ID)
    assert (again.duplicate, again.offset) == (True, first.offset)
    with pytest.raises(IdReused):
        mesh.state.set("k", 2, expect=holdfast.ABSENT, id=ID)


def test_S5_what_came_from_another_node_moves_the_stamp(nodes: Nodes) -> None:
    ana, ben = nodes.open("ana"), nodes.open("ben")
    stamp = team(ana).state.set("k", "ana").stamp
    deliver(ana, ben)
    theirs = team(ben).state.set("k", "ben", expect=stamp)
    deliver(ben, ana)
    with pytest.raises(StampMoved, match=f"is at {theirs.stamp}, not at {stamp}"):
        team(ana).state.set("k", "again", expect=stamp)
    team(ana).state.set("k", "again", expect=theirs.stamp)


@pytest.mark.parametrize(
    "expect",
    ["", "12", "@ana", "x@ana", "0@ana", "-1@ana", "٣@ana", f"{2**63}@ana", "9" * 5000 + "@ana"],
)
def test_S5_what_is_no_stamp_is_refused_before_anything_is_written(node: Node, expect: str) -> None:
    with pytest.raises(BadInput, match="expect is"):
        team(node).state.set("k", 1, expect=expect)
    assert node.log.head().offset == 0


@pytest.mark.parametrize("expect", [1, (1,), (True, "ana"), ("1", "ana"), b"1@ana", ["1", "ana"]])
def test_S5_an_expectation_of_another_type_is_refused(node: Node, expect: Any) -> None:
    with pytest.raises(BadInput, match="expect is"):
        team(node).state.set("k", 1, expect=expect)


def test_S5_deleting_what_is_expected_to_be_absent_makes_no_sense(node: Node) -> None:
    with pytest.raises(BadInput, match="absent cannot be deleted"):
        team(node).state.delete("k", expect=holdfast.ABSENT)


@pytest.mark.parametrize("family", ["state", "memory"])
def test_U4_a_document_names_the_stamp_too(node: Node, family: str) -> None:
    deletion = "state.delete" if family == "state" else "memory.forget"
    steps = [
        (f"{family}.set", "absent", {"value": 1}, True),
        (f"{family}.set", "absent", {"value": 1}, False),
        (f"{family}.set", "1@ana", {"value": 2}, True),
        (deletion, "1@ana", {}, False),
        (deletion, "2@ana", {}, True),
    ]
    for op, expect, more, is_made in steps:
        named = {"op": op, "id": id_text(node._engine.ctx.new_id()), "mesh": "team", "entity": "k"}
        change = prepare(node._engine.ctx, read_change({**named, "expect": expect, **more}))
        if is_made:
            store_of(node).write(change)
        else:
            with pytest.raises(StampMoved):
                store_of(node).write(change)
