"""What holds for every call: who may make it, how much it may bring, how errors are answered."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.http.context import NodeRequest
from holdfast.node.settings import Settings
from holdfast.protocol.log_wire import Fetch
from holdfast.rules import limits
from holdfast.rules.errors import BadInput, HoldfastError, Truncated
from holdfast.service.http.request import decode_as
from holdfast.service.http.route import Param, Route
from holdfast.transport.http_client import Client
from support.daemon import PATIENCE_S, Plain, UpInThread, ask, connect, make_home, running
from support.events import Events

EVERYWHERE = Settings(tcp="127.0.0.1:0", listen="127.0.0.1:0")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpInThread]:
    """One daemon for all tests here: none of them leaves anything behind."""
    home = make_home(tmp_path_factory.mktemp("frame") / "home", "ana", "team", "board")
    with running(home, EVERYWHERE) as started:
        yield started


@pytest.fixture(scope="module")
def tokens(up: UpInThread) -> dict[str, str]:
    trust = up.daemon.api.trust
    return {
        "all": trust.add_token("ops"),
        "read": trust.add_token("spark", reads=["team"]),
        "gone": trust.add_token("gone", reads=["*"], days=1),
    }


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., UpInThread]]:
    """A daemon with calls that a test makes up."""
    from contextlib import ExitStack

    from holdfast.service.http import openapi

    with ExitStack() as open_ones:

        def start(*routes: Route, settings: Settings = EVERYWHERE) -> UpInThread:
            own = openapi.routes

            monkeypatch.setattr(openapi, "routes", lambda: [*own(), *routes])
            return open_ones.enter_context(running(make_home(tmp_path / "home"), settings))

        yield start


# --- errors --------------------------------------------------------------------------------------


def test_U4_an_unknown_path_and_a_wrong_method_are_answered_in_json(up: UpInThread) -> None:
    missing = ask(up.unix, "GET", "/v1/nothing")
    assert (missing.status, missing.code) == (404, "no_route")
    wrong = ask(up.unix, "PATCH", "/v1/links")
    assert (wrong.status, wrong.code) == (405, "wrong_method")
    assert wrong.headers["allow"] == "GET, HEAD"
    assert ask(up.unix, "GET", "/v1/links/").status == 404


def test_U4_head_answers_as_get_does_without_a_body(up: UpInThread) -> None:
    get, head = ask(up.unix, "GET", "/v1/log"), ask(up.unix, "HEAD", "/v1/log")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(get.body))


def test_U4_a_fault_of_ours_is_told_as_one_and_nothing_leaks(
    serving: Callable[..., UpInThread], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(call: NodeRequest) -> Any:
        raise ZeroDivisionError("the secret is 42")

    up = serving(Route("GET", "/v1/fail", fail, "Fails.", public=True))
    answer = ask(up.unix, "GET", "/v1/fail")
    assert (answer.status, answer.code) == (500, "internal")
    assert b"42" not in answer.body
    assert "the secret is 42" in caplog.text
    assert any(record.exc_info for record in caplog.records), "with all that led to it"
    assert ask(up.unix, "GET", "/healthz").status == 200


def test_U4_an_error_keeps_its_numbers_on_the_way(serving: Callable[..., UpInThread]) -> None:
    async def fail(call: NodeRequest) -> Any:
        raise Truncated("gone", first_available=12, hint="read on there")

    up = serving(Route("GET", "/v1/fail", fail, "Fails.", public=True))
    answer = ask(up.unix, "GET", "/v1/fail")
    assert answer.status == 410
    assert answer.json == {
        "error": {
            "code": "truncated",
            "message": "gone",
            "hint": "read on there",
            "first_available": 12,
        }
    }
    with closing(Client(up.unix)) as client, pytest.raises(Truncated) as caught:
        client.call("GET", "/v1/fail")
    assert caught.value.first_available == 12


def test_U4_an_answer_that_breaks_off_is_not_mistaken_for_a_whole_one(
    serving: Callable[..., UpInThread],
) -> None:
    from starlette.responses import StreamingResponse

    async def half(call: NodeRequest) -> Any:
        async def parts() -> Any:
            yield b"half of it"
            raise ZeroDivisionError

        return StreamingResponse(parts())

    up = serving(Route("GET", "/v1/half", half, "Breaks off.", public=True))
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        ask(up.unix, "GET", "/v1/half")


# --- who may -------------------------------------------------------------------------------------


def test_D10_the_unix_socket_needs_no_token_and_loopback_does(
    up: UpInThread, tokens: dict[str, str]
) -> None:
    assert ask(up.unix, "GET", "/v1/status").status == 200
    refused = ask(up.tcp, "GET", "/v1/status")
    assert (refused.status, refused.code) == (401, "bad_token")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert ask(up.tcp, "GET", "/v1/status", token=tokens["all"]).status == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer  ", "Basic aGk6aGk=", "Bearer hf_short", "Bearer hf_\xff", "hf_x"],
)
def test_D10_a_malformed_token_is_refused(up: UpInThread, header: str) -> None:
    for address in (up.tcp, up.tls):
        answer = ask(address, "GET", "/v1/log", headers={"authorization": header})
        assert (answer.status, answer.code) == (401, "bad_token")


def test_D10_a_wrong_a_revoked_and_an_expired_token_are_refused(
    up: UpInThread, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(up.tcp, "GET", "/v1/log", token="hf_" + "A" * 43).code == "bad_token"
    trust, ctx = up.daemon.api.trust, up.daemon.api.engine.ctx
    lost = trust.add_token("lost")
    assert ask(up.tcp, "GET", "/v1/log", token=lost).status == 200
    trust.revoke_token("lost")
    assert ask(up.tcp, "GET", "/v1/log", token=lost).code == "bad_token"
    later = ctx.now_ms() + 2 * limits.DAY_MS
    monkeypatch.setattr(type(ctx), "now_ms", lambda self: later)
    answer = ask(up.tcp, "GET", "/v1/log", token=tokens["gone"])
    assert (answer.status, answer.code) == (401, "key_expired")


@pytest.mark.parametrize("name", ["token", "access_token", "Authorization"])
def test_D10_a_token_in_the_address_is_refused_even_if_it_is_right(
    up: UpInThread, tokens: dict[str, str], name: str
) -> None:
    for address in (up.unix, up.tcp):
        for path in ("/v1/log", "/healthz", "/v1/nothing"):
            answer = ask(address, "GET", f"{path}?{name}={tokens['all']}", token=tokens["all"])
            assert (answer.status, answer.code) == (401, "bad_token")
            assert tokens["all"].encode() not in answer.body


def test_Z8_a_reader_from_elsewhere_reads_and_does_nothing_else(
    up: UpInThread, tokens: dict[str, str]
) -> None:
    read = tokens["read"]
    for address in (up.tcp, up.tls):
        assert ask(address, "GET", "/v1/log", token=read).status == 200
        for method, path in (
            ("GET", "/v1/status"),
            ("POST", "/v1/refresh"),
            ("POST", "/v1/links/x/pause"),
            ("POST", "/v1/links/x/resume"),
        ):
            answer = ask(address, method, path, b"{}", token=read)
            assert (answer.status, answer.code) == (403, "not_granted"), path


def test_Z8_a_token_for_everything_is_good_on_its_own_machine_only(
    up: UpInThread, tokens: dict[str, str]
) -> None:
    assert ask(up.tcp, "GET", "/v1/status", token=tokens["all"]).status == 200
    answer = ask(up.tls, "GET", "/v1/log", token=tokens["all"])
    assert (answer.status, answer.code) == (401, "bad_token")


def test_Z8_a_session_that_nobody_gave_is_no_session(up: UpInThread) -> None:
    answer = ask(up.tls, "GET", "/v1/log", token="hs_" + "A" * 43)
    assert (answer.status, answer.code) == (401, "bad_token")


def test_Z8_a_hello_needs_the_tls_listener(up: UpInThread) -> None:
    body = json.dumps({"zone": "bob", "key": "AA", "nonce": "AA"}).encode()
    for path in ("/v1/hello", "/v1/hello/prove"):
        assert ask(up.unix, "POST", path, body).status == 400
    answer = ask(up.tls, "POST", "/v1/hello", body)
    assert (answer.status, answer.code) == (400, "bad_input")


@pytest.mark.parametrize("text", ["", "A", "AA==", "A+/A", "A\n", "ÄÄ", "A" * 600])
def test_R4_bytes_in_a_hello_have_one_form(up: UpInThread, text: str) -> None:
    body = json.dumps({"nonce": text, "proof": text}).encode()
    answer = ask(up.tls, "POST", "/v1/hello/prove", body)
    assert (answer.status, answer.code) == (400, "bad_input")


def test_U4_metrics_are_for_local_callers(up: UpInThread, tokens: dict[str, str]) -> None:
    assert ask(up.unix, "GET", "/metrics").status == 200
    assert ask(up.tcp, "GET", "/metrics").status == 401
    assert ask(up.tcp, "GET", "/metrics", token=tokens["all"]).status == 200
    assert ask(up.tls, "GET", "/metrics", token=tokens["read"]).status == 403


# --- limits --------------------------------------------------------------------------------------


def echo_route(**more: Any) -> Route:
    async def size(call: NodeRequest) -> Any:
        return call.answer({"size": len(await call.body())})

    return Route("POST", "/v1/size", size, "How large.", request="*/*", public=True, **more)


def test_D10_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(
    serving: Callable[..., UpInThread],
) -> None:
    up = serving(echo_route())
    connection = connect(up.unix)
    connection.putrequest("POST", "/v1/size")
    connection.putheader("content-length", str(limits.BODY_BYTES_MAX + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    assert answer.getheader("connection") == "close"
    assert json.loads(answer.read())["error"]["code"] == "body_too_large"
    connection.close()


def test_D10_a_body_that_says_nothing_is_counted_while_it_comes(
    serving: Callable[..., UpInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    up = serving(echo_route())

    def parts(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield bytes(64 * limits.KIB)

    whole = limits.BODY_BYTES_MAX // (64 * limits.KIB)
    for count, status in ((whole, 200), (whole + 1, 413)):
        connection = connect(up.unix)
        connection.request("POST", "/v1/size", parts(count), encode_chunked=True)
        answer = connection.getresponse()
        assert answer.status == status, answer.read()
        connection.close()


def test_D10_a_refusal_reaches_whoever_still_sends(
    serving: Callable[..., UpInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINGER_MS_MAX", 60_000)  # however slow this machine is
    up = serving(echo_route())
    for address in (up.unix, up.tcp):
        answer = ask(address, "POST", "/v1/size", bytes(2 * limits.BODY_BYTES_MAX))
        assert (answer.status, answer.code) == (413, "body_too_large")


def test_D10_a_body_that_drips_is_given_up(
    serving: Callable[..., UpInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_MS_MAX", 100)
    monkeypatch.setattr(limits, "LINGER_MS_MAX", 10)
    up = serving(echo_route())
    connection = connect(up.unix)
    connection.putrequest("POST", "/v1/size")
    connection.putheader("content-length", "10")
    connection.endheaders(b"five5")
    answer = connection.getresponse()
    assert answer.status == 408
    assert json.loads(answer.read())["error"]["code"] == "too_slow"
    assert connection.sock is None or connection.sock.recv(1) == b""
    connection.close()


def test_D10_more_calls_than_it_takes_are_refused_and_probes_are_not(
    serving: Callable[..., UpInThread],
) -> None:
    inside, go = threading.Semaphore(0), threading.Event()

    async def hold(call: NodeRequest) -> Any:
        inside.release()
        await call.api.run(go.wait, PATIENCE_S)
        return call.answer({})

    up = serving(Route("GET", "/v1/hold", hold, "Holds."))
    up.daemon.api.gate.most["call"] = 2
    answers: list[Plain] = []
    holders = [
        threading.Thread(target=lambda: answers.append(ask(up.unix, "GET", "/v1/hold")))
        for _ in range(2)
    ]
    try:
        for holder in holders:
            holder.start()
            assert inside.acquire(timeout=PATIENCE_S)
        refused = ask(up.unix, "GET", "/v1/log")
        assert (refused.status, refused.code) == (429, "too_many")
        assert refused.headers["retry-after"] == "1"
        for path in ("/healthz", "/readyz", "/metrics"):
            assert ask(up.unix, "GET", path).status == 200
    finally:
        go.set()
        for holder in holders:
            holder.join(PATIENCE_S)
    assert [answer.status for answer in answers] == [200, 200]
    assert ask(up.unix, "GET", "/v1/log").status == 200


def waiting_route(inside: threading.Semaphore) -> Route:
    async def wait(call: NodeRequest) -> Any:
        await call.body()
        inside.release()
        grown = await call.wait(call.api.log_watch.head, limits.LONG_POLL_MS_MAX)
        return call.answer({"grown": grown})

    return Route("GET", "/v1/wait", wait, "Waits.", public=True)


def test_D10_calls_that_only_wait_are_counted_apart(serving: Callable[..., UpInThread]) -> None:
    inside = threading.Semaphore(0)
    up = serving(waiting_route(inside))
    gate = up.daemon.api.gate
    gate.most.update(call=1, poll=2)
    answers: list[Plain] = []
    waiters = [
        threading.Thread(target=lambda: answers.append(ask(up.unix, "GET", "/v1/wait")))
        for _ in range(2)
    ]
    for count, waiter in enumerate(waiters, 1):
        waiter.start()
        assert inside.acquire(timeout=PATIENCE_S)
        until(up, lambda wanted=count: gate.now["poll"] == wanted)  # type: ignore[misc]
    assert ask(up.unix, "GET", "/v1/log").status == 200
    assert ask(up.unix, "GET", "/v1/wait").code == "too_many"
    up.run(up.daemon.api.log_watch.close)
    for waiter in waiters:
        waiter.join(PATIENCE_S)
    assert [answer.json for answer in answers] == [{"grown": False}] * 2
    until(up, lambda: gate.now["poll"] == 0 and gate.now["call"] == 0)


def test_D10_a_waiting_call_ends_when_its_caller_goes(serving: Callable[..., UpInThread]) -> None:
    inside = threading.Semaphore(0)
    up = serving(waiting_route(inside))
    connection = connect(up.unix)
    connection.request("GET", "/v1/wait")
    assert inside.acquire(timeout=PATIENCE_S)
    gate = up.daemon.api.gate
    until(up, lambda: gate.now["poll"] == 1)
    connection.close()
    until(up, lambda: gate.now["poll"] == 0 and gate.now["call"] == 0)


def test_D10_whoever_does_not_read_is_cut_off(
    serving: Callable[..., UpInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.responses import Response

    monkeypatch.setattr(limits, "REQUEST_MS_MAX", 200)

    async def large(call: NodeRequest) -> Any:
        from starlette.responses import StreamingResponse

        async def parts() -> Any:
            while True:
                yield bytes(limits.MIB)

        return StreamingResponse(parts()) if call.one("stream") else Response(bytes(limits.MIB))

    up = serving(Route("GET", "/v1/large", large, "Large.", params=(Param("stream", ""),)))
    with socket.socket(socket.AF_UNIX) as rude:
        rude.settimeout(PATIENCE_S)
        rude.connect(up.unix.removeprefix("unix:"))
        rude.sendall(b"GET /v1/large?stream=1 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        gate = up.daemon.api.gate
        until(up, lambda: gate.now["call"] == 1)
        until(up, lambda: gate.now["call"] == 0)


# --- what comes in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"consumer":' * 5000,
        b'{"consumer": "\xff"}',
        b'{"consumer": "\xed\xa0\x80"}',
        b'{"consumer": 1}',
        b'{"consumer": "c", "limt": 5}',
        b'"text"',
        b"null",
        b"\x00",
    ],
)
def test_R4_a_body_that_cannot_be_read_is_refused_in_words(up: UpInThread, raw: bytes) -> None:
    answer = ask(up.unix, "POST", "/v1/facts/fetch", raw)
    assert (answer.status, answer.code) == (400, "bad_input")
    assert answer.json["error"]["message"]


@given(st.binary(max_size=200), st.booleans())
def test_R4_no_bytes_make_the_decoder_fail_in_another_way(raw: bytes, packed: bool) -> None:
    try:
        found = decode_as(raw, Fetch, packed=packed)
    except BadInput:
        return
    assert isinstance(found, Fetch)


@pytest.mark.parametrize(
    "query",
    [
        "form=1",
        "from=x",
        "from=-1",
        "from=1&from=2",
        "from=%ff",
        "from=99999999999999999999",
        "%ff=1",
    ],
)
def test_U4_a_query_that_is_not_understood_is_refused(up: UpInThread, query: str) -> None:
    answer = ask(up.unix, "GET", f"/v1/facts/range?{query}")
    assert answer.status == 400, answer.body
    assert answer.code in ("bad_input", "over_limit")


def test_U4_a_connection_is_used_again_after_an_error(up: UpInThread) -> None:
    connection = connect(up.unix)
    for _ in range(3):
        connection.request("POST", "/v1/facts/fetch", b"{")
        answer = connection.getresponse()
        assert answer.status == 400
        answer.read()
        held = connection.sock
        connection.request("GET", "/v1/log")
        assert connection.getresponse().read()
        assert connection.sock is held
    connection.close()


# --- health, figures, what is offered ----------------------------------------------------------


def test_U4_health_follows_the_phase_and_the_store(serving: Callable[..., UpInThread]) -> None:
    up = serving()
    api = up.daemon.api
    assert ask(up.unix, "GET", "/readyz").json == {"status": "ok", "disk": "ok"}
    api.phase = "starting"
    starting = ask(up.unix, "GET", "/readyz")
    assert (starting.status, starting.json["status"]) == (503, "not_ready")
    assert ask(up.unix, "GET", "/healthz").status == 200
    api.phase = "stopping"
    assert ask(up.unix, "GET", "/readyz").status == 503
    assert ask(up.unix, "GET", "/v1/log").code == "store_closed"
    api.phase = "ready"
    api.node._opened.store.writer._failed = HoldfastError("the disk is gone")
    failed = ask(up.unix, "GET", "/readyz")
    assert (failed.status, failed.json["error"]["message"]) == (503, "the disk is gone")
    assert ask(up.unix, "GET", "/healthz").status == 200
    api.node._opened.store.writer._failed = None


def test_U4_figures_say_how_the_node_stands(up: UpInThread) -> None:
    node = up.daemon.api.node
    node.log.add_consumer('odd "name"\n', "now")
    node.mesh("team").state.set("k", 1)
    text = ask(up.unix, "GET", "/metrics").body.decode()
    head = node.log.head().offset
    assert f"holdfast_log_head_offset {float(head)}" in text
    assert 'holdfast_consumer_lag_entries{consumer="odd \\"name\\"\\n"} 1.0' in text
    assert 'holdfast_operations_total{name="state.set"} 1.0' in text
    assert 'holdfast_disk_level{level="ok"} 1.0' in text
    assert 'holdfast_http_in_flight{kind="stream"} 0.0' in text
    assert ask(up.unix, "GET", "/v1/nothing").status == 404
    again = ask(up.unix, "GET", "/metrics").body.decode()
    assert 'holdfast_http_requests_total{method="GET",route="/metrics",status="200"}' in again
    assert 'route="none",status="404"' in again, "paths of strangers must not become labels"
    from prometheus_client.parser import text_string_to_metric_families

    families = list(text_string_to_metric_families(again))
    assert all(family.name.startswith("holdfast") for family in families)
    assert all(family.documentation for family in families)
    node.log.retire('odd "name"\n')


def test_U4_two_daemons_keep_their_figures_apart(up: UpInThread, tmp_path: Path) -> None:
    with running(make_home(tmp_path / "other", "bob")) as other:
        assert b'peer="bob"' in ask(other.unix, "GET", "/metrics").body
        assert b'peer="ana"' in ask(up.unix, "GET", "/metrics").body


def test_U4_the_api_describes_itself(up: UpInThread) -> None:
    document = ask(up.unix, "GET", "/openapi.json").json
    assert document["openapi"].startswith("3.1")
    for route in up.daemon.api.routes:
        path = route.path.replace(":path}", "}")
        operation = document["paths"][path][route.method.lower()]
        assert operation["summary"]
        assert operation["responses"], path
        assert any(status.startswith("2") for status in operation["responses"]), path
    ids = [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
    ]
    assert len(set(ids)) == len(ids)
    _check_refs(document, document)
    hello = document["paths"]["/v1/hello"]["post"]
    assert hello["security"] == []
    assert hello["responses"]["401"]["description"]
    assert document["paths"]["/v1/status"]["get"]["security"] == [{"token": []}]


def _check_refs(document: Any, part: Any) -> None:
    """Every reference leads somewhere."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref":
                assert value.startswith("#/components/schemas/")
                assert (
                    value.removeprefix("#/components/schemas/") in document["components"]["schemas"]
                )
            _check_refs(document, value)
    elif isinstance(part, list):
        for value in part:
            _check_refs(document, value)


def test_U4_the_page_shows_every_call_and_needs_nobody_else(up: UpInThread) -> None:
    answer = ask(up.unix, "GET", "/docs")
    page = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script" not in page
    outside = page.replace("http://holdfast/", "")
    assert "http://" not in outside
    assert "https://" not in outside
    for route in up.daemon.api.routes:
        assert f"{route.method} {route.path.replace(':path}', '}')}</code>" in page


def test_U4_links_are_shown_and_missing_ones_told(up: UpInThread, tokens: dict[str, str]) -> None:
    assert ask(up.unix, "GET", "/v1/links").json == {"links": []}
    assert ask(up.unix, "GET", "/v1/links/none").code == "unknown_link"
    assert ask(up.unix, "POST", "/v1/links/none/pause").code == "unknown_link"
    assert ask(up.unix, "POST", "/v1/refresh").json == {"links": 0}


# --- events --------------------------------------------------------------------------------------


def test_U4_entries_are_told_as_they_come_and_a_client_finds_its_place(up: UpInThread) -> None:
    node = up.daemon.api.node
    events = Events(up)
    receipt = node.mesh("team").state.set("build", "green")
    event = events.next()
    assert (event["event"], event["id"]) == ("entry", f"1:{receipt.offset}")
    assert event["data"] == {
        "offset": receipt.offset,
        "id": receipt.id,
        "mesh": "team",
        "op": "state.set",
        "entity": "build",
        "origin": "ana",
    }
    events.close()
    later = [node.mesh("board").state.set("k", number).offset for number in range(3)]
    again = Events(up, **{"last-event-id": event["id"]})
    assert again.offsets(3) == later
    again.close()
    # The header wins: a browser that comes back sends it along with the address it knows.
    both = Events(up, "?from=1", **{"last-event-id": str(later[0])})
    assert both.offsets(2) == later[1:]
    both.close()
    begun = Events(up, f"?from={later[2]}")
    assert begun.offsets(1) == later[2:]
    begun.close()


def test_U4_events_are_filtered_by_mesh_and_kind(up: UpInThread) -> None:
    node = up.daemon.api.node
    start = node.log.head().offset + 1
    node.mesh("team").state.set("a", 1)
    board = node.mesh("board").state.set("b", 1)
    remembered = node.mesh("board").memory.set("c", 1)
    for query, wanted in (
        (f"?from={start}&mesh=board", [board.offset, remembered.offset]),
        (f"?from={start}&mesh=board&op=memory.set", [remembered.offset]),
        (f"?from={start}&op=memory.set&op=state.set&mesh=board", [board.offset, remembered.offset]),
    ):
        events = Events(up, query)
        assert events.offsets(len(wanted)) == wanted
        events.close()


def test_U4_events_of_a_family_with_what_each_change_says(up: UpInThread) -> None:
    """What `watch` gives to a program, over HTTP."""
    node = up.daemon.api.node
    start = node.log.head().offset
    team = node.mesh("team")
    team.state.set("build/linux", {"green": True}, meta={"why": "so"})
    team.state.set("other", 1)
    team.memory.set("build/mine", "text")
    team.state.delete("build/linux")
    events = Events(up, f"?since=1:{start}&family=state&prefix=build/&full=true&peer=ana")
    first, second = (events.next()["data"] for _ in range(2))
    assert (first["op"], first["entity"], first["body"]) == (
        *("state.set", "build/linux"),
        {"value": {"green": True}},
    )
    assert (first["meta"], first["owner"], first["recorded_at"]) == (
        *({"why": "so"}, ""),
        first["created_at"],
    )
    assert (second["op"], second["body"]) == ("state.delete", {})
    events.close()
    deleted = Events(up, f"?since={start}&op=state.delete")
    assert deleted.next()["data"]["op"] == "state.delete"
    deleted.close()
    remembered = Events(up, f"?since={start}&op=memory&full=true")
    found = remembered.next()["data"]
    assert (found["owner"], found["body"]) == ("ana", {"value": "text", "tags": []})
    remembered.close()


def test_S13_a_stream_does_not_go_on_in_a_log_that_has_gone_back(up: UpInThread) -> None:
    answer = ask(up.unix, "GET", "/v1/events", headers={"last-event-id": "7:1"})
    assert (answer.status, answer.code) == (409, "epoch_changed")
    for query in ("since=x", "op=state.sat", "family=states", "full=perhaps", "prefix="):
        assert ask(up.unix, "GET", f"/v1/events?{query}").code in ("bad_input", "bad_key"), query


def test_Z8_a_reader_hears_only_of_what_it_may_read(up: UpInThread, tokens: dict[str, str]) -> None:
    node = up.daemon.api.node
    start = node.log.head().offset + 1
    node.mesh("board").state.set("secret", 1)
    seen = node.mesh("team").state.set("open", 1)
    bearer = {"authorization": f"Bearer {tokens['read']}"}
    events = Events(up, f"?from={start}", address=up.tls, **bearer)
    up.daemon.api.log_watch.post("link", {"name": "not for them"})
    assert events.offsets(1) == [seen.offset]
    again = node.mesh("team").state.set("open", 2)
    assert events.offsets(1) == [again.offset]
    events.close()
    answer = ask(up.tls, "GET", "/v1/events?mesh=board", token=tokens["read"])
    assert (answer.status, answer.code) == (403, "not_granted")


def test_U4_news_that_stand_in_no_log_are_told_too(up: UpInThread) -> None:
    events = Events(up)
    up.daemon.api.log_watch.post("link", {"name": "l", "state": "live"})
    up.daemon.api.log_watch.post("disk", {"level": "high"})
    assert events.next() == {"event": "link", "data": {"name": "l", "state": "live"}}
    assert events.next() == {"event": "disk", "data": {"level": "high"}}
    events.close()


def test_U4_a_place_that_is_not_there_is_refused_before_the_stream_begins(
    serving: Callable[..., UpInThread],
) -> None:
    up = serving()
    assert ask(up.unix, "GET", "/v1/events?from=50").code == "past_end"
    answer = ask(up.unix, "GET", "/v1/events", headers={"last-event-id": "x"})
    assert answer.code == "bad_input"
    node = up.daemon.api.node
    for number in range(5):
        node.mesh("team").state.set("k", number)
    node._engine.write("truncate", lambda tx: tx.log_truncate(3, 100, 0))
    gone = ask(up.unix, "GET", "/v1/events?from=1")
    assert (gone.status, gone.json["error"]["first_available"]) == (410, 3)


def test_U4_a_quiet_stream_shows_that_it_lives(
    serving: Callable[..., UpInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 20)
    up = serving()
    events = Events(up)
    assert events._block() == [events.begun, ": still here"]
    assert events._block() == [events.begun, ": still here"]
    events.close()


def test_Z8_a_stream_ends_when_its_token_is_taken_back(
    serving: Callable[..., UpInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 20)
    up = serving()
    token = up.daemon.api.trust.add_token("short", reads=["team"])
    events = Events(up, address=up.tls, authorization=f"Bearer {token}")
    assert events._block() == [events.begun, ": still here"]
    up.daemon.api.trust.revoke_token("short")
    event = events.next()
    assert (event["event"], event["data"]["error"]["code"]) == ("error", "bad_token")
    assert events.answer.read() == b""
    events.close()


def test_D10_there_are_so_many_streams_and_no_more(
    serving: Callable[..., UpInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 500)  # a stream notices with it who has gone
    up = serving()
    gate = up.daemon.api.gate
    gate.most["stream"] = 2
    streams = [Events(up) for _ in range(2)]
    refused = ask(up.unix, "GET", "/v1/events")
    assert (refused.status, refused.code) == (429, "too_many")
    streams[0].close()
    until(up, lambda: gate.now["stream"] == 1)
    Events(up).close()
    streams[1].close()
    until(up, lambda: gate.now["stream"] == 0)


def test_D10_a_listener_that_does_not_read_is_cut_off_and_nothing_piles_up(
    serving: Callable[..., UpInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_MS_MAX", 200)
    up = serving()
    node = up.daemon.api.node
    mesh = node.mesh("team")
    for number in range(600):
        mesh.state.set(f"{number}-{'x' * 900}", number)
    with socket.socket(socket.AF_UNIX) as rude:
        rude.connect(up.unix.removeprefix("unix:"))
        rude.sendall(b"GET /v1/events?from=1 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        gate = up.daemon.api.gate
        until(up, lambda: gate.now["stream"] == 1)
        until(up, lambda: gate.now["stream"] == 0)


def until(up: UpInThread, holds: Callable[[], bool]) -> None:
    """Waits, turn by turn of the daemon's loop, until something holds."""

    async def look() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.001)

    asyncio.run_coroutine_threadsafe(look(), up.loop).result(PATIENCE_S)
