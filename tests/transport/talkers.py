"""The other side of a connection, as rude as a test needs it: real sockets, real TLS.

A `Talker` runs a function for every connection. `answering` makes one that reads whole requests and
answers each by a function; others get the bare socket and do with it what they like.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from holdfast.protocol.log_wire import JSON

Talk = Callable[["Talker", socket.socket], None]


class Talker:
    """Listens, and talks to whoever connects, each in a thread of its own."""

    def __init__(
        self, talk: Talk, *, context: ssl.SSLContext | None = None, unix: Path | None = None
    ) -> None:
        self._talk = talk
        self._context = context
        self._unix = unix
        self.over = threading.Event()
        """Set when the test is over: what a talker that hangs waits for."""
        self.heard = threading.Event()
        """For talks that tell a test how far they are."""
        self.connections = 0
        self._conns: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        if unix is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
        else:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(unix))
            self._listener.listen()
        self._start(self._accept)

    @property
    def address(self) -> str:
        if self._unix is not None:
            return f"unix:{self._unix}"
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def _start(self, work: Callable[..., None], *given: Any) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            self._conns.append(conn)
            self.connections += 1
            self._start(self._serve, conn)

    def _serve(self, conn: socket.socket) -> None:
        # The other side may hang up at any moment: that is what many tests are about.
        with suppress(OSError):
            if self._context is not None:
                conn = self._context.wrap_socket(
                    conn, server_side=True, do_handshake_on_connect=False
                )
                self._conns.append(conn)
                conn.do_handshake()
            with conn:
                self._talk(self, conn)

    def hang_up(self) -> None:
        """Ends every connection, but goes on listening."""
        for conn in self._conns:
            with suppress(OSError):
                # Not that of TLS, which takes the state away under the thread that uses it.
                socket.socket.shutdown(conn, socket.SHUT_RDWR)

    def close(self) -> None:
        self.over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        for conn in self._conns:
            conn.close()


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Reply:
    status: int = 200
    body: bytes = b"{}"
    kind: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, *, head_only: bool = False) -> bytes:
        lines = [f"HTTP/1.1 {self.status} X", f"Content-Type: {self.kind}"]
        given = {"Content-Length": str(len(self.body)), **self.headers}
        lines += [f"{name}: {value}" for name, value in given.items()]
        head = "\r\n".join([*lines, "", ""]).encode()
        return head if head_only else head + self.body


def error_reply(status: int, code: str, **more: Any) -> Reply:
    said = {"code": code, "message": f"about {code}", "hint": "do this", **more}
    return Reply(status, msgspec.json.encode({"error": said}))


def read_request(conn: socket.socket) -> Request | None:
    """The next whole request; None at the end."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        more = conn.recv(65536)
        if not more:
            return None
        raw += more
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += conn.recv(65536)
    return Request(method, path, headers, body)


def answering(answer: Callable[[Request], Reply]) -> Talk:
    def talk(talker: Talker, conn: socket.socket) -> None:
        while request := read_request(conn):
            reply = answer(request)
            conn.sendall(reply.encode(head_only=request.method == "HEAD"))

    return talk


def saying(raw: bytes) -> Talk:
    """Answers the first request with these bytes, and hangs up."""

    def talk(talker: Talker, conn: socket.socket) -> None:
        if read_request(conn) is not None:
            conn.sendall(raw)
            with suppress(OSError):
                conn.shutdown(socket.SHUT_WR)
            # What is closed before it was read could take the answer with it.
            conn.recv(1)

    return talk
