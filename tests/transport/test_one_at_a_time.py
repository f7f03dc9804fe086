"""A connection has one request at a time, whatever comes behind it and with it.

The truth here is what was sent, not another connection of ours: both may have the same fault. And a
fault in a callback is none that a loop only logs.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.transport.http_server import Server
from holdfast.transport.listeners import tcp_listener

PATIENCE_S = 10
Answer = Callable[[], None]


class Held:
    """A call on the fast path, whose answers wait until the test lets them go."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.waiting: asyncio.Queue[Answer] = asyncio.Queue()
        self.connections: Callable[[], Any]
        """Those of the server."""

    def takes(self, url: bytes) -> bool:
        return url.startswith(b"/quick")

    def answer(self, *asked: Any) -> None:
        body, done = asked[-2], asked[-1]
        self.bodies.append(body)
        self.waiting.put_nowait(lambda: done(201, b"<" + body + b">", ()))


class Slow:
    """An application whose answers wait too."""

    def __init__(self, held: Held) -> None:
        self._held = held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self._held.bodies.append(body)
        go = asyncio.Event()
        self._held.waiting.put_nowait(go.set)
        await go.wait()
        head = [(b"content-length", b"%d" % (len(body) + 2))]
        await send({"type": "http.response.start", "status": 201, "headers": head})
        await send({"type": "http.response.body", "body": b"<" + body + b">"})


Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Held], Any]


def serve(client: Client) -> None:
    """Runs a client on one connection; a fault that nobody waits for fails the test too."""
    faults: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        held, listener = Held(), tcp_listener("127.0.0.1", 0)
        server = Server(Slow(held), [listener], quick=held)
        await server.start()
        held.connections = lambda: server._uvicorns[0].server_state.connections
        reader, writer = await asyncio.open_connection(*listener.socket.getsockname())
        end = writer.get_extra_info("socket")
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await client(reader, writer, held)
        finally:
            writer.close()
            await server.stop()

    asyncio.run(main())
    assert not faults, faults


def post(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n"
    return head % (path, more, len(body)) + body


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    return int(head.split()[1]), await reader.readexactly(size)


@pytest.mark.parametrize("path", [b"/quick", b"/slow"])
@pytest.mark.parametrize("first", [b"one", b""])
def test_D10_a_request_whose_head_began_behind_another_one_waits_for_its_turn(
    path: bytes, first: bytes
) -> None:
    """The head of the second comes in two parts: one with the first request, the other while that
    has no answer yet.
    """
    second = post(path, b"two")

    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: Held
    ) -> None:
        writer.write(post(path, first) + second[:20])
        answer = await held.waiting.get()
        writer.write(second[20:])
        # Over another connection of the same loop: when that is answered, these bytes were read.
        server = writer.get_extra_info("peername")
        other_reader, other = await asyncio.open_connection(*server)
        other.write(post(path, b"other"))
        (await held.waiting.get())()
        assert await answered(other_reader) == (201, b"<other>")
        other.close()
        assert held.bodies == [first, b"other"]
        answer()
        assert await answered(reader) == (201, b"<" + first + b">")
        (await held.waiting.get())()
        assert await answered(reader) == (201, b"<two>")

    serve(client)


@pytest.mark.parametrize("cuts", [c for n in range(4) for c in combinations((1, 2, 3), n)])
def test_D10_an_empty_line_in_any_number_of_pieces_is_the_end_of_a_head(
    cuts: tuple[int, ...],
) -> None:
    """Behind its last byte comes all that follows, the next request too."""
    raw, second = post(b"/quick", b"one"), post(b"/quick", b"two")
    end = len(raw) - len(b"one")
    places = [0, end - 10, *(end - 4 + cut for cut in cuts), end - 1, len(raw + second)]

    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: Held
    ) -> None:
        writer.write(post(b"/quick", b"zero"))
        (await held.waiting.get())()
        assert await answered(reader) == (201, b"<zero>")
        (connection,) = held.connections()
        for begin, stop in pairwise(sorted(set(places))):
            connection.data_received((raw + second)[begin:stop])  # as the transport would
        answer = await held.waiting.get()
        assert held.bodies == [b"zero", b"one"]
        answer()
        assert await answered(reader) == (201, b"<one>")
        (await held.waiting.get())()
        assert await answered(reader) == (201, b"<two>")

    serve(client)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """The bodies of requests, and the pieces in which all of it comes."""
    bodies, sent = [], b""
    for number in range(draw(st.integers(1, 5))):
        body = draw(st.sampled_from([b"", b"x" * 40, b"\r\n\r\n", post(b"/quick", b"inner")]))
        body += b"%d" % number if body else b""
        path = draw(st.sampled_from([b"/quick", b"/quick", b"/slow"]))
        bodies.append(body)
        sent += post(path, body)
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    return bodies, [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]


@given(conversations(), st.booleans())
@settings(max_examples=60)
def test_D10_each_request_gets_its_answer_however_late_and_however_it_was_cut(
    sent: tuple[list[bytes], list[bytes]], late: bool
) -> None:
    bodies, pieces = sent

    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: Held
    ) -> None:
        async def answer_all() -> None:
            while True:
                answer = await held.waiting.get()
                for _ in range(5 * late):
                    await asyncio.sleep(0)  # what is sent meanwhile is read first
                answer()

        answering = asyncio.create_task(answer_all())
        for piece in pieces:
            writer.write(piece)
            for _ in range(3):
                await asyncio.sleep(0)
        assert [await answered(reader) for _ in bodies] == [(201, b"<%b>" % one) for one in bodies]
        assert held.bodies == bodies
        answering.cancel()

    serve(client)


INNER = post(b"/quick", b"inner")
CHUNKED = b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(INNER) + INNER + b"\r\n0\r\n\r\n"


UPGRADE = b"upgrade: %b\r\nconnection: upgrade\r\n"


@pytest.mark.parametrize(
    ("method", "more"),
    [
        *((b"POST", UPGRADE % wanted) for wanted in (b"websocket", b"h2c", b"TLS/1.0")),
        (b"GET", UPGRADE % b"websocket"),
        (b"CONNECT", b""),
    ],
)
@pytest.mark.parametrize("path", [b"/quick", b"/slow"])
@pytest.mark.parametrize("chunked", [False, True])
def test_D10_what_a_request_for_another_protocol_holds_is_no_request(
    method: bytes, more: bytes, path: bytes, *, chunked: bool
) -> None:
    """The parser takes a message that asks for another protocol to have no body. Its body would be
    the next request: of somebody behind the same proxy, and never looked at by that.
    """
    raw = post(path, INNER, more).replace(b"POST", method, 1)
    if chunked:
        length = b"content-length: %d\r\n\r\n" % len(INNER)
        raw = raw.replace(length + INNER, CHUNKED)

    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: Held
    ) -> None:
        writer.write(raw)
        status, said = await answered(reader)
        assert (status, b"bad_request" in said) == (400, True), said
        assert await reader.read() == b"", "the connection has ended"
        assert not held.bodies

    serve(client)


def test_D10_who_only_offers_another_protocol_gets_an_answer_in_this_one() -> None:
    """Some clients offer HTTP/2 with every request."""
    head = b"GET /slow HTTP/1.1\r\nhost: localhost\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"

    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: Held
    ) -> None:
        writer.write(head + post(b"/quick", b"two"))
        for body in (b"", b"two"):
            (await held.waiting.get())()
            assert await answered(reader) == (201, b"<%b>" % body)

    serve(client)
