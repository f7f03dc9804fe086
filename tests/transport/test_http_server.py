"""The listeners: how their sockets are made, and what they do with rude clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from holdfast.rules import limits
from holdfast.rules.errors import AlreadyExists, BadInput, NotOurs
from holdfast.rules.web_access import WebAccess
from holdfast.transport.http_protocol import ABORT, Fronts, HttpConnection
from holdfast.transport.http_server import LISTENER, Server
from holdfast.transport.known_heads import KnownHeads
from holdfast.transport.listeners import Listener, tcp_listener, unix_listener
from holdfast.transport.tls import make_certificate, server_context
from holdfast.transport.unix_socket import bound

PATIENCE_S = 30


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Says which door the request came through."""
    body = scope[LISTENER].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(app: Any, listeners: list[Listener], client: Callable[[Server], Awaitable[None]]) -> None:
    """Runs a client against a server in one loop."""

    async def main() -> None:
        server = Server(app, listeners)
        await server.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await client(server)
        finally:
            await server.stop()

    asyncio.run(main())


async def exchange(path: Path, raw: bytes) -> bytes:
    """Sends bytes and reads until the other side closes."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(raw)
    answer = await reader.read()
    writer.close()
    return answer


def test_U4_a_tcp_listener_answers_without_nagles_delay(tmp_path: Path) -> None:
    accepted: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        transport = scope[ABORT].__self__
        theirs = transport.get_extra_info("socket")
        accepted.append(theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await echo(scope, receive, send)

    listener = tcp_listener("127.0.0.1", 0)
    assert listener.socket.proto == socket.IPPROTO_TCP

    async def client(server: Server) -> None:
        port = listener.socket.getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\ntcp")
        writer.close()

    serve(app, [listener], client)
    assert accepted == [1]


def test_U4_every_listener_marks_its_requests(tmp_path: Path) -> None:
    unix, tcp = unix_listener(tmp_path / "s"), tcp_listener("127.0.0.1", 0)

    async def client(server: Server) -> None:
        ask = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        assert (await exchange(tmp_path / "s", ask)).endswith(b"\r\n\r\nunix")
        reader, writer = await asyncio.open_connection(*tcp.socket.getsockname())
        writer.write(ask)
        assert (await reader.read()).endswith(b"\r\n\r\ntcp")
        writer.close()

    serve(echo, [unix, tcp], client)


def test_D10_the_unix_socket_is_for_its_user_alone_before_anybody_can_knock(
    tmp_path: Path,
) -> None:
    old = os.umask(0)
    try:
        made = bound(tmp_path / "s", socket.SOCK_STREAM)
    finally:
        os.umask(old)
    with made:
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as early, pytest.raises(ConnectionRefusedError):
            early.connect(str(tmp_path / "s"))


def test_S16_the_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    bound(tmp_path / "s", socket.SOCK_STREAM).close()
    assert (tmp_path / "s").exists()

    async def client(server: Server) -> None:
        answer = await exchange(
            tmp_path / "s", b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 200 ")

    serve(echo, [unix_listener(tmp_path / "s")], client)


def test_D10_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(NotOurs):
        unix_listener(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "precious"


def test_U4_a_port_that_is_taken_is_told_as_such() -> None:
    with tcp_listener("127.0.0.1", 0).socket as taken:
        taken.listen()
        with pytest.raises(AlreadyExists, match="another process listens"):
            tcp_listener("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(BadInput):
        tcp_listener("no such host.invalid", 0)


def test_U4_the_address_names_the_real_port() -> None:
    listener = tcp_listener("127.0.0.1", 0)
    with listener.socket:
        assert listener.address == f"http://127.0.0.1:{listener.socket.getsockname()[1]}"


def test_S16_the_server_leaves_the_signals_alone(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during: list[Any] = []

    async def client(server: Server) -> None:
        during.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))

    serve(echo, [unix_listener(tmp_path / "s")], client)
    # asyncio.run itself puts its own handler in place of the one that raises.
    assert during[1] == before[1]
    assert "uvicorn" not in repr(during[0])


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\nabc",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_R4_what_is_no_http_is_refused_in_json(tmp_path: Path, raw: bytes) -> None:
    async def client(server: Server) -> None:
        answer = await exchange(tmp_path / "s", raw)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 "), head
        assert json.loads(body)["error"]["code"] == "bad_request"

    serve(echo, [unix_listener(tmp_path / "s")], client)


@pytest.mark.parametrize("line", [b"x: y\r\n", b"x" * 1000, b"x-a: " + b"y" * 1000])
def test_D10_a_head_that_grows_without_end_is_cut(tmp_path: Path, line: bytes) -> None:
    async def client(server: Server) -> None:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(b"GET / HTTP/1.1\r\n" + line * (2 * limits.HEAD_BYTES_MAX // len(line)))
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()

    serve(echo, [unix_listener(tmp_path / "s")], client)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: localhost\r\n"])
def test_D10_a_head_that_does_not_come_to_its_end_is_given_up(
    tmp_path: Path, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_MS_MAX", 50)

    async def client(server: Server) -> None:
        answer = await exchange(tmp_path / "s", begun)
        assert answer.startswith(b"HTTP/1.1 408 ") if begun else answer == b""

    serve(echo, [unix_listener(tmp_path / "s")], client)


def test_D10_the_second_head_on_a_connection_has_its_time_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_MS_MAX", 50)

    async def client(server: Server) -> None:
        first = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
        answer = await exchange(tmp_path / "s", first + b"GET /again HTT")
        assert answer.count(b"HTTP/1.1 200 ") == 1
        assert b"HTTP/1.1 408 " in answer

    serve(echo, [unix_listener(tmp_path / "s")], client)


def test_D10_a_slow_answer_is_no_slow_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_MS_MAX", 50)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.3)
        await echo(scope, receive, send)

    async def client(server: Server) -> None:
        ask = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        assert (await exchange(tmp_path / "s", ask)).startswith(b"HTTP/1.1 200 ")

    serve(slow, [unix_listener(tmp_path / "s")], client)


def test_D10_who_sends_the_next_request_early_may_wait_for_our_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_MS_MAX", 50)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.3)
        await echo(scope, receive, send)

    async def client(server: Server) -> None:
        first = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
        answer = await exchange(tmp_path / "s", first + b"GET /aga")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\n\r\nunixHTTP/1.1 408 " in answer

    serve(slow, [unix_listener(tmp_path / "s")], client)


def test_D10_a_tls_handshake_that_does_not_come_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_MS_MAX", 50)
    listener = tcp_listener("127.0.0.1", 0, server_context(*make_certificate(tmp_path)))
    assert listener.address.startswith("https://")

    async def client(server: Server) -> None:
        reader, writer = await asyncio.open_connection(*listener.socket.getsockname())
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    serve(echo, [listener], client)


def test_D10_more_connections_than_it_can_hold_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)
    ask = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"

    async def client(server: Server) -> None:
        kept = []
        for _ in range(2):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(ask)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            kept.append(writer)
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(ask)
        with suppress(ConnectionResetError, BrokenPipeError):  # closed before or after it asked
            assert await reader.read() == b""
        for each in (*kept, writer):
            each.close()

    serve(echo, [unix_listener(tmp_path / "s")], client)


def test_S16_stopping_lets_an_answer_finish_and_closes_what_is_idle(tmp_path: Path) -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        inside.set()
        await go.wait()
        await echo(scope, receive, send)

    async def client(server: Server) -> None:
        idle_reader, idle_writer = await asyncio.open_unix_connection(tmp_path / "s")
        busy = asyncio.create_task(
            exchange(tmp_path / "s", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        )
        await inside.wait()
        stopping = asyncio.create_task(server.stop())
        assert await idle_reader.read() == b""
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            await asyncio.open_unix_connection(tmp_path / "s")
        go.set()
        assert (await busy).startswith(b"HTTP/1.1 200 ")
        await stopping
        idle_writer.close()

    serve(slow, [unix_listener(tmp_path / "s")], client)


# --- requests that are sent ahead ----------------------------------------------------------------


async def tell(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the method, the path and the whole body of the request."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    said = f"<{scope['method']} {scope['path']} ".encode() + body + b">"
    headers = [(b"content-length", str(len(said)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


bodies = st.one_of(
    st.none(), st.sampled_from([b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 70_000])
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[bytes], bytes, list[int]]:
    """What the answers hold, the requests as one run of bytes, and where they are cut apart."""
    told, sent = [], b""
    for number in range(draw(st.integers(1, 6))):
        body, path = draw(bodies), b"/%d" % number
        sent += draw(st.sampled_from([b"", b"\r\n"]))
        if body is None:
            sent += b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path
        elif draw(st.booleans()):
            sent += b"POST %s HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (path, len(body)) + body
        else:
            sent += b"POST %s HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" % path
            sent += (
                b"%x\r\n" % len(body)
                + body
                + b"\r\n0\r\n"
                + draw(st.sampled_from([b"", b"a: b\r\n"]))
            )
            sent += b"\r\n"
        told.append(b"<GET %s >" % path if body is None else b"<POST %s " % path + body + b">")
    return told, sent, sorted(draw(st.lists(st.integers(0, len(sent)), max_size=8)))


@given(conversations(), st.booleans())
@settings(max_examples=40)
def test_D10_requests_sent_ahead_are_answered_one_by_one_however_they_are_cut(
    sent: tuple[list[bytes], bytes, list[int]], half_closed: bool
) -> None:
    told, raw, cuts = sent

    async def main() -> None:
        ours, theirs = socket.socketpair()
        server = HttpConnection(
            uvicorn.Config(tell, lifespan="off"), ServerState(), {}, asyncio.get_running_loop()
        )
        server.kind, server.lines, server.quick, server.web = "unix", {}, None, WebAccess()
        server.heads, server.fronts = KnownHeads(), Fronts()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: server, theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            writer.write(raw[begin:end])
            await asyncio.sleep(0)
        if half_closed:
            writer.write_eof()
        answers = b""
        async with asyncio.timeout(PATIENCE_S):
            while len(answers) < len(b"".join(told)):
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                answers += await reader.readexactly(size)
            assert answers == b"".join(told)
            if half_closed:
                assert await reader.read() == b""
        writer.close()
        server.transport.abort()

    asyncio.run(main())


@pytest.mark.parametrize(
    "head",
    [b"x-a: " + b"y" * limits.HEAD_BYTES_MAX + b"\r\n", b"a: b\r\n" * limits.HEAD_LINES_MAX],
)
def test_D10_a_head_over_the_limit_is_refused_also_when_it_comes_whole(
    tmp_path: Path, head: bytes
) -> None:
    async def client(server: Server) -> None:
        answer = await exchange(tmp_path / "s", b"GET / HTTP/1.1\r\n" + head + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ")
        fits = b"GET / HTTP/1.1\r\nconnection: close\r\na: b\r\n\r\n"
        assert (await exchange(tmp_path / "s", fits)).startswith(b"HTTP/1.1 200 ")

    serve(echo, [unix_listener(tmp_path / "s")], client)


def test_D10_whoever_sends_ahead_takes_turns_with_others(tmp_path: Path) -> None:
    order: list[str] = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        order.append(scope["path"])
        await echo(scope, receive, send)

    async def client(server: Server) -> None:
        many = b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(500))
        close = b"GET /last HTTP/1.1\r\nconnection: close\r\n\r\n"
        other = b"GET /other HTTP/1.1\r\nconnection: close\r\n\r\n"
        await asyncio.gather(
            exchange(tmp_path / "s", many + close), exchange(tmp_path / "s", other)
        )
        assert order.index("/other") < 50
        assert [path for path in order if path != "/other"] == [
            *(f"/{n}" for n in range(500)),
            "/last",
        ]

    serve(note, [unix_listener(tmp_path / "s")], client)
