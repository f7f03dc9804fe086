"""A refused send consumes nothing, and ids of what was sent and of what came do not meet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.core.intake import Applied, Intake
from holdfast.node.library.node import Node, open_node
from holdfast.node.messages.send import MessageChange, SendMessage
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.repair import repair_home
from holdfast.rules.bodies import MessageSend, decode_body
from holdfast.rules.envelope import VERSION, decode
from holdfast.rules.errors import IdempotencyKeyReused, IdReused, UnknownMessage
from holdfast.rules.ids import id_text, is_aside, parse_id
from holdfast.rules.message import MESSAGE_VERSION, by_version, check_fingerprint
from holdfast.rules.outbox import lane_of
from holdfast.rules.rows import OutboxRow
from support import envelopes as e
from support.envelopes import MESH
from support.nodes import Nodes, share, store_of, team
from support.stores import read

LANE = lane_of(MESH)
ID = "0197f2a0-0000-7000-8000-000000000001"
OTHER_ID = "0197f2a0-0000-7000-8000-000000000002"


@pytest.fixture
def ana(node: Node) -> Node:
    share(node)
    return node


def rows(node: Node) -> list[OutboxRow]:
    return read(store_of(node), lambda tx: tx.outbox_list(None, (), 0, 999))


def put(node: Node, id: str, **fields: Any) -> None:
    row = next(row for row in rows(node) if row.id == parse_id(id))
    store_of(node).write(lambda tx: tx.outbox_put(msgspec.structs.replace(row, **fields)))


def refuse(node: Node, id: str, code: str = "idempotency_key_reused") -> None:
    put(node, id, state="dead", attempts=1, code=code, error="no", ended_at=9)


def bring(node: Node, *raws: bytes, broker: bool = True) -> Sequence[Applied]:
    delivered = dict.fromkeys(raws, b"B" * 16) if broker else {}
    return store_of(node).write(Intake(node._engine.ctx, raws, delivered=delivered))


def from_bob(content: bytes = b"bob's", id: str = ID, **fields: Any) -> bytes:
    return e.message_send("topic", "news", content, id=parse_id(id), **fields)


# --- what came under an id that we had sent under -------------------------------------------------


@pytest.mark.parametrize("state", ["dead", "pending", "inflight", "aborted"])
def test_D4_what_the_broker_accepted_under_the_id_of_a_send_that_it_refuses_arrives(
    ana: Node, state: str
) -> None:
    """Also before our own answer is here: the broker has another message under this id, so it
    cannot have ours.
    """
    team(ana).send("mine", topic="news", id=ID)
    ended = None if state in ("pending", "inflight") else 9
    put(ana, ID, state=state, code="", ended_at=ended)
    (applied,) = bring(ana, from_bob())
    assert applied.error is None
    assert ana.inbox.get(ID).content == b"bob's"
    (again,) = bring(ana, from_bob())
    assert (again.error, again.offset) == (None, applied.offset), "a redelivery is a no-op"
    (row,) = rows(ana)
    assert (row.offset, row.state) == (1, state)
    assert is_aside(row.id)
    entry = read(store_of(ana), lambda tx: tx.log_find(row.id))
    assert entry is not None
    assert entry.offset == 1


def test_D11_a_send_that_gave_its_id_back_is_still_found_and_sent_again(ana: Node) -> None:
    team(ana).send("mine", topic="news", id=ID)
    refuse(ana, ID)
    bring(ana, from_bob())
    item = ana.outbox.get(ID)
    assert (item.sent_as, item.state, item.op) == (ID, "dead", "message.send")
    assert item.id != ID
    assert ana.outbox.get(item.id) == item
    assert [row.id for row in ana.outbox.list(failed=True)] == [item.id]
    new = ana.outbox.requeue(ID, new_id=OTHER_ID)
    assert (new.id, new.state, new.ref) == (OTHER_ID, "pending", "news")
    assert ana.outbox.requeue(ID, new_id=OTHER_ID).duplicate
    envelope = decode(next(ana.log.range(new.offset)).raw)
    assert decode_body(envelope) == MessageSend(b"mine", "text/plain")
    with pytest.raises(IdempotencyKeyReused):
        team(ana).send("mine", topic="news", id=ID)
    with pytest.raises(UnknownMessage):
        ana.outbox.get(e_text(9))


@pytest.mark.parametrize(
    ("fields", "broker"),
    [
        ({"state": "done", "ended_at": 9}, True),
        ({"state": "dead", "code": "outbox_expired", "attempts": 1, "ended_at": 9}, False),
        ({"state": "pending"}, False),
    ],
)
def test_D4_a_send_that_the_broker_may_have_keeps_its_id(
    ana: Node, fields: dict[str, Any], broker: bool
) -> None:
    team(ana).send("mine", topic="news", id=ID)
    put(ana, ID, **fields)
    (applied,) = bring(ana, from_bob(), broker=broker)
    assert isinstance(applied.error, IdReused)
    assert rows(ana)[0].id == parse_id(ID)


def test_D4_what_is_refused_for_another_reason_takes_no_id_away(ana: Node) -> None:
    team(ana).send("mine", topic="news", id=ID)
    refuse(ana, ID)
    (applied,) = bring(ana, e.changed(from_bob(), mesh="elsewhere"))
    assert applied.error is not None
    assert rows(ana)[0].id == parse_id(ID)


def test_S16_the_doctor_and_a_repair_know_a_send_that_gave_its_id_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with open_node(home, peer="ana", create=True, sync="normal") as node:
        node.create_mesh(MESH)
        share(node)
        team(node).send("mine", topic="news", id=ID)
        refuse(node, ID)
        bring(node, from_bob())
    found = diagnose(home, full=True).checks
    assert [check for check in found if check.status == "fail"] == []
    repair_home(home)
    with open_node(home) as node:
        (row,) = rows(node)
        entry = read(store_of(node), lambda tx: tx.log_get(row.offset))
        assert entry is not None
        assert entry.origin == "ana", "and not bob's, which has the id now"
        assert node.inbox.get(ID).content == b"bob's"
    found = diagnose(home, full=True).checks
    assert [check for check in found if check.status == "fail"] == []


# --- our own correction under the same key --------------------------------------------------------


def test_D4_a_refused_send_is_corrected_under_the_same_key(ana: Node) -> None:
    first = team(ana).send("mine", topic="nwes", id="order-4711")
    refuse(ana, first.id, "unknown_destination")
    again = team(ana).send("mine", topic="nwes", id="order-4711")
    assert (again.state, again.duplicate) == ("dead", True), "the same request is where it was"
    right = team(ana).send("mine", topic="news", id="order-4711")
    assert (right.id, right.state, right.duplicate) == (first.id, "pending", False)
    assert [row.state for row in rows(ana)] == ["dead", "pending"]
    assert team(ana).send("mine", topic="news", id="order-4711").duplicate
    failed = next(ana.outbox.list(failed=True))
    assert (failed.sent_as, failed.entity) == (first.id, "topic/nwes"), "the old one is history"
    assert ana.outbox.get(first.id).entity == "topic/news"


@pytest.mark.parametrize("code", ["outbox_expired", "replaced"])
def test_D4_what_may_have_arrived_is_not_corrected_under_its_key(ana: Node, code: str) -> None:
    team(ana).send("mine", topic="news", id=ID)
    refuse(ana, ID, code)
    if code == "replaced":
        put(ana, ID, state="aborted")
    with pytest.raises(IdempotencyKeyReused):
        team(ana).send("other", topic="news", id=ID)


def test_D10_one_key_is_one_request_of_one_node_in_one_mesh(nodes: Nodes) -> None:
    ana, ben = nodes.open("ana", "one", "two"), nodes.open("ben", "one")
    for node, *meshes in ((ana, "one", "two"), (ben, "one")):
        for mesh in meshes:
            share(node, mesh)
    ids = {
        node.mesh(mesh).send("x", topic="news", id="order-4711").id
        for node, mesh in ((ana, "one"), (ana, "two"), (ben, "one"))
    }
    assert len(ids) == 3
    assert not ana.inbox.counts()[0]


# --- version 1 of the fingerprint -----------------------------------------------------------------


class OldChange(MessageChange):
    """A message as it was sent before its type was in its fingerprint."""

    version = VERSION

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fingerprint = self.first_fingerprint


def send_as_before(node: Node, content: bytes, content_type: str) -> None:
    change = OldChange(
        node._engine.ctx, MESH, "topic", "news", content, content_type=content_type, id=ID
    )
    store_of(node).write(SendMessage(change))


def test_D3_a_message_that_was_sent_under_version_1_is_known_when_it_is_sent_again(
    ana: Node,
) -> None:
    send_as_before(ana, b"hello", "text/plain")
    old = decode(next(ana.log.range(1)).raw)
    assert old.version == "1.0"
    check_fingerprint(old, decode_body(old))  # type: ignore[arg-type]
    assert team(ana).send("hello", topic="news", id=ID).duplicate
    for content, kind in (("hullo", None), ("hello", "text/html")):
        with pytest.raises(IdempotencyKeyReused):
            team(ana).send(content, topic="news", content_type=kind, id=ID)
    store_of(ana).write(lambda tx: tx.outbox_done([(1, b"B" * 16, 1, 1)], 5))
    team(ana).send("next", topic="news")
    store_of(ana).write(lambda tx: tx.log_truncate(2, 9, 5))
    assert team(ana).send("hello", topic="news", id=ID).duplicate, "also when only its hash is left"
    with pytest.raises(IdempotencyKeyReused):
        team(ana).send("hullo", topic="news", id=ID)


def test_D3_a_message_is_sent_under_version_2_and_says_so(ana: Node) -> None:
    team(ana).send("hello", topic="news", id=ID)
    envelope = decode(next(ana.log.range(1)).raw)
    body = decode_body(envelope)
    assert isinstance(body, MessageSend)
    assert envelope.version == MESSAGE_VERSION
    assert by_version(envelope, body) == envelope.fingerprint
    first = msgspec.structs.replace(envelope, version=VERSION)
    assert by_version(first, body) != envelope.fingerprint
    (applied,) = bring(ana, e.changed(from_bob(id=OTHER_ID), version=MESSAGE_VERSION))
    assert applied.error is not None, "a fingerprint of version 1 under version 1.1"


def e_text(number: int) -> str:
    return id_text(e.make_id(number))
