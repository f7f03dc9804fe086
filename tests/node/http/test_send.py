"""Sending over HTTP: durable, once, and refused in words; the inbox and the outbox beside it."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.core.intake import Intake
from holdfast.node.daemon.hooks import HookRunner
from holdfast.node.daemon.message_hook import MessageWatch
from holdfast.node.settings import OutboxSettings, Settings
from holdfast.node.watching.log_watch import LogWatch
from holdfast.rules.errors import DiskFull
from holdfast.rules.ids import parse_id
from holdfast.rules.limits import BODY_BYTES_MAX, MESSAGE_BYTES_MAX
from holdfast.rules.outbox import Policy
from holdfast.rules.rows import OutboxRow
from holdfast.storage.ports import Reader
from support import envelopes as e
from support.daemon import make_home, running
from support.events import Events
from support.nodes import share
from support.stores import known_member
from support.talk import Talk
from support.waiting import until

SEND, INBOX, OUTBOX = "/v1/send", "/v1/inbox", "/v1/outbox"
ID = "0197f2a0-0000-7000-8000-000000000001"
OTHER_ID = "0197f2a0-0000-7000-8000-000000000002"
NEWS = {"to": {"topic": "news"}, "body": "hello"}


def shared_home(folder: Path, *meshes: str) -> Path:
    """Its broker cannot be reached, so that everything stays where it is put."""
    from holdfast.node.library.node import open_node

    make_home(folder, "ana", *meshes)
    with open_node(folder, sync="normal") as node:
        share(node)
        known_members = [known_member("b", name="bob")]
        node._engine.store.write(lambda tx: tx.known_members_put("team", known_members))
    return folder


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    settings = Settings(tcp="127.0.0.1:0", outbox=OutboxSettings(policy=Policy.HALT))
    with running(shared_home(tmp_path / "home", "team", "mine"), settings) as up:
        yield Talk(up, up.unix)


def bring(talk: Talk, *raws: bytes) -> None:
    work = Intake(talk.engine.ctx, raws, delivered=dict.fromkeys(raws, b"B" * 16))
    talk.engine.store.write(work)


def kill(talk: Talk, id: str) -> None:
    import msgspec

    raw = bytes.fromhex(id.replace("-", ""))
    (row,) = talk.engine.read("test", lambda tx: tx.outbox_find(raw))
    dead = msgspec.structs.replace(
        row, state="dead", attempts=1, ended_at=9, code="not_granted", error="no"
    )
    talk.engine.write("test", lambda tx: tx.outbox_put(dead))


# --- sending -------------------------------------------------------------------------------------


def test_D10_a_message_is_on_the_disk_when_it_is_answered(talk: Talk) -> None:
    answer = talk.ask("POST", SEND, NEWS)
    assert answer.status == 201
    sent = answer.json
    assert (sent["mesh"], sent["kind"], sent["ref"]) == ("team", "topic", "news")
    assert (sent["state"], sent["duplicate"]) == ("pending", False)
    item = talk.ask("GET", f"{OUTBOX}/{sent['id']}").json
    assert (item["op"], item["entity"], item["state"]) == ("message.send", "topic/news", "pending")


def test_D10_the_id_is_that_of_the_header_else_of_the_body_else_minted(talk: Talk) -> None:
    assert talk.ask("POST", SEND, {**NEWS, "id": OTHER_ID}, idempotency_key=ID).json["id"] == ID
    assert talk.ask("POST", SEND, {**NEWS, "id": OTHER_ID}).json["id"] == OTHER_ID
    one, other = (talk.ask("POST", SEND, NEWS).json["id"] for _ in range(2))
    assert one != other


def test_D10_the_same_id_again_gives_the_same_id_and_its_state(talk: Talk) -> None:
    first = talk.ask("POST", SEND, NEWS, idempotency_key=ID)
    again = talk.ask("POST", SEND, NEWS, idempotency_key=f'"{ID}"')
    assert (first.status, again.status) == (201, 200)
    assert again.json == {**first.json, "duplicate": True}
    kill(talk, ID)
    assert talk.ask("POST", SEND, NEWS, idempotency_key=ID).json["state"] == "dead"
    other = talk.ask("POST", SEND, {**NEWS, "body": "hullo"}, idempotency_key=OTHER_ID)
    third = talk.ask("POST", SEND, NEWS, idempotency_key=OTHER_ID)
    assert (other.status, third.status, third.code) == (201, 409, "idempotency_key_reused")
    corrected = talk.ask("POST", SEND, {**NEWS, "body": "hullo"}, idempotency_key=ID)
    assert (corrected.status, corrected.json["state"]) == (201, "pending"), "a refusal uses no key"


def test_D10_bytes_meta_and_the_rest_arrive_as_they_were_sent(talk: Talk) -> None:
    content = bytes(range(256))
    sent = talk.ask(
        "POST",
        SEND,
        {
            "mesh": "team",
            "to": {"dm": "bob"},
            "body_base64": base64.b64encode(content).decode(),
            "content_type": "x/y",
            "meta": {"b": 1.0, "a": "é"},
            "priority": "low",
            "reply_to": OTHER_ID,
        },
    )
    assert sent.status == 201, sent
    (entry,) = talk.api.node.log.range(sent.json["offset"])
    from holdfast.rules.bodies import MessageSend
    from holdfast.rules.envelope import decode
    from holdfast.rules.message import check_arriving

    envelope = decode(entry.raw)
    assert check_arriving(envelope) == ("dm", "b" * 64)
    assert envelope.meta == '{"a":"é","b":1}'.encode()
    assert (envelope.priority, envelope.reply_to) == ("low", OTHER_ID)
    from holdfast.rules.bodies import decode_body

    assert decode_body(envelope) == MessageSend(content, "x/y")


def raw(**parts: str) -> bytes:
    """A request as text, so that a part of it can be what no library would write."""
    fields = {"to": '{"topic":"t"}', "body": '"x"', **parts}
    return (
        "{" + ",".join(f'"{name}":{text}' for name, text in fields.items() if text) + "}"
    ).encode()


INPUT, VALUE, KEY = "bad_input", "bad_value", "bad_key"
BAD: list[tuple[str, bytes, int, str]] = [
    ("empty", b"", 400, INPUT),
    ("not JSON", b"{", 400, INPUT),
    ("a list", b"[]", 400, INPUT),
    ("a key twice", raw()[:-1] + b',"body":"y"}', 400, INPUT),
    ("an unknown key", raw(bodie='"x"'), 400, INPUT),
    ("no content", raw(body=""), 400, INPUT),
    ("two contents", raw(body_base64='"eA=="'), 400, INPUT),
    ("no base64", raw(body="", body_base64='"é"'), 400, INPUT),
    ("a NUL in a destination", raw(to='{"topic":"a\\u0000b"}'), 400, KEY),
    ("a NUL in the reply", raw(reply_to='"a\\u0000b"'), 400, "bad_id"),
    ("a NUL in the content type", raw(content_type='"a\\u0000"'), 400, KEY),
    ("no destination", raw(to="{}"), 400, INPUT),
    ("two destinations", raw(to='{"topic":"t","queue":"q"}'), 400, INPUT),
    ("an unknown kind", raw(to='{"topick":"t"}'), 400, INPUT),
    ("nobody", raw(to='{"dm":"nobody"}'), 404, "unknown_destination"),
    ("a priority", raw(priority='"soon"'), 400, INPUT),
    ("an id", raw(id='"17\\n"'), 400, "bad_id"),
    ("a long id", raw(id=f'"{"x" * 256}"'), 400, "over_limit"),
    ("no mesh", raw(mesh='"nowhere"'), 404, "unknown_mesh"),
    ("a personal mesh", raw(mesh='"mine"'), 409, "not_shared"),
    ("meta twice", raw(meta='{"a":1,"a":2}'), 400, INPUT),
    ("meta twice inside", raw(meta='{"a":[{"b":1,"b":2}]}'), 400, INPUT),
    ("meta with NaN", raw(meta='{"a":NaN}'), 400, INPUT),
    ("meta with a huge number", raw(meta='{"a":1e999}'), 400, VALUE),
    ("meta with a long number", raw(meta='{"a":9007199254740993}'), 400, VALUE),
    ("meta that is a list", raw(meta="[1]"), 400, VALUE),
    ("meta that is text", raw(meta='"{}"'), 400, VALUE),
    ("meta too deep", raw(meta='{"a":' + "[" * 200 + "]" * 200 + "}"), 400, VALUE),
    ("meta too large", raw(meta=json.dumps({"a": "x" * 70_000})), 400, VALUE),
    ("half a pair", raw(body='"\\ud800"'), 400, INPUT),
    ("too large", raw(body=f'"{"x" * (MESSAGE_BYTES_MAX + 1)}"'), 413, "body_too_large"),
    ("far too large", raw(body=f'"{"x" * BODY_BYTES_MAX}"'), 413, "body_too_large"),
]


def test_D10_a_bad_request_is_refused_in_words_and_leaves_nothing(talk: Talk) -> None:
    before = talk.state()
    for name, body, status, code in BAD:
        answer = talk.ask("POST", SEND, body)
        assert (answer.status, answer.code) == (status, code), (name, answer)
        assert answer.json["error"]["message"], name
    assert talk.ask("POST", SEND, NEWS, idempotency_key="").code == "bad_id"
    assert talk.state() == before


def test_D10_meta_that_is_nothing_is_no_meta(talk: Talk) -> None:
    for number, meta in enumerate(("", "null", "{}", " { } ")):
        parts = {"meta": meta} if meta else {}
        answer = talk.ask("POST", SEND, raw(**parts), idempotency_key=ID)
        assert answer.status == (200 if number else 201), meta


def test_D10_a_full_disk_takes_no_messages_and_says_so(talk: Talk) -> None:
    def full() -> None:
        raise DiskFull("no room")

    talk.engine.admit = full
    answer = talk.ask("POST", SEND, NEWS)
    assert (answer.status, answer.code) == (507, "disk_full")
    talk.engine.admit = None
    assert talk.ask("POST", SEND, NEWS).status == 201


def test_D10_only_this_nodes_own_user_sends(talk: Talk) -> None:
    up = talk.up
    token = talk.api.trust.add_token("all")
    loopback = Talk(up, up.tcp)
    assert loopback.ask("POST", SEND, NEWS).status == 401
    assert Talk(up, up.tcp, token).ask("POST", SEND, NEWS).status == 201
    assert loopback.ask("POST", f"{SEND}?token={token}", NEWS).status == 401
    reader = talk.api.trust.add_token("reader", reads=["*"])
    for method, path in (("POST", SEND), ("GET", INBOX), ("GET", OUTBOX)):
        body = NEWS if method == "POST" else None
        assert Talk(up, up.tcp, reader).ask(method, path, body).status in (401, 403)


# --- the inbox -----------------------------------------------------------------------------------


def test_D13_the_inbox_is_listed_read_and_answered(talk: Talk) -> None:
    bring(
        talk,
        e.message_send("topic", "news", b"hi", lamport=1, content_type="text/plain"),
        e.message_send("dm", "a" * 64, b"\xff", lamport=2, meta=b'{"a":1}'),
    )
    page = talk.ask("GET", INBOX).json
    assert [found["preview"] for found in page["messages"]] == ["hi", ""]
    assert (page["total"], page["unread"], page["next"]) == (2, 2, None)
    assert "body" not in page["messages"][0]
    first, second = (found["id"] for found in page["messages"])
    assert talk.ask("GET", f"{INBOX}?limit=1").json["next"] == 1
    assert [m["id"] for m in talk.ask("GET", f"{INBOX}?after=1").json["messages"]] == [second]
    assert "read_at" not in talk.ask("GET", f"{INBOX}/{first}").json
    opened = talk.ask("POST", f"{INBOX}/{first}/read").json
    assert (opened["body"], opened["sender"]) == ("hi", "bob")
    assert opened["read_at"] > 0
    assert talk.ask("GET", f"{INBOX}/{second}").json["body_base64"] == "/w=="
    for query, ids in (
        ("text=HI", [first]),
        ("sender=bob&topic=news", [first]),
        ("since=1&until=2", []),
        ("sender=eve", []),
    ):
        assert [m["id"] for m in talk.ask("GET", f"{INBOX}?{query}").json["messages"]] == ids
    assert talk.ask("GET", f"{INBOX}?since=soon").status == 400
    unread = talk.ask("GET", f"{INBOX}?unread=true&mesh=team").json
    assert [found["id"] for found in unread["messages"]] == [second]
    sent = talk.ask("POST", f"{INBOX}/{first}/reply", {"body": "hey"}, idempotency_key=ID)
    assert (sent.status, sent.json["id"], sent.json["kind"]) == (201, ID, "dm")
    again = talk.ask("POST", f"{INBOX}/{first}/reply", {"body": "hey"}, idempotency_key=ID)
    assert again.status == 200


REFUSED: list[tuple[str, str, Any, int]] = [
    ("GET", f"{INBOX}/{ID}", None, 404),
    ("POST", f"{INBOX}/{ID}/read", None, 404),
    ("POST", f"{INBOX}/{ID}/reply", {"body": "x"}, 404),
    ("POST", f"{INBOX}/{ID}/reply", {}, 400),
    ("GET", f"{INBOX}/17", None, 400),
    ("GET", f"{INBOX}?unread=yes", None, 400),
    ("GET", f"{INBOX}?limit=0", None, 400),
    ("GET", f"{INBOX}?limit=501", None, 400),
    ("GET", f"{INBOX}?limt=5", None, 400),
    ("GET", f"{OUTBOX}/{ID}", None, 404),
    ("GET", f"{OUTBOX}?state=lost", None, 400),
    ("GET", f"{OUTBOX}?failed=true&state=dead", None, 400),
    ("POST", f"{OUTBOX}/{ID}/retry", None, 404),
    ("POST", f"{OUTBOX}/{ID}/drop", None, 404),
    ("POST", f"{OUTBOX}/17/requeue", {}, 400),
    ("POST", f"{OUTBOX}/{ID}/requeue", {"newid": ID}, 400),
]


def test_U4_what_is_not_there_or_not_asked_well_is_refused(talk: Talk) -> None:
    before = talk.state()
    for method, path, body, status in REFUSED:
        answer = talk.ask(method, path, body)
        assert answer.status == status, (method, path, answer)
    assert talk.state() == before


# --- the outbox ----------------------------------------------------------------------------------


def test_D11_the_outbox_is_listed_and_cared_for(talk: Talk) -> None:
    first, second = (talk.ask("POST", SEND, NEWS).json["id"] for _ in range(2))
    kill(talk, first)
    page = talk.ask("GET", OUTBOX).json
    assert [item["blocked_by"] for item in page["items"]] == [None, first], "as the settings say"
    (lane,) = page["lanes"]
    assert (lane["lane"], lane["policy"], lane["failing"]) == ("broker:team", "halt", first)
    assert talk.ask("GET", "/v1/status").json["outbox"] == page["lanes"]
    failed = talk.ask("GET", f"{OUTBOX}?failed=true&lane=team").json
    assert [item["id"] for item in failed["items"]] == [first]
    assert talk.ask("POST", f"{OUTBOX}/{second}/requeue", {}).status == 409
    new = talk.ask("POST", f"{OUTBOX}/{first}/requeue", {"new_id": ID})
    assert (new.status, new.json["id"]) == (201, ID)
    assert talk.ask("POST", f"{OUTBOX}/{first}/requeue", {"new_id": ID}).status == 200
    assert talk.ask("GET", f"{OUTBOX}/{ID}").json["replaces"] == first
    assert talk.ask("POST", f"{OUTBOX}/{first}/retry").status == 409
    assert talk.ask("POST", f"{OUTBOX}/{second}/drop").json["state"] == "aborted"
    assert talk.ask("POST", f"{OUTBOX}/{second}/retry").json["state"] == "pending"
    states = talk.ask("GET", f"{OUTBOX}?state=aborted&state=dead").json["items"]
    assert [item["id"] for item in states] == [first]


def test_D16_the_metrics_tell_of_both(talk: Talk) -> None:
    talk.ask("POST", SEND, NEWS)
    bring(talk, e.message_send("topic", "news", b"hi", lamport=5))
    text = talk.ask("GET", "/metrics").body.decode()
    assert 'holdfast_outbox_rows{lane="broker:team",state="pending"} 1.0' in text
    assert "holdfast_inbox_unread 1.0" in text
    assert 'holdfast_hook_runs_total{event="message",how="failed"} 0.0' in text


# --- telling of messages -------------------------------------------------------------------------


def test_D13_a_message_is_told_as_an_event_and_so_is_a_failure(talk: Talk) -> None:
    events = Events(talk.up, "?op=none")
    bring(talk, e.message_send("topic", "news", b"hi", lamport=5))
    told = _next(events, "message")
    assert (told["sender"], told["ref"]) == ("bob", "news")
    sent = talk.ask("POST", SEND, NEWS).json["id"]
    kill(talk, sent)
    told = _next(events, "outbox")
    assert (told["lane"], told["id"], told["code"]) == ("broker:team", sent, "not_granted")
    talk.ask("POST", f"{OUTBOX}/{sent}/drop")
    assert _next(events, "outbox")["state"] == "aborted"
    events.close()


def test_D13_a_message_that_comes_before_the_first_look_is_an_event(talk: Talk) -> None:
    posted: list[str] = []

    class Noted(LogWatch):
        def post(self, kind: str, document: dict[str, Any]) -> None:
            posted.append(document["id"])

        async def wait(self, *args: Any, **more: Any) -> bool:
            self.waited_for.set()
            return await super().wait(*args, **more)

        waited_for = asyncio.Event()

    async def main() -> None:
        log_watch = Noted(lambda: 0)
        watch = MessageWatch(talk.engine, log_watch, [], HookRunner({}), asyncio.to_thread)
        bring(talk, e.message_send("topic", "news", b"hi", lamport=5))
        task = asyncio.create_task(watch.watch())
        await log_watch.waited_for.wait()
        log_watch.close()
        await task

    asyncio.run(main())
    assert posted == [one.id for one in talk.up.daemon.api.node.inbox.list()]


def test_D11_each_of_several_that_die_is_an_event(talk: Talk) -> None:
    """As the sync reports them, from threads of its own."""
    events = Events(talk.up, "?op=none")
    sent = [talk.ask("POST", SEND, {**NEWS, "body": str(n)}).json["id"] for n in range(3)]
    for id in sent:
        kill(talk, id)
        raw = parse_id(id)
        (row,) = talk.engine.read("test", partial(_found, raw))
        watch = talk.up.daemon.api.message_watch
        assert watch is not None
        watch.died(row)
    talk.ask("POST", f"{OUTBOX}/{sent[0]}/drop")
    told: list[tuple[str, str]] = []
    while not told or told[-1][1] != "aborted":
        event = _next(events, "outbox")
        told.append((event["id"], event["state"]))
    dead = [id for id, state in told if state == "dead"]
    assert set(sent) == set(dead)
    events.close()


def _found(id: bytes, tx: Reader) -> list[OutboxRow]:
    return tx.outbox_find(id)


def _next(events: Any, kind: str) -> dict[str, Any]:
    while True:
        event = events.next()
        if event["event"] == kind:
            return dict(event["data"])


HOOK = """
import json, sys
message = json.load(sys.stdin)
with open(sys.argv[1], "a") as file:
    print(message["body"], message["sender"], file=file)
sys.exit(3 if message["body"] == "bad" else 0)
"""


def _hook_is_set_up(tx: Reader) -> bool:
    return tx.job_get("hook_message") is not None


def test_D13_the_hook_sees_each_new_message_once(tmp_path: Path) -> None:
    home = shared_home(tmp_path / "home")
    script, told = tmp_path / "hook.py", tmp_path / "told"
    script.write_text(HOOK)
    told.write_text("")

    def lines() -> list[str]:
        return told.read_text().splitlines()

    with running(home) as up:
        bring(Talk(up, up.unix), e.message_send("topic", "t", b"before", lamport=1))
    settings = Settings(hook_message=[sys.executable, str(script), str(told)])
    again = e.message_send("topic", "t", b"one", lamport=2)
    with running(home, settings) as up:
        talk = Talk(up, up.unix)
        until(lambda: talk.engine.read("test", _hook_is_set_up))
        bring(talk, again, e.message_send("topic", "t", b"bad", lamport=3))
        bring(talk, again, e.message_send("topic", "t", b"two", lamport=4))
        until(lambda: len(lines()) == 3)
        assert lines() == ["one bob", "bad bob", "two bob"], "in order, and nothing of before"
        hooks = talk.api.hooks
        assert hooks is not None
        until(lambda: hooks.runs.total() == 3)
        assert hooks.runs == {("message", "done"): 2, ("message", "failed"): 1}
    with running(home, settings) as up:
        bring(Talk(up, up.unix), again, e.message_send("topic", "t", b"three", lamport=5))
        until(lambda: len(lines()) == 4)
    assert lines()[-1] == "three bob", "a restart tells nothing twice"


def test_D13_a_hook_that_cannot_run_harms_nobody(tmp_path: Path) -> None:
    home = shared_home(tmp_path / "home")
    with running(home, Settings(hook_message=["/nowhere/hook"])) as up:
        talk = Talk(up, up.unix)
        until(lambda: talk.engine.read("test", _hook_is_set_up))
        bring(talk, e.message_send("topic", "t", b"one", lamport=1))
        until(lambda: talk.api.hooks is not None and talk.api.hooks.runs["message", "failed"] == 1)
        assert talk.ask("GET", INBOX).json["unread"] == 1
