"""One HTTP/1.1 connection: uvicorn's protocol, with an end to everything that a client can make
grow.

**One request at a time.** uvicorn parses whatever has been read, and queues a request for each head
that it finds. Here the parser gets one message at most; the rest stays as the bytes that came, and
reading stops. The next message is parsed when the last one has its answer and the client reads what
it was sent. So a connection costs one request and one read, however much is sent ahead, and
whoever sends much ahead gets one turn of the loop for each request, as everybody else does.

To stop at the end of a message one must know where it ends. The parser accepts `CR LF` alone as the
end of a line, so a head, and a body in chunks, ends with the first empty line that the parser takes
for it: bytes are handed over up to an empty line at most. A cut at the wrong place does no harm:
the parser sees the same bytes in any case.

**Half-closed connections.** A client that has sent its requests and shuts its sending half down
gets its answers. Over TLS there is no such thing here: asyncio closes both halves.

A call that is made very often gets a path without framework (`Quick`), and a head that came before
is not parsed again (`known_heads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.protocol.error_body import ErrorBody, ErrorDetail
from holdfast.protocol.log_wire import JSON
from holdfast.rules import limits
from holdfast.rules.web_access import WebAccess
from holdfast.transport.known_heads import EMPTY_LINE, Headers, KnownHeads, RequestHead
from holdfast.transport.websocket_server import WebSocketConnection, WebSocketHandler

ABORT: Final = "holdfast.abort"
"""In the scope of a request: a function that cuts its connection at once."""
ENDED: Final = "holdfast.ended"
"""In the scope of a request: a function that tells whether its client sends no more."""

_QUICK_BYTES_MAX: Final = 65_535
"""The largest body on the fast path: with one byte more uvicorn stops reading for a while."""

_NO_BODY: Final = "a request that asks for another protocol has no body here"

Lines = Mapping[str, Callable[[str], WebSocketHandler]]
"""By path: makes the handler of a WebSocket that is opened there, from the listener's kind."""
Done = Callable[[int, bytes, Headers], None]
"""Called once with status, body and headers of an answer."""


class Quick(Protocol):
    """A call that is made so often that it gets a path without framework: no scope, no task, one
    write.
    """

    def takes(self, url: bytes) -> bool:
        """Whether a POST with a small body to this URL takes the fast path."""

    def answer(self, head: RequestHead, body: bytes, done: Done) -> None:
        """Answers by calling `done`, now or later. Never raises. The same head comes again with the
        next request that has its bytes: what it says does not change, whether it may does.
        """


class Fronts:
    """How the answers of one listener begin: all but the length. Nearly all begin like the last."""

    def __init__(self) -> None:
        self._last: tuple[int, object, object] = 0, None, None
        self._front = b""

    def of(self, status: int, usual: Headers, headers: Headers) -> bytes:
        """`usual` are the headers of every answer: another list each second."""
        was, of_all, own = self._last
        if status != was or usual is not of_all or headers is not own:
            lines = [b"%b: %b\r\n" % one for one in (*usual, *headers)]
            self._front = b"".join([STATUS_LINE[status], *lines])
            self._last = status, usual, headers
        return self._front


class HttpConnection(HttpToolsProtocol):
    """One connection."""

    kind: str
    lines: Lines
    quick: Quick | None
    web: WebAccess
    heads: KnownHeads
    fronts: Fronts

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        self._ahead = b""
        """What was read and not parsed yet, from `_ahead_at` on."""
        self._ahead_at = 0
        self._woken = False
        self._idle_since: float | None = None
        """When the last answer was sent, if nothing came since."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._hosts_known: list[bytes] | None = None
        """The `Host` of the last request that was let in."""
        self._ended = False
        """The client has sent all that it will send."""
        self._upgraded = False
        self._message_open = False
        self._chunked = False
        self._body_left = 0
        """How much of a body of known length has not come yet."""
        self._whole_head = b""
        """The head that came whole, with nothing before it."""
        self._behind_head = 0
        """How much came together with it, behind it."""
        self._last_bytes = b""
        self._head_bytes = 0
        """What the parser got since the end of the last head, or the last byte of a body."""
        self._head_lines = 0
        self._head_open = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._quickly: _QuickCycle | None = None
        """The call on the fast path, until its body has arrived."""
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ahead = b""
        self._head_came()
        self._body_came()
        super().connection_lost(exc)
        # uvicorn leaves this timer running when a client goes in the middle of an answer, and it
        # keeps all unsent bytes in memory for as long as a connection may idle.
        self._end_idle()

    # --- what is read --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._ahead:
            self._keep(self._ahead[self._ahead_at :] + data, 0)
        elif self._must_wait:
            self._keep(data, 0)
        elif self._message_open or self._head_bytes:
            self._parse(data, 0)
        elif self._is_known(data):
            return
        else:
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        """Nearly always: a whole head, and perhaps its body. The parser gets the head alone, as
        what comes behind it may be the beginning of another one.
        """
        head = data.find(EMPTY_LINE) + len(EMPTY_LINE)
        is_whole = len(EMPTY_LINE) <= head <= limits.HEAD_BYTES_MAX
        if not is_whole or data.count(b"\n", 0, head) > limits.HEAD_LINES_MAX:
            self._parse(data, 0)
            return
        self._await_head()
        self._whole_head, self._behind_head = data[:head], len(data) - head
        super().data_received(self._whole_head)
        self._last_bytes = EMPTY_LINE[-3:]
        if self._upgraded:
            self._hand_on(data, head)
        elif self._behind_head and not self.transport.is_closing():
            self._parse(data, head)
        elif self._message_open:
            self._await_body()
        self._whole_head = b""

    def _hand_on(self, data: bytes, at: int) -> None:
        """What came behind the request for a WebSocket is its first frame."""
        after = self.transport.get_protocol()
        if at < len(data) and isinstance(after, WebSocketConnection):
            after.data_received(data[at:])

    def _is_known(self, data: bytes) -> bool:
        """Whether it is one whole request whose head was parsed before; then it is under way."""
        found = self.heads.find(data)
        if found is None or self.quick is None:
            return False
        head, begin = found
        if not self.quick.takes(head.url):
            return False
        if self._head_timer is not None:
            self._head_came()
        self._idle_since = None
        cycle = _KnownCycle()
        self.cycle = cycle  # type: ignore[assignment]
        self.quick.answer(head, data[begin:], partial(self._answer_quickly, cycle))
        return True

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _must_wait(self) -> bool:
        """No message begins while the last one has no answer, or the client does not read."""
        return not self._message_open and (self._answering or self.flow.write_paused)

    def _keep(self, data: bytes, at: int) -> None:
        if len(data) - at > limits.STRANGER_BYTES_MAX // 2:
            self.transport.abort()  # reading has stopped, and yet more came
            return
        self._ahead, self._ahead_at = data, at
        self.flow.hold()

    def _parse(self, data: bytes, at: int) -> None:
        """Hands bytes to the parser, up to the end of a message."""
        end = len(data)
        while at < end:
            if self._must_wait:
                self._keep(data, at)
                return
            if not self._answering:
                self._await_head()
            cut = self._cut(data, at)
            piece = data[at:cut]
            at = cut
            in_body = self._body_left > 0
            if in_body:
                self._body_left -= len(piece)
            elif not self._within_head(piece):
                return
            super().data_received(piece)
            if self._upgraded:
                self._hand_on(data, at)
                return
            if self.transport.is_closing():
                return
            self._await_body()
        self._last_bytes = (self._last_bytes + data[-3:])[-3:]

    def _cut(self, data: bytes, at: int) -> int:
        """Up to where the parser may get bytes: it meets one end of a message there at most."""
        if self._body_left:
            return min(len(data), at + self._body_left)
        if at == 0 and self._last_bytes:
            # An empty line may have come in parts.
            seam = (self._last_bytes + data[:3]).find(EMPTY_LINE)
            if seam >= 0:
                return seam + len(EMPTY_LINE) - len(self._last_bytes)
        found = data.find(EMPTY_LINE, at)
        return len(data) if found < 0 else found + len(EMPTY_LINE)

    def _within_head(self, piece: bytes) -> bool:
        """Counts what is no body; refuses and returns False if it is too much."""
        self._head_bytes += len(piece)
        self._head_lines += piece.count(b"\n")
        if self._chunked:
            # The piece may be content of any size; `on_body` begins to count anew.
            grown = self._head_bytes - len(piece) > limits.HEAD_BYTES_MAX
        else:
            grown = self._head_bytes > limits.HEAD_BYTES_MAX
            grown = grown or self._head_lines > limits.HEAD_LINES_MAX
        if grown:
            self._refuse(431, "head_too_large", "the head of the request is too large")
        return not grown

    def _go_on(self) -> None:
        """Parses what was read ahead, with the next turn of the loop; others have theirs before."""
        if self._ahead:
            if not self._woken:
                self._woken = True
                self.loop.call_soon(self._parse_ahead)
        elif self._ended and not self._answering:
            self.transport.close()

    def _parse_ahead(self) -> None:
        self._woken = False
        if self._must_wait or self.transport.is_closing():
            return
        data, at = self._ahead, self._ahead_at
        self._ahead, self._ahead_at = b"", 0
        self._parse(data, at)
        if self._ended:
            if not self._ahead and not self._answering:
                self.transport.close()  # what it has sent is no whole request
        elif not self._ahead and not self._upgraded:
            self.flow.release()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. Returns whether answers are still to be sent."""
        self._ended = True
        if self.scheme == "https" or not (
            self._ahead or (self._answering and not self._message_open)
        ):
            return False
        self.flow.hold()  # whoever resumed reading would read the same end again
        if self.cycle is not None and not self._message_open:
            self.cycle.message_event.set()  # calls that only wait end now
        return True

    def _has_ended(self) -> bool:
        return self._ended

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        assert not self.pipeline, "one request at a time"
        self.flow.resume_reading()
        self._begin_idle()
        self._go_on()

    # --- what the parser says ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._message_open = self._head_open = True
        self._chunked = False
        self._await_head()
        self.scope[ABORT] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self.scope[ENDED] = self._has_ended  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._head_bytes = self._head_lines = 0
        self._head_came()
        unusual = False
        size = 0
        hosts: list[bytes] = []
        origins: list[bytes] = []
        for name, value in self.headers:
            if name == b"content-length":
                self._body_left = size = int(value)
            elif name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
            elif name in (b"transfer-encoding", b"expect", b"upgrade"):
                unusual = True
                self._chunked = self._chunked or name == b"transfer-encoding"
        if (hosts != self._hosts_known or origins) and not self._let_in(hosts, origins):
            return
        if (size or self._chunked) and self.parser.should_upgrade():
            # The parser takes what follows for no body, and so for another request.
            self._refuse(400, "bad_request", _NO_BODY, "leave the header Upgrade out")
            return
        if unusual or self.quick is None or not self._begin_quickly(self.quick, size):
            super().on_headers_complete()
        if self._chunked:
            self.headers = _Dropped()  # fields behind the body, for which nobody asks

    def _let_in(self, hosts: list[bytes], origins: list[bytes]) -> bool:
        refused = self.web.refusal(self.kind, hosts, origins)
        if refused is None:
            self._hosts_known = hosts
            return True
        self._refuse(refused.http_status, refused.code, refused.message, refused.hint)
        return False

    def on_body(self, body: bytes) -> None:
        self._head_bytes = self._head_lines = 0
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.transport.is_closing():
            return
        self._message_open = False
        self._body_left = self._head_bytes = self._head_lines = 0
        super().on_message_complete()
        cycle, self._quickly = self._quickly, None
        if cycle is not None:
            self._body_came()
            assert self.quick is not None, "the fast path has begun"
            body = bytes(cycle.body)
            head = RequestHead(self.kind, self.url, tuple(self.headers), len(body))
            if self._whole_head and len(body) == self._behind_head:
                cycle.met = self._whole_head, head
            self.quick.answer(head, body, partial(self._answer_quickly, cycle))

    # --- the fast path -------------------------------------------------------------------------

    def _begin_quickly(self, quick: Quick, size: int) -> bool:
        if self.parser.get_method() != b"POST" or self._answering or not quick.takes(self.url):
            return False
        if not 0 < size <= _QUICK_BYTES_MAX or not self.parser.should_keep_alive():
            return False
        # uvicorn sees a call in progress: it queues others behind it, and waits for it.
        self._quickly = _QuickCycle()
        self.cycle = self._quickly  # type: ignore[assignment]
        return True

    def _answer_quickly(
        self, cycle: _QuickCycle | _KnownCycle, status: int, body: bytes, headers: Headers
    ) -> None:
        if cycle.disconnected or self.transport.is_closing():
            return
        if cycle.met is not None and 200 <= status < 300:
            self.heads.keep(*cycle.met)
        self._write_answer(status, body, headers, keep_alive=cycle.keep_alive)
        cycle.response_complete = True
        self.on_response_complete()

    def _write_answer(
        self, status: int, body: bytes, headers: Headers, *, keep_alive: bool
    ) -> None:
        front = self.fronts.of(status, self.server_state.default_headers, headers)
        close = b"" if keep_alive else b"connection: close\r\n"
        self.transport.write(b"%bcontent-length: %d\r\n%b\r\n%b" % (front, len(body), close, body))
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
        if self.transport.is_closing():
            return  # the request is refused already
        path = self.url.partition(b"?")[0].decode("latin-1")
        socket = WebSocketConnection(self.lines[path](self.kind), self.connections)
        transport = self.transport
        may_upgrade = self.scope["method"] == "GET" and not self._answering
        if may_upgrade and socket.begin(transport, path, self.headers):
            self._upgraded = True
            self.connections.discard(self)
            self._end_idle()
            self.flow.release()
        else:
            self._refuse(400, "bad_request", "this is not how a WebSocket is opened")

    def _begin_idle(self) -> None:
        """From now on the client may be silent for so long. One timer for all answers: it looks
        when the last one was, and waits for what is left.
        """
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_idle)

    def _look_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None:
            return  # a request is under way, and its answer begins the time anew
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._look_idle)
        elif not self.transport.is_closing():
            self.timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        """Called by uvicorn when something comes."""
        self._idle_since = None

    def _end_idle(self) -> None:
        self._idle_since = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

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

    def _refuse(self, status: int, code: str, message: str, hint: str = "") -> None:
        self._head_came()
        if self.transport.is_closing():
            return
        if self._answering:
            # Another answer is being sent, and nothing may come between its parts.
            self.transport.abort()
            return
        body = msgspec.json.encode(ErrorBody(ErrorDetail(code, message, hint)))
        headers = [(b"content-type", JSON.encode())]
        self._write_answer(status, body, headers, keep_alive=False)


class _Dropped(list[tuple[bytes, bytes]]):
    """A list that stays empty."""

    def append(self, field: tuple[bytes, bytes]) -> None:
        return


class _Never:
    """Stands for the event by which uvicorn wakes a task that waits for a body: there is none."""

    def set(self) -> None:
        return


class _QuickCycle:
    """A call in progress, with the attributes that uvicorn expects."""

    __slots__ = ("body", "disconnected", "keep_alive", "met", "more_body", "response_complete")
    message_event = _Never()

    def __init__(self) -> None:
        self.met: tuple[bytes, RequestHead] | None = None
        """A head that is not known yet, and what the parser made of it."""
        self.body = bytearray()
        self.disconnected = self.response_complete = False
        self.keep_alive = self.more_body = True


class _KnownCycle:
    """The same for a call that came whole under a known head."""

    __slots__ = ("disconnected", "keep_alive", "response_complete")
    message_event = _Never()
    body = b""
    met = None
    more_body = False

    def __init__(self) -> None:
        self.disconnected = self.response_complete = False
        self.keep_alive = True


class _Flow(FlowControl):
    """When the transport reads: never while something is read ahead, whatever uvicorn wants."""

    _held = False

    def hold(self) -> None:
        self._held = True
        self.pause_reading()

    def release(self) -> None:
        self._held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self._held:
            super().resume_reading()
