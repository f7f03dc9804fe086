"""What is inside a signed payload: one message of the bus.

Kind, topic, correlation, priority and the time that is left all stand in the payload, because the
signature covers the payload and nothing else beside sender, recipient and number. A resent message
is signed anew, with less time left, and keeps its id: the id is what a receiver knows it by.

The time that is left travels in milliseconds, not as a moment: clocks may be a year apart.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules.bus.signed_envelope import check_bus_name
from holdfast.rules.envelope import Priority
from holdfast.rules.errors import BadEnvelope, BadId, BadInput, OverLimit
from holdfast.rules.fingerprint import fingerprint_2
from holdfast.rules.ids import check_id
from holdfast.rules.limits import BUS_PAYLOAD_BYTES_MAX, BUS_TTL_MS_MAX, REASON_CHARS_MAX

VERSION: Final = 1
CODE_CHARS_MAX: Final = 64

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]


class MessageKind(IntEnum):
    """What a message is for."""

    SEND = 1
    """To one peer; it waits for a peer that is away."""
    PUBLISH = 2
    """To all who listen to its topic."""
    REQUEST = 3
    """Asks one peer, or any peer, for a reply."""
    REPLY = 4
    CANCEL = 5
    """The asker no longer waits for the reply."""


_NAMING: Final = (MessageKind.PUBLISH, MessageKind.REQUEST)
_ANSWERING: Final = (MessageKind.REPLY, MessageKind.CANCEL)


class BusMessage(
    msgspec.Struct,
    array_like=True,
    frozen=True,
    kw_only=True,
    gc=False,
    forbid_unknown_fields=True,
):
    """One message of the bus."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)] = VERSION
    id: Id
    kind: MessageKind
    topic: str = ""
    """The topic of a message, or the service that a request asks for; a plain send may have
    none.
    """
    body: bytes = b""
    content_type: str = ""
    correlation: bytes = b""
    """The id of the request that a reply or a cancel belongs to."""
    priority: Priority = "next"
    ttl_ms: Annotated[int, Meta(ge=0, le=BUS_TTL_MS_MAX)] | None = None
    """How long the message is still worth something; None: as long as it takes."""
    code: str = ""
    """In a reply: what went wrong, as a word for programs; empty if nothing did."""
    durable: bool = False
    """The sender keeps it until the receiver has it on its disk."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(BusMessage)

encode_message = _encoder.encode


def decode_message(payload: bytes) -> BusMessage:
    """Reads a payload and checks every field. Raises BadEnvelope or OverLimit."""
    try:
        message = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:REASON_CHARS_MAX]
        raise BadEnvelope(f"a message of the bus cannot be read: {why}") from None
    try:
        return check_message(message)
    except OverLimit:
        raise
    except (BadInput, BadId) as error:
        raise BadEnvelope(f"a message of the bus breaks a rule: {error.message}") from None


def bus_subject(head: bytes) -> tuple[str, str]:
    """What a stored message does, as `bus.send`, and its topic: for lists of what waits."""
    message = _decoder.decode(head)
    return f"bus.{message.kind.name.lower()}", message.topic


def bus_fingerprint(to: str, message: BusMessage) -> bytes:
    """What a caller asks for under an id: two requests with one fingerprint are one request, tried
    twice. How long it may wait is no part of it.
    """
    return fingerprint_2(
        kind=f"bus.{message.kind.name.lower()}",
        ref=to,
        reply_to=message.topic,
        priority=message.priority,
        content_type=message.content_type,
        body=message.body,
    )


def check_message(message: BusMessage) -> BusMessage:
    """Raises unless the fields fit each other."""
    kind, code, content_type = message.kind, message.code, message.content_type
    check_id(message.id)
    if message.topic or kind in _NAMING:
        check_bus_name(message.topic, "topic")
    if kind in _ANSWERING:
        check_id(message.correlation)
    elif message.correlation:
        raise BadInput("only replies and cancels name the request that they belong to")
    if code and kind is not MessageKind.REPLY:
        raise BadInput("only a reply says what went wrong")
    if code or content_type:
        if len(code) > CODE_CHARS_MAX or len(content_type) > REASON_CHARS_MAX:
            raise OverLimit("the code or content type of a message is too long")
        if not (code + content_type).isprintable():
            raise BadInput("the code or content type of a message is not printable")
    if len(message.body) > BUS_PAYLOAD_BYTES_MAX:
        raise OverLimit(f"a message has {len(message.body)} bytes; most is {BUS_PAYLOAD_BYTES_MAX}")
    return message
