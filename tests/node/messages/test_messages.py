"""Messages at the node: sent once, listed once, cared for, and forgotten safely."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.core.intake import Applied, Intake
from holdfast.node.library.aio import AsyncNode
from holdfast.node.library.node import Node, open_node
from holdfast.node.messages.expiry import expire
from holdfast.node.messages.outbox import Outbox
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.envelope import decode
from holdfast.rules.errors import (
    AmbiguousId,
    BadEnvelope,
    BadId,
    BadInput,
    BadKey,
    BadValue,
    BodyTooLarge,
    Conflict,
    IdempotencyKeyReused,
    IdReused,
    NotShared,
    OverLimit,
    PastEnd,
    UnknownDestination,
    UnknownMesh,
    UnknownMessage,
)
from holdfast.rules.inbox_match import InboxMatch
from holdfast.rules.keys import bytes_of
from holdfast.rules.limits import DAY_MS, HOUR_MS, MESSAGE_BYTES_MAX, OUTBOX_DONE_MS
from holdfast.rules.message import check_arriving
from holdfast.rules.outbox import Policies, Policy, lane_of, outbox_row
from holdfast.rules.rows import OutboxRow
from support import envelopes as e
from support.envelopes import MESH, make_id
from support.nodes import Nodes, share, store_of, team
from support.source import HandClock
from support.stores import known_member, read

LANE = lane_of(MESH)
ID = "0197f2a0-0000-7000-8000-000000000001"
OTHER_ID = "0197f2a0-0000-7000-8000-000000000002"
KEY = "b" * 64


@pytest.fixture
def ana(node: Node) -> Node:
    """A node whose mesh is shared, with two mates."""
    share(node)
    known_members = [known_member("b", name="bob"), known_member("c", name="cyd")]
    store_of(node).write(lambda tx: tx.known_members_put(MESH, known_members))
    return node


def outbox_rows(node: Node) -> list[OutboxRow]:
    return read(store_of(node), lambda tx: tx.outbox_list(None, (), 0, 999))


def put(node: Node, row: OutboxRow, **fields: Any) -> None:
    changed = msgspec.structs.replace(row, **fields)
    store_of(node).write(lambda tx: tx.outbox_put(changed))


def kill(node: Node, id: str, **fields: Any) -> None:
    row = next(row for row in outbox_rows(node) if row.id == e_id(id))
    dead = {"state": "dead", "attempts": 1, "code": "not_granted", "error": "no", "ended_at": 9}
    put(node, row, **{**dead, **fields})


def e_id(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


def bring(node: Node, *raws: bytes) -> Sequence[Applied]:
    """As the sync does with what the broker feeds."""
    delivered = {raw: b"B" * 16 for raw in raws}
    return store_of(node).write(Intake(node._engine.ctx, raws, delivered=delivered))


# --- sending -------------------------------------------------------------------------------------


def test_D10_a_message_is_in_the_log_and_in_the_outbox_together(ana: Node) -> None:
    sent = team(ana).send("hello", topic="news", priority="now", meta={"b": 1, "a": [2]})
    assert (sent.kind, sent.ref, sent.state, sent.duplicate) == ("topic", "news", "pending", False)
    (row,) = outbox_rows(ana)
    assert (row.lane, row.rank, row.entity, row.state) == (LANE, 0, "", "pending")
    assert row.id == e_id(sent.id)
    entry = next(ana.log.range(row.offset))
    envelope = decode(entry.raw)
    assert check_arriving(envelope) == ("topic", "news"), "a broker would take it"
    assert (envelope.op, envelope.entity, envelope.priority) == (
        *("message.send", "topic/news", "now"),
    )
    assert envelope.meta == b'{"a":[2],"b":1}'


def test_S6_a_change_of_a_shared_mesh_goes_to_the_outbox_and_of_a_personal_one_does_not(
    nodes: Nodes,
) -> None:
    node = nodes.open("ana", "team", "mine")
    share(node)
    node.mesh("mine").state.set("k", 1)
    assert outbox_rows(node) == []
    team(node).state.set("k", 1)
    team(node).facts.append("s", "p", 1)
    task = team(node).tasks.create("do it")
    team(node).tasks.claim(task.task)
    rows = outbox_rows(node)
    assert [row.entity.partition("/")[0] for row in rows] == ["state", "fact", "task", "task"]
    assert [row.offset for row in rows] == [2, 3, 4, 5]
    assert {row.state for row in rows} == {"pending"}
    with pytest.raises(IdReused):
        team(node).state.set("k", 1, id=ID) and team(node).state.set("k", 2, id=ID)
    assert len(outbox_rows(node)) == 5, "what is refused leaves nothing"


def test_D10_the_same_id_again_is_answered_from_the_outbox(ana: Node) -> None:
    mesh = team(ana)
    first = mesh.send("hello", topic="news", id=ID)
    again = mesh.send(b"hello", topic="news", content_type="text/plain", id=ID)
    assert again == msgspec.structs.replace(first, duplicate=True)
    (row,) = outbox_rows(ana)
    store_of(ana).write(lambda tx: tx.outbox_done([(row.number, b"B" * 16, 1, 7)], 5))
    assert mesh.send("hello", topic="news", id=ID).state == "done"
    assert len(outbox_rows(ana)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"content": "hullo"},
        {"topic": "olds"},
        {"topic": None, "queue": "news"},
        {"priority": "now"},
        {"meta": {"a": 1}},
        {"reply_to": OTHER_ID},
        {"content_type": "text/html"},
        {"content": b"hello"},
    ],
)
def test_D10_the_same_id_for_another_request_is_refused(ana: Node, other: dict[str, Any]) -> None:
    mesh = team(ana)
    mesh.send("hello", topic="news", id=ID)
    asked = {"content": "hello", "topic": "news", **other}
    with pytest.raises(IdempotencyKeyReused):
        mesh.send(asked.pop("content"), id=ID, **asked)
    assert len(outbox_rows(ana)) == 1


def test_D10_a_personal_mesh_sends_nothing(node: Node) -> None:
    with pytest.raises(NotShared, match="personal"):
        team(node).send("hello", topic="news")
    assert node.log.head().offset == 0
    with pytest.raises(UnknownMesh):
        node._engine.write("message.send", _sending_to_nowhere(node))


def _sending_to_nowhere(node: Node) -> Any:
    from holdfast.node.messages.send import MessageChange

    return MessageChange(node._engine.ctx, "nowhere", "topic", "news", b"")


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"topic": "a\0b"}, BadKey),
        ({"topic": ""}, BadInput),
        ({"topic": "a", "queue": "b"}, BadInput),
        ({}, BadInput),
        ({"topic": "x" * 129}, BadInput),
        ({"dm": "nobody"}, UnknownDestination),
        ({"dm": "B" * 64}, UnknownDestination),
        ({"topic": "a", "priority": "soon"}, BadInput),
        ({"topic": "a", "priority": "next\0"}, BadInput),
        ({"topic": "a", "reply_to": "x\0y"}, BadId),
        ({"topic": "a", "id": "17\n"}, BadId),
        ({"topic": "a", "content_type": "a\0b"}, BadKey),
        ({"topic": "a", "meta": {"a": float("nan")}}, BadValue),
        ({"topic": "a", "meta": {"a": 2**60}}, BadValue),
        ({"topic": "a", "content": b"x" * (MESSAGE_BYTES_MAX + 1)}, BodyTooLarge),
        ({"topic": "a", "content": "\ud800"}, BadValue),
        ({"topic": "a", "content": 7}, BadValue),
    ],
)
def test_D10_a_bad_message_is_refused_and_leaves_nothing(
    ana: Node, asked: dict[str, Any], error: type[Exception]
) -> None:
    asked = {"content": "hello", **asked}
    with pytest.raises(error):
        team(ana).send(asked.pop("content"), **asked)
    assert outbox_rows(ana) == []
    assert ana.log.head().offset == 0


def test_D5_a_dm_goes_to_a_key_or_to_a_member_by_name(ana: Node) -> None:
    by_name = team(ana).send("psst", dm="bob", id=ID)
    assert by_name.ref == KEY
    assert team(ana).send("psst", dm=KEY, id=ID).duplicate
    assert team(ana).send("psst", dm="d" * 64).ref == "d" * 64, "the broker knows who is a member"


def test_D5_two_members_of_one_name_are_told_apart_by_their_keys(ana: Node) -> None:
    known_members = [known_member("b", name="bob"), known_member("c", name="bob")]
    store_of(ana).write(lambda tx: tx.known_members_put(MESH, known_members))
    with pytest.raises(AmbiguousId, match="several") as refused:
        team(ana).send("psst", dm="bob")
    (first, _), (second, _) = refused.value.candidates
    assert bytes_of(first, 32).hex() == KEY
    for spelled in (second, second[:8], bytes_of(second, 32).hex()):
        assert team(ana).send("psst", dm=spelled).ref == bytes_of(second, 32).hex()


def test_D3_the_largest_message_passes_every_check_of_the_broker(ana: Node) -> None:
    sent = team(ana).send(b"\0" * MESSAGE_BYTES_MAX, queue="jobs", content_type="x/y")
    entry = next(ana.log.range(sent.offset))
    assert check_arriving(decode(entry.raw)) == ("queue", "jobs")


# --- what comes ----------------------------------------------------------------------------------


def test_D13_what_the_broker_brings_is_in_the_inbox_once(ana: Node, clock: HandClock) -> None:
    raw = e.message_send(
        "topic", "news", b"hi", lamport=3, content_type="text/plain", meta=b'{"a":1}'
    )
    (applied,) = bring(ana, raw)
    bring(ana, raw, raw)
    (found,) = ana.inbox.list()
    assert (found.sender, found.kind, found.ref, found.preview) == ("bob", "topic", "news", "hi")
    message = team(ana).inbox.get(found.id)
    assert (message.text, message.meta, message.content_type) == ("hi", {"a": 1}, "text/plain")
    assert (message.broker_id, message.read_at) == ((b"B" * 16).hex(), None)
    assert ana.inbox.counts() == (1, 1)
    assert applied.offset == 1
    clock.advance(5)
    assert ana.inbox.read(found.id).read_at == clock.now_ms()
    clock.advance(5)
    assert ana.inbox.read(found.id).read_at == clock.now_ms() - 5
    assert list(ana.inbox.list(unread=True)) == []
    bring(ana, raw)
    assert ana.inbox.counts() == (1, 0), "a redelivery is no news"


def test_D13_messages_are_watched_as_they_arrive_and_from_a_number_on(ana: Node) -> None:
    news = [e.message_send("topic", f"n{n % 2}", b"%d" % n, lamport=3 + n) for n in range(6)]
    ana.apply([news[2]])  # as history first: its place in the log is before that of the others
    with team(ana).inbox.watch() as watch:
        bring(ana, news[0], news[1])
        bring(ana, news[2])
        assert [next(watch).preview for _ in range(3)] == ["0", "1", "2"]
    bring(ana, *news[3:])
    with ana.inbox.watch(since=watch.cursor) as again:
        assert [next(again).preview for _ in range(3)] == ["3", "4", "5"]
    with ana.inbox.watch(topic="n1", sender="bob", since="start") as narrow:
        found = [next(narrow) for _ in range(3)]
    assert [(one.preview, one.ref) for one in found] == [("1", "n1"), ("3", "n1"), ("5", "n1")]
    with pytest.raises(PastEnd, match="the newest is 6"):
        ana.inbox.watch(since=7)
    with pytest.raises(BadInput, match="no number"):
        ana.inbox.watch(since="1:2")


def test_D13_a_message_that_comes_by_another_way_is_history(ana: Node) -> None:
    raw = e.message_send("topic", "news", b"hi", lamport=3)
    assert ana.apply([raw])[0].error is None
    assert list(ana.inbox.list()) == []
    assert ana.log.head().offset == 1
    bring(ana, raw)
    assert [found.preview for found in ana.inbox.list()] == ["hi"], "until the broker brings it"
    assert ana.log.head().offset == 1


def test_D13_our_own_messages_and_changes_do_not_come_to_our_inbox(ana: Node) -> None:
    team(ana).send("hello", topic="news")
    (own,) = [entry.raw for entry in ana.log.range()]
    lost = e.message_send("topic", "news", b"of old", origin="ana", lamport=9)
    bring(ana, own, lost, e.state_set("k", 1, lamport=12))
    assert list(ana.inbox.list()) == []
    assert team(ana).state.get("k") == 1


def test_D3_a_message_whose_fingerprint_is_not_its_own_is_refused(ana: Node) -> None:
    raw = e.message_send("topic", "news", b"hi")
    for bad in (
        e.changed(raw, fingerprint=b"\7" * 32),
        e.changed(raw, priority="now"),
        e.changed(raw, reply_to=ID),
        e.changed(raw, to=("topic", "olds")),
        e.changed(raw, to=None),
    ):
        for applied in (*bring(ana, bad), *ana.apply([bad])):
            assert isinstance(applied.error, BadEnvelope)
    assert ana.log.head().offset == 0
    assert list(ana.inbox.list()) == []


def test_S17_a_late_message_is_taken_however_much_was_forgotten(
    ana: Node, clock: HandClock
) -> None:
    team(ana).state.set("k", 1)
    team(ana).state.delete("k")
    for row in outbox_rows(ana):
        put(ana, row, state="done", ended_at=clock.now_ms())
    clock.advance(100 * DAY_MS)
    assert ana.sweep().tombstones == 1
    (applied,) = bring(ana, e.message_send("topic", "news", b"late", lamport=1))
    assert applied.error is None
    assert ana.inbox.counts() == (1, 1)


def test_D13_the_inbox_of_a_mesh_shows_no_other(nodes: Nodes) -> None:
    node = nodes.open("ana", "team", "other")
    share(node)
    share(node, "other")
    raws = [
        e.message_send("topic", "t", b"x", mesh=mesh, lamport=n)
        for n, mesh in enumerate(("team", "other", "team"), 1)
    ]
    bring(node, *raws)
    assert [found.mesh for found in node.inbox.list()] == ["team", "other", "team"]
    assert [found.number for found in node.inbox.list(after=1)] == [2, 3]
    assert len(list(team(node).inbox.list())) == 2
    foreign = next(iter(node.mesh("other").inbox.list())).id
    with pytest.raises(UnknownMessage):
        team(node).inbox.get(foreign)
    with pytest.raises(UnknownMessage):
        node.inbox.read(ID)


def test_D13_the_inbox_is_searched_by_words_sender_topic_and_time(
    ana: Node, clock: HandClock
) -> None:
    begun = clock.now_ms()
    for n, (topic, content) in enumerate(
        (("news", b"The PUMP stands still"), ("alarms", b"\xff\xfe"), ("news", "größe".encode())), 1
    ):
        bring(ana, e.message_send("topic", topic, content, lamport=n, id=make_id(n)))
        clock.advance(10)

    def found(**match: Any) -> list[int]:
        return [message.number for message in ana.inbox.list(**match)]

    assert found(text="pump") == [1]
    assert found(text="GRÖSSE") == [3], "letters are compared without their case"
    assert found(text="alarm") == [2], "a destination has words too"
    assert found(text="nothing of it") == []
    assert found(topic="news", since_ms=begun + 10) == [3]
    assert found(sender="bob", until_ms=begun + 20) == [1, 2]
    assert found(sender="eve") == []
    with pytest.raises(BadInput):
        found(since_ms="yesterday")
    with pytest.raises(OverLimit):
        found(text="x" * 1001)


def test_D13_a_search_goes_on_where_the_last_page_stopped_looking(
    ana: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("storage.sqlite.inbox", "storage.memory.inbox", "node.messages.inbox"):
        monkeypatch.setattr(f"holdfast.{module}.INBOX_SCAN_ROWS", 2)
    for n in range(1, 8):
        content = b"wanted" if n in (1, 6) else b"other"
        bring(ana, e.message_send("topic", "news", content, lamport=n, id=make_id(n)))
    first = ana.inbox.page(unread=False, after=2, limit=9, match=InboxMatch(text="wanted"))
    assert (list(first.messages), first.next) == ([], 4), "it says how far it looked"
    assert [message.number for message in ana.inbox.list(text="wanted")] == [1, 6]


def test_D5_a_reply_goes_to_the_sender_and_names_what_it_answers(ana: Node) -> None:
    bring(ana, e.message_send("topic", "news", b"hi", id=make_id(5)))
    (found,) = ana.inbox.list()
    sent = ana.inbox.reply(found.id, "hello bob", new_id=ID)
    assert (sent.kind, sent.ref) == ("dm", KEY)
    assert decode(next(ana.log.range(sent.offset)).raw).reply_to == found.id
    assert ana.inbox.reply(found.id, "hello bob", new_id=ID).duplicate


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", ""),
        (b"a\n b\t\tc", "a b c"),
        (b"\xff\xfe", ""),
        (b"\x1b[31mred", ""),
        ("é".encode() * 200, "é" * 79 + "…"),
        (b"x" * 80, "x" * 80),
        (b"x" * 321, "x" * 79 + "…"),
    ],
)
def test_U2_a_preview_is_one_clean_line(content: bytes, shown: str) -> None:
    from holdfast.node.messages.inbox import preview

    assert preview(content) == shown


# --- caring for the outbox -----------------------------------------------------------------------


def test_D11_the_outbox_lists_messages_and_changes_with_what_they_are(ana: Node) -> None:
    team(ana).state.set("k", 1)
    sent = team(ana).send("hello", topic="news", priority="low")
    items = list(ana.outbox.list())
    assert [(item.op, item.entity, item.priority, item.state) for item in items] == [
        ("state.set", "k", "next", "pending"),
        ("message.send", "topic/news", "low", "pending"),
    ]
    kill(ana, sent.id)
    assert [item.id for item in ana.outbox.list(failed=True)] == [sent.id]
    assert ana.outbox.get(sent.id).error == "no"
    assert list(ana.outbox.list(lane="other")) == []
    assert len(list(ana.outbox.list(lane=MESH))) == len(list(ana.outbox.list(lane=LANE))) == 2
    with pytest.raises(UnknownMessage):
        ana.outbox.get(ID)
    with pytest.raises(BadInput, match="no state"):
        ana.outbox.page(states=("lost",), lane=None, after=0, limit=1)


def test_D12_the_outbox_says_what_blocks_what(ana: Node) -> None:
    mesh = team(ana)
    first = mesh.state.set("k", 1).id
    for key in ("k", "l"):
        mesh.state.set(key, 2)
    mesh.send("hello", topic="news")
    kill(ana, first)

    def blocked(policy: Policy) -> list[str | None]:
        outbox = Outbox(ana._engine, Policies(policy))
        return [item.blocked_by for item in outbox.list()]

    assert blocked(Policy.PARK) == [None, first, None, None]
    assert blocked(Policy.HALT) == [None, first, first, first]
    assert blocked(Policy.QUARANTINE) == [None] * 4
    (lane,) = Outbox(ana._engine, Policies(Policy.PARK, {MESH: Policy.HALT})).lanes()
    assert (lane.policy, lane.failing, lane.problem) == ("halt", first, "not_granted: no")
    assert (lane.pending, lane.dead, lane.blocks) == (3, 1, "everything after it")


def test_D11_retry_puts_a_dead_one_back(ana: Node) -> None:
    sent = team(ana).send("hello", topic="news")
    kill(ana, sent.id, attempts=10, not_before=10**15)
    item = ana.outbox.retry(sent.id)
    assert (item.state, item.attempts, item.retry_at) == ("pending", 0, None)
    (row,) = outbox_rows(ana)
    put(ana, row, state="done")
    with pytest.raises(Conflict, match="done"):
        ana.outbox.retry(sent.id)


def test_D11_drop_gives_up_what_the_broker_has_not(ana: Node) -> None:
    sent = team(ana).send("hello", topic="news")
    change = team(ana).state.set("k", 1)
    assert ana.outbox.drop(sent.id).state == "aborted"
    assert ana.outbox.drop(sent.id).state == "aborted", "again is no error"
    assert ana.outbox.drop(change.id).code == "dropped"
    assert ana.outbox.retry(sent.id).state == "pending", "and that can be thought over"
    (row, _) = outbox_rows(ana)
    for state in ("inflight", "done"):
        put(ana, row, state=state)
        with pytest.raises(Conflict):
            ana.outbox.drop(sent.id)


def test_D11_requeue_sends_the_same_again_as_a_new_message(ana: Node) -> None:
    asked = {"dm": "bob", "priority": "low", "meta": {"a": 1}, "content_type": "x/y"}
    old = team(ana).send("hello", reply_to=OTHER_ID, **asked)  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="twice"):
        ana.outbox.requeue(old.id)
    kill(ana, old.id)
    new = ana.outbox.requeue(old.id, new_id=ID)
    assert (new.id, new.kind, new.ref, new.state) == (ID, "dm", KEY, "pending")
    before, after = (decode(entry.raw) for entry in ana.log.range())
    assert (
        after.to,
        after.body,
        after.meta,
        after.reply_to,
        after.priority,
        after.fingerprint,
    ) == (
        *(before.to, before.body, before.meta, before.reply_to, before.priority),
        before.fingerprint,
    )
    items = list(ana.outbox.list())
    assert [item.state for item in items] == ["aborted", "pending"]
    assert items[0].code == "replaced"
    assert ID in items[0].error
    assert "not_granted: no" in items[0].error
    assert items[1].replaces == old.id
    assert ana.outbox.requeue(old.id, new_id=ID).duplicate, "whoever did not hear asks again"
    with pytest.raises(Conflict, match="sent again"):
        ana.outbox.requeue(old.id)
    with pytest.raises(Conflict, match="sent again"):
        ana.outbox.retry(old.id)
    assert len(outbox_rows(ana)) == 2


def test_D11_requeue_takes_no_id_that_stands_for_something(ana: Node) -> None:
    one = team(ana).send("hello", topic="news")
    team(ana).send("hello", topic="news", id=ID)
    kill(ana, one.id)
    with pytest.raises(IdempotencyKeyReused):
        ana.outbox.requeue(one.id, new_id=ID)
    assert ana.outbox.get(one.id).state == "dead", "nothing has changed"


def test_D11_a_change_cannot_be_sent_as_a_new_one(ana: Node) -> None:
    change = team(ana).state.set("k", 1)
    kill(ana, change.id)
    with pytest.raises(BadInput, match="known everywhere by its id"):
        ana.outbox.requeue(change.id)
    assert ana.outbox.retry(change.id).state == "pending"
    assert ana.outbox.drop(change.id).state == "aborted"


def test_D8_messages_that_have_waited_too_long_are_dead_and_changes_are_not(
    ana: Node, clock: HandClock
) -> None:
    old = team(ana).send("hello", topic="news")
    team(ana).state.set("k", 1)
    clock.advance(72 * HOUR_MS)
    young = team(ana).send("hello", topic="news")
    assert expire(ana._engine, LANE, 72) == 0, "to the millisecond"
    clock.advance(1)
    assert expire(ana._engine, LANE, 72) == 1
    assert [item.state for item in ana.outbox.list()] == ["dead", "pending", "pending"]
    assert ana.outbox.get(old.id).code == "outbox_expired"
    with pytest.raises(Conflict) as refused:
        ana.outbox.retry(old.id)
    assert "requeue --new-id" in str(refused.value.hint)
    assert ana.outbox.requeue(old.id).state == "pending"
    clock.advance(72 * HOUR_MS)
    assert expire(ana._engine, LANE, 72) == 1
    assert ana.outbox.get(young.id).state == "dead"


def test_D8_a_row_that_was_put_back_lately_does_not_hide_an_old_message(
    ana: Node, clock: HandClock
) -> None:
    team(ana).state.set("k", 1)
    old = team(ana).send("hello", topic="news")
    clock.advance(72 * HOUR_MS + 1)
    (first, _) = ana._engine.read("test", lambda tx: tx.outbox_list(LANE, (), 0, 9))
    put_back = msgspec.structs.replace(first, created_at=clock.now_ms())
    ana._engine.write("test", lambda tx: tx.outbox_put(put_back))
    assert expire(ana._engine, LANE, 72) == 1
    assert ana.outbox.get(old.id).state == "dead"


def test_D8_old_changes_without_number_hold_up_no_writer(
    ana: Node, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a long time offline they are what the outbox is full of."""
    team(ana).state.set("k", 1)
    clock.advance(99 * HOUR_MS)
    written: list[str] = []
    monkeypatch.setattr(ana._engine, "write", lambda name, work: written.append(name))
    assert expire(ana._engine, LANE, 72) == 0
    assert written == []


# --- forgetting ----------------------------------------------------------------------------------

NOW = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0, blob_ms=0, orphan_ms=0)


def test_S17_the_log_keeps_what_the_broker_has_not_got(ana: Node, clock: HandClock) -> None:
    mesh = team(ana)
    mesh.state.set("a", 1)
    sent = mesh.send("hello", topic="news")
    mesh.state.set("b", 1)
    mesh.state.delete("b")
    rows = outbox_rows(ana)
    store_of(ana).write(
        lambda tx: tx.outbox_done(
            [(row.number, b"", 1, row.number) for row in rows if row.entity], 5
        )
    )
    clock.advance(1000)
    swept = ana.sweep(NOW)
    assert (swept.log_entries, swept.tombstones) == (1, 0)
    assert ana.log.head().first == 2
    for state in ("inflight", "dead"):
        put(ana, rows[1], state=state)
        assert ana.sweep(NOW).log_entries == 0
    put(ana, rows[1], state="aborted", ended_at=clock.now_ms())
    swept = ana.sweep(NOW)
    assert (swept.log_entries, swept.tombstones) == (2, 1)
    assert ana.outbox.get(sent.id).op == "", "what it was is forgotten, and nobody minds"
    with pytest.raises(UnknownMessage, match="gone"):
        ana.outbox.requeue(sent.id)


def test_D7_what_has_ended_is_listed_for_a_day(ana: Node, clock: HandClock) -> None:
    for _ in range(3):
        team(ana).send("hello", topic="news")
    rows = outbox_rows(ana)
    done = [(row.number, b"", 1, row.number) for row in rows[:2]]
    store_of(ana).write(lambda tx: tx.outbox_done(done, clock.now_ms()))
    clock.advance(OUTBOX_DONE_MS - 1)
    assert ana.sweep().outbox_rows == 0
    clock.advance(1)
    assert ana.sweep().outbox_rows == 2
    assert [row.number for row in outbox_rows(ana)] == [3]


def test_S17_an_unread_message_keeps_its_content_and_a_read_one_goes_with_the_log(
    ana: Node, clock: HandClock
) -> None:
    bring(ana, *(e.message_send("topic", "t", b"%d" % n, lamport=n) for n in (1, 2, 3)))
    store_of(ana).write(lambda tx: tx.broker_positions_add(MESH, 1, [(1, 1), (2, 2), (3, 3)]))
    first, second, third = (found.id for found in ana.inbox.list())
    ana.inbox.read(first)
    ana.inbox.read(third)
    clock.advance(1000)
    swept = ana.sweep(NOW)
    assert (swept.log_entries, swept.inbox_rows, swept.broker_position_rows) == (1, 1, 1)
    assert [found.id for found in ana.inbox.list()] == [second, third]
    assert ana.inbox.get(second).text == "2"
    clock.advance(91 * DAY_MS)
    swept = ana.sweep(NOW)
    assert swept.log_entries == 1, "nobody reads it any more"
    with pytest.raises(UnknownMessage):
        ana.inbox.get(second)


def test_D13_a_message_that_comes_again_after_the_log_forgot_it_is_no_news(
    ana: Node, clock: HandClock
) -> None:
    raw = e.message_send("topic", "t", b"1", lamport=1)
    bring(ana, raw, e.message_send("topic", "t", b"2", lamport=2))
    for found in ana.inbox.list():
        ana.inbox.read(found.id)
    clock.advance(1000)
    ana.sweep(Ttl(log_ms=0))
    assert ana.inbox.counts() == (1, 0)
    bring(ana, raw)
    assert ana.inbox.counts() == (1, 0)


# --- the same for coroutines ---------------------------------------------------------------------


def test_U1_coroutines_send_read_and_care(ana: Node) -> None:
    async def story() -> None:
        node = AsyncNode(ana)
        mesh = await node.mesh(MESH)
        sent = await mesh.send("hello", dm="bob", id=ID)
        assert (await mesh.send("hello", dm="bob", id=ID)).duplicate
        assert (await node.outbox.get(sent.id)).state == "pending"
        assert [item.id async for item in node.outbox.list()] == [sent.id]
        assert (await node.outbox.lanes())[0].pending == 1
        assert (await node.outbox.drop(sent.id)).state == "aborted"
        assert (await node.outbox.retry(sent.id)).state == "pending"
        await node.outbox.drop(sent.id)
        assert (await node.outbox.requeue(sent.id)).state == "pending"
        bring(ana, e.message_send("topic", "news", b"hi", lamport=40))
        (found,) = [one async for one in mesh.inbox.list(unread=True)]
        assert (await node.inbox.get(found.id)).text == "hi"
        assert (await node.inbox.read(found.id)).read_at is not None
        assert (await node.inbox.reply(found.id, "hey")).kind == "dm"
        assert await node.inbox.counts() == (1, 0)
        with pytest.raises(NotShared):
            await (await node.create_mesh("mine")).send("x", topic="t")

    asyncio.run(story())


def test_D11_a_row_is_made_of_any_envelope_of_the_log(ana: Node) -> None:
    """For those who bring what was written before the mesh was shared."""
    team(ana).send("hello", topic="news", priority="low")
    (entry,) = ana.log.range()
    made = outbox_row(LANE, decode(entry.raw), entry.offset, 5)
    (row,) = outbox_rows(ana)
    assert msgspec.structs.replace(made, number=row.number, created_at=row.created_at) == row


def test_S12_doctor_finds_nothing_wrong_with_messages(tmp_path: Path) -> None:
    with open_node(tmp_path / "home", peer="ana", create=True, sync="normal") as node:
        node.create_mesh(MESH)
        share(node)
        team(node).send("hello", topic="k")
        team(node).state.set("topic/k", 1)
        bring(node, e.message_send("topic", "k", b"hi", lamport=5))
    checks = diagnose(tmp_path / "home", full=True).checks
    assert [check for check in checks if check.status == "fail"] == []
    assert {check.status for check in checks if check.name == "fold"} <= {"ok"}
