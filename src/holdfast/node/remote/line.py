"""The connections to one daemon: threads that ask at the same time have one each.

A request that changes something has an id, its own or a new one. So it may be sent once more where
a connection broke before its answer began, and is written once.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

import msgspec

from holdfast.rules.errors import BadAnswer, OutcomeUnknown, StoreClosed, Unreachable
from holdfast.rules.limits import CONNECT_ANSWER_BYTES_MAX, CONNECT_LINES_MAX, LINK_READ_MS_MAX
from holdfast.transport.http_client import Client, Content
from holdfast.transport.remote_errors import HttpAnswer

_NOT_SENT: Final = (ConnectionRefusedError, FileNotFoundError)
_NO_HEADERS: Final[Mapping[str, str]] = {}


class _LogStatus(msgspec.Struct):
    peer: str


if TYPE_CHECKING:
    from holdfast.node.library.loop_thread import LoopThread


class _Closes(Protocol):
    def close(self) -> None: ...


class Line:
    """Calls one daemon, from any thread."""

    def __init__(
        self, address: str, *, token: str | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self._token, self._context = token, context
        self._idle: list[Client] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._users: WeakSet[_Closes] = WeakSet()
        self._loop_thread: LoopThread | None = None
        self._peer = ""
        self.own_client().close()  # refuses what is no address, or a token in the clear, at once

    def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        content: Content | None = None,
        read_ms: int | None = None,
    ) -> HttpAnswer:
        """The whole answer to one request that may be repeated, or that only reads."""
        with self._client() as client:
            return client.call(
                method,
                path,
                body=body,
                headers=headers,
                content=content,
                bytes_max=CONNECT_ANSWER_BYTES_MAX,
                read_ms=read_ms,
            )

    def write(
        self,
        method: str,
        path: str,
        *,
        id: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        content: Content | None = None,
        read_ms: int | None = None,
    ) -> HttpAnswer:
        """The same for a write that bears an id. OutcomeUnknown names it, if no answer came."""
        try:
            return self.call(
                method, path, body=body, headers=headers, content=content, read_ms=read_ms
            )
        except (Unreachable, BadAnswer) as error:
            # No node has said that nothing happened.
            told = type(error) not in (Unreachable, BadAnswer)
            if told or isinstance(error.__cause__, _NOT_SENT):
                raise
            raise OutcomeUnknown(
                f"{error.message}; the write may have happened",
                hint=f"make the same call with id={id!r}: it is written once at most",
            ) from error

    def stream(self, path: str) -> Generator[bytes, None, None]:
        """The body of an answer, piece by piece."""
        with self._client() as client:
            yield from client.stream("GET", path)

    def peer(self) -> str:
        """The peer whose home the daemon serves."""
        if not self._peer:
            self._peer = self.ask_peer()
        return self._peer

    def ask_peer(self) -> str:
        """The peer whose home the daemon serves now: another one may have taken the address."""
        return self.call("GET", "/v1/log").json(_LogStatus).peer

    def own_client(self, read_ms: int = LINK_READ_MS_MAX) -> Client:
        """A client for one user alone, who closes it."""
        return Client(self.address, token=self._token, context=self._context, read_ms=read_ms)

    @property
    def loop_thread(self) -> LoopThread:
        """Where what only coroutines can do is done for callers that wait."""
        self._leave_to_parent()
        with self._lock:
            if self._closed:
                raise StoreClosed(f"this connection to {self.address} was closed")
            if self._loop_thread is None:
                # It brings asyncio with it, which most callers do not need.
                from holdfast.node.library.loop_thread import LoopThread

                self._loop_thread = LoopThread("holdfast-connection")
            return self._loop_thread

    def enlist(self, user: _Closes) -> None:
        """Closing this connection closes the user too."""
        self._leave_to_parent()
        with self._lock:
            self._users.add(user)
            closed = self._closed
        if closed:
            user.close()
            raise StoreClosed(f"this connection to {self.address} was closed")

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
            users, thread = [*self._users], self._loop_thread
        for client in idle:
            client.close()
        for user in users:
            user.close()
        if thread is not None:
            thread.close()

    @contextmanager
    def _client(self) -> Generator[Client, None, None]:
        client = self._taken()
        try:
            yield client
        finally:
            with self._lock:
                kept = not self._closed and len(self._idle) < CONNECT_LINES_MAX
                if kept:
                    self._idle.append(client)
            if not kept:
                client.close()

    def _leave_to_parent(self) -> None:
        """In a forked child the connections are the parent's: two processes on one would read each
        other's answers. The lock may have been held at the fork.
        """
        if self._pid != os.getpid():
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()
            self._users, self._loop_thread = WeakSet(), None

    def _taken(self) -> Client:
        self._leave_to_parent()
        with self._lock:
            if self._closed:
                raise StoreClosed(f"this connection to {self.address} was closed")
            if self._idle:
                return self._idle.pop()
        return self.own_client()
