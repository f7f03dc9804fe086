"""Requests that this peer answers.

Each request is a task of its own: it ends when its handler returns, when the asker cancels, or when
the asker's time is over. A reply is put into the outbox before it goes, and remembered: the same
request again gets the same reply, and one that is still being handled is not begun again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from holdfast.bus.context import BusContext, log
from holdfast.bus.credit import Credit
from holdfast.bus.deadlines import Deadline
from holdfast.bus.guard import store_failed
from holdfast.bus.lane import Lane, Outgoing
from holdfast.bus.ports import Link
from holdfast.bus.received import ReceivedRequest
from holdfast.rules.bus.mesh_store import OutboxMessage
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.bus.reply_book import ReplyBook, RequestKey
from holdfast.rules.bus.signed_envelope import check_bus_name
from holdfast.rules.errors import (
    AlreadyExists,
    BusError,
    HandlerRefused,
    HoldfastError,
    NoResponder,
    OverLimit,
)
from holdfast.rules.ids import uuid8
from holdfast.rules.limits import (
    BUS_BUFFER_BYTES,
    BUS_HEAD_BYTES,
    BUS_INTERESTS_MAX,
    BUS_PAYLOAD_BYTES_MAX,
    BUS_TTL_MS,
)

Handler = Callable[[ReceivedRequest], Awaitable[bytes | str]]
FAILED: Final = "handler_failed"
"""The code of a reply whose handler met a fault. What it was stays in the log of its machine."""
_REPLY: Final = b"holdfast bus reply 1\0"
_BODY_MAX: Final = BUS_PAYLOAD_BYTES_MAX - BUS_HEAD_BYTES


def told_code(error: HoldfastError) -> str:
    """The code that the asker gets for what a handler raises."""
    return error.told if isinstance(error, HandlerRefused) else error.code


class _Handling:
    """A request that is being handled. Its handler is cancelled when the asker's time is over, as
    `asyncio.timeout` does it, by the one timer that all requests share.
    """

    __slots__ = ("deadline", "is_late", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.deadline: Deadline | None = None
        self.is_late = False

    def come(self) -> None:
        self.is_late = True
        self.task.cancel()

    def was_too_late(self) -> bool:
        """The handler was cancelled: whether by its time, and by nobody else."""
        if not self.is_late:
            return False
        self.is_late = False
        return self.task.uncancel() <= 0

    def end(self) -> None:
        """The handler has ended, perhaps although it was cancelled."""
        if self.deadline is not None:
            self.deadline.cancel()
        if self.is_late:
            self.task.uncancel()


class _Waiting(NamedTuple):
    """A request that waits until another one is done."""

    link: Link
    message: BusMessage
    credit: Credit
    since: float


class _Service:
    """What serves one name. If more is asked than it does at a time, askers take turns: one that
    floods waits for itself.
    """

    __slots__ = ("bytes", "handler", "most", "running", "running_of", "waiting")

    def __init__(self, handler: Handler, most: int) -> None:
        self.handler, self.most = handler, most
        self.running = 0
        self.bytes = 0
        """Of the bodies of requests that are being handled: their senders have the credit back."""
        self.running_of: dict[str, int] = {}
        self.waiting: dict[str, OrderedDict[bytes, _Waiting]] = {}
        """By asker, then by id: an asker that floods cancels must not make anybody search. Who had
        a turn last comes last."""

    def wait(self, waiting: _Waiting) -> None:
        queue = self.waiting.setdefault(waiting.link.name, OrderedDict())
        queue[waiting.message.id] = waiting

    def next(self) -> _Waiting:
        """The oldest request of the asker of whom the fewest are being handled."""
        asker = min(self.waiting, key=lambda name: self.running_of.get(name, 0))
        queue = self.waiting.pop(asker)
        _, waiting = queue.popitem(last=False)
        if queue:
            self.waiting[asker] = queue
        return waiting

    def give_up(self, asker: str, id: bytes) -> _Waiting:
        """A request that waits does so no longer."""
        queue = self.waiting[asker]
        waiting = queue.pop(id)
        if not queue:
            del self.waiting[asker]
        return waiting

    @property
    def is_full(self) -> bool:
        return self.running >= self.most or self.bytes >= BUS_BUFFER_BYTES

    def begun(self, asker: str, size: int) -> None:
        self.running += 1
        self.bytes += size
        self.running_of[asker] = self.running_of.get(asker, 0) + 1

    def ended(self, asker: str, size: int) -> None:
        self.running -= 1
        self.bytes -= size
        left = self.running_of.pop(asker) - 1
        if left:
            self.running_of[asker] = left


class RequestServing:
    """What this peer serves."""

    def __init__(
        self,
        context: BusContext,
        lane_of: Callable[[str], Lane],
        announce: Callable[[], None],
        is_passing: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """`is_passing`: whether nothing is kept for an asker."""
        self._context, self._lane_of, self._announce = context, lane_of, announce
        self._is_passing = is_passing
        self._services: dict[str, _Service] = {}
        self._running: dict[RequestKey, _Handling] = {}
        self._queued: dict[RequestKey, _Service] = {}
        """Requests that wait until a handler is free, with what they wait for."""
        self._book = ReplyBook()

    @property
    def services(self) -> list[str]:
        return list(self._services)

    @property
    def running(self) -> int:
        return len(self._running)

    def serve(self, service: str, handler: Handler, most: int) -> None:
        check_bus_name(service, "service")
        if service in self._services:
            raise AlreadyExists(f"{service} is served already")
        if len(self._services) >= BUS_INTERESTS_MAX:
            raise OverLimit(f"a bus serves {BUS_INTERESTS_MAX} services at most")
        self._services[service] = _Service(handler, most)
        self._announce()

    def stop(self, service: str) -> None:
        """Requests that are being handled are finished; new ones get NoResponder."""
        found = self._services.pop(service, None)
        if found is None:
            return
        while found.waiting:
            link, message, credit, _ = found.next()
            del self._queued[link.name, message.id]
            self._decline(link, message, credit)
        self._announce()

    # --- arrivals ----------------------------------------------------------------------------

    def asked(self, link: Link, message: BusMessage, credit: Credit) -> None:
        """A request came, for the first time or again."""
        request = (link.name, message.id)
        if request in self._running or request in self._queued:
            self._context.counts["requests_again"] += 1
            credit.release()
            return
        reply = self._book.find(request, self._ticks_ms())
        if reply is not None:
            self._context.counts["requests_again"] += 1
            # It may be under way by the outbox as well; if this one is lost, it is asked for again.
            self._lane_of(link.name).put_passing(
                Outgoing(reply, None, on_written=lambda written: credit.release())
            )
            return
        service = self._services.get(message.topic)
        if service is None:
            self._decline(link, message, credit)
        elif service.is_full:
            self._queued[request] = service
            service.wait(_Waiting(link, message, credit, self._context.loop.time()))
        else:
            self._start(service, link, message, credit)

    def cancelled(self, link: Link, message: BusMessage) -> None:
        """The asker does not wait any more."""
        handling = self._running.get((link.name, message.correlation))
        if handling is not None:
            self._context.counts["handlers_cancelled"] += 1
            handling.task.cancel()
            return
        service = self._queued.pop((link.name, message.correlation), None)
        if service is not None:
            service.give_up(link.name, message.correlation).credit.release()

    def link_down(self, name: str) -> None:
        """What an asker has asked for and nobody has begun goes with its link: it asks again over
        the next one, and one that comes back again and again fills no memory.
        """
        for service in self._services.values():
            for id, waiting in service.waiting.pop(name, OrderedDict[bytes, _Waiting]()).items():
                del self._queued[name, id]
                waiting.credit.release()

    def found_reply(self, name: str, reply: BusMessage) -> None:
        """A reply of an earlier life waits in the outbox: its request needs no handler again."""
        self._note(name, reply)

    # --- handling ----------------------------------------------------------------------------

    def _start(self, service: _Service, link: Link, message: BusMessage, credit: Credit) -> None:
        credit.release()
        size = len(message.body)
        service.begun(link.name, size)
        request = (link.name, message.id)
        received = ReceivedRequest(message, link.name, link.peer, self._context.clock.now_ms())
        handling = self._running[request] = _Handling()
        handling.task = self._context.spawn(
            self._handle(handling, service, received, message),
            "serve",
            then=partial(self._ended, service, request, size),
        )

    def _ended(self, service: _Service, request: RequestKey, size: int) -> None:
        service.ended(request[0], size)
        del self._running[request]
        while service.waiting and not service.is_full and not self._context.is_closed:
            link, message, credit, since = service.next()
            del self._queued[link.name, message.id]
            if message.ttl_ms is not None:
                left_ms = message.ttl_ms - int((self._context.loop.time() - since) * 1000)
                if left_ms <= 0:  # nobody waits for it any more
                    self._context.counts["handlers_too_late"] += 1
                    credit.release()
                    continue
                message = msgspec.structs.replace(message, ttl_ms=left_ms)
            self._start(service, link, message, credit)

    async def _handle(
        self,
        handling: _Handling,
        service: _Service,
        received: ReceivedRequest,
        message: BusMessage,
    ) -> None:
        context, ttl_ms = self._context, message.ttl_ms
        started = context.loop.time()
        code, body = "", b""
        if ttl_ms is not None:
            handling.deadline = context.deadlines.add(started + ttl_ms / 1000, handling.come)
        try:
            answer = await service.handler(received)
            body = answer.encode() if isinstance(answer, str) else bytes(answer)
            if len(body) > _BODY_MAX:
                raise OverLimit(f"the reply has {len(body)} bytes; the most is {_BODY_MAX}")
        except asyncio.CancelledError:
            if not handling.was_too_late():
                raise
            context.counts["handlers_too_late"] += 1
            return
        except HoldfastError as error:
            code, body = told_code(error), error.message.encode()
        except Exception as error:
            code = self._failed(message.topic, error)
        finally:
            handling.end()
        left_ms = None
        if ttl_ms is not None:
            left_ms = max(0, ttl_ms - int((context.loop.time() - started) * 1000))
        reply = BusMessage(
            id=uuid8(sha256(_REPLY + context.key + message.id).digest()),
            kind=MessageKind.REPLY,
            body=body,
            correlation=message.id,
            priority=message.priority,
            ttl_ms=left_ms,
            code=code,
            durable=True,
        )
        self._note(received.sender, reply)
        context.counts["replies"] += 1
        await self._reply(received.sender, message, reply)

    def _note(self, asker: str, reply: BusMessage) -> None:
        """Keeps a reply for whoever asks again: longer than the request had left, because an asker
        whose clock was set back asks again with more time than it had.
        """
        self._book.add((asker, reply.correlation), reply, self._ticks_ms() + BUS_TTL_MS)

    def _ticks_ms(self) -> int:
        """The book lives as long as the loop, whose time no wall clock disturbs."""
        return int(self._context.loop.time() * 1000)

    def _failed(self, service: str, error: Exception) -> str:
        self._context.counts["handlers_failed"] += 1
        log.error("the handler of %s failed", service, exc_info=error)
        return FAILED

    async def _reply(self, asker: str, message: BusMessage, reply: BusMessage) -> None:
        if self._is_passing(asker):  # it asks again if the link is lost, and nobody keeps its lane
            self._lane_of(asker).put_passing(Outgoing(reply, None))
            return
        left_ms = BUS_TTL_MS if reply.ttl_ms is None else reply.ttl_ms
        item = OutboxMessage(
            peer=asker,
            message=reply,
            created_at=self._context.clock.now_ms(),
            expires_at=self._context.counted_ms() + left_ms,
        )
        try:
            row = await self._context.store.enqueue_outbox(item)
        except Exception as error:
            # The asker asks again, or its time is over: it gets the reply from the book.
            why = error if isinstance(error, BusError) else store_failed(error)
            self._context.counts["replies_not_kept"] += 1
            log.warning("a reply to %s cannot be kept: %s", message.topic, why.message)
            self._lane_of(asker).put_passing(Outgoing(reply, None))
            return
        self._lane_of(asker).put(row, item, at_once=len(self._running) == 1)

    def _decline(self, link: Link, message: BusMessage, credit: Credit) -> None:
        """Nobody serves this here: said at once, and not kept. An asker that takes no answers gets
        no credit back.
        """
        self._context.counts["requests_declined"] += 1
        reply = BusMessage(
            id=self._context.clock.new_id(),
            kind=MessageKind.REPLY,
            correlation=message.id,
            code=NoResponder.code,
            body=f"{self._context.name or 'the peer'} does not serve {message.topic}".encode(),
        )
        self._lane_of(link.name).put_passing(
            Outgoing(reply, None, on_written=lambda written: credit.release())
        )
