"""What others can do to a node: those without a key, and those who may read one mesh of it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

import holdfast
from holdfast.node.http import ranges
from holdfast.node.http.context import NodeRequest
from holdfast.node.settings import Settings
from holdfast.rules import limits
from holdfast.rules.errors import StoreFailed, TooMany
from holdfast.service.caller import Caller
from holdfast.service.http import docs_page, openapi
from holdfast.service.http.request import ConcurrencyLimits
from holdfast.service.http.route import Route
from support.daemon import UpInThread, ask, connect, make_home, running
from support.hostile import counted
from support.waiting import until

EVERYWHERE = Settings(tcp="127.0.0.1:0", listen="127.0.0.1:0")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home", "ana", "team", "secret")


@pytest.fixture
def up(home: Path) -> Iterator[UpInThread]:
    with running(home, EVERYWHERE) as started:
        yield started


@pytest.fixture
def with_routes(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., UpInThread]]:
    """A daemon with calls that a test makes up."""
    from contextlib import ExitStack

    with ExitStack() as open_ones:

        def start(*routes: Route) -> UpInThread:
            own = openapi.routes
            monkeypatch.setattr(openapi, "routes", lambda: [*own(), *routes])
            return open_ones.enter_context(running(home, EVERYWHERE))

        yield start


def append(up: UpInThread, mesh: str, subject: str = "s") -> None:
    fact = {"mesh": mesh, "subject": subject, "predicate": "p", "object": 1}
    body = json.dumps(fact).encode()
    assert ask(up.unix, "POST", "/v1/facts/append", body).status == 201


def register(up: UpInThread, token: str, consumer: str) -> None:
    body = json.dumps({"consumer": consumer, "from": "now"}).encode()
    assert ask(up.tls, "POST", "/v1/consumers", body, token=token).status == 200


# --- without a key -------------------------------------------------------------------------------


def test_D10_a_hello_that_does_not_come_to_its_end_holds_up_nobody_but_hellos(
    up: UpInThread,
) -> None:
    gate = up.daemon.api.gate
    gate.most["public"] = 1
    slow = connect(up.tls)
    slow.putrequest("POST", "/v1/hello")
    slow.putheader("content-length", "100")
    slow.endheaders()
    until(lambda: gate.now["public"] == 1)
    assert gate.now["call"] == 0
    assert ask(up.tls, "GET", "/openapi.json").code == "too_many"
    assert ask(up.unix, "GET", "/v1/log").status == 200
    assert ask(up.tls, "GET", "/healthz").status == 200
    slow.close()
    until(lambda: gate.now["public"] == 0)


def test_D10_outsiders_never_get_the_last_places() -> None:
    gate = ConcurrencyLimits()
    for kind, most in gate.most.items():
        gate.now[kind] = most - most // limits.OWN_SHARE
        with pytest.raises(TooMany), gate.inside(kind):
            pass
        with gate.inside(kind, own=True):
            assert gate.now[kind] < most
        gate.now[kind] = most
        with pytest.raises(TooMany), gate.inside(kind, own=True):
            pass


@pytest.mark.parametrize("path", ["/v1/hello", "/v1/hello/prove"])
def test_D10_anybody_may_send_little(up: UpInThread, path: str) -> None:
    answer = ask(up.tls, "POST", path, bytes(limits.HELLO_BYTES_MAX + 1))
    assert (answer.status, answer.code) == (413, "body_too_large")


def test_D10_whoever_asks_again_without_reading_does_not_keep_a_place_for_ever(
    with_routes: Callable[..., UpInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def much(call: NodeRequest) -> Response:
        return Response(bytes(16 * limits.MIB))

    monkeypatch.setattr(limits, "KEEP_ALIVE_MS", 1000)
    up = with_routes(Route("GET", "/v1/much", much, "Very much.", public=True))
    api = up.daemon.api
    with socket.socket(socket.AF_UNIX) as rude:
        rude.connect(up.unix.removeprefix("unix:"))
        rude.sendall(2 * b"GET /v1/much HTTP/1.1\r\nhost: localhost\r\n\r\n")
        until(lambda: api.counts.answers["GET", "/v1/much", 200] == 1)
        assert api.gate.now["public"] == 0
        # What it asked for next is not even looked at, and the connection is cut after a while.
        rude.settimeout(30)
        got = 0
        with suppress(ConnectionResetError):
            until(lambda: not _is_connected(rude))
            while part := rude.recv(1 << 20):
                got += len(part)
        assert got < 16 * limits.MIB
        assert api.counts.answers["GET", "/v1/much", 200] == 1


def _is_connected(client: socket.socket) -> bool:
    """Whether the other side is still there, without reading anything."""
    try:
        client.send(b"\r\n", socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def test_D10_what_anybody_may_ask_is_made_once(
    up: UpInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [ask(up.tls, "GET", path).body for path in ("/openapi.json", "/docs")]

    def never(*args: Any) -> Any:
        raise AssertionError("made again")

    monkeypatch.setattr(openapi, "document", never)
    monkeypatch.setattr(docs_page, "page", never)
    assert [ask(up.tls, "GET", path).body for path in ("/openapi.json", "/docs")] == first


def test_U4_a_path_cannot_write_lines_of_its_own_into_the_log(
    with_routes: Callable[..., UpInThread], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(call: NodeRequest) -> Response:
        if call.path["name"] == "ours":
            raise ZeroDivisionError
        raise StoreFailed("the disk is gone")

    up = with_routes(Route("GET", "/v1/fail/{name}", fail, "Fails.", public=True))
    for name in ("%0Aholdfast: all is well", "ours"):
        assert ask(up.tls, "GET", f"/v1/fail/{name.replace(' ', '%20')}").status == 500
    assert "all is well" in caplog.text
    assert not any("\n" in record.getMessage() for record in caplog.records)


def test_D10_a_stranger_is_not_told_where_the_store_lies(
    up: UpInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise StoreFailed(f"could not read {up.home}/data.db")

    monkeypatch.setattr(up.daemon.api.engine, "read", fail)
    for path in ("/healthz", "/readyz"):
        assert ask(up.unix, "GET", path).json["error"]["message"].endswith("data.db")
        told = ask(up.tls, "GET", path)
        assert (told.status, told.json["status"]) == (503, "store_failed")
        assert str(up.home).encode() not in told.body


# --- who may read one mesh -----------------------------------------------------------------------


def test_D10_only_who_may_read_every_mesh_is_told_of_links_and_readers(up: UpInThread) -> None:
    trust = up.daemon.api.trust
    narrow = trust.add_token("spark", reads=["team"])
    watching = trust.add_token("prometheus", reads=["*"])
    for path in ("/metrics", "/v1/links", "/v1/links/x"):
        assert ask(up.tls, "GET", path, token=narrow).code == "not_granted"
        assert ask(up.tls, "GET", path, token=watching).status in (200, 404)


def test_D10_a_token_that_is_revoked_while_it_waits_is_given_nothing_more(up: UpInThread) -> None:
    api = up.daemon.api
    token = api.trust.add_token("spark", reads=["*"])
    register(up, token, "token:spark/a")
    body = json.dumps({"consumer": "token:spark/a", "wait_ms": limits.LONG_POLL_MS_MAX}).encode()
    answers: list[Any] = []

    def poll() -> None:
        answers.append(ask(up.tls, "POST", "/v1/facts/fetch", body, token=token))

    waiting = threading.Thread(target=poll, daemon=True)
    waiting.start()
    until(lambda: api.gate.now["poll"] == 1)
    api.trust.revoke_token("spark")
    append(up, "secret")
    waiting.join(limits.LONG_POLL_MS_MAX / limits.SECOND_MS)
    assert (answers[0].status, answers[0].code) == (401, "bad_token")


def test_D10_a_mesh_that_is_taken_back_ends_a_range_and_a_stream_of_events(
    up: UpInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        append(up, "secret", f"s{number}")
    trust = up.daemon.api.trust
    token = trust.add_token("spark", reads=["*"])
    go, more = threading.Event(), ranges.Ranged.more
    monkeypatch.setattr(ranges, "RANGE_BATCH_ROWS", 1)

    def after_the_first(self: ranges.Ranged) -> Any:
        if self._next > 1:
            assert go.wait(30)
        return more(self)

    monkeypatch.setattr(ranges.Ranged, "more", after_the_first)
    events, entries = connect(up.tls), connect(up.tls)
    headers = {"authorization": f"Bearer {token}"}
    events.request("GET", "/v1/events", headers=headers)
    entries.request("GET", "/v1/facts/range", headers=headers)
    told, ranged = events.getresponse(), entries.getresponse()
    assert json.loads(ranged.readline())["subject"] == "s0"
    assert told.readline() == b"retry: 1000\n"
    trust.revoke_token("spark")
    append(up, "secret", "hidden")
    go.set()
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        ranged.read()
    said = told.read()
    assert b"event: error" in said
    assert b"hidden" not in said
    for connection in (events, entries):
        connection.close()


def test_D10_a_grant_that_grows_ends_nothing() -> None:
    before = Caller("zone", "bob", frozenset({"a"}))
    assert Caller("zone", "bob", frozenset({"a", "b"})).may_all_of(before)
    assert Caller("zone", "bob", None).may_all_of(before)
    assert not Caller("zone", "bob", frozenset()).may_all_of(before)
    assert not Caller("zone", "bob", frozenset({"a"})).may_all_of(Caller("zone", "bob"))
    assert not Caller("token", "bob", None).may_all_of(before)


def test_Z4_a_confirmation_in_very_many_ranges_is_refused_before_it_holds_up_the_writer(
    up: UpInThread,
) -> None:
    token = up.daemon.api.trust.add_token("spark", reads=["team"])
    register(up, token, "token:spark/a")
    ranges_ = [[1, 1]] * (limits.FRONTIER_RANGES_MAX + 1)
    body = json.dumps({"consumer": "token:spark/a", "ranges": ranges_}).encode()
    answer = ask(up.tls, "POST", "/v1/facts/confirm", body, token=token)
    assert answer.code == "over_limit"
    body = json.dumps({"consumer": "token:spark/a", "ranges": ranges_[1:]}).encode()
    assert ask(up.tls, "POST", "/v1/facts/confirm", body, token=token).status == 200


def test_Z2_a_filter_with_a_misspelt_field_is_refused_and_not_widened(up: UpInThread) -> None:
    body = json.dumps({"consumer": "c", "filter": {"mesh": ["team"]}}).encode()
    answer = ask(up.unix, "POST", "/v1/consumers", body)
    assert (answer.status, answer.code) == (400, "bad_input")
    with holdfast.open(up.home) as node:
        assert list(node.log.consumers()) == []


@pytest.mark.parametrize("what", ["a call", "a long poll", "events", "a range"])
def test_D10_a_client_that_sends_no_more_gets_its_answer(
    up: UpInThread, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 500)  # a stream notices with it who has gone
    append(up, "team")
    consumer = json.dumps({"consumer": "r", "from": "now"}).encode()
    assert ask(up.unix, "POST", "/v1/consumers", consumer).status == 200
    fetch = json.dumps({"consumer": "r", "wait_ms": limits.LONG_POLL_MS_MAX}).encode()
    raw = {
        "a call": b"GET /v1/log HTTP/1.1\r\n\r\n",
        "a long poll": b"POST /v1/facts/fetch HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(fetch)
        + fetch,
        "events": b"GET /v1/events?from=1 HTTP/1.1\r\n\r\n",
        "a range": b"GET /v1/facts/range HTTP/1.1\r\n\r\n",
    }[what]
    told = {"a call": b'"epoch"', "a long poll": b'"entries"', "events": b"event: entry"}
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(up.unix.removeprefix("unix:"))
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while part := client.recv(65_536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert told.get(what, b'"team"') in answer
    assert answer.endswith((b"0\r\n\r\n", b"}"))  # it is whole


@pytest.mark.parametrize(
    ("what", "size", "most"),
    [
        ("PUT /v1/objects/" + "0" * 64, 24 * limits.MIB, limits.STRANGER_BYTES_MAX),
        ("POST /v1/facts/append", limits.BODY_BYTES_MAX, 2 * limits.BODY_BYTES_MAX),
    ],
)
def test_D10_a_body_that_does_not_come_to_its_end_holds_no_more_than_its_limit(
    up: UpInThread, what: str, size: int, most: int
) -> None:
    part, sent = bytes(limits.MIB), 0
    with counted() as held, socket.socket(socket.AF_UNIX) as client:
        client.connect(up.unix.removeprefix("unix:"))
        client.sendall(f"{what} HTTP/1.1\r\ncontent-length: {size}\r\n\r\n".encode())
        while sent < size - limits.MIB:  # all but the end: the server takes everything so far
            client.sendall(part)
            sent += len(part)
        # The last part may still be on its way from the socket to the disk.
        until(lambda: held.now() < most)
        # It is still answered when the rest comes.
        client.sendall(bytes(size - sent))
        client.settimeout(30)
        assert client.recv(65_536).startswith(b"HTTP/1.1 400 ")


def test_D10_a_stream_that_is_not_read_holds_a_small_page_however_large_the_entries_are(
    up: UpInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many watchers that read nothing held several megabytes each, in the loop too."""
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 500)  # a stream notices with it who has gone
    large = "x" * limits.EVENT_PAGE_BYTES
    for number in range(4):
        body = json.dumps({"value": large}).encode()
        path = f"/v1/meshes/team/state/large{number}"
        assert ask(up.unix, "PUT", path, body).status == 200
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(up.unix.removeprefix("unix:"))
        client.sendall(b"GET /v1/events?since=start&full=true HTTP/1.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answer:
            while answer.readline() != b"\r\n":
                pass
            pieces = []
            while size := int(answer.readline(), 16):
                pieces.append(answer.read(size + 2))
    assert b"".join(pieces).count(large.encode()) == 4, "each entry comes all the same"
    assert max(piece.count(large.encode()) for piece in pieces) == 1
