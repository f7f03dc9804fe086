"""`holdfast send`, `inbox` and `outbox`."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.node.core.intake import Intake
from holdfast.node.library.node import Node
from holdfast.rules.limits import MESSAGE_BYTES_MAX
from support import envelopes as e
from support.cli import ID_MASK, TIME_MASK, Cli
from support.nodes import share
from support.stores import known_member

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER_ID = "01890a5d-ac96-774b-bcce-b302099a8058"


def inside(cli: Cli) -> Node:
    return holdfast.open(cli.home, sync="normal")


@pytest.fixture
def shared(cli: Cli) -> Cli:
    """The mesh `team` is shared, and bob is in it. No daemon runs."""
    with inside(cli) as node:
        share(node)
        known_members = [known_member("b", name="bob")]
        node._engine.store.write(lambda tx: tx.known_members_put("team", known_members))
    return cli


def bring(cli: Cli, *raws: bytes) -> None:
    with inside(cli) as node:
        work = Intake(node._engine.ctx, raws, delivered=dict.fromkeys(raws, b"B" * 16))
        node._engine.store.write(work)


def change(cli: Cli, id: str, **fields: Any) -> None:
    raw = bytes.fromhex(id.replace("-", ""))
    with inside(cli) as node:
        (row,) = node._engine.read("test", lambda tx: tx.outbox_find(raw))
        changed = msgspec.structs.replace(row, **fields)
        node._engine.store.write(lambda tx: tx.outbox_put(changed))


def kill(cli: Cli, id: str) -> None:
    change(cli, id, state="dead", attempts=1, ended_at=9, code="not_granted", error="no")


# --- send ----------------------------------------------------------------------------------------


def test_U2_a_message_is_sent_and_its_id_is_the_answer(shared: Cli) -> None:
    done = shared("send", "hello", "--topic", "news", "--id", ID)
    assert (done.out, done.err) == (f"{ID}\n", "pending for topic news in team\n")
    again = shared("send", "hello", "--topic", "news", "--id", ID)
    assert "(the same id had done it before)" in again.err
    assert shared("send", "hello", "--topic", "news", "--id", ID, "--json").json == {
        "id": ID,
        "mesh": "team",
        "kind": "topic",
        "ref": "news",
        "state": "pending",
        "offset": 1,
        "duplicate": True,
    }
    other = shared("send", "hullo", "--topic", "news", "--id", ID, "--json", code=5)
    assert other.error["code"] == "idempotency_key_reused"


def test_U2_a_message_comes_as_argument_from_stdin_or_from_a_file(
    shared: Cli, tmp_path: Path
) -> None:
    source = tmp_path / "message"
    source.write_bytes(b"\xff\0")
    shared("send", "--queue", "jobs", "--", "-x")
    shared("send", "-", "--dm", "bob", "--meta", '{"a":1}', stdin="é\n")
    shared("send", "--from", str(source), "--topic", "t", "--content-type", "x/y")
    bodies = [entry["body"] for entry in shared("log", "tail", "--json").json]
    assert [body["content_type"] for body in bodies] == ["text/plain", "text/plain", "x/y"]
    with inside(shared) as node:
        refs = [entry.entity for entry in node.log.range()]
    assert refs == ["queue/jobs", f"dm/{'b' * 64}", "topic/t"]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["hello"], 2, "bad_input"),
        (["--topic", "t"], 2, "bad_input"),
        (["hello", "--topic", "t", "--dm", "bob"], 2, "bad_input"),
        (["hello", "--dm", "nobody"], 4, "unknown_destination"),
        (["hello", "--topic", "t", "--meta", '{"a":1,"a":2}'], 2, "bad_value"),
        (["hello", "--topic", "t", "--meta", "[]"], 2, "bad_value"),
        (["hello", "--topic", "t", "--reply-to", "yesterday"], 4, "unknown_message"),
        (["x" * (MESSAGE_BYTES_MAX + 1), "--topic", "t"], 2, "body_too_large"),
        (["--from", "/nowhere", "--topic", "t"], 2, "bad_input"),
        (["hello", "--topic", "t", "--mesh", "nowhere"], 4, "unknown_mesh"),
    ],
)
def test_U2_a_bad_message_is_refused_and_nothing_is_sent(
    shared: Cli, words: list[str], code: int, error: str
) -> None:
    assert shared("send", *words, "--json", code=code).error["code"] == error
    assert shared("outbox", "list", "--json").json == []


def test_U2_a_personal_mesh_says_how_to_share_it(cli: Cli) -> None:
    refused = cli("send", "hello", "--topic", "t", code=5)
    assert "personal" in refused.err
    assert "holdfast mesh publish" in refused.err


# --- inbox ---------------------------------------------------------------------------------------


def test_U2_the_inbox_is_listed_read_and_answered(shared: Cli) -> None:
    assert shared("inbox", "list").err == "no message has come\n"
    bring(
        shared,
        e.message_send("topic", "news", b"hi\nthere", lamport=1, id=e.make_id(1)),
        e.message_send("dm", "a" * 64, b"\xff\x1b[2J", lamport=2, meta=b'{"a":1}'),
    )
    shown = shared("inbox", "list").masked.splitlines()
    assert shown[0].split() == [
        *("NO", "ID", "MESH", "SENDER", "PREVIEW", "KIND", "REF", "PRIORITY", "RECEIVED", "READ"),
    ]
    assert shown[1].startswith(f"1   {ID_MASK}  team  bob     hi there  topic  news")
    assert shown[1].endswith(f"next      {TIME_MASK}  -")
    first, second = (found["id"] for found in shared("inbox", "list", "--json").json)
    done = shared("inbox", "read", first)
    assert (done.raw, done.err) == (b"hi\nthere", "from bob to topic news in team\n")
    assert [found["id"] for found in shared("inbox", "list", "--unread", "--json").json] == [second]
    looked = shared("inbox", "read", second, "--keep-unread", "--json").json
    assert (looked["encoding"], looked["meta"], looked["read_at"]) == ("base64", {"a": 1}, None)
    assert base64.b64decode(looked["content"]) == b"\xff\x1b[2J"
    assert shared("inbox", "list", "--unread", "--limit", "1", "--json").json[0]["id"] == second
    sent = shared("inbox", "reply", first, "thank you", "--id", ID, "--json").json
    assert (sent["id"], sent["kind"], sent["ref"]) == (ID, "dm", "b" * 64)
    assert (
        shared("inbox", "list", "--mesh", "team", "--after", "1", "--json").json[0]["number"] == 2
    )
    for words, numbers in (
        (["--search", "THERE"], [1]),
        (["--from", "bob", "--since", "1h"], [1, 2]),
        (["--until", "2020-01-01"], []),
        (["--topic", "other"], []),
    ):
        found = shared("inbox", "list", *words, "--json").json
        assert [message["number"] for message in found] == numbers, words
    assert shared("inbox", "list", "--search", "elephant").err == "no such message\n"
    assert shared("inbox", "read", OTHER_ID, "--json", code=4).error["code"] == "unknown_message"


# --- outbox --------------------------------------------------------------------------------------


def test_U2_the_outbox_is_listed_shown_and_cared_for(shared: Cli) -> None:
    assert shared("outbox", "list").err == "nothing waits to be sent\n"
    first = shared("state", "set", "k", "1").out.strip()
    shared("state", "set", "k", "2")
    message = shared("send", "hello", "--topic", "news").out.strip()
    kill(shared, first)
    listed = shared("outbox", "list")
    assert listed.err == f"broker:team: what is about the same entity waits for {first}\n"
    rows = [line.split() for line in listed.masked.replace(ID_MASK, "ID").splitlines()[1:]]
    assert rows[0][:8] == ["1", "ID", "broker:team", "state.set", "k", "dead", "1", "not_granted"]
    assert rows[1][:7] == ["2", "ID", "broker:team", "state.set", "k", "pending", "0"]
    blocked = [item["blocked_by"] for item in shared("outbox", "list", "--json").json]
    assert blocked == [None, first, None]
    failed = shared("outbox", "list", "--failed", "--lane", "team", "--json").json
    assert [item["id"] for item in failed] == [first]
    (lane,) = shared("outbox", "lanes", "--json").json
    assert (lane["lane"], lane["dead"], lane["pending"]) == ("broker:team", 1, 2)
    assert shared("outbox", "show", first, "--json").json["error"] == "no"
    assert "blocked by" in shared("outbox", "show", message).out
    assert shared("outbox", "retry", first).out == f"{first}\n"
    kill(shared, message)
    plain = shared("outbox", "requeue", message, "--json", code=2)
    assert "--new-id" in plain.error["hint"]
    new = shared("outbox", "requeue", "--new-id", message, "--id", ID, "--json").json
    assert (new["id"], new["state"]) == (ID, "pending")
    assert shared("outbox", "requeue", "--new-id", message, "--id", ID, "--json").json["duplicate"]
    assert shared("outbox", "drop", ID, "--json").json["state"] == "aborted"
    kill(shared, first)
    refused = shared("outbox", "requeue", "--new-id", first, "--json", code=2)
    assert "known everywhere by its id" in refused.error["message"]


def test_U2_what_is_done_is_listed_when_asked_for(shared: Cli) -> None:
    id = shared("send", "hello", "--topic", "news").out.strip()
    change(shared, id, state="done", ended_at=9)
    assert shared("outbox", "list", "--json").json == []
    assert [item["id"] for item in shared("outbox", "list", "--all", "--json").json] == [id]
    assert shared("outbox", "drop", id, "--json", code=5).error["code"] == "conflict"


def test_D12_the_outbox_follows_the_settings_of_the_daemon(shared: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('[outbox]\npolicy = "quarantine"\n[outbox.lanes]\nteam = "halt"\n')
    first = shared("send", "hello", "--topic", "news").out.strip()
    shared("send", "hello", "--topic", "news")
    kill(shared, first)
    env = {"HOLDFAST_CONFIG": str(settings)}
    items = shared("outbox", "list", "--json", env=env).json
    assert [item["blocked_by"] for item in items] == [None, first]
    settings.write_text('[outbox]\npolicy = "haste"\n')
    refused = shared("outbox", "list", "--json", env=env, code=2)
    assert refused.error["code"] == "bad_input"


def test_U2_check_outbox_says_how_long_something_waits_and_what_was_refused(shared: Cli) -> None:
    assert shared("check", "outbox").out == "ok: 0 wait\n"
    first = shared("send", "hello", "--topic", "news").out.strip()
    second = shared("send", "hello", "--topic", "news").out.strip()
    assert shared("check", "outbox").out.startswith("ok: 2 wait, in broker:team for ")
    change(shared, first, created_at=1)
    late = shared("check", "outbox", "--json", code=2).json
    assert (late["status"], late["check"]) == ("critical", "outbox")
    change(shared, first, created_at=10**15)
    kill(shared, second)
    refused = shared("check", "outbox", code=1)
    assert refused.out.startswith("warning: 1 wait")
    assert "1 were refused" in refused.out


def test_D12_the_status_says_what_waits_for_what_and_what_is_unread(shared: Cli) -> None:
    first = shared("state", "set", "k", "1").out.strip()
    kill(shared, first)
    bring(shared, e.message_send("topic", "news", b"hi", lamport=9))
    found = shared("status", "--json").json
    assert found["inbox"] == {"messages": 1, "unread": 1}
    assert found["outbox"][0]["failing"] == first
    shown = shared("status").out
    assert (
        f"broker:team: what is about the same entity waits for {first} (not_granted: no)" in shown
    )
    assert "inbox      1 unread\n" in shown
