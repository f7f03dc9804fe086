"""The bus of this node, for programs of its own user: send, publish, ask, listen, answer.

    GET /v1/bus/messages    event: open, then event: message for each; acknowledged one by one with
                            `ack=client`, else as soon as it was written to the client
    GET /v1/bus/requests    event: open, then event: request for each, and event: cancel when the
                            asker no longer waits

A stream is the subscription, or the offer to serve: it ends with the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Final, TypeVar

from starlette.responses import Response

from holdfast.node.bus import documents
from holdfast.node.bus.documents import content_fields
from holdfast.node.bus.host import BusHost
from holdfast.node.bus.members import JoinedOverBus
from holdfast.node.bus.standing import BusStanding
from holdfast.node.http.bus_streams import MessageStream, RequestStream, event
from holdfast.node.http.context import NodeRequest, waited
from holdfast.rules.errors import (
    AlreadyExists,
    BadAnswer,
    BadInput,
    BusClosed,
    BusStoreFailed,
    CapabilityRefused,
    HoldfastError,
    IdempotencyKeyReused,
    InviteEnded,
    MessageRefused,
    NoResponder,
    NotShared,
    OverLimit,
    PeerUnreachable,
    RequestCancelled,
    RequestRefused,
    RequestTimedOut,
    UnknownPeer,
    UnknownStream,
    WrongKey,
)
from holdfast.rules.ids import id_text
from holdfast.rules.limits import (
    BODY_BYTES_MAX,
    BUS_BUFFER,
    BUS_JOIN_MS,
    BUS_SERVE_MAX,
    HEARTBEAT_MS,
    SECOND_MS,
)
from holdfast.service.http.errors import failure
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Routes
from holdfast.service.http.streaming import Streamed

T = TypeVar("T")

_STREAM: Final = "text/event-stream"
_HEARTBEAT: Final = b": still here\n\n"
_BUFFER_MAX: Final = 4096
_ANY_CALL: Final = (BusClosed, BusStoreFailed, WrongKey)

routes = Routes()


@routes.post(
    "/v1/bus/send",
    request=documents.BusSend,
    answers={200: documents.BusSent},
    errors=(
        *(UnknownPeer, PeerUnreachable, MessageRefused, RequestCancelled, IdempotencyKeyReused),
        *_ANY_CALL,
    ),
    example="""-d '{"to":"bo","body":"it is done"}'""",
    local_only=True,
)
async def _send(call: NodeRequest) -> Response:
    """Send a message to one peer. `delivered`: it is on the peer's disk; `spooled`: it waits here
    until the peer appears.
    """
    asked = await json_body(call, documents.BusSend, BODY_BYTES_MAX)
    sent = await waited(
        call,
        bus_of(call).api.send(
            asked.to,
            asked.content,
            topic=asked.topic,
            content_type=asked.content_type,
            priority=asked.priority,
            ttl_ms=asked.ttl_ms,
            id=asked.id,
            wait_ms=asked.wait_ms,
        ),
    )
    return call.answer(documents.BusSent(id_text(sent.id), sent.state))


@routes.post(
    "/v1/bus/publish",
    request=documents.BusPublish,
    answers={200: documents.BusPublished},
    errors=(RequestCancelled, IdempotencyKeyReused, *_ANY_CALL),
    example="""-d '{"topic":"builds.linux","body":"green"}'""",
    local_only=True,
)
async def _publish(call: NodeRequest) -> Response:
    """Publish a message to all peers that listen to its topic, and keep it for those that have a
    durable subscription and are away.
    """
    asked = await json_body(call, documents.BusPublish, BODY_BYTES_MAX)
    done = await waited(
        call,
        bus_of(call).api.publish(
            asked.topic,
            asked.content,
            content_type=asked.content_type,
            priority=asked.priority,
            id=asked.id,
        ),
    )
    return call.answer(documents.BusPublished(id_text(done.id), done.peers, done.kept, done.missed))


@routes.post(
    "/v1/bus/request",
    request=documents.BusAsk,
    answers={200: documents.BusAnswer},
    errors=(
        *(UnknownPeer, PeerUnreachable, NoResponder, RequestTimedOut, RequestRefused),
        IdempotencyKeyReused,
        *(RequestCancelled, MessageRefused, *_ANY_CALL),
    ),
    example="""-d '{"to":"bo","service":"resize","body":"cat.png"}'""",
    local_only=True,
)
async def _request(call: NodeRequest) -> Response:
    """Ask a peer, or any that serves it, and wait for the reply. A client that goes away cancels
    the request.
    """
    asked = await json_body(call, documents.BusAsk, BODY_BYTES_MAX)
    reply = await waited(
        call,
        bus_of(call).api.request(
            asked.to,
            asked.service,
            asked.content,
            content_type=asked.content_type,
            timeout_ms=asked.timeout_ms,
            id=asked.id,
        ),
    )
    return call.answer(
        documents.BusAnswer(
            id=id_text(reply.id),
            peer=reply.peer,
            **content_fields(reply.body),
            content_type=reply.content_type,
        )
    )


@routes.post(
    "/v1/bus/ping",
    request=documents.BusPing,
    answers={200: documents.BusPong},
    errors=(UnknownPeer, PeerUnreachable, RequestCancelled, *_ANY_CALL),
    example="""-d '{"peer":"bo"}'""",
    local_only=True,
)
async def _ping(call: NodeRequest) -> Response:
    """How long it takes to a peer and back."""
    asked = await json_body(call, documents.BusPing)
    ms = await waited(call, bus_of(call).api.ping(asked.peer))
    return call.answer(documents.BusPong(asked.peer, ms))


@routes.post(
    "/v1/bus/join",
    request=documents.BusJoin,
    answers={200: JoinedOverBus},
    errors=(
        *(AlreadyExists, BadAnswer, BadInput, CapabilityRefused, InviteEnded, NoResponder),
        *(OverLimit, PeerUnreachable, RequestCancelled, RequestTimedOut, *_ANY_CALL),
    ),
    example="""-d '{"invite":"holdfast://join/…"}'""",
    local_only=True,
)
async def _join(call: NodeRequest) -> Response:
    """Join a mesh that has no broker: its owner is looked for, and asked to let this node in."""
    asked = await json_body(call, documents.BusJoin)
    wait_ms = min(max(asked.wait_ms, 1), BUS_JOIN_MS)
    return call.answer(await waited(call, bus_of(call).api.join(asked.invite, wait_ms=wait_ms)))


@routes.post(
    "/v1/bus/leave",
    request=documents.BusLeave,
    answers={200: documents.BusLeft},
    errors=(
        *(BadAnswer, BadInput, NotShared, NoResponder, PeerUnreachable, RequestCancelled),
        *(RequestTimedOut, *_ANY_CALL),
    ),
    example="""-d '{"mesh":"team"}'""",
    local_only=True,
)
async def _leave(call: NodeRequest) -> Response:
    """Tell the owner of a mesh without a broker that this node leaves it."""
    asked = await json_body(call, documents.BusLeave)
    await waited(call, bus_of(call).api.leave(asked.mesh))
    return call.answer(documents.BusLeft(asked.mesh))


@routes.get("/v1/bus/status", answers={200: BusStanding}, errors=_ANY_CALL, local_only=True)
async def _status(call: NodeRequest) -> Response:
    """How the bus stands: where it listens, its peers and links, what waits, what was refused."""
    return call.answer(await bus_of(call).api.standing())


# --- streams ---------------------------------------------------------------------------------


@routes.get(
    "/v1/bus/messages",
    answers={200: _STREAM},
    params=(
        Param("topic", "A pattern: `builds.*`, `builds.>`; `>`, all messages, if not given."),
        Param("durable", "Publishers keep for this node what it misses: `true`."),
        Param("buffer", f"Messages on their way to the client; {BUS_BUFFER} if not given.", int),
        Param("ack", "`client`: each message is held until it is acknowledged."),
    ),
    errors=_ANY_CALL,
    kind="stream",
    local_only=True,
)
async def _messages(call: NodeRequest) -> Response:
    """Messages as they come. A message that was not acknowledged comes again to the next stream."""
    buffer = call.number("buffer", BUS_BUFFER) or 0
    if not 1 <= buffer <= _BUFFER_MAX:
        raise BadInput(f"buffer is {buffer}", hint=f"give 1 to {_BUFFER_MAX}")
    ack = call.one("ack", "auto")
    if ack not in ("auto", "client"):
        raise BadInput(f"ack is {ack!r}", hint="give auto or client")
    pattern, durable = call.one("topic", ">") or "", call.flag("durable")
    found = bus_of(call).api.subscribe(pattern, buffer=buffer, durable=durable, manual=True)
    stream = MessageStream(window=buffer)
    return _streamed(_mail(call, found, stream, auto=ack == "auto"))


async def _mail(
    call: NodeRequest, subscription: Any, stream: MessageStream, *, auto: bool
) -> AsyncGenerator[bytes, None]:
    streams = call.api.bus_streams
    found: list[Any] = []

    async def take() -> bool:
        await stream.has_room()
        found.append(await anext(subscription))
        return True

    try:
        async with subscription:
            yield streams.add(stream)
            while call.api.phase != "stopping":
                if await call.until_ended(_in_time(take())):
                    yield stream.give(found.pop())
                    if auto:
                        stream.acknowledge([stream.last])
                elif call.has_ended:
                    return
                else:
                    yield _HEARTBEAT
    except (HoldfastError, StopAsyncIteration) as error:
        yield _last_words(error)
    finally:
        streams.drop(stream)


@routes.post(
    "/v1/bus/messages/{stream}/ack",
    request=documents.BusAcknowledge,
    answers={200: documents.BusTaken},
    errors=(UnknownStream,),
    example="""-d '{"numbers":[1]}'""",
    local_only=True,
)
async def _acknowledge(call: NodeRequest) -> Response:
    """Acknowledge messages of a stream: they never come again, also if the daemon is killed."""
    stream = call.api.bus_streams.messages(call.path["stream"])
    asked = await json_body(call, documents.BusAcknowledge)
    taken = stream.acknowledge(asked.numbers)
    await bus_of(call).api.settle()
    return call.answer(documents.BusTaken(taken))


@routes.get(
    "/v1/bus/requests",
    answers={200: _STREAM},
    params=(
        Param("service", "What this program serves.", required=True),
        Param("most", f"Requests at once; {BUS_SERVE_MAX} if not given.", int),
    ),
    errors=_ANY_CALL,
    kind="stream",
    local_only=True,
)
async def _requests(call: NodeRequest) -> Response:
    """Requests that this program is to answer, as they come."""
    most = call.number("most", BUS_SERVE_MAX) or 0
    if not 1 <= most <= BUS_SERVE_MAX:
        raise BadInput(f"most is {most}", hint=f"give 1 to {BUS_SERVE_MAX}")
    return _streamed(_calls(call, bus_of(call), call.required("service"), most))


async def _calls(
    call: NodeRequest, host: BusHost, service: str, most: int
) -> AsyncGenerator[bytes, None]:
    stream, streams = RequestStream(), call.api.bus_streams
    first = streams.add(stream)
    try:
        served = await host.serve_program(service, stream.ask, most=most)
        try:
            yield first
            while call.api.phase != "stopping":
                if await call.until_ended(_in_time(stream.has_events())):
                    if told := stream.take_events():  # a cancel takes back what was not told
                        yield told
                elif call.has_ended:
                    return
                else:
                    yield _HEARTBEAT
        finally:
            await served.close()
    except HoldfastError as error:
        yield _last_words(error)
    finally:
        streams.drop(stream)


@routes.post(
    "/v1/bus/requests/{stream}/reply",
    request=documents.BusReplyGiven,
    answers={200: documents.BusTaken},
    errors=(UnknownStream,),
    example="""-d '{"call":1,"body":"done"}'""",
    local_only=True,
)
async def _reply(call: NodeRequest) -> Response:
    """Answer a request of a stream, or refuse it with a code."""
    stream = call.api.bus_streams.requests(call.path["stream"])
    asked = await json_body(call, documents.BusReplyGiven, BODY_BYTES_MAX)
    return call.answer(documents.BusTaken(stream.reply(asked)))


# --- what they share -------------------------------------------------------------------------


def bus_of(call: NodeRequest) -> BusHost:
    host = call.api.bus
    if host is None and call.api.bus_problem is not None:
        raise call.api.bus_problem
    if host is None:
        raise BusClosed("this daemon holds no bus", hint="set enabled in [bus] and start it again")
    return host


async def _in_time(work: Coroutine[Any, Any, bool]) -> bool:
    """False if nothing came before the next sign of life is due."""
    try:
        async with asyncio.timeout(HEARTBEAT_MS / SECOND_MS):
            return await work
    except TimeoutError:
        return False


def _streamed(parts: AsyncGenerator[bytes, None]) -> Response:
    return Streamed(parts, media_type=_STREAM, headers={"cache-control": "no-cache"})


def _last_words(error: Exception) -> bytes:
    """The answer has begun, so its status cannot report the error any more."""
    known = error if isinstance(error, HoldfastError) else BusClosed("the bus has ended")
    return event("error", failure(known))
