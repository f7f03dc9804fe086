"""Serving HTTP: a uvicorn server on each listener, in our own event loop.

There is one server per listener, because the application must know by which listener a request
came. They install no signal handlers and keep no access log. This module adds what uvicorn lacks:
an end for a head that does not arrive or does not stop growing, refusals as JSON, a limit on
connections, and a fast path for one call (`Quick`).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.protocol.log_wire import JSON
from holdfast.rules import limits
from holdfast.transport.listeners import Listener
from holdfast.transport.websocket_server import WebSocketConnection, WebSocketHandler

LISTENER: Final = "holdfast.listener"
"""In the scope of a request: the kind of the listener by which it came."""
ABORT: Final = "holdfast.abort"
"""In the scope of a request: a function that cuts its connection at once."""
_BACKLOG: Final = 1024
_ACCEPT_AGAIN_S: Final = 0.1
_HEADERS: Final = [("x-content-type-options", "nosniff")]

_QUICK_BYTES_MAX: Final = 65_535
"""The largest body on the fast path: with one byte more uvicorn stops reading for a while."""

Lines = Mapping[str, Callable[[str], WebSocketHandler]]
"""By path: makes the handler of a WebSocket that is opened there, from the listener's kind."""
Headers = Sequence[tuple[bytes, bytes]]
Done = Callable[[int, bytes, Headers], None]
"""Called once with status, body and headers of an answer."""


class Quick(Protocol):
    """A call that is made so often that it gets a path without framework: no scope, no task, one
    write.
    """

    def takes(self, url: bytes) -> bool:
        """Whether a POST with a small body to this URL takes the fast path."""

    def answer(self, kind: str, url: bytes, headers: Headers, body: bytes, done: Done) -> None:
        """Answers by calling `done`, now or later. Never raises."""


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
    ) -> None:
        self.listeners = listeners
        share = _connections_max(most or limits.CONNECTIONS_MAX) // max(1, len(listeners))
        self._uvicorns = [
            _Uvicorn(_config(app, listener), share, listener.kind, lines or {}, quick)
            for listener in listeners
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts serving; returns when every listener accepts calls."""
        for server, listener in zip(self._uvicorns, self.listeners, strict=True):
            self._tasks.append(asyncio.create_task(server.serve(sockets=[listener.socket])))
        for server, task in zip(self._uvicorns, self._tasks, strict=True):
            await asyncio.wait(
                {task, asyncio.ensure_future(server.up.wait())},
                return_when=asyncio.FIRST_COMPLETED,
            )
            if task.done():
                task.result()

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


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers, and ended by an event instead of by polling."""

    def __init__(
        self, config: uvicorn.Config, most: int, kind: str, lines: Lines, quick: Quick | None
    ) -> None:
        super().__init__(config)
        self._most = most
        self._kind, self._lines, self._quick = kind, lines, quick
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
            made = _Protocol(config, self.server_state, {}, loop)
            made.kind, made.lines, made.quick = self._kind, self._lines, self._quick
            return made

        taken = self.server_state.connections
        # uvicorn does nothing with its servers but close them.
        self.servers = [
            _Doorkeeper(each, made, config.ssl, taken, self._most)  # type: ignore[misc]
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


class _Doorkeeper:
    """Accepts connections from one socket, up to a limit.

    asyncio's own server counts none of them, and uvicorn does not see a connection before its TLS
    handshake is done: strangers could use up every file descriptor of the process, and the store
    needs some too. So each connection counts from the moment that it is accepted.
    """

    def __init__(
        self,
        listening: socket.socket,
        made: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        taken: Collection[object],
        most: int,
    ) -> None:
        self._listening, self._made, self._tls = listening, made, tls
        self._taken, self._most = taken, most
        self._greeting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        listening.listen(_BACKLOG)
        self._taking = self._loop.create_task(self._take())

    def close(self) -> None:
        self._taking.cancel()
        # At once: the socket is closed before the task gets its turn.
        self._loop.remove_reader(self._listening)
        for task in self._greeting:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._taking, *self._greeting, return_exceptions=True)

    async def _take(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listening)
            except OSError:  # the client closed it in the queue, or no file descriptor is left
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(self._taken) + len(self._greeting) >= self._most:
                connection.close()
                continue
            task = self._loop.create_task(self._greet(connection))
            self._greeting.add(task)
            task.add_done_callback(partial(self._greeted, connection))

    def _greeted(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._greeting.discard(task)
        if task.cancelled():  # perhaps before it began: then nobody else closes the connection
            connection.close()

    async def _greet(self, connection: socket.socket) -> None:
        shake_s = None if self._tls is None else limits.HEAD_MS_MAX / limits.SECOND_MS
        try:
            await self._loop.connect_accepted_socket(
                self._made, connection, ssl=self._tls, ssl_handshake_timeout=shake_s
            )
        except OSError:  # the client speaks no TLS, or too slowly, or is gone
            connection.close()


class _Protocol(HttpToolsProtocol):
    """One connection, with limits on the size and the time of each head, and with the fast path."""

    kind: str
    lines: Lines
    quick: Quick | None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._head_open = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._quickly: _QuickCycle | None = None
        """The call on the fast path, until its body has arrived."""
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._body_came()
        super().connection_lost(exc)
        # uvicorn leaves this timer running when a client goes in the middle of an answer, and it
        # keeps all unsent bytes in memory for as long as a connection may idle.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if not self._answering:
            self._await_head()
        self._head_bytes += len(data)
        super().data_received(data)
        self._await_body()
        if self._head_open and self._head_bytes > limits.HEAD_BYTES_MAX:
            self._refuse(431, "head_too_large", "the head of the request does not end")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_open = True
        self._await_head()
        self.scope[ABORT] = self.transport.abort  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._head_bytes = 0
        self._head_came()
        if self.quick is None or not self._begin_quickly(self.quick):
            super().on_headers_complete()

    # --- the fast path -------------------------------------------------------------------------

    def _begin_quickly(self, quick: Quick) -> bool:
        if self.parser.get_method() != b"POST" or self._answering or not quick.takes(self.url):
            return False
        size = -1
        for name, value in self.headers:
            if name == b"content-length":
                size = int(value)
            elif name in (b"transfer-encoding", b"expect", b"upgrade"):
                return False
        if not 0 < size <= _QUICK_BYTES_MAX or not self.parser.should_keep_alive():
            return False
        # uvicorn sees a call in progress: it queues others behind it, and waits for it.
        self._quickly = _QuickCycle()
        self.cycle = self._quickly  # type: ignore[assignment]
        return True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        cycle, self._quickly = self._quickly, None
        if cycle is not None:
            self._body_came()
            assert self.quick is not None, "the fast path has begun"
            done = partial(self._answer_quickly, cycle)
            self.quick.answer(self.kind, self.url, self.headers, bytes(cycle.body), done)

    def _answer_quickly(
        self, cycle: _QuickCycle, status: int, body: bytes, headers: Headers
    ) -> None:
        if cycle.disconnected or self.transport.is_closing():
            return
        self._write_answer(status, body, headers, keep_alive=cycle.keep_alive)
        cycle.response_complete = True
        self.on_response_complete()

    def _write_answer(
        self, status: int, body: bytes, headers: Headers, *, keep_alive: bool
    ) -> None:
        end = (b"content-length", b"%d" % len(body))
        lines = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers, end):
            lines += (name, b": ", value, b"\r\n")
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        lines += (b"\r\n", body)
        self.transport.write(b"".join(lines))
        if not keep_alive:
            self.transport.close()

    def _await_body(self) -> None:
        if self._quickly is not None and self._body_timer is None:
            self._body_timer = self.loop.call_later(
                limits.REQUEST_MS_MAX / limits.SECOND_MS, self.transport.abort
            )

    def _body_came(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "bad_request", "this is not a request of HTTP/1.1")

    def _should_upgrade_to_ws(self) -> bool:
        return self.url.partition(b"?")[0].decode("latin-1") in self.lines

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection to a WebSocketConnection, or refuses the request."""
        path = self.url.partition(b"?")[0].decode("latin-1")
        socket = WebSocketConnection(self.lines[path](self.kind), self.connections)
        transport = self.transport
        may_upgrade = self.scope["method"] == "GET" and not self._answering
        if may_upgrade and socket.begin(transport, path, self.headers):
            self.connections.discard(self)
            self._unset_keepalive_if_required()
        else:
            self._refuse(400, "bad_request", "this is not how a WebSocket is opened")

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(
                limits.HEAD_MS_MAX / limits.SECOND_MS, self._head_late
            )

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self._answering:
            self._await_head()  # the head of a next request may take as long as this answer
        elif self._head_open:
            self._refuse(408, "too_slow", "the head of the request did not arrive in time")
        else:
            self.timeout_keep_alive_handler()

    def timeout_keep_alive_handler(self) -> None:
        # `close` waits until the client has read everything, which may be never.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._head_came()
        if self.transport.is_closing():
            return
        if self._answering:
            # Another answer is being sent, and nothing may come between its parts.
            self.transport.abort()
            return
        body = msgspec.json.encode({"error": {"code": code, "message": message}})
        headers = [(b"content-type", JSON.encode())]
        self._write_answer(status, body, headers, keep_alive=False)


class _Never:
    """Stands for the event by which uvicorn wakes a task that waits for a body: there is none."""

    def set(self) -> None:
        return


class _QuickCycle:
    """A call in progress, with the attributes that uvicorn expects."""

    __slots__ = ("body", "disconnected", "keep_alive", "more_body", "response_complete")
    message_event = _Never()

    def __init__(self) -> None:
        self.body = bytearray()
        self.disconnected = self.response_complete = False
        self.keep_alive = self.more_body = True


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
        http=_Protocol,
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
