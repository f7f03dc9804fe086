"""Serving HTTP: a uvicorn server on each listener, in our own event loop.

There is one server per listener, because the application must know by which listener a request
came. They install no signal handlers and keep no access log. This module adds a limit on
connections; what one connection may cost is bounded in `http_protocol`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any, Final

import uvicorn

from holdfast.rules import limits
from holdfast.rules.web_access import WebAccess
from holdfast.transport.doorkeeper import Doorkeeper
from holdfast.transport.http_protocol import Fronts, HttpConnection, Lines, Quick
from holdfast.transport.known_heads import KnownHeads
from holdfast.transport.listeners import Listener

LISTENER: Final = "holdfast.listener"
"""In the scope of a request: the kind of the listener by which it came."""
_HEADERS: Final = [("x-content-type-options", "nosniff")]


class Server:
    """An application behind several listeners."""

    def __init__(
        self,
        app: Any,
        listeners: list[Listener],
        *,
        lines: Lines | None = None,
        quick: Quick | None = None,
        most: int | None = None,
        web: WebAccess | None = None,
    ) -> None:
        """`web` says which web pages may call, and by which names; without it, what is always
        allowed.
        """
        self.listeners = listeners
        share = _connections_max(most or limits.CONNECTIONS_MAX) // max(1, len(listeners))

        def behind(listener: Listener) -> _Uvicorn:
            return _Uvicorn(
                *(_config(app, listener), share, listener.kind),
                *(lines or {}, quick, web or WebAccess()),
            )

        self._behind = behind
        self._uvicorns = [behind(listener) for listener in listeners]
        self._tasks: list[asyncio.Task[None]] = []
        self._added: list[Listener] = []

    async def start(self) -> None:
        """Starts serving; returns when every listener accepts calls."""
        for server, listener in zip(self._uvicorns, self.listeners, strict=True):
            self._tasks.append(asyncio.create_task(server.serve(sockets=[listener.socket])))
        for server, task in zip(self._uvicorns, self._tasks, strict=True):
            await _until_up(server, task)

    async def add(self, listener: Listener) -> None:
        """One more listener; if the others serve already, it does too. The server closes it."""
        server = self._behind(listener)
        self._uvicorns.append(server)
        self.listeners.append(listener)
        self._added.append(listener)
        if self._tasks:
            task = asyncio.create_task(server.serve(sockets=[listener.socket]))
            self._tasks.append(task)
            await _until_up(server, task)

    @property
    def connections(self) -> int:
        return sum(len(server.server_state.connections) for server in self._uvicorns)

    async def stop(self) -> None:
        """Accepts no more calls, lets the current ones finish for a while, and closes."""
        for server in self._uvicorns:
            server.end.set()
        await asyncio.gather(*self._tasks)
        for server in self._uvicorns:
            for connection in list(server.server_state.connections):
                connection.transport.abort()
        for listener in self._added:
            listener.socket.close()


async def _until_up(server: _Uvicorn, task: asyncio.Task[None]) -> None:
    await asyncio.wait(
        {task, asyncio.ensure_future(server.up.wait())}, return_when=asyncio.FIRST_COMPLETED
    )
    if task.done():
        task.result()


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers, and ended by an event instead of by polling."""

    def __init__(
        self,
        config: uvicorn.Config,
        most: int,
        kind: str,
        lines: Lines,
        quick: Quick | None,
        web: WebAccess,
    ) -> None:
        super().__init__(config)
        self._most = most
        self._kind, self._lines, self._quick, self._web = kind, lines, quick, web
        self._heads, self._fronts = KnownHeads(), Fronts()
        self.up = asyncio.Event()
        self.end = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are the daemon's business

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._date()
        loop = asyncio.get_running_loop()
        config = self.config

        def made() -> asyncio.Protocol:
            made = HttpConnection(config, self.server_state, {}, loop)
            made.kind, made.lines, made.quick = self._kind, self._lines, self._quick
            made.web, made.heads, made.fronts = self._web, self._heads, self._fronts
            return made

        taken = self.server_state.connections
        # uvicorn does nothing with its servers but close them.
        self.servers = [
            Doorkeeper(each, made, config.ssl, taken, self._most)  # type: ignore[misc]
            for each in sockets or ()
        ]
        self.started = True
        self.up.set()

    async def main_loop(self) -> None:
        while not self.end.is_set():
            self._date()
            try:
                async with asyncio.timeout(1):
                    await self.end.wait()
            except TimeoutError:
                continue

    def _date(self) -> None:
        date = (b"date", formatdate(usegmt=True).encode())
        self.server_state.default_headers = [date, *self.config.encoded_headers]


class _Door:
    """The application behind one listener: it notes the kind of the listener in each scope."""

    def __init__(self, app: Any, kind: str) -> None:
        self._app = app
        self._kind = kind

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[LISTENER] = self._kind
        await self._app(scope, receive, send)


def _config(app: Any, listener: Listener) -> uvicorn.Config:
    tls = listener.tls
    # The application logs its own faults. What uvicorn would log is what strangers send, and that
    # must not fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    return uvicorn.Config(
        _Door(app, listener.kind),
        http=HttpConnection,
        ws="none",
        loop="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        headers=_HEADERS,
        timeout_keep_alive=limits.KEEP_ALIVE_MS // limits.SECOND_MS,
        timeout_graceful_shutdown=limits.SHUTDOWN_DRAIN_MS_MAX // limits.SECOND_MS,
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )


def _connections_max(most: int) -> int:
    """At most half of the files that the process may open: the other half is for its work."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if soft < 0 else min(most, soft // 2)
