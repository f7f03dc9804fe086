"""The node's end of a WebSocket, against servers that do as they like."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.utils import accept_key

from holdfast.rules.errors import BadAnswer, BadInput, Unreachable
from holdfast.rules.limits import MIB
from holdfast.transport.tls import certificate_digest, make_certificate, server_context
from holdfast.transport.websocket_client import PLAIN, HungUp, WebSocketClient

PATIENCE_S = 20

Server = Callable[[ServerConnection], Awaitable[None]]
Client = Callable[[WebSocketClient], Awaitable[None]]


def meet(server: Server, client: Client) -> None:
    """One connection between the two, over loopback."""

    async def main() -> None:
        async with serve(server, "127.0.0.1", 0) as up:
            port = up.sockets[0].getsockname()[1]
            socket = await WebSocketClient.open(f"http://127.0.0.1:{port}", "/v1/sync")
            try:
                await client(socket)
            finally:
                await socket.close()

    asyncio.run(main())


def test_D15_frames_go_both_ways_and_are_not_compressed() -> None:
    async def server(line: ServerConnection) -> None:
        assert line.request is not None
        assert line.request.path == "/v1/sync"
        assert "Sec-WebSocket-Extensions" not in line.request.headers
        await line.send(b"you said " + bytes(await line.recv(decode=False)))

    async def client(socket: WebSocketClient) -> None:
        assert socket.certificate == PLAIN
        await socket.send(b"hello")
        assert await socket.receive() == b"you said hello"

    meet(server, client)


def test_D15_the_certificate_that_is_shown_is_known(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)

    async def quiet(line: ServerConnection) -> None:
        await line.wait_closed()

    async def main() -> None:
        context = server_context(certificate, key)
        async with serve(quiet, "127.0.0.1", 0, ssl=context) as up:
            port = up.sockets[0].getsockname()[1]
            socket = await WebSocketClient.open(f"https://127.0.0.1:{port}", "/")
            assert socket.certificate == certificate_digest(certificate)
            await socket.close()

    asyncio.run(main())


def test_D15_nothing_is_said_as_it_is_over_a_network() -> None:
    with pytest.raises(BadInput, match="not encrypted"):
        asyncio.run(WebSocketClient.open("http://10.0.0.1:1", "/"))


def test_D9_why_the_other_side_hung_up_is_told() -> None:
    async def server(line: ServerConnection) -> None:
        await line.close(4012, "too short\\x1b[31m")

    async def client(socket: WebSocketClient) -> None:
        with pytest.raises(HungUp, match="too short") as found:
            await socket.receive()
        assert found.value.code == 4012
        with pytest.raises(HungUp):
            await socket.send(b"still there?")

    meet(server, client)


def test_D14_a_server_that_goes_away_is_out_of_reach() -> None:
    async def server(line: ServerConnection) -> None:
        await line.close(1001)

    async def client(socket: WebSocketClient) -> None:
        with pytest.raises(Unreachable, match="went away"):
            await socket.receive()

    meet(server, client)


def test_D15_text_is_no_frame() -> None:
    async def server(line: ServerConnection) -> None:
        await line.send("hello")
        await line.wait_closed()

    async def client(socket: WebSocketClient) -> None:
        with pytest.raises(BadAnswer, match="text"):
            await socket.receive()

    meet(server, client)


def talk_to(answer: bytes) -> None:
    """Connects to one that answers like this and hangs up."""

    async def spoken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(spoken, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            await WebSocketClient.open(f"http://127.0.0.1:{port}", "/")

    asyncio.run(main())


def test_D14_what_is_no_websocket_is_a_bad_answer() -> None:
    with pytest.raises(BadAnswer, match="WebSocket"):
        talk_to(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
    with pytest.raises(BadAnswer, match="WebSocket"):
        talk_to(b"220 mail.example.com ESMTP\r\n")


def test_D14_a_server_that_is_starting_or_ending_is_out_of_reach() -> None:
    with pytest.raises(Unreachable):
        talk_to(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
    with pytest.raises(Unreachable):
        talk_to(b"")


def test_D14_nobody_there_is_out_of_reach() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        await WebSocketClient.open(f"http://127.0.0.1:{port}", "/")

    with pytest.raises(Unreachable, match="does not answer"):
        asyncio.run(main())


def test_D14_a_goodbye_to_one_who_does_not_read_comes_to_an_end() -> None:
    """What is unsent stays so, and the close would wait behind it for ever."""

    async def main() -> None:
        over, ended = asyncio.Event(), asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await reader.readuntil(b"\r\n\r\n")
            (key,) = re.findall(rb"(?i)sec-websocket-key: (\S+)", request)
            answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
            answer += f"Connection: Upgrade\r\nSec-WebSocket-Accept: {accept_key(key.decode())}\r\n"
            writer.write(f"{answer}\r\n".encode())
            await over.wait()
            writer.transport.abort()
            ended.set()

        async with await asyncio.start_server(deaf, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            socket = await WebSocketClient.open(f"http://127.0.0.1:{port}", "/v1/sync")
            flood = asyncio.create_task(socket.send(bytes(64 * MIB)))
            async with asyncio.timeout(PATIENCE_S):
                while not socket._connection.transport.get_write_buffer_size():
                    await asyncio.sleep(0)
                await socket.close()
                await asyncio.wait({flood})
                with pytest.raises(Unreachable):
                    await socket.receive()
            over.set()
            await ended.wait()

    asyncio.run(main())
