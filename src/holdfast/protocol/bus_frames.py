"""What travels on a link of the bus.

A link is one TLS connection between two peers. It carries frames:

    length  4 bytes, of all that follows      kind  1 byte      stream  1 byte      body

First both sides say hello and prove their keys over this very connection (`rules/keys.py` has the
transcript). Only then does each tell the other anything about itself, in its welcome.

    dialler                         listener
    HELLO  key, nonce          ──►
                               ◄──  HELLO  key, nonce      PROOF  as server
    PROOF  as client  WELCOME  ──►
                               ◄──  WELCOME

After that any frame may come. Parcels (`rules/bus/signed_envelope.py`), pages of a mesh and entries
between voters (`quorum_frames.py`) flow on streams that have credit each: a sender may have only so
many bytes under way that the receiver has not taken yet.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import (
    BUS_PARCEL_BYTES_MAX,
    BUS_RELAY_GIVEN_MAX,
    BUS_RELAY_HOPS_MAX,
    BUS_SETTLED_IDS_MAX,
    BUS_SUCCESSIONS_MAX,
    KIB,
    LAMPORT_MAX,
    REASON_CHARS_MAX,
)

PROTOCOL_VERSION: Final = 1
FRAME_HEAD: Final = Struct(">IBB")
FRAME_BYTES_MAX: Final = BUS_PARCEL_BYTES_MAX + KIB
"""The longest body of a frame on a link that is proved."""
HELLO_FRAME_BYTES_MAX: Final = 4 * KIB
"""The longest body of a frame from a stranger."""
WELCOME_BYTES_MAX: Final = 512 * KIB
"""The longest body of a welcome from a peer that is known."""
PROVED_BYTES_MAX: Final = 32 * KIB
"""The longest body of a welcome from a peer that has proved its key and is not known: it may show
capabilities."""

Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Number = Annotated[int, Meta(ge=0, lt=LAMPORT_MAX)]


class FrameKind(IntEnum):
    HELLO = 1
    PROOF = 2
    WELCOME = 3
    PARCEL = 4
    ACK = 5
    CREDIT = 6
    PING = 7
    PONG = 8
    GOODBYE = 9
    INTEREST = 10
    MESH = 11
    RELAY = 12
    SETTLED = 13
    NOTICE = 14
    QUORUM = 15


class Stream(IntEnum):
    """Frames of one stream keep their order and share credit. A stream with a lower number goes
    first when several have something to send.
    """

    CONTROL = 0
    REPLY = 1
    """Replies and cancels: a peer whose subscribers read nothing can still ask and be answered."""
    NOW = 2
    NEXT = 3
    LOW = 4
    MESH = 5
    OBJECTS = 6
    """Content that entries of a mesh name. It has credit of its own, so that it still comes when
    the pages that wait for it have used up theirs."""
    RELAY = 7
    """What is published by way of others. A peer that passes much on still has room for its own."""
    QUORUM = 8
    """Entries between voters. What they need not wait for, heartbeats and votes, is on CONTROL."""


class HelloFrame(msgspec.Struct, array_like=True, frozen=True):
    """The first word of each side. It tells nothing but a key."""

    version: int
    key: Key
    nonce: Key
    sought: Annotated[list[Key], Meta(max_length=BUS_SUCCESSIONS_MAX)] = []
    """Of a dialler: whom it looks for, by `sought` in `rules/bus/succession.py`."""
    former: bytes = b""
    """Of a listener that was sought by an earlier key: how it came to the one of now."""


class ProofFrame(msgspec.Struct, array_like=True, frozen=True):
    proof: Annotated[bytes, Meta(min_length=64, max_length=64)]


class WelcomeFrame(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What a peer tells another that it has accepted."""

    name: str
    incarnation: Annotated[bytes, Meta(min_length=16, max_length=16)]
    seen: Number = 0
    """The highest number that this peer has accepted from the other one."""
    capabilities: Annotated[list[bytes], Meta(max_length=64)] = []
    """What it may do, where the other side does not know it by itself."""
    addresses: Annotated[list[str], Meta(max_length=32)] = []
    """Where this peer listens."""
    life: Annotated[bytes, Meta(max_length=16)] = b""
    """A random mark of the process: it is another one whenever a bus is bound."""


class AckFrame(msgspec.Struct, array_like=True, frozen=True):
    """Everything of yours up to this number is stored here, or was refused as listed."""

    upto: Number
    refused: Annotated[list[tuple[Number, str, str]], Meta(max_length=1024)] = []
    """Number, code and reason."""


class CreditFrame(msgspec.Struct, array_like=True, frozen=True):
    """So many bytes more may come on this stream."""

    stream: Stream
    size: Annotated[int, Meta(gt=0, le=1 << 31)]


class PingFrame(msgspec.Struct, array_like=True, frozen=True):
    """Asks for a sign of life; the answer is the same token as a PONG."""

    token: Number


class GoodbyeFrame(msgspec.Struct, array_like=True, frozen=True):
    """The last word of a side that closes a link on purpose."""

    code: str
    message: str = ""


class NoticeFrame(msgspec.Struct, array_like=True, frozen=True):
    """Something that people on the other side should know. The link goes on."""

    code: str
    message: str = ""


class InterestFrame(msgspec.Struct, array_like=True, frozen=True):
    """Which topics this side listens to, and what it serves, from now on."""

    topics: Annotated[list[str], Meta(max_length=4096)] = []
    durable: Annotated[list[str], Meta(max_length=4096)] = []
    """Those of the topics whose messages are kept for it while it is away."""
    services: Annotated[list[str], Meta(max_length=4096)] = []
    relays: Annotated[list[str], Meta(max_length=4096)] = []
    """Topics whose messages it passes on to others."""
    takes: Annotated[list[str], Meta(max_length=4096)] = []
    """Topics of which it takes from the other side what third peers have published."""


class SettledFrame(msgspec.Struct, array_like=True, frozen=True):
    """Of all messages that this side has sent until now, none comes again but these."""

    waiting: Annotated[
        list[Annotated[bytes, Meta(min_length=16, max_length=16)]],
        Meta(max_length=BUS_SETTLED_IDS_MAX),
    ] = []


class RelayFrame(msgspec.Struct, array_like=True, frozen=True):
    """A message of a topic as its origin signed it, from the origin or from one who passes it
    on.
    """

    hops: Annotated[int, Meta(ge=0, le=BUS_RELAY_HOPS_MAX)]
    """How often it was passed on; the most: whoever gets it keeps it to itself."""
    given: Annotated[
        list[Annotated[bytes, Meta(min_length=8, max_length=8)]],
        Meta(max_length=BUS_RELAY_GIVEN_MAX),
    ]
    """Who gets it otherwise: the first bytes of keys."""
    envelope: bytes
    """A parcel of one message, signed for the topic."""


Told = (
    HelloFrame
    | ProofFrame
    | WelcomeFrame
    | AckFrame
    | CreditFrame
    | PingFrame
    | GoodbyeFrame
    | InterestFrame
    | RelayFrame
    | SettledFrame
    | NoticeFrame
)

_TYPES: Final[dict[FrameKind, type[Told]]] = {
    FrameKind.HELLO: HelloFrame,
    FrameKind.PROOF: ProofFrame,
    FrameKind.WELCOME: WelcomeFrame,
    FrameKind.ACK: AckFrame,
    FrameKind.CREDIT: CreditFrame,
    FrameKind.PING: PingFrame,
    FrameKind.PONG: PingFrame,
    FrameKind.GOODBYE: GoodbyeFrame,
    FrameKind.INTEREST: InterestFrame,
    FrameKind.RELAY: RelayFrame,
    FrameKind.SETTLED: SettledFrame,
    FrameKind.NOTICE: NoticeFrame,
}
_decoders: Final = {kind: msgspec.msgpack.Decoder(type) for kind, type in _TYPES.items()}
_encode: Final = msgspec.msgpack.Encoder().encode


def frame(kind: FrameKind, stream: Stream, body: bytes) -> bytes:
    """The bytes of one frame."""
    return FRAME_HEAD.pack(len(body) + 2, kind, stream) + body


def told(kind: FrameKind, document: Told) -> bytes:
    """The body of a frame that is a document."""
    assert isinstance(document, _TYPES[kind]), kind
    return _encode(document)


def read_told(kind: FrameKind, body: bytes) -> Told:
    """The document of a frame; raises BadAnswer if it cannot be read."""
    try:
        return _decoders[kind].decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:REASON_CHARS_MAX]
        raise BadAnswer(f"a {kind.name.lower()} of a peer cannot be read: {why}") from None
