"""What somebody without a key can do to the listeners: knock, and be forgotten again."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.log_wire import Batch, decode_batch, encode_batch
from holdfast.rules import limits
from holdfast.rules.errors import BadAnswer, EpochChanged, StoreFailed, Truncated
from holdfast.transport import doorkeeper
from holdfast.transport import http_server as serving
from holdfast.transport.http_server import Server
from holdfast.transport.listeners import Listener, tcp_listener, unix_listener
from holdfast.transport.remote_errors import error_of
from holdfast.transport.tls import make_certificate, server_context

PATIENCE_S = 10
ASK = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def much(scope: Any, receive: Any, send: Any) -> None:
    """More than any buffer between two sockets takes."""
    body = bytes(16 * limits.MIB)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(listeners: list[Listener], client: Callable[[Server], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server(much, listeners)
        await server.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await client(server)
        finally:
            await server.stop()

    asyncio.run(main())


def test_D10_a_connection_counts_before_its_handshake_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(limits, "HEAD_MS_MAX", 10 * PATIENCE_S * limits.SECOND_MS)
    listener = tcp_listener("127.0.0.1", 0, server_context(*make_certificate(tmp_path)))

    async def client(server: Server) -> None:
        place = listener.socket.getsockname()
        silent = [await asyncio.open_connection(*place) for _ in range(2)]
        reader, writer = await asyncio.open_connection(*place)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        for _, each in (*silent, (reader, writer)):
            each.close()

    serve([listener], client)


def test_D10_half_of_the_files_are_kept_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    assert serving._connections_max(1000) == 128
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (-1, -1))
    assert serving._connections_max(1000) == 1000


def test_D10_who_asks_and_does_not_read_does_not_keep_the_connection_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEEP_ALIVE_MS", 0)

    async def client(server: Server) -> None:
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(str(tmp_path / "s"))
            rude.sendall(ASK)
            while not server.connections:
                await asyncio.sleep(0)
            while server.connections:
                await asyncio.sleep(0.001)

    serve([unix_listener(tmp_path / "s")], client)


def test_D10_a_listener_goes_on_after_it_had_nothing_left_to_take_a_connection_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "_ACCEPT_AGAIN_S", 0)

    async def client(server: Server) -> None:
        accept, failed = socket.socket.accept, asyncio.Event()

        def once(listening: socket.socket) -> Any:
            if not failed.is_set():
                failed.set()
                raise OSError(24, "Too many open files")
            return accept(listening)

        monkeypatch.setattr(socket.socket, "accept", once)
        for _ in range(3):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(ASK)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        assert failed.is_set()

    serve([unix_listener(tmp_path / "s")], client)


# --- numbers that no log has ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"epoch": 2**63},
        {"head": 2**63, "upto": 2**63},
        {"first": 0},
        {"first": 12},
    ],
)
def test_Z7_a_batch_with_numbers_that_cannot_be_stored_is_no_batch(changed: dict[str, int]) -> None:
    fields = {"epoch": 1, "first": 1, "head": 10, "start": 1, "upto": 10}
    whole = Batch(**fields, offsets=[], raws=[])
    assert decode_batch(encode_batch(whole)) == whole
    with pytest.raises(BadAnswer):
        decode_batch(encode_batch(Batch(**{**fields, **changed}, offsets=[], raws=[])))


@pytest.mark.parametrize("number", ["0", "-1", str(2**63), "9" * 5000])
@pytest.mark.parametrize(
    ("status", "code", "field"),
    [(410, "truncated", "first_available"), (409, "epoch_changed", "epoch")],
)
def test_Z7_an_error_with_a_number_that_cannot_be_stored_is_not_believed(
    number: str, status: int, code: str, field: str
) -> None:
    body = f'{{"error":{{"code":"{code}","message":"x","{field}":{number}}}}}'.encode()
    error = error_of(status, "application/json", body, "bob")
    assert not isinstance(error, Truncated | EpochChanged)


def test_U4_a_socket_that_cannot_be_made_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="No such file"):
        unix_listener(tmp_path / "nowhere" / "s")
