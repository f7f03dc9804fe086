"""The bus of a home that its daemon holds, for other processes of the same user: by HTTP over the
Unix socket.

Calls wait in threads, because the client of this project does. A call that is cancelled breaks its
connection, and the daemon then cancels what it did for it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast.bus.received import (
    BusReply,
    PublishReceipt,
    ReceivedMessage,
    ReceivedRequest,
    SendReceipt,
)
from holdfast.bus.serving import FAILED, told_code
from holdfast.node.bus import documents
from holdfast.node.bus.api import Handler
from holdfast.node.bus.documents import content_fields
from holdfast.node.bus.event_stream import EventStream
from holdfast.node.bus.members import JoinedOverBus
from holdfast.node.bus.standing import BusStanding
from holdfast.node.quorum.api import QuorumApi
from holdfast.node.quorum.remote import RemoteQuorum
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.destinations import check_priority
from holdfast.rules.errors import BadAnswer, HoldfastError
from holdfast.rules.ids import parse_id
from holdfast.rules.keys import KEY_BYTES, bytes_of
from holdfast.rules.limits import BUS_REPLY_MARGIN_MS
from holdfast.transport.daemon_call import call_daemon

T = TypeVar("T")
log = logging.getLogger("holdfast")


class RemoteBus:
    """The verbs of the bus, done by the daemon. Belongs to one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: dict[RemoteMessages | RemoteService, None] = {}
        self.quorum: QuorumApi | None = RemoteQuorum(address)

    async def send(
        self,
        to: str,
        body: bytes | str,
        *,
        topic: str,
        content_type: str,
        priority: str,
        ttl_ms: int | None,
        id: str | None,
        wait_ms: int,
    ) -> SendReceipt:
        asked = documents.BusSend(
            to=to,
            **_content(body),
            topic=topic,
            content_type=content_type,
            priority=priority,
            ttl_ms=ttl_ms,
            id=id,
            wait_ms=wait_ms,
        )
        done = await self._post("send", asked, documents.BusSent, wait_ms)
        return SendReceipt(id=parse_id(done.id), state=done.state)

    async def publish(
        self, topic: str, body: bytes | str, *, content_type: str, priority: str, id: str | None
    ) -> PublishReceipt:
        asked = documents.BusPublish(
            topic=topic, **_content(body), content_type=content_type, priority=priority, id=id
        )
        done = await self._post("publish", asked, documents.BusPublished)
        return PublishReceipt(
            id=parse_id(done.id), peers=done.peers, kept=done.kept, missed=done.missed
        )

    async def request(
        self,
        to: str | None,
        service: str,
        body: bytes | str,
        *,
        content_type: str,
        timeout_ms: int,
        id: str | None,
    ) -> BusReply:
        asked = documents.BusAsk(
            to=to,
            service=service,
            **_content(body),
            content_type=content_type,
            timeout_ms=timeout_ms,
            id=id,
        )
        found = await self._post("request", asked, documents.BusAnswer, timeout_ms)
        return BusReply(
            id=parse_id(found.id),
            peer=found.peer,
            body=_bytes(found),
            content_type=found.content_type,
        )

    def subscribe(
        self, pattern: str, *, buffer: int, durable: bool, manual: bool
    ) -> RemoteMessages:
        return RemoteMessages(self, pattern, buffer=buffer, durable=durable, manual=manual)

    async def serve(self, service: str, handler: Handler, *, most: int) -> RemoteService:
        served = RemoteService(self, service, handler, most)
        await served.open()
        return served

    async def ping(self, peer: str) -> float:
        return (await self._post("ping", documents.BusPing(peer), documents.BusPong)).ms

    async def join(self, invite: str, *, wait_ms: int) -> JoinedOverBus:
        asked = documents.BusJoin(invite=invite, wait_ms=wait_ms)
        return await self._post("join", asked, JoinedOverBus, wait_ms)

    async def leave(self, mesh: str) -> None:
        await self._post("leave", documents.BusLeave(mesh), documents.BusLeft)

    async def refresh(self) -> None:
        await self.call("POST", "/v1/refresh", None, dict)

    async def standing(self) -> BusStanding:
        return await self.call("GET", "/v1/bus/status", None, BusStanding)

    async def close(self) -> None:
        for one in list(self._open):
            await one.close()

    # --- how it asks ---------------------------------------------------------------------------

    async def _post(self, verb: str, asked: msgspec.Struct, kind: type[T], wait_ms: int = 0) -> T:
        return await self.call("POST", f"/v1/bus/{verb}", asked, kind, wait_ms)

    async def call(
        self, method: str, path: str, asked: msgspec.Struct | None, kind: type[T], wait_ms: int = 0
    ) -> T:
        """One call, on a connection of its own."""
        return await call_daemon(
            self._address,
            method,
            path,
            asked,
            kind,
            wait_ms=wait_ms + BUS_REPLY_MARGIN_MS,
            holds="the bus",
        )

    def stream(self, path: str) -> EventStream:
        return EventStream(self._address, path)

    def opened(self, one: RemoteMessages | RemoteService) -> None:
        self._open[one] = None

    def ended(self, one: RemoteMessages | RemoteService) -> None:
        self._open.pop(one, None)


class RemoteMessages:
    """A subscription of the daemon, for one reader."""

    def __init__(
        self, bus: RemoteBus, pattern: str, *, buffer: int, durable: bool, manual: bool
    ) -> None:
        self._bus, self._manual = bus, manual
        query = {"topic": pattern, "buffer": buffer, "durable": str(durable).lower()}
        self._path = f"/v1/bus/messages?{urlencode({**query, 'ack': 'client'})}"
        self._stream: EventStream | None = None
        self._name = ""
        self._current: ReceivedMessage | None = None
        self._finished: list[int] = []
        """Numbers that the daemon has not been told yet."""
        self._telling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish_current()
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        stream = await self._opened()
        self._finish_current()
        while True:
            event = await stream.next()
            if event.kind == "message":
                break
        mail = _decode(event.data, documents.BusMail)
        message = BusMessage(
            id=parse_id(mail.id),
            kind=MessageKind.SEND,
            topic=mail.topic,
            body=_bytes(mail),
            content_type=mail.content_type,
            priority=check_priority(mail.priority),
        )
        found = ReceivedMessage(
            message,
            mail.sender,
            bytes_of(mail.key, KEY_BYTES),
            mail.received_at,
            mail.number,
            self._acknowledge,
        )
        if not self._manual:
            self._current = found
        return found

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        if self._telling is not None:
            await asyncio.wait([self._telling])
        stream.close()
        self._bus.ended(self)

    async def _opened(self) -> EventStream:
        if self._stream is None:
            stream = self._stream = self._bus.stream(self._path)
            self._bus.opened(self)
            try:
                opened = _decode((await stream.next()).data, documents.StreamOpened)
            except BaseException:
                await self.close()
                raise
            self._name = opened.stream
        return self._stream

    def _finish_current(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.finish()

    def _acknowledge(self, number: int) -> None:
        self._finished.append(number)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        """Acknowledges what is finished: while one call is under way, the next one fills."""
        path = f"/v1/bus/messages/{quote(self._name)}/ack"
        while self._finished:
            asked = documents.BusAcknowledge(self._finished)
            self._finished = []
            # If the daemon is gone it hands the messages out again, as after any crash.
            with suppress(HoldfastError):
                await self._bus.call("POST", path, asked, documents.BusTaken)


class RemoteService:
    """A service that this process answers and the daemon offers."""

    def __init__(self, bus: RemoteBus, service: str, handler: Handler, most: int) -> None:
        self._bus, self._handler = bus, handler
        self._path = f"/v1/bus/requests?{urlencode({'service': service, 'most': most})}"
        self._stream: EventStream | None = None
        self._name = ""
        self._reader: asyncio.Task[None] | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def open(self) -> None:
        self._stream = self._bus.stream(self._path)
        self._bus.opened(self)
        try:
            opened = _decode((await self._stream.next()).data, documents.StreamOpened)
        except BaseException:
            await self.close()
            raise
        self._name = opened.stream
        self._reader = asyncio.get_running_loop().create_task(self._read(self._stream))

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        stream.close()
        self._bus.ended(self)
        tasks = [*self._calls.values(), *([] if self._reader is None else [self._reader])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _read(self, stream: EventStream) -> None:
        while True:
            event = await stream.next()
            if event.kind == "request":
                call = _decode(event.data, documents.BusCall)
                task = asyncio.get_running_loop().create_task(self._answer(call))
                self._calls[call.call] = task
                task.add_done_callback(partial(self._answered, call.call))
            elif event.kind == "cancel":
                task_of = self._calls.get(_decode(event.data, documents.BusCallEnded).call)
                if task_of is not None:
                    task_of.cancel()

    def _answered(self, number: int, task: asyncio.Task[None]) -> None:
        self._calls.pop(number, None)

    async def _answer(self, call: documents.BusCall) -> None:
        message = BusMessage(
            id=parse_id(call.id),
            kind=MessageKind.REQUEST,
            topic=call.service,
            body=_bytes(call),
            content_type=call.content_type,
            ttl_ms=call.timeout_ms,
        )
        request = ReceivedRequest(message, call.sender, bytes_of(call.key, KEY_BYTES), 0)
        try:
            content = _content(await self._handler(request))
            given = documents.BusReplyGiven(call=call.call, **content)
        except HoldfastError as error:
            code = told_code(error)
            given = documents.BusReplyGiven(call=call.call, code=code, message=error.message)
        except Exception as error:
            # What it was stays here: its text may hold what is secret.
            log.error("the handler of %s failed", call.service, exc_info=error)
            given = documents.BusReplyGiven(call=call.call, code=FAILED)
        path = f"/v1/bus/requests/{quote(self._name)}/reply"
        with suppress(HoldfastError):  # the daemon is gone: the asker learns it by its link
            await self._bus.call("POST", path, given, documents.BusTaken)


def _content(body: bytes | str) -> dict[str, Any]:
    if isinstance(body, str):
        return {"body": body}
    fields = content_fields(body)
    # As bytes: msgspec makes base64 of them.
    return fields if "body" in fields else {"body_base64": body}


def _bytes(document: documents.BusMail | documents.BusAnswer | documents.BusCall) -> bytes:
    if document.body is not None:
        return document.body.encode()
    if document.body_base64 is None:
        return b""
    return msgspec.convert(document.body_base64, bytes)


def _decode(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"the daemon sent an event that belongs elsewhere: {error}") from None
