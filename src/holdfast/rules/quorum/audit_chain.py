"""Audit streams: events that are only added, in the order of their origin, each bound to the last.

A stream has a name (`activityLog`, `runAuditEvents`, or any other). In it every origin numbers its
events 1, 2, 3 …, and each event bears the hash of the one before it, and its own:

    hash = SHA-256(tag, stream, origin, seq, id, at, payload, previous)

as the msgpack array of these. So one event's hash stands for all of its origin's events up to it. A
node that has the events of an origin up to some number takes the next one and no other:

- the same event again is a duplicate, by its id and hash;
- one that comes too early is a gap: those in between are asked for, nothing is stored;
- another event under a number or an id that is taken, or one that does not follow the last, is a
  fork: it is refused, and both hashes are the evidence. What was seen first stands.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Final, Literal, Protocol

import msgspec
from msgspec import Meta

from holdfast.rules import limits, names
from holdfast.rules.bodies import check_value, encode_value
from holdfast.rules.canonical import check_packed_form, check_spelling
from holdfast.rules.envelope import IntentId, Moment, Positive
from holdfast.rules.errors import AuditForked, AuditGap, BadChecksum, BadEnvelope, OverLimit
from holdfast.rules.ids import check_id, id_text

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]

ACTIVITY_LOG: Final = "activityLog"
RUN_AUDIT_EVENTS: Final = "runAuditEvents"
BEFORE_ALL: Final = bytes(32)
"""What the first event of an origin bears as the hash of the one before it."""
_TAG: Final = "holdfast.audit.1"


class AuditEvent(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One event of one origin in a stream."""

    stream: str
    origin: str
    seq: Positive
    id: IntentId
    at: Moment
    payload: bytes
    """JSON, as its origin wrote it."""
    previous: Digest
    hash: Digest


class ChainHead(msgspec.Struct, frozen=True):
    """How far a node has the events of one origin in one stream."""

    seq: int = 0
    hash: bytes = BEFORE_ALL


class AuditReader(Protocol):
    """What a node has of an audit stream."""

    def head(self, stream: str, origin: str) -> ChainHead: ...

    def event_at(self, stream: str, origin: str, seq: int) -> AuditEvent | None:
        """None also for an event that was forgotten."""

    def event_by_id(self, id: bytes) -> AuditEvent | None: ...


EventStanding = Literal["new", "duplicate"]

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(AuditEvent)


def next_event(
    head: ChainHead, *, stream: str, origin: str, id: bytes, at: int, payload: object
) -> AuditEvent:
    """The event that its origin adds behind its last one."""
    raw = encode_value(payload)
    seq = head.seq + 1
    digest = _hash(stream, origin, seq, id, at, raw, head.hash)
    event = AuditEvent(
        stream=stream,
        origin=origin,
        seq=seq,
        id=id,
        at=at,
        payload=raw,
        previous=head.hash,
        hash=digest,
    )
    _check(event)
    return event


def encode_event(event: AuditEvent) -> bytes:
    return _encoder.encode(event)


def decode_event(raw: bytes) -> AuditEvent:
    """Reads an event from outside, and checks everything that it says about itself."""
    try:
        event = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadEnvelope(f"the audit event cannot be read: {error}") from None
    check_packed_form(raw, encode_event(event), "the audit event", newer=False)
    _check(event)
    check_spelling(event.payload, check_value(event.payload))
    said = (event.stream, event.origin, event.seq, event.id, event.at, event.payload)
    if _hash(*said, event.previous) != event.hash:
        raise BadChecksum(f"{_named(event)} does not hash to what it bears")
    return event


def take_event(reader: AuditReader, event: AuditEvent) -> EventStanding:
    """Whether a decoded event is new here. Raises AuditGap or AuditForked if it cannot be taken."""
    head = reader.head(event.stream, event.origin)
    if event.seq == head.seq + 1:
        if event.previous != head.hash:
            raise _fork(event, head.seq, head.hash, event.previous)
        known = reader.event_by_id(event.id)
        if known is not None:
            raise _fork(event, known.seq, known.hash, event.hash)
        return "new"
    if event.seq > head.seq:
        raise AuditGap(f"{_named(event)} came, and those from {head.seq + 1} on are missing here")
    stands = reader.event_at(event.stream, event.origin, event.seq)
    if stands is not None and stands.hash != event.hash:
        raise _fork(event, stands.seq, stands.hash, event.hash)
    if event.seq == head.seq and event.hash != head.hash:
        raise _fork(event, head.seq, head.hash, event.hash)
    return "duplicate"


def head_after(event: AuditEvent) -> ChainHead:
    return ChainHead(event.seq, event.hash)


def _check(event: AuditEvent) -> None:
    names.check_key(event.stream, "name of an audit stream", limits.AUDIT_STREAM_BYTES_MAX)
    names.check_peer(event.origin)
    check_id(event.id)
    if len(event.payload) > limits.AUDIT_EVENT_BYTES_MAX:
        raise OverLimit(
            f"the event has {len(event.payload)} bytes; the most is {limits.AUDIT_EVENT_BYTES_MAX}"
        )
    if (event.seq == 1) != (event.previous == BEFORE_ALL):
        raise BadEnvelope("only the first event of an origin has none before it")


def _hash(
    stream: str, origin: str, seq: int, id: bytes, at: int, payload: bytes, previous: bytes
) -> bytes:
    told = (_TAG, stream, origin, seq, id, at, payload, previous)
    return sha256(_encoder.encode(told)).digest()


def _fork(event: AuditEvent, seq: int, ours: bytes, theirs: bytes) -> AuditForked:
    return AuditForked(
        f"{_named(event)}, id {id_text(event.id)}: we hold event {seq} with the hash {ours.hex()}, "
        f"and this says {theirs.hex()}"
    )


def _named(event: AuditEvent) -> str:
    return f"event {event.seq} of {event.origin!r} in {event.stream!r}"
