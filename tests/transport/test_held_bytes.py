"""What one connection costs the server, whatever its client sends and does not read."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.rules import limits
from holdfast.transport.http_protocol import Done
from holdfast.transport.http_server import LISTENER, Server
from holdfast.transport.known_heads import RequestHead
from holdfast.transport.listeners import Listener, tcp_listener, unix_listener
from holdfast.transport.websocket_server import WebSocketConnection
from support.hostile import counted, pour

PATIENCE_S = 60
CLIENTS = 1
ASK = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Sink:
    """The application's side of a WebSocket, which only listens."""

    def __init__(self) -> None:
        self.messages: list[int] = []

    def opened(self, socket: WebSocketConnection) -> None:
        self.socket = socket

    def message(self, raw: bytes) -> None:
        self.messages.append(len(raw))

    def room(self) -> None: ...

    def stopping(self) -> None:
        self.socket.close(1001)

    def closed(self, code: int) -> None:
        self.code = code


class Echoes:
    """A call on the fast path that answers with what it got."""

    def takes(self, url: bytes) -> bool:
        return url == b"/quick"

    def answer(self, head: RequestHead, body: bytes, done: Done) -> None:
        done(200, body, ())


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads no body. It answers at once, or when the test is over."""
    if scope["path"] == "/never":
        await scope["app.over"].wait()
    body = scope[LISTENER].encode() * (10_000 if scope["path"] == "/much" else 1)
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-length", b"%d" % len(body))]})  # fmt: skip
    await send({"type": "http.response.body", "body": body})


class Place:
    """A server on one listener, and bare connections to it."""

    def __init__(self, kind: str, folder: Path, tls: ssl.SSLContext | None = None) -> None:
        self._kind, self._folder, self._tls = kind, folder, tls
        self._ending = ExitStack()
        self.sinks: list[Sink] = []

    def _sink(self, kind: str) -> Sink:
        self.sinks.append(Sink())
        return self.sinks[-1]

    def listener(self) -> Listener:
        if self._kind == "unix":
            return unix_listener(self._folder / "s")
        made = tcp_listener("127.0.0.1", 0, self._tls)
        made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        return made

    async def connect(self, listener: Listener) -> socket.socket:
        if self._kind == "unix":
            raw = socket.socket(socket.AF_UNIX)
            raw.connect(str(self._folder / "s"))
        else:
            raw = socket.create_connection(listener.socket.getsockname())
        if self._kind == "tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            raw = await asyncio.to_thread(context.wrap_socket, raw)
        self._ending.enter_context(raw)
        return raw

    def run(self, client: Callable[[Server, Listener], Awaitable[None]]) -> None:
        async def main() -> None:
            listener = self.listener()
            lines = {"/line": self._sink}
            over = asyncio.Event()

            async def until_over(scope: Any, receive: Any, send: Any) -> None:
                await app({**scope, "app.over": over}, receive, send)

            server = Server(until_over, [listener], lines=lines, quick=Echoes())
            await server.start()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await client(server, listener)
            finally:
                over.set()
                self._ending.close()
                await server.stop()

        asyncio.run(main())


@pytest.fixture
def place_of(tmp_path: Path, context: ssl.SSLContext) -> Callable[[str], Place]:
    return lambda kind: Place(kind, tmp_path, context if kind == "tls" else None)


def post(path: str, size: int) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n" % (
        path.encode(),
        size,
    )


CHUNKS = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
NEVER = CHUNKS.replace(b" / ", b" /never ")
SENT: dict[str, tuple[bytes, bytes]] = {
    "requests sent ahead": (b"", ASK * 500),
    "requests sent ahead of no answer": (b"GET /never HTTP/1.1\r\n\r\n", ASK * 500),
    "answers that nobody reads": (b"", b"GET /much HTTP/1.1\r\n\r\n" * 20),
    "quick answers that nobody reads": (b"", (post("/quick", 500) + b"x" * 500) * 100),
    "a body that nobody asked for": (post("/never", 2**40), b"x" * 65_536),
    "a body in chunks of one byte": (NEVER, b"1\r\nx\r\n" * 1000),
    "chunks that hold empty lines": (NEVER, b"4\r\n\r\n\r\n\r\n" * 500),
    "fields behind a body": (CHUNKS + b"0\r\n", b"a: b\r\n" * 1000),
    "a field behind a body that does not end": (CHUNKS + b"0\r\na: ", b"x" * 65_536),
    "empty lines": (b"", b"\r\n" * 5000),
    "a head of many fields": (b"GET / HTTP/1.1\r\n", b"a:\r\n" * 5000),
    "an address that does not end": (b"GET /", b"x" * 65_536),
}  # fmt: skip


EVERYWHERE = ("requests sent ahead", "quick answers that nobody reads")


@pytest.mark.parametrize(
    ("what", "kind"),
    [*((what, "unix") for what in SENT), *((w, k) for w in EVERYWHERE for k in ("tcp", "tls"))],
)
def test_D10_a_connection_holds_no_more_than_its_limit(
    place_of: Callable[[str], Place], what: str, kind: str
) -> None:
    begin, again = SENT[what]
    place = place_of(kind)

    async def client(server: Server, listener: Listener) -> None:
        clients = [await place.connect(listener) for _ in range(CLIENTS)]
        while server.connections < CLIENTS:
            await asyncio.sleep(0)
        with counted() as held:
            for one in clients:
                one.setblocking(False)
                if begin:
                    one.send(begin)
            await asyncio.gather(*(pour(one, again) for one in clients))
            assert held.now() < CLIENTS * limits.STRANGER_BYTES_MAX
        # Meanwhile, and after it, others are served.
        other = await place.connect(listener)
        other.setblocking(False)
        other.send(ASK)
        answer = b""
        while not answer.endswith(place._kind.encode()):
            with suppress(BlockingIOError, ssl.SSLWantReadError):
                answer += other.recv(65_536)
            await asyncio.sleep(0)

    place.run(client)


def test_D10_a_handshake_that_is_not_ended_holds_no_more_than_its_limit(
    place_of: Callable[[str], Place],
) -> None:
    place = place_of("tls")

    async def client(server: Server, listener: Listener) -> None:
        clients = [socket.create_connection(listener.socket.getsockname()) for _ in range(8)]
        with counted() as held:
            for one in clients:
                # The beginning of a record of 16 KiB, and what looks like more of them.
                await pour(one, b"\x16\x03\x01\x40\x00" + bytes(16_000), most=2 * limits.MIB)
            assert held.now() < len(clients) * limits.STRANGER_BYTES_MAX
        for one in clients:
            one.close()

    place.run(client)


# --- WebSockets ----------------------------------------------------------------------------------


UPGRADE = (
    b"GET /line HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def frame(opcode: int, size: int, *, fin: bool = True) -> bytes:
    """A frame of a client, masked with zeros."""
    head = bytes([opcode | (0x80 if fin else 0)])
    if size < 126:
        return head + bytes([0x80 | size]) + bytes(4) + bytes(size)
    return head + bytes([0xFF]) + size.to_bytes(8, "big") + bytes(4) + bytes(size)


FRAMES: dict[str, tuple[bytes, bytes]] = {
    "pings whose answers nobody reads": (b"", frame(9, 125) * 500),
    "a message of many empty frames": (frame(2, 0, fin=False), frame(0, 0, fin=False) * 5000),
    "a message that does not end": (frame(2, 0, fin=False), frame(0, 60_000, fin=False)),
    "a frame that does not end": (b"\x82\xff" + (2**40).to_bytes(8, "big"), bytes(65_536)),
}  # fmt: skip


@pytest.mark.parametrize("proved", [False, True])
@pytest.mark.parametrize("what", FRAMES)
def test_D15_a_websocket_holds_no_more_than_its_limit(
    place_of: Callable[[str], Place], what: str, proved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not cut off, they must be held back.
    monkeypatch.setattr(limits, "PINGS_MAX", 2**40)
    monkeypatch.setattr(limits, "FRAGMENTS_MAX", 10_000)
    begin, again = FRAMES[what]
    place = place_of("unix")
    # Whoever has proved its key may send one large message.
    most = limits.STRANGER_BYTES_MAX + (limits.FRAME_BYTES_MAX if proved else 0)

    async def client(server: Server, listener: Listener) -> None:
        one = await place.connect(listener)
        one.setblocking(False)
        one.send(UPGRADE)
        while not place.sinks:
            await asyncio.sleep(0)
        if proved:
            place.sinks[0].socket.proved(member=True)
        with counted() as held:
            with suppress(OSError):
                one.send(begin)
            await pour(one, again, most=2 * most)
            assert held.now() < most

    place.run(client)


def test_D15_small_frames_without_end_are_cut_off(place_of: Callable[[str], Place]) -> None:
    async def client(server: Server, listener: Listener) -> None:
        for begin, again in (FRAMES["pings whose answers nobody reads"],
                             FRAMES["a message of many empty frames"]):  # fmt: skip
            one = await place.connect(listener)
            one.setblocking(False)
            one.send(UPGRADE)
            before = len(place.sinks)
            while len(place.sinks) == before:
                await asyncio.sleep(0)
            place.sinks[-1].socket.proved(member=True)
            # A client that reads everything.
            reader, writer = await asyncio.open_connection(sock=one)
            writer.write(begin + again * 4)
            with suppress(ConnectionError):
                while await reader.read(65_536):
                    continue
            writer.close()
            assert place.sinks[-1].code == 1008

    place = place_of("unix")
    place.run(client)
