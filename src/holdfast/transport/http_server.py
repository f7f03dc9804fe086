"""Listening: the sockets, and a uvicorn server on each of them, in our own event loop.

A server per listener, because the application must know through which door a request came. They
install no signal handlers and keep no access log. What uvicorn leaves open is closed here: a head
that does not end, a head that does not stop growing, and a refusal that is not JSON.

TCP sockets are made with their protocol spelled out. asyncio switches Nagle's algorithm off only
where it reads `IPPROTO_TCP` there; a socket made without it waits 40 ms on each small answer.
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
"""In the scope of a request: the kind of the listener it came by."""
ABORT: Final = "holdfast.abort"
"""In the scope of a request: a function that cuts its connection at once."""
_BACKLOG: Final = 1024
_ACCEPT_AGAIN_S: Final = 0.1
_HEADERS: Final = [("x-content-type-options", "nosniff")]

_QUICK_BYTES_MAX: Final = 65_535
"""Of a body that is waited for without the framework: at the next byte uvicorn holds back."""

Lines = Mapping[str, Callable[[str], WebSocketHandler]]
"""By path: who talks on a WebSocket that is opened there, by the kind of the listener."""
Headers = Sequence[tuple[bytes, bytes]]
Done = Callable[[int, bytes, Headers], None]
"""Is told status, body and headers of an answer, once."""


class Quick(Protocol):
    """A call that is made so often that it leaves the framework: no scope, no task, one write."""

    def takes(self, url: bytes) -> bool:
        """Asked for each POST with a small body. If not, the call goes the common way."""

    def answer(self, kind: str, url: bytes, headers: Headers, body: bytes, done: Done) -> None:
        """Never raises; says `done` now or later."""


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
        """Returns when every listener takes calls."""
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
        """Takes no more calls, lets those under way finish, for a while, and closes."""
        for server in self._uvicorns:
            server.end.set()
        await asyncio.gather(*self._tasks)
        for server in self._uvicorns:
            for connection in list(server.server_state.connections):
                connection.transport.abort()


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers, and woken instead of looking."""

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
        # All that uvicorn does with what it finds here is to close it.
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
    """Takes connections from one socket, so many and no more.

    The loop's own server counts none of them, and one that does not get through its TLS handshake
    is seen by nobody above: strangers could take every file descriptor that the process may have,
    and the store needs some too. So each is counted from the moment that it is taken.
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
            except OSError:  # it hung up in the queue, or nothing is left to take it with
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
        if task.cancelled():  # perhaps before it began, so it could not do that itself
            connection.close()

    async def _greet(self, connection: socket.socket) -> None:
        shake_s = None if self._tls is None else limits.HEAD_MS_MAX / limits.SECOND_MS
        try:
            await self._loop.connect_accepted_socket(
                self._made, connection, ssl=self._tls, ssl_handshake_timeout=shake_s
            )
        except OSError:  # it speaks no TLS, or too slowly, or is gone
            connection.close()


class _Protocol(HttpToolsProtocol):
    """One connection, whose heads must come to their end in time and in size."""

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
        """The call that leaves the framework, until its body is here."""
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._body_came()
        super().connection_lost(exc)
        # uvicorn leaves this timer to whoever hung up in the middle of an answer, and with it, for
        # as long as a connection may idle, all that was still to be sent to them.
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

    # --- the call that leaves the framework ----------------------------------------------------

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
        # What uvicorn sees is a call under way: it queues others behind it, and waits for it.
        self._quickly = _QuickCycle()
        self.cycle = self._quickly  # type: ignore[assignment]
        return True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        cycle, self._quickly = self._quickly, None
        if cycle is not None:
            self._body_came()
            assert self.quick is not None, "or it would not have begun"
            done = partial(self._answer_quickly, cycle)
            self.quick.answer(self.kind, self.url, self.headers, bytes(cycle.body), done)

    def _answer_quickly(
        self, cycle: _QuickCycle, status: int, body: bytes, headers: Headers
    ) -> None:
        if cycle.disconnected or self.transport.is_closing():
            return
        end = (b"content-length", b"%d" % len(body))
        lines = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers, end):
            lines += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines += (b"\r\n", body)
        self.transport.write(b"".join(lines))
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

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
        """The connection is a WebSocket from here on, and this object is done with."""
        path = self.url.partition(b"?")[0].decode("latin-1")
        socket = WebSocketConnection(self.lines[path](self.kind), self.connections)
        transport = self.transport
        asked = self.scope["method"] == "GET" and not self._answering
        if asked and socket.begin(transport, path, self.headers):
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
            self._await_head()  # who sends the next request early may take as long as our answer
        elif self._head_open:
            self._refuse(408, "too_slow", "the head of the request did not arrive in time")
        else:
            self.timeout_keep_alive_handler()

    def timeout_keep_alive_handler(self) -> None:
        # To close is to wait until what was written is taken, and that may be never.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._head_came()
        if self.transport.is_closing():
            return
        if self._answering:
            # Another answer is on its way, and nothing may come between its parts.
            self.transport.abort()
            return
        body = msgspec.json.encode({"error": {"code": code, "message": message}})
        lines = [STATUS_LINE[status]]
        for name, value in [
            *self.server_state.default_headers,
            (b"content-type", JSON.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]:
            lines += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*lines, b"\r\n", body]))
        self.transport.close()


class _Never:
    """Stands where uvicorn would wake who waits for a body: nobody does."""

    def set(self) -> None:
        return


class _QuickCycle:
    """A call under way, as uvicorn knows one."""

    __slots__ = ("body", "disconnected", "keep_alive", "more_body", "response_complete")
    message_event = _Never()

    def __init__(self) -> None:
        self.body = bytearray()
        self.disconnected = self.response_complete = False
        self.keep_alive = self.more_body = True


class _Door:
    """The application, as one listener shows it."""

    def __init__(self, app: Any, kind: str) -> None:
        self._app = app
        self._kind = kind

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[LISTENER] = self._kind
        await self._app(scope, receive, send)


def _config(app: Any, listener: Listener) -> uvicorn.Config:
    tls = listener.tls
    # The application answers for its own faults. What uvicorn would add is what strangers send us,
    # and that must not fill anybody's log.
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
    """Half of the files that the process may open, at most: the other half is for its work."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if soft < 0 else min(most, soft // 2)
