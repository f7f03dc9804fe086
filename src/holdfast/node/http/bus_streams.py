"""Streams of the bus that programs have open: messages that they have not acknowledged, requests
that they have not answered.

A stream has a random name, told by its first event. Acknowledgements and replies come by calls of
their own and give that name. When the stream ends, so does all that it held: its messages go to the
next one that listens, and its requests are refused.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from holdfast.bus.received import ReceivedMessage, ReceivedRequest
from holdfast.node.bus import documents
from holdfast.node.bus.documents import content_fields
from holdfast.rules.errors import UnknownStream
from holdfast.rules.ids import id_text
from holdfast.rules.keys import text_of
from holdfast.rules.limits import BUS_BUFFER_BYTES

_NAME_BYTES: Final = 16


@dataclass
class MessageStream:
    """Messages that a program was given and has not acknowledged."""

    window: int
    name: str = ""
    last: int = 0
    """The number of the last one."""
    _given: OrderedDict[int, ReceivedMessage] = field(default_factory=OrderedDict)
    _bytes: int = 0
    """Of the bodies of these."""
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, message: ReceivedMessage) -> bytes:
        """The message as an event; it is held until it is acknowledged."""
        self.last += 1
        self._given[self.last] = message
        self._bytes += len(message.body)
        mail = documents.BusMail(
            number=self.last,
            id=id_text(message.id),
            sender=message.sender,
            key=text_of(message.key),
            topic=message.topic,
            **content_fields(message.body),
            content_type=message.content_type,
            priority=message.priority,
            received_at=message.received_at,
        )
        return event("message", mail)

    def acknowledge(self, numbers: list[int]) -> bool:
        """Whether any of these was held."""
        found = [self._given.pop(number, None) for number in numbers]
        for message in found:
            if message is not None:
                self._bytes -= len(message.body)
                message.finish()
        self._room.set()
        return any(message is not None for message in found)

    async def has_room(self) -> bool:
        """Waits until the program has acknowledged enough to get more: so many messages, or so
        many bytes, because a few hundred large ones are too much to hold.
        """
        while len(self._given) >= self.window or self._bytes >= BUS_BUFFER_BYTES:
            self._room.clear()
            await self._room.wait()
        return True


@dataclass
class RequestStream:
    """Requests that a program was given and has not answered."""

    name: str = ""
    last: int = 0
    _asked: dict[int, asyncio.Future[documents.BusReplyGiven]] = field(default_factory=dict)
    _events: dict[int, bytes] = field(default_factory=dict)
    """What the program has not been told yet, by the number of the call."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, request: ReceivedRequest) -> documents.BusReplyGiven:
        """What the program answers. If the asker cancels, so does the program."""
        self.last += 1
        number = self.last
        call = documents.BusCall(
            call=number,
            id=id_text(request.id),
            service=request.service,
            sender=request.sender,
            key=text_of(request.key),
            **content_fields(request.body),
            content_type=request.content_type,
            timeout_ms=request.remaining_ms,
        )
        answer: asyncio.Future[documents.BusReplyGiven]
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._tell(number, event("request", call))
        try:
            return await answer
        except asyncio.CancelledError:
            # Of a call that a program which reads nothing has not heard of, it hears nothing: an
            # asker that asks and cancels for ever must not fill the memory.
            if self._events.pop(number, None) is None:
                self._tell(number, event("cancel", documents.BusCallEnded(number)))
            raise
        finally:
            del self._asked[number]

    def reply(self, given: documents.BusReplyGiven) -> bool:
        """Whether somebody waited for it."""
        waiting = self._asked.get(given.call)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(given)
        return True

    async def has_events(self) -> bool:
        while not self._events:
            self._news.clear()
            await self._news.wait()
        return True

    def take_events(self) -> bytes:
        events, self._events = self._events, {}
        return b"".join(events.values())

    def end(self) -> None:
        """The program is gone: what it had is answered by a refusal."""
        for number, waiting in self._asked.items():
            if not waiting.done():
                message = "the program that serves this has gone"
                waiting.set_result(
                    documents.BusReplyGiven(call=number, code="server_gone", message=message)
                )

    def _tell(self, number: int, piece: bytes) -> None:
        self._events[number] = piece
        self._news.set()


class BusStreams:
    """All streams of one daemon."""

    def __init__(self) -> None:
        self._streams: dict[str, MessageStream | RequestStream] = {}

    def add(self, stream: MessageStream | RequestStream) -> bytes:
        """Names a stream; returns its first event."""
        stream.name = os.urandom(_NAME_BYTES).hex()
        self._streams[stream.name] = stream
        return event("open", documents.StreamOpened(stream.name))

    def drop(self, stream: MessageStream | RequestStream) -> None:
        self._streams.pop(stream.name, None)
        if isinstance(stream, RequestStream):
            stream.end()

    def messages(self, name: str) -> MessageStream:
        found = self._streams.get(name)
        if not isinstance(found, MessageStream):
            raise UnknownStream("there is no such stream of messages, or it has ended")
        return found

    def requests(self, name: str) -> RequestStream:
        found = self._streams.get(name)
        if not isinstance(found, RequestStream):
            raise UnknownStream("there is no such stream of requests, or it has ended")
        return found


def event(kind: str, document: Any) -> bytes:
    # Encoded JSON has no line ends, which would end the event.
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(document) + b"\n\n"
