"""A gateway that says what a test wants, to see what becomes of that.

A test gives it a function that answers one request: by a whole answer (`Said`), or by writing to
the connection whatever it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

import msgspec


class Asked(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """The number of the connection that it came over."""


class Said(NamedTuple):
    status: int
    body: bytes


Answering = Callable[[Asked, asyncio.StreamWriter], Awaitable[Said | None]]

OK = Said(200, b"{}")


def error(status: int, code: int, message: str) -> Said:
    return Said(status, msgspec.json.encode({"error": message, "code": code, "message": message}))


class FakeEtcd:
    """Listens on loopback while it is entered. It says that its version is `version`."""

    def __init__(self, answering: Answering, *, version: str = "3.6.9") -> None:
        self._answering, self._version = answering, version
        self.asked: list[Asked] = []
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._server.wait_closed()

    @property
    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def cut(self) -> None:
        """Ends all connections."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._open.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        # asyncio complains of a handler that was cancelled: this one just ends.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                asked = await _read(reader, number)
                if asked.path == "/version":
                    said: Said | None = Said(200, b'{"etcdserver":"%s"}' % self._version.encode())
                else:
                    self.asked.append(asked)
                    said = await self._answering(asked, writer)
                if said is None:
                    break
                head = f"HTTP/1.1 {said.status} x\r\nContent-Length: {len(said.body)}\r\n\r\n"
                writer.write(head.encode() + said.body)
                await writer.drain()
        self._open.discard(writer)
        writer.close()


async def _read(reader: asyncio.StreamReader, number: int) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("Content-Length", 0)))
    return Asked(head[0].split(" ")[1], headers, body, number)
