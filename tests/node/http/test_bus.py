"""The bus over a daemon's own API: what programs in any language use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.node.library.node import Node
from holdfast.node.settings import BusSettings, Settings
from support.bus_homes import PATIENCE_MS, Homes, trust_of
from support.daemon import UpInThread, ask, connect


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Homes]:
    with Homes(tmp_path, "daemon") as made:
        yield made


@pytest.fixture
def bo(homes: Homes) -> Node:
    """A peer of ana, whose bus her daemon holds."""
    return homes.pair()[1]


@pytest.fixture
def up(homes: Homes, bo: Node) -> UpInThread:
    return homes.daemons["ana"]


def post(up: UpInThread, path: str, **fields: Any) -> Any:
    answer = ask(up.unix, "POST", f"/v1/bus/{path}", json.dumps(fields).encode())
    return answer.json if answer.status == 200 else (answer.status, answer.code)


class Stream:
    """A client that reads a stream of the bus."""

    def __init__(self, up: UpInThread, path: str) -> None:
        self._connection = connect(up.unix)
        self._connection.request("GET", f"/v1/bus/{path}")
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        kind, opened = self.next()
        assert kind == "open"
        self.name = opened["stream"]

    def next(self) -> tuple[str, Any]:
        fields: dict[str, str] = {}
        while "data" not in fields:
            fields = {}
            while line := self._answer.readline().decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                fields[name] = value
        return fields["event"], json.loads(fields["data"])

    def close(self) -> None:
        self._connection.close()
        self._answer.close()


def test_U4_B4_messages_come_as_events_and_what_is_not_acknowledged_comes_again(
    up: UpInThread, bo: Node
) -> None:
    for body in ("one", b"\xff"):
        bo.bus.send("ana", body, topic="news")
    stream = Stream(up, "messages?topic=news&ack=client")
    first, second = stream.next(), stream.next()
    assert (first[0], first[1]["body"], first[1]["sender"]) == ("message", "one", "bo")
    assert (second[1]["number"], second[1]["body_base64"]) == (2, "/w==")
    assert "body" not in second[1]
    assert post(up, f"messages/{stream.name}/ack", numbers=[1]) == {"taken": True}
    assert post(up, f"messages/{stream.name}/ack", numbers=[1, 9]) == {"taken": False}
    stream.close()
    again = Stream(up, "messages?topic=news")
    assert again.next()[1]["body_base64"] == "/w=="
    again.close()
    assert post(up, f"messages/{stream.name}/ack", numbers=[2]) == (404, "unknown_stream")


def test_U4_B4_what_was_acknowledged_is_off_the_disk_when_the_daemon_says_so(
    up: UpInThread, bo: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it came again after a kill, although its program was told that it would not."""
    monkeypatch.setattr("holdfast.bus.parcel_intake.BUS_ACK_MS", 3_600_000)  # nothing by the way
    bo.bus.send("ana", "once")
    stream = Stream(up, "messages?ack=client")
    assert stream.next()[1]["body"] == "once"
    disk = apsw.Connection(str(tmp_path / "ana" / "data.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert disk.execute("SELECT count(*) FROM bus_inbox").get == 1
    assert post(up, f"messages/{stream.name}/ack", numbers=[1]) == {"taken": True}
    assert disk.execute("SELECT count(*) FROM bus_inbox").get == 0
    disk.close()
    stream.close()


def test_U4_B4_no_more_is_on_its_way_than_the_client_asked_for(up: UpInThread, bo: Node) -> None:
    for number in range(3):
        bo.bus.send("ana", str(number))
    stream = Stream(up, "messages?ack=client&buffer=1")
    for number in range(3):
        assert stream.next()[1]["body"] == str(number)
        # The next one comes after this and not before: with two held, `taken` would be false.
        assert post(up, f"messages/{stream.name}/ack", numbers=[number + 2]) == {"taken": False}
        assert post(up, f"messages/{stream.name}/ack", numbers=[number + 1]) == {"taken": True}
    stream.close()


def test_U4_B5_requests_come_as_events_and_are_answered_refused_or_cancelled(
    up: UpInThread, bo: Node
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    stream = Stream(up, "requests?service=double")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(bo.bus.request, "ana", "double", "21", timeout_ms=PATIENCE_MS)
        kind, call = stream.next()
        assert (kind, call["service"], call["sender"]) == ("request", "double", "bo")
        assert 0 < call["timeout_ms"] <= PATIENCE_MS
        reply = {"call": call["call"], "body": "42"}
        assert post(up, f"requests/{stream.name}/reply", **reply) == {"taken": True}
        assert asked.result().text == "42"
        assert post(up, f"requests/{stream.name}/reply", **reply) == {"taken": False}

        asked = pool.submit(bo.bus.request, "ana", "double", "x", timeout_ms=PATIENCE_MS)
        number = stream.next()[1]["call"]
        refusal = {"call": number, "code": "no_number", "message": "x is none"}
        post(up, f"requests/{stream.name}/reply", **refusal)
        assert str(asked.exception()).startswith("no_number: x is none")

        asked = pool.submit(bo.bus.request, "ana", "double", "3", timeout_ms=300)
        number = stream.next()[1]["call"]
        assert stream.next() == ("cancel", {"call": number})
        assert asked.exception() is not None

        asked = pool.submit(bo.bus.request, "ana", "double", "4", timeout_ms=PATIENCE_MS)
        stream.next()
        stream.close()
        assert str(asked.exception()).startswith("server_gone: ")
    assert post(up, f"requests/{stream.name}/reply", call=1, body="") == (404, "unknown_stream")


def test_U4_B5_a_client_that_goes_away_cancels_its_request(up: UpInThread, bo: Node) -> None:
    import asyncio
    import threading

    begun, ended = threading.Event(), threading.Event()

    async def sleep(request: object) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    bo.bus.serve("sleep", sleep)
    connection = connect(up.unix)
    asked = {"to": "bo", "service": "sleep", "timeout_ms": PATIENCE_MS}
    connection.request("POST", "/v1/bus/request", json.dumps(asked).encode())
    assert begun.wait(PATIENCE_MS / 1000)
    connection.close()
    assert ended.wait(PATIENCE_MS / 1000)


BAD_CALLS: list[tuple[str, dict[str, Any], tuple[int, str]]] = [
    ("send", {"to": "eve", "body": "x"}, (404, "unknown_peer")),
    ("send", {"to": "bo", "body": "x", "body_base64": "eA=="}, (400, "bad_input")),
    ("send", {"to": "bo", "topic": "a.*"}, (400, "bad_input")),
    ("send", {"to": "bo", "colour": "red"}, (400, "bad_input")),
    ("send", {"to": "bo", "priority": "soon"}, (400, "bad_input")),
    ("send", {"to": "bo", "id": "x"}, (400, "bad_id")),
    ("publish", {"topic": "a.*"}, (400, "bad_input")),
    ("request", {"service": "dance", "to": "bo"}, (503, "no_responder")),
    ("request", {"service": "dance", "timeout_ms": 10}, (503, "no_responder")),
    ("ping", {"peer": "eve"}, (404, "unknown_peer")),
]
BAD_STREAMS = (
    "messages?ack=never",
    "messages?buffer=0",
    "requests",
    "requests?service=a&most=0",
)


def test_U4_B6_bad_calls_are_refused_with_a_status_and_a_code(up: UpInThread, bo: Node) -> None:
    bo.bus.ping("ana")
    for path, fields, refused in BAD_CALLS:
        assert post(up, path, **fields) == refused, (path, fields)
    for path in BAD_STREAMS:
        assert ask(up.unix, "GET", f"/v1/bus/{path}").code == "bad_input", path
    for kind in ("messages/none/ack", "requests/none/reply"):
        fields = {"numbers": [1]} if "ack" in kind else {"call": 1}
        assert post(up, kind, **fields) == (404, "unknown_stream")


def test_U4_B6_status_and_metrics_tell_of_links_messages_and_what_waits(
    up: UpInThread, bo: Node
) -> None:
    bo.bus.send("ana", "hello")
    status = ask(up.unix, "GET", "/v1/bus/status").json
    (peer,) = status["peers"]
    assert (peer["peer"], peer["link"], peer["received"]) == ("bo", "up", 1)
    text = ask(up.unix, "GET", "/metrics").body.decode()
    assert "holdfast_bus_links 1.0" in text
    assert 'holdfast_bus_messages_total{outcome="received",peer="bo"} 1.0' in text
    assert 'holdfast_bus_link_up{peer="bo"} 1.0' in text
    bo.bus.close()
    assert post(up, "send", to="bo", body="later", wait_ms=10)["state"] == "spooled"
    text = ask(up.unix, "GET", "/metrics").body.decode()
    assert 'holdfast_bus_outbox_waiting{peer="bo"} 1.0' in text


def test_U4_B6_a_daemon_without_a_bus_says_so(homes: Homes) -> None:
    up = homes.serve("ana", Settings(bus=BusSettings(enabled=False)))
    assert post(up, "send", to="bo", body="x") == (503, "bus_closed")
    assert "holdfast_bus" not in ask(up.unix, "GET", "/metrics").body.decode()
    node = homes.open("ana")
    assert node.bus.status().name == "ana", "then any process may hold it"


def test_B6_a_peer_that_is_blocked_loses_its_link_when_the_daemon_looks_again(
    up: UpInThread, homes: Homes, bo: Node
) -> None:
    bo.bus.ping("ana")
    ana = homes.open("ana")
    trust_of(ana).block("bo")
    assert ask(up.unix, "POST", "/v1/refresh").status == 200
    (peer,) = ask(up.unix, "GET", "/v1/bus/status").json["peers"]
    assert (peer["trust"], peer["link"]) == ("blocked", "down")
    assert post(up, "send", to="bo", body="x") == (404, "unknown_peer")
