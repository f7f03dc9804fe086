"""The connections to one member of an etcd.

A connection serves one call at a time and is kept for the next. Before a member is asked for the
first time, and again after it failed, its version is looked at: whoever comes back may have become
another.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final

from holdfast.protocol.etcd_json import VERSION, VersionAnswer, decode
from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import ETCD_CONNECTIONS_MAX, KIB
from holdfast.transport.etcd_address import EtcdMember
from holdfast.transport.http_stream import ConnectionCut, HttpStream, PlainAnswer

_SMALL_BYTES_MAX: Final = 64 * KIB


class CallAttempt:
    """One try of a call."""

    sent = False
    """Whether the member may have got the call."""


class MemberConnections:
    """All connections to one member. Belongs to one event loop."""

    def __init__(
        self,
        member: EtcdMember,
        context: ssl.SSLContext | None,
        check: Callable[[str], None] | None,
    ) -> None:
        """`check` raises for a version that is not good enough; None takes any."""
        self.member, self._context, self._check = member, context, check
        self._is_checked = check is None
        self.room = asyncio.Semaphore(ETCD_CONNECTIONS_MAX)
        """Whoever posts has acquired it: the time of a call begins when there is room for it."""
        self._idle: list[HttpStream] = []
        self._all: set[HttpStream] = set()
        self._is_closed = False

    async def post(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        bytes_max: int,
        attempt: CallAttempt,
    ) -> PlainAnswer:
        """One call. Raises OSError or BadAnswer; `attempt` then tells whether it was sent."""
        request = self._request("POST", path, headers, body)
        await self._be_checked()
        return await self._ask(request, bytes_max, attempt)

    async def lines(
        self, path: str, headers: Mapping[str, str], body: bytes, line_bytes_max: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """A call whose answer comes line by line, over a connection of its own."""
        await self._be_checked()
        stream = await self._open()
        try:
            request = self._request("POST", path, headers, body)
            async with aclosing(stream.lines(request, line_bytes_max)) as lines:
                async for line in lines:
                    yield line
        finally:
            self._end(stream)

    def failed(self) -> None:
        """The member failed a call: its connections may be dead without knowing it."""
        self._is_checked = self._check is None
        while self._idle:
            self._end(self._idle.pop())

    async def close(self) -> None:
        """Ends whatever is under way, for good."""
        self._is_closed = True
        ending = list(self._all)
        for stream in ending:
            self._end(stream)
        await asyncio.gather(*(stream.wait_closed() for stream in ending))

    # --- one exchange --------------------------------------------------------------------------

    async def _ask(self, request: bytes, bytes_max: int, attempt: CallAttempt) -> PlainAnswer:
        stream = await self._ready()
        was_used = stream.is_used
        attempt.sent = True
        try:
            return await stream.ask(request, bytes_max)
        except (ConnectionCut, ConnectionError) as error:
            # A member closes connections that were idle for long. Every call of ours may be sent
            # twice, so it need not be told from other breaks.
            if not was_used or (isinstance(error, ConnectionCut) and error.began):
                raise
        finally:
            self._put_back(stream)
        stream = await self._open()
        try:
            return await stream.ask(request, bytes_max)
        finally:
            self._put_back(stream)

    async def _be_checked(self) -> None:
        if self._is_checked or self._check is None:
            return
        request = self._request("GET", VERSION, {}, b"")
        answer = await self._ask(request, _SMALL_BYTES_MAX, CallAttempt())
        if answer.status != 200:
            raise BadAnswer(f"etcd at {self.member} answers {answer.status} and not its version")
        self._check(decode(answer.body, VersionAnswer).etcdserver)
        self._is_checked = True

    async def _ready(self) -> HttpStream:
        while self._idle:
            stream = self._idle.pop()
            if stream.is_open:
                return stream
            self._end(stream)
        return await self._open()

    async def _open(self) -> HttpStream:
        try:
            stream = await HttpStream.open(self.member.host, self.member.port, self._context)
        except ssl.SSLCertVerificationError as error:
            raise BadAnswer(
                f"etcd at {self.member} shows a certificate that is not believed: "
                f"{error.verify_message}",
                hint="name its authority in the etcd address: ca=FILE",
            ) from None
        self._all.add(stream)
        if self._is_closed:  # while it was made
            self._end(stream)
            raise ConnectionAbortedError("its connections were closed")
        return stream

    def _put_back(self, stream: HttpStream) -> None:
        if stream.is_open:
            self._idle.append(stream)
        else:
            self._end(stream)

    def _end(self, stream: HttpStream) -> None:
        self._all.discard(stream)
        stream.close()

    def _request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        lines = {
            "Host": str(self.member),
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }
        head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items())]
        assert all(line.isascii() and line.isprintable() for line in head), "checked where made"
        return "\r\n".join([*head, "", ""]).encode("ascii") + body
