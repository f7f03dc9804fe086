"""Local writes: stamped once, logged once, deduplicated by their id."""

from __future__ import annotations

import pytest

from holdfast.node.library.node import Mesh, Node
from holdfast.rules.envelope import Base, decode
from holdfast.rules.errors import (
    BadId,
    BadInput,
    BadKey,
    BadValue,
    IdReused,
    Refused,
    UnknownKey,
    UnknownMesh,
)
from holdfast.rules.ids import check_id, parse_id
from holdfast.rules.order import Stamp
from holdfast.rules.reconcile import Outcome
from support.envelopes import MODEL, state_set
from support.nodes import Nodes, store_of, team
from support.snapshot import snapshot
from support.source import START_MS, HandClock

ID = "018bcfe5-6800-7000-8000-0000000000aa"
OTHER_ID = "018bcfe5-6800-7000-8000-0000000000bb"


def test_S3_a_write_is_stamped_logged_and_folded_in_one_go(node: Node, clock: HandClock) -> None:
    receipt = team(node).state.set("k", {"a": 1}, meta={"why": "test"})
    assert (receipt.offset, receipt.lamport, receipt.peer) == (1, 1, "ana")
    assert (receipt.duplicate, receipt.outcome) == (False, Outcome.APPLIED)
    assert receipt.stamp == Stamp(1, "ana")
    check_id(parse_id(receipt.id))
    (entry,) = node.log.range()
    envelope = decode(entry.raw)
    assert (entry.id, entry.op, entry.entity) == (receipt.raw_id, "state.set", "k")
    assert (envelope.origin, envelope.lamport, envelope.seq, envelope.epoch) == ("ana", 1, 1, 1)
    assert (envelope.created_at, envelope.meta) == (START_MS, b'{"why":"test"}')
    assert (envelope.write_class, envelope.state) == ("queued", "committed")
    row = team(node).state.entry("k")
    assert row is not None
    assert (row.value, row.lamport, row.peer, row.updated_at) == ({"a": 1}, 1, "ana", START_MS)


def test_S4_every_local_event_ticks_once(node: Node) -> None:
    mesh = team(node)
    stamps = [
        mesh.state.set("k", 1).lamport,
        mesh.state.delete("k").lamport,
        mesh.memory.set("k", 1).lamport,
        mesh.memory.forget("k").lamport,
        mesh.vectors.store("k", [1, 2], model=MODEL).lamport,
        mesh.vectors.delete("k", model=MODEL).lamport,
        mesh.files.share("k", b"x").lamport,
        mesh.files.delete("k").lamport,
        mesh.facts.append("s", "is", 1).lamport,
    ]
    task = mesh.tasks.create("t")
    for turn in (mesh.tasks.claim, mesh.tasks.release, mesh.tasks.claim, mesh.tasks.complete):
        turn(task.task)
    assert stamps == list(range(1, 10))
    assert mesh.clock().lamport == 14
    entries = list(node.log.range())
    assert [entry.lamport for entry in entries] == list(range(1, 15))
    assert [decode(entry.raw).seq for entry in entries] == list(range(1, 15))


def test_S6_every_family_writes_the_log(node: Node) -> None:
    mesh = team(node)
    mesh.state.set("k", 1)
    mesh.memory.set("k", 1)
    mesh.vectors.store("k", [1, 2], model=MODEL)
    mesh.files.share("k", b"x")
    mesh.files.share("big", b"x" * 70_000)
    mesh.tasks.create("t")
    mesh.facts.append("s", "is", 1)
    assert [entry.op for entry in node.log.range()] == [
        *("state.set", "memory.set", "vector.store", "file.share", "file.share"),
        *("task.create", "fact.append"),
    ]


def test_S18_a_write_names_what_it_replaces(node: Node) -> None:
    mesh = team(node)
    mesh.state.set("k", 1)
    mesh.state.set("k", 2)
    node.apply([state_set("k", 3, origin="bob", lamport=9)])
    mesh.state.set("k", 4)
    bases = [decode(entry.raw).base for entry in node.log.range()]
    assert bases == [None, Base(1, "ana"), None, Base(9, "bob")]


# --- dedupe by id ---------------------------------------------------------------------------------


def test_D3_the_same_request_again_gets_the_first_receipt(node: Node) -> None:
    mesh = team(node)
    first = mesh.state.set("k", 1, id=ID, meta={"b": 1, "a": [2]})
    mesh.state.set("k", 2)
    again = mesh.state.set("k", 1, id=ID.upper(), meta={"a": [2], "b": 1})
    assert again.duplicate
    assert again.outcome is Outcome.NOOP_ALREADY_APPLIED
    assert (again.id, again.offset, again.stamp) == (first.id, first.offset, first.stamp)
    assert mesh.state.get("k") == 2, "a repetition does not write again"
    assert mesh.clock().lamport == 2, "nor does it tick"


@pytest.mark.parametrize(
    "other",
    [
        lambda mesh: mesh.state.set("k", 2, id=ID),
        lambda mesh: mesh.state.set("l", 1, id=ID),
        lambda mesh: mesh.state.set("k", 1, id=ID, meta={"a": 1}),
        lambda mesh: mesh.state.delete("k", id=ID),
        lambda mesh: mesh.memory.set("k", 1, id=ID),
        lambda mesh: mesh.facts.append("k", "is", 1, id=ID),
        lambda mesh: mesh.tasks.create("k", id=ID),
    ],
)
def test_D3_an_id_belongs_to_one_request(node: Node, other: object) -> None:
    mesh = team(node)
    mesh.state.set("k", 1, id=ID)
    before = snapshot(store_of(node))
    with pytest.raises(IdReused):
        other(mesh)  # type: ignore[operator]
    assert snapshot(store_of(node)) == before
    assert mesh.clock().lamport == 1


def test_D3_an_id_belongs_to_one_mesh(nodes: Nodes) -> None:
    """Told that it was written already, the caller would never write it to the second mesh."""
    node = nodes.open("ana", "one", "two")
    node.mesh("one").state.set("k", 1, id=ID)
    with pytest.raises(IdReused):
        node.mesh("two").state.set("k", 1, id=ID)
    assert node.mesh("two").state.get("k") is None
    node.mesh("one").tasks.create("t", id=OTHER_ID)
    with pytest.raises(IdReused):
        node.mesh("two").tasks.create("t", id=OTHER_ID)


def _task_verbs(mesh: Mesh, verb: str) -> None:
    task = mesh.tasks.create("t", id=ID)
    assert mesh.tasks.create("t", id=ID) == task
    mesh.tasks.claim(task.task)
    turn = getattr(mesh.tasks, verb)
    first = turn(task.task, id=OTHER_ID)
    if verb == "release":
        mesh.tasks.claim(task.task)
        assert turn(task.task, id=OTHER_ID) == mesh.tasks.get(task.task), "as it stands now"
    else:
        assert turn(task.task, id=OTHER_ID) == first


@pytest.mark.parametrize("verb", ["claim", "release", "complete", "cancel"])
def test_D3_turns_on_tasks_are_deduplicated_whatever_came_between(node: Node, verb: str) -> None:
    _task_verbs(team(node), verb)


def test_D3_a_refused_request_consumes_no_id(node: Node) -> None:
    mesh = team(node)
    with pytest.raises(UnknownKey):
        mesh.state.delete("k", id=ID)
    assert not mesh.state.set("k", 1, id=ID).duplicate


def test_D3_deduplication_survives_a_restart(nodes: Nodes) -> None:
    node = nodes.open()
    first = team(node).state.set("k", 1, id=ID)
    again = team(nodes.reopen(node)).state.set("k", 1, id=ID)
    assert (again.duplicate, again.offset) == (True, first.offset)


@pytest.mark.parametrize("id", ["", "x", "00000000-0000-4000-8000-000000000000", 7])
def test_D3_only_a_uuid_of_version_7_is_an_id(node: Node, id: object) -> None:
    with pytest.raises(BadId):
        team(node).state.set("k", 1, id=id)  # type: ignore[arg-type]


# --- refusals change nothing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda mesh: mesh.state.set("", 1),
        lambda mesh: mesh.state.set("k", float("nan")),
        lambda mesh: mesh.state.delete("unknown"),
        lambda mesh: mesh.memory.set("k", 1, tags="one text"),
        lambda mesh: mesh.memory.set("k", 1, tags=[""]),
        lambda mesh: mesh.memory.forget("unknown"),
        lambda mesh: mesh.memory.recall("k", scope="everyone"),
        lambda mesh: mesh.memory.recall("k", scope="peer:a\nb"),
        lambda mesh: mesh.vectors.store("k", [1], model=MODEL),
        lambda mesh: mesh.vectors.delete("unknown", model=MODEL),
        lambda mesh: mesh.vectors.search([1, 2], model=MODEL, limit=0),
        lambda mesh: mesh.files.share("../k", b"x"),
        lambda mesh: mesh.files.share("k", "text"),
        lambda mesh: mesh.files.delete("unknown"),
        lambda mesh: mesh.files.read("unknown"),
        lambda mesh: mesh.tasks.create(""),
        lambda mesh: mesh.tasks.claim("unknown"),
        lambda mesh: list(mesh.tasks.list(status="done")),
        lambda mesh: mesh.facts.append("", "is", 1),
        lambda mesh: mesh.facts.append("s", "is", object()),
        lambda mesh: mesh.facts.append("s", "is", 1, meta={"a": object()}),
        lambda mesh: mesh.state.as_of("k"),
        lambda mesh: mesh.state.as_of("k", offset=1, lamport=1),
        lambda mesh: mesh.state.as_of("k", offset=-1),
    ],
)
def test_S3_a_refused_call_changes_nothing(node: Node, wrong: object) -> None:
    mesh = team(node)
    mesh.state.set("here", 1)
    before = snapshot(store_of(node))
    with pytest.raises(Refused):
        wrong(mesh)  # type: ignore[operator]
    assert snapshot(store_of(node)) == before
    assert mesh.clock().lamport == 1
    assert node.log.head().offset == 1


def test_S6_an_unknown_mesh_is_a_typed_error(node: Node) -> None:
    with pytest.raises(UnknownMesh):
        node.mesh("nowhere")
    with pytest.raises(UnknownMesh):
        Mesh(node._engine, "nowhere").state.set("k", 1)
    with pytest.raises(BadInput):
        node.mesh("No Such")


def test_S6_a_mesh_is_made_once_and_found_again(node: Node) -> None:
    assert node.mesh("new", create=True).slug == "new"
    assert node.mesh("new", create=True).slug == "new"
    assert [row.slug for row in node.meshes()] == ["new", "team"]
    with pytest.raises(Refused):
        node.create_mesh("new")


def test_S6_a_name_may_be_any_text_and_nothing_else(node: Node) -> None:
    node.create_mesh("named", name="Übergrößen 1")
    assert node.mesh("named").info().name == "Übergrößen 1"
    for wrong in (7, b"x", "\ud800", "a\0b"):
        with pytest.raises((BadKey, BadValue, BadInput)):
            node.create_mesh("other", name=wrong)  # type: ignore[arg-type]
    assert [row.slug for row in node.meshes()] == ["named", "team"]
