"""What a daemon holds for a program that reads nothing, or acknowledges nothing, is bounded."""

from __future__ import annotations

import asyncio

from holdfast.bus.received import ReceivedMessage, ReceivedRequest
from holdfast.node.http.bus_streams import MessageStream, RequestStream
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.limits import BUS_BUFFER, BUS_BUFFER_BYTES, MIB
from holdfast.service.clock import SystemClock

KEY = b"k" * 32


def _message(kind: MessageKind, body: bytes) -> BusMessage:
    return BusMessage(id=SystemClock().new_id(), kind=kind, topic="t", body=body)


def test_U4_B6_a_program_that_acknowledges_nothing_is_given_no_more_than_so_many_bytes() -> None:
    async def story() -> None:
        stream = MessageStream(window=BUS_BUFFER)
        large = _message(MessageKind.PUBLISH, bytes(MIB))
        given = 0
        while given * MIB < BUS_BUFFER_BYTES:
            assert await stream.has_room()
            stream.give(ReceivedMessage(large, "bo", KEY, 0))
            given += 1
        waiting = asyncio.ensure_future(stream.has_room())
        await asyncio.sleep(0)
        assert not waiting.done(), "16 MiB are held, in a sixteenth of the messages that may be"
        stream.acknowledge([1])
        assert await waiting

    asyncio.run(story())


def test_U4_B5_a_program_that_reads_nothing_is_not_told_of_calls_that_have_ended() -> None:
    async def story() -> None:
        stream = RequestStream()
        request = ReceivedRequest(_message(MessageKind.REQUEST, b"?"), "bo", KEY, 0)
        told = asyncio.ensure_future(stream.ask(request))
        await asyncio.sleep(0)
        assert b"request" in stream.take_events()
        for _ in range(1000):  # an asker that asks and cancels for ever
            asked = asyncio.ensure_future(stream.ask(request))
            await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
        assert stream.take_events() == b""
        told.cancel()
        await asyncio.wait([told])
        assert stream.take_events() == b'event: cancel\ndata: {"call":1}\n\n'

    asyncio.run(story())
