"""A link: one proved connection to a peer, with streams, credit and a sign of life.

A frame that carries messages or pages takes credit of its stream (`rules/bus/links/credit.py`), so
a peer that does not handle what it gets stops its senders, stream by stream, and the memory that
one link costs is bounded. Only a few bytes wait in the network. A sender is let on when there is
room (`room`), those of lower streams first, and numbers and signs what it sends only then: so
frames are never reordered after they were numbered, and an urgent message still goes first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from holdfast.bus.links.frame_connection import FrameConnection
from holdfast.bus.links.hello import Greeted
from holdfast.bus.ports import LinkEvents
from holdfast.protocol.bus_frame_reader import RawFrame
from holdfast.protocol.bus_frames import (
    CreditFrame,
    FrameKind,
    GoodbyeFrame,
    PingFrame,
    Stream,
    read_told,
    told,
)
from holdfast.rules.bus.links.credit import ReceivingCredit, SendingCredit
from holdfast.rules.bus.links.keepalive import life_check
from holdfast.rules.errors import (
    BadAnswer,
    HoldfastError,
    PeerClosing,
    PeerUnreachable,
    TooMany,
)
from holdfast.rules.limits import (
    BUS_LIFE_LOOK_MS,
    BUS_PAGES_WINDOW_BYTES,
    BUS_PONG_MS_MAX,
    BUS_WINDOW_BYTES,
    REASON_CHARS_MAX,
    SECOND_MS,
)
from holdfast.transport.remote_errors import clean

log = logging.getLogger("holdfast")

CLOSING: Final = "closing"
"""The code of a goodbye when the bus ends."""
FAULT: Final = "fault"
"""The code of a goodbye after a fault of our own."""

_PARCELS: Final = (Stream.REPLY, Stream.NOW, Stream.NEXT, Stream.LOW)
_RELAYED: Final = (Stream.RELAY,)
_PAGES: Final = (Stream.MESH, Stream.OBJECTS)
_VOTES: Final = (Stream.QUORUM,)
_WINDOWS: Final = {
    **dict.fromkeys((*_PARCELS, *_RELAYED), BUS_WINDOW_BYTES),
    **dict.fromkeys((*_PAGES, *_VOTES), BUS_PAGES_WINDOW_BYTES),
}
"""The streams that have credit, and how much."""
_HANDED_ON: Final = (
    *((FrameKind.PARCEL, stream) for stream in _PARCELS),
    *((FrameKind.MESH, stream) for stream in _PAGES),
    *((FrameKind.RELAY, stream) for stream in _RELAYED),
    *((FrameKind.QUORUM, stream) for stream in (Stream.CONTROL, *_VOTES)),
    (FrameKind.ACK, Stream.CONTROL),
    (FrameKind.INTEREST, Stream.CONTROL),
    (FrameKind.SETTLED, Stream.CONTROL),
    (FrameKind.NOTICE, Stream.CONTROL),
)
"""The frames that are not the link's own business, with the streams that they may come on."""
_OWN: Final = (FrameKind.CREDIT, FrameKind.PING, FrameKind.PONG, FrameKind.GOODBYE)


class LinkOwner(Protocol):
    """Who keeps the links of a peer."""

    def link_ended(self, link: PeerLink, error: Exception | None) -> None:
        """Called once. `error` is None if we closed the link ourselves."""

    def blamed(self, link: PeerLink, error: HoldfastError) -> bool:
        """Counts a fault of the peer; True if it has made too many."""


class PeerLink:
    """A `Link`, from the hello to its end."""

    def __init__(
        self,
        connection: FrameConnection,
        greeted: Greeted,
        *,
        number: int,
        dialled: bool,
        address: str,
        owner: LinkOwner,
        events: LinkEvents,
    ) -> None:
        self.peer, self.name, self.welcome = greeted
        self.number, self.dialled, self.address = number, dialled, address
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        self.rtt_ms: float | None = None
        self._connection, self._owner, self._events = connection, owner, events
        self._sending = {stream: SendingCredit(size) for stream, size in _WINDOWS.items()}
        self._receiving = {stream: ReceivingCredit(size) for stream, size in _WINDOWS.items()}
        self._handed_on = {
            kind << 8 | stream: (kind, stream, self._receiving.get(stream))
            for kind, stream in _HANDED_ON
        }
        self._waiters: dict[Stream, list[asyncio.Future[None]]] = {s: [] for s in _WINDOWS}
        self._was_full = False
        """Somebody was told that there is no room."""
        self._pings: dict[int, tuple[float, asyncio.Future[float] | None]] = {}
        """By token: when it was sent, and who waits for the answer."""
        self._token = 0
        self._heard = self.since
        self._asked: float | None = None
        """When a sign of life was asked for, as long as nothing was heard since. A clock of
        milliseconds shows no time between a question and an answer on the same machine.
        """
        self._asked_by = 0
        """The token of our own last ping."""
        self._unsent = 0
        """What waited for the network at the last look."""
        self._is_over = False
        self.ended: asyncio.Future[Exception | None] = self._loop.create_future()
        """Done when the link has ended, with what ended it."""
        self._look_at = self.since
        """When the next look is due."""
        self._timer = self._loop.call_soon(self._look)

    def begin(self) -> None:
        """Takes over the connection: what came after the hello is handed on first."""
        self._connection.hand_over(self)

    # --- sending -----------------------------------------------------------------------------

    def available(self, stream: Stream) -> int:
        if self._is_over or self._connection.is_full:
            self._was_full = True
            return 0
        left = self._sending[stream].left
        self._was_full = self._was_full or not left
        return left

    def has_room(self, stream: Stream, size: int = 0) -> bool:
        return self.available(stream) > 0

    async def room(self, stream: Stream, size: int = 0) -> None:
        while not self.has_room(stream, size):
            if self._is_over:
                raise PeerUnreachable(f"the link to {self.name} has ended")
            waiters = self._waiters[stream]
            waiter = self._loop.create_future()
            waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in waiters:
                    waiters.remove(waiter)

    def send(self, kind: FrameKind, stream: Stream, body: bytes, *, at_once: bool = False) -> None:
        if self._is_over:
            raise PeerUnreachable(f"the link to {self.name} has ended")
        if stream is not Stream.CONTROL:
            self._sending[stream].sent(len(body))
        self._connection.send(kind, stream, body, at_once=at_once)

    def may_send(self) -> None:
        self._let_on()
        if self._was_full:
            self._was_full = False
            self._events.writable(self)

    def _let_on(self) -> None:
        """Wakes those who wait, lower streams first; each looks again before it sends."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            waiters.clear()

    # --- receiving ---------------------------------------------------------------------------

    def heard(self) -> None:
        self._heard, self._asked = self._loop.time(), None

    def take(self, frame: RawFrame) -> None:
        code, place, body = frame
        known = self._handed_on.get(code << 8 | place)
        try:
            if known is None:
                self._take_own(code, place, body)
                return
            kind, stream, credit = known
            if credit is not None:
                if not body:
                    raise BadAnswer("a frame without a body takes no credit")
                credit.received(len(body))
            self._events.frame(self, kind, stream, body)
        except BadAnswer as error:
            self.blame(error)
        except HoldfastError as error:
            self.broken(error)
        except Exception:
            log.exception("a frame of %s met a fault of Holdfast", self.name)
            self.close(FAULT)

    def all_taken(self) -> None:
        if self._is_over:
            return
        try:
            self._events.frames_end(self)
        except Exception:
            log.exception("frames of %s met a fault of Holdfast", self.name)
            self.close(FAULT)

    def taken(self, stream: Stream, size: int) -> None:
        grant = self._receiving[stream].taken(size)
        if grant and not self._is_over:
            self._tell(FrameKind.CREDIT, CreditFrame(stream, grant))

    def stop_reading(self) -> None:
        self._connection.stop_reading()

    def read_on(self) -> None:
        self._connection.read_on()

    def blame(self, error: HoldfastError) -> None:
        """Counts a fault of the peer, and ends the link after too many."""
        if self._owner.blamed(self, error):
            self.broken(TooMany(f"{self.name} has sent too much that is bad: {error.message}"))

    def _take_own(self, kind: int, stream: int, body: bytes) -> None:
        if kind not in _OWN or stream != Stream.CONTROL:
            raise BadAnswer(f"a frame of kind {kind} does not belong on stream {stream}")
        match read_told(FrameKind(kind), body):
            case CreditFrame(stream=credited, size=size):
                if credited is Stream.CONTROL:
                    raise BadAnswer("the control stream has no credit")
                self._sending[credited].granted(size)
                self.may_send()
            case PingFrame(token=token) if kind == FrameKind.PING:
                self._tell(FrameKind.PONG, PingFrame(token))
            case PingFrame(token=token):
                self._answered(token)
            case GoodbyeFrame(code=code, message=message):
                said = clean(f"{code} {message}".strip())
                kind_of = PeerClosing if code == CLOSING else PeerUnreachable
                error = kind_of(f"{self.name} has closed the link: {said}")
                self._connection.close()
                self._over(error)

    # --- signs of life -------------------------------------------------------------------------

    async def ping(self) -> float:
        if self._is_over:
            raise PeerUnreachable(f"the link to {self.name} has ended")
        answer: asyncio.Future[float] = self._loop.create_future()
        token = self._ask(answer)
        try:
            async with asyncio.timeout(BUS_PONG_MS_MAX / SECOND_MS):
                return await answer
        except TimeoutError:
            raise PeerUnreachable(f"{self.name} does not answer on its link") from None
        finally:
            self._pings.pop(token, None)

    def doubt(self) -> None:
        """There is a reason to think that the peer is gone: it is asked now for a sign of life."""
        if self._is_over or self._asked is not None:
            return
        self._timer.cancel()
        self._ask_for_life()
        self._look_in(BUS_LIFE_LOOK_MS / SECOND_MS)

    def _ask_for_life(self) -> None:
        self._pings.pop(self._asked_by, None)  # the peer spoke, but did not answer
        self._asked, self._asked_by = self._loop.time(), self._ask(None)

    def _ask(self, answer: asyncio.Future[float] | None) -> int:
        self._token += 1
        self._pings[self._token] = self._loop.time(), answer
        self._tell(FrameKind.PING, PingFrame(self._token))
        return self._token

    def _answered(self, token: int) -> None:
        sent_at, answer = self._pings.pop(token, (None, None))
        if sent_at is None:
            return  # late: nobody waits for it any more
        self.rtt_ms = round((self._loop.time() - sent_at) * SECOND_MS, 3)
        if answer is not None and not answer.done():
            answer.set_result(self.rtt_ms)

    def _look(self) -> None:
        """Looks whether the peer is still there. That it takes what it is sent is a sign of life
        too: our question may stand behind megabytes on a slow line.
        """
        unsent = self._connection.unsent
        if unsent < self._unsent:
            self.heard()
        self._unsent = unsent
        check = life_check(self._loop.time(), self._heard, self._asked, self._look_at)
        if check.dead:
            self._connection.abort()
            self._over(PeerUnreachable(f"{self.name} gives no sign of life"))
            return
        self._asked = check.asked
        if check.ask:
            self._ask_for_life()
        self._look_in(check.again_s)

    def _look_in(self, wait_s: float) -> None:
        self._look_at = self._loop.time() + wait_s
        self._timer = self._loop.call_later(wait_s, self._look)

    # --- the end -----------------------------------------------------------------------------

    def close(self, code: str, message: str = "") -> None:
        if self._is_over:
            return
        self._tell(FrameKind.GOODBYE, GoodbyeFrame(code, message[:REASON_CHARS_MAX]))
        self._connection.close()
        self._over(None)

    def broken(self, error: HoldfastError) -> None:
        """The peer breaks the rules of a link: it is told, and the link ends."""
        if self._is_over:
            return
        self._owner.blamed(self, error)
        self._tell(FrameKind.GOODBYE, GoodbyeFrame(error.code))
        self._connection.close()
        self._over(error)

    def drop(self, error: HoldfastError) -> None:
        """Another link takes its place: what still comes from this one is not read, and its owner
        has heard of its end when this returns.
        """
        self._connection.abort()
        self._over(error, at_once=True)

    def lost(self, error: Exception | None) -> None:
        """The connection has ended by itself."""
        detail = f": {error}" if error else ""
        self._over(PeerUnreachable(f"the connection to {self.name} has ended{detail}"))

    def _over(self, error: Exception | None, *, at_once: bool = False) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._timer.cancel()
        self._let_on()
        for _, answer in self._pings.values():
            if answer is not None and not answer.done():
                answer.set_exception(PeerUnreachable(f"the link to {self.name} has ended"))
        self.ended.set_result(error)
        if at_once:
            self._owner.link_ended(self, error)
        else:
            # In a turn of its own: whoever closes a link is not called back from within.
            self._loop.call_soon(self._owner.link_ended, self, error)

    def _tell(self, kind: FrameKind, document: CreditFrame | PingFrame | GoodbyeFrame) -> None:
        self._connection.send(kind, Stream.CONTROL, told(kind, document))
