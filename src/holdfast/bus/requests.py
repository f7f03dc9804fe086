"""Requests that this peer asks, and the replies to them.

A request stands in the outbox of the peer that it asks until there is a reply, it is too late, or
the caller gives up. So it is sent again whenever the link was lost, with the same id, and a bus
that is bound again still knows it (`outstanding`) and can wait for the reply (`reissue`). The peer
remembers its replies, so that asking again does not do it again.

A request that names no peer goes to one that serves it; if that peer is lost before it has
answered, to another: it is done at least once, and perhaps twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from holdfast.bus.context import BusContext
from holdfast.bus.deadlines import Deadline
from holdfast.bus.guard import guarded, store_failed
from holdfast.bus.lane import Lane, Outgoing
from holdfast.bus.received import BusReply, OutstandingRequest
from holdfast.rules.bus.anycast import Candidate, choose
from holdfast.rules.bus.mesh_store import InboxMessage, OutboxId, OutboxMessage
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.errors import (
    BusClosed,
    BusError,
    HoldfastError,
    NoResponder,
    OverLimit,
    RequestCancelled,
    RequestRefused,
    RequestTimedOut,
    UnknownMessage,
)
from holdfast.rules.ids import id_text
from holdfast.rules.limits import BUS_REQUESTS_MAX
from holdfast.transport.remote_errors import clean


class PeerLost(Exception):
    """The peer that was asked is gone, and another may do it."""


class _Asking:
    """A request whose reply somebody waits for."""

    __slots__ = ("answered", "anywhere", "attempt", "deadline", "others", "peers", "rows")

    deadline: Deadline

    def __init__(self, attempt: asyncio.Future[BusReply], anywhere: bool) -> None:
        self.attempt, self.anywhere = attempt, anywhere
        self.answered = False
        """The peer has answered or refused it: there is nothing to cancel there."""
        self.peers: list[str] = []
        """Who was asked, the last one last: only they may answer."""
        self.rows: list[tuple[str, OutboxId]] = []
        self.others: list[asyncio.Future[BusReply]] = []
        """Callers that asked the same meanwhile."""


class Requests:
    """What this peer waits for."""

    def __init__(
        self,
        context: BusContext,
        lane_of: Callable[[str], Lane],
        serving: Callable[[str], list[str]],
    ) -> None:
        """`serving` names the connected peers that serve something."""
        self._context, self._lane_of, self._serving = context, lane_of, serving
        self._asking: dict[bytes, _Asking] = {}
        self._earlier: dict[bytes, tuple[OutboxId, OutboxMessage]] = {}
        """Requests of an earlier life of the bus, by id."""
        self._replies: dict[bytes, tuple[str, InboxMessage]] = {}
        """Replies to those that came before anybody asked again, with who sent them."""
        self._asked_at: dict[str, int] = {}
        self._turn = 0

    async def load(self) -> None:
        """Reads which requests an earlier life of the bus left behind."""
        rows = await guarded(self._context.store.outbox_requests())
        self._earlier = {item.message.id: (id, item) for id, item in rows}

    @property
    def count(self) -> int:
        return len(self._asking)

    def is_asked(self, id: bytes) -> bool:
        return id in self._asking

    def is_wanted_later(self, id: bytes) -> bool:
        """Whether the reply to this request has to be kept until somebody asks again."""
        return id not in self._asking and id in self._earlier

    # --- asking --------------------------------------------------------------------------------

    async def ask(
        self, to: str | None, message: BusMessage, timeout_ms: int, wait_ms: int
    ) -> BusReply:
        """Asks a peer, or any peer that serves it, and waits for the reply."""
        known = self._asking.get(message.id)
        if known is not None:
            other: asyncio.Future[BusReply] = self._context.loop.create_future()
            known.others.append(other)
            return await other
        deadline = self._context.loop.time() + timeout_ms / 1000
        asking = self._begin(message.id, deadline, anywhere=to is None)
        try:
            if to is not None:
                await self._send(asking, to, message, timeout_ms)
                reply = await asking.attempt
            else:
                reply = await self._ask_any(asking, message, deadline, wait_ms)
        except BaseException as error:
            self._end(message.id, asking, error)
            raise
        self._end(message.id, asking, reply)
        return reply

    async def reissue(self, id: bytes) -> BusReply:
        """Waits for the reply to a request of an earlier life of the bus; asks again if need be."""
        if id not in self._earlier:
            raise UnknownMessage(f"no request {id_text(id)} is outstanding here")
        row, item = self._earlier.pop(id)
        left_ms = _left_ms(item, self._context.counted_ms())
        deadline = self._context.loop.time() + left_ms / 1000
        asking = self._begin(id, deadline, anywhere=False)
        asking.peers.append(item.peer)
        asking.rows.append((item.peer, row))
        try:
            found = self._replies.pop(id, None)
            if found is not None:
                self.heard(found[0], found[1].message)
                self._context.finish_inbox(found[1].number)
            else:
                self._lane_of(item.peer).awake()
            reply = await asking.attempt
        except BaseException as error:
            self._end(id, asking, error)
            raise
        self._end(id, asking, reply)
        return reply

    def cancel(self, id: bytes) -> None:
        """Ends a request from elsewhere: whoever waits for it gets RequestCancelled."""
        asking = self._asking.get(id)
        if asking is None:
            raise UnknownMessage(f"no request {id_text(id)} is outstanding here")
        _settle(asking.attempt, RequestCancelled(f"the request {id_text(id)} was cancelled"))

    def outstanding(self) -> list[OutstandingRequest]:
        now = self._context.counted_ms()
        return [
            OutstandingRequest(
                id=id,
                peer=item.peer,
                service=item.message.topic,
                body=item.message.body,
                content_type=item.message.content_type,
                remaining_ms=_left_ms(item, now),
            )
            for id, (_, item) in self._earlier.items()
        ]

    def _begin(self, id: bytes, deadline: float, *, anywhere: bool) -> _Asking:
        if self._context.is_closed:
            raise BusClosed("the bus is closed")
        if len(self._asking) >= BUS_REQUESTS_MAX:
            raise OverLimit(f"{BUS_REQUESTS_MAX} requests wait for replies already")
        asking = _Asking(self._context.loop.create_future(), anywhere)
        self._asking[id] = asking
        asking.deadline = self._context.deadlines.add(deadline, partial(self._too_late, asking))
        return asking

    def _too_late(self, asking: _Asking) -> None:
        who = asking.peers[-1] if asking.peers else "any peer"
        _settle(asking.attempt, RequestTimedOut(f"{who} has not answered in time"))

    async def _send(self, asking: _Asking, to: str, message: BusMessage, left_ms: int) -> None:
        item = OutboxMessage(
            peer=to,
            message=message,
            created_at=self._context.clock.now_ms(),
            expires_at=self._context.counted_ms() + max(0, left_ms),
        )
        asking.peers.append(to)
        try:
            row = await self._context.store.enqueue_outbox(item)
        except asyncio.CancelledError:
            if not self._context.is_closed:
                self._context.spawn(self._take_out(item), "take-out")
            raise
        except BusError:
            raise
        except Exception as error:
            raise store_failed(error) from error
        asking.rows.append((to, row))
        self._lane_of(to).put(row, item, at_once=len(self._asking) == 1)

    async def _take_out(self, item: OutboxMessage) -> None:
        """The caller gave up while the request was put into the outbox: nobody asks for it again.
        A message is there once, so putting it there tells which row it is.
        """
        self._context.remove_outbox(await guarded(self._context.store.enqueue_outbox(item)))

    async def _ask_any(
        self, asking: _Asking, message: BusMessage, deadline: float, wait_ms: int
    ) -> BusReply:
        loop, declined = self._context.loop, list[str]()
        while True:
            left_ms = int((deadline - loop.time()) * 1000)
            name = await self._context.until(
                lambda: self._next(message.topic, asking.peers, declined),
                left_ms if asking.peers else min(wait_ms, left_ms),
            )
            if name is None or left_ms <= 0:
                if asking.peers and left_ms <= 0:
                    raise RequestTimedOut("no peer has answered in time")
                raise NoResponder(f"no peer that is connected serves {message.topic}")
            try:
                await self._send(asking, name, message, left_ms)
                return await asking.attempt
            except PeerLost:
                self._context.counts["anycast_moved"] += 1
            except NoResponder:
                declined.append(name)
                if not self._candidates(message.topic, declined):
                    raise
            self._withdraw(message.id, asking, tell=False)
            asking.attempt, asking.answered = loop.create_future(), False

    def _next(self, service: str, tried: list[str], declined: list[str]) -> str | None:
        name = choose(self._candidates(service, declined), tried)
        if name is not None:
            self._turn += 1
            self._asked_at[name] = self._turn
        return name

    def _candidates(self, service: str, declined: list[str]) -> list[Candidate]:
        return [
            Candidate(name, self._outstanding_at(name), self._asked_at.get(name, 0))
            for name in self._serving(service)
            if name not in declined
        ]

    def _outstanding_at(self, name: str) -> int:
        return sum(one.peers[-1:] == [name] for one in self._asking.values())

    # --- ending --------------------------------------------------------------------------------

    def _end(self, id: bytes, asking: _Asking, outcome: BusReply | BaseException) -> None:
        del self._asking[id]
        if asking.attempt.done() and not asking.attempt.cancelled():
            asking.attempt.exception()  # the deadline may have come first, and nobody asks for it
        asking.deadline.cancel()
        if not self._context.is_closed:
            self._withdraw(id, asking, tell=not asking.answered)
        for other in asking.others:
            if isinstance(outcome, BusReply | HoldfastError):
                _settle(other, outcome)
            else:
                _settle(other, RequestCancelled("the same request was cancelled by its caller"))

    def _withdraw(self, id: bytes, asking: _Asking, *, tell: bool) -> None:
        """Takes the request out of the outbox; `tell`: the peer need not do it any more."""
        for name, row in asking.rows:
            lane = self._lane_of(name)
            lane.drop(row)
            self._context.remove_outbox(row)
            if tell:
                cancel = BusMessage(
                    id=self._context.clock.new_id(), kind=MessageKind.CANCEL, correlation=id
                )
                lane.put_passing(Outgoing(cancel, None))
        asking.rows.clear()

    # --- what happens meanwhile -------------------------------------------------------------------

    def heard(self, sender: str, message: BusMessage) -> None:
        """A reply came."""
        asking = self._asking.get(message.correlation)
        if asking is None or asking.attempt.done():
            self._context.counts["late_replies"] += 1
        elif sender not in asking.peers:
            self._context.counts["unknown_replies"] += 1
        elif not message.code:
            asking.answered = True
            reply = BusReply(
                id=message.correlation,
                peer=sender,
                body=message.body,
                content_type=message.content_type,
            )
            _settle(asking.attempt, reply)
        else:
            asking.answered = True
            text = clean(message.body.decode(errors="replace"))
            if message.code == NoResponder.code:
                _settle(asking.attempt, NoResponder(text))
            else:
                _settle(asking.attempt, RequestRefused(f"{message.code}: {text}"))

    def keep_reply(self, sender: str, row: InboxMessage) -> None:
        """A reply stands in the inbox."""
        earlier = self._earlier.get(row.message.correlation)
        if earlier is not None and earlier[1].peer == sender:
            self._replies[row.message.correlation] = (sender, row)
        else:
            self.heard(sender, row.message)
            self._context.finish_inbox(row.number)

    def was_refused(self, id: bytes, error: Exception) -> None:
        asking = self._asking.get(id)
        if asking is not None:
            asking.answered = True
            _settle(asking.attempt, error)

    def link_down(self, name: str) -> None:
        for asking in list(self._asking.values()):
            if asking.anywhere and asking.peers[-1:] == [name]:
                _settle(asking.attempt, PeerLost())

    def expired(self, items: Iterable[OutboxMessage]) -> None:
        """The store has given these up."""
        for item in items:
            if item.message.kind is MessageKind.REQUEST:
                self._earlier.pop(item.message.id, None)
                kept = self._replies.pop(item.message.id, None)
                if kept is not None:
                    self._context.finish_inbox(kept[1].number)

    def close(self, error: Exception) -> None:
        """The bus is closing. What was asked stays in the outbox."""
        for asking in list(self._asking.values()):
            _settle(asking.attempt, error)


def _left_ms(item: OutboxMessage, now_ms: int) -> int:
    """How long a request of an earlier life is still worth something. Never longer than it was in
    the beginning: the wall clock may have been set back since.
    """
    left = max(0, (item.expires_at or 0) - now_ms)
    return left if item.message.ttl_ms is None else min(left, item.message.ttl_ms)


def _settle(future: asyncio.Future[BusReply], outcome: BusReply | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        future.exception()  # its caller may be gone or not waiting yet: that is no fault to log
    else:
        future.set_result(outcome)
