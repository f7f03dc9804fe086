"""Audit streams: events that are only added, in the order of their origin, each bound to the last.

A stream has a name (`activityLog`, `runAuditEvents`, or any other). In it every origin numbers its
events 1, 2, 3 …, anew in each epoch of its log: a home that was restored has another epoch, and
would else give numbers twice. The events of one origin in one epoch are a chain. Each bears the
hash of the one before it, and its own:

    hash = SHA-256(tag, mesh, stream, origin, epoch, seq, id, at, payload, previous)

as the msgpack array of these. So one event's hash stands for all events of its chain up to it.

Events arrive in any order. Whatever is next to an event in its chain must fit it:

- the same event again is a duplicate, by its id and hash;
- one that comes before its predecessor is kept, and the gap shows until it is filled;
- another event under a number that is taken, or one that does not bind to its neighbours, is a
  fork: it is refused, and both hashes are the evidence. What was seen first stands.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from holdfast.rules import limits, names
from holdfast.rules.errors import AuditForked, BadChecksum, BadEnvelope, OverLimit
from holdfast.rules.ids import id_text

ACTIVITY_LOG: Final = "activityLog"
RUN_AUDIT_EVENTS: Final = "runAuditEvents"
BEFORE_ALL: Final = bytes(32)
"""What the first event of a chain bears as the hash of the one before it."""
_TAG: Final = "holdfast.audit.1"
_encode: Final = msgspec.msgpack.Encoder().encode


class AuditChain(NamedTuple):
    """Whose events, in which stream: within a chain numbers have no gaps."""

    mesh: str
    stream: str
    origin: str
    epoch: int


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event of an audit stream, as its origin made it and as a node keeps it."""

    mesh: str
    stream: str
    origin: str
    epoch: int
    seq: int
    id: bytes
    at: int
    """By the clock of its origin."""
    payload: bytes
    """JSON."""
    previous: bytes
    hash: bytes
    lamport: int = 0
    offset: int = 0
    """Where it stands, or stood, in this node's log."""

    @property
    def chain(self) -> AuditChain:
        return AuditChain(self.mesh, self.stream, self.origin, self.epoch)


class AuditChainRow(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a chain a node has."""

    mesh: str
    stream: str
    origin: str
    epoch: int
    last: int
    """The highest number that is here."""
    events: int
    """How many are here. Less than `last`: there is a gap."""

    @property
    def chain(self) -> AuditChain:
        return AuditChain(self.mesh, self.stream, self.origin, self.epoch)


class Neighbours(NamedTuple):
    """What a node has at the place of an event, before it and behind it."""

    at: AuditRow | None
    before: AuditRow | None
    after: AuditRow | None


def next_event(
    chain: AuditChain, last: AuditRow | None, *, id: bytes, at: int, payload: bytes
) -> AuditRow:
    """The event that its origin adds behind its last one; None: it is the first of its chain."""
    seq = 1 if last is None else last.seq + 1
    previous = BEFORE_ALL if last is None else last.hash
    return AuditRow(
        mesh=chain.mesh,
        stream=chain.stream,
        origin=chain.origin,
        epoch=chain.epoch,
        seq=seq,
        id=id,
        at=at,
        payload=payload,
        previous=previous,
        hash=event_hash(chain, seq, id, at, payload, previous),
    )


def event_hash(
    chain: AuditChain, seq: int, id: bytes, at: int, payload: bytes, previous: bytes
) -> bytes:
    return sha256(_encode((_TAG, *chain, seq, id, at, payload, previous))).digest()


def check_stream(name: str) -> str:
    return names.check_key(name, "name of an audit stream", limits.AUDIT_STREAM_BYTES_MAX)


def check_payload_size(payload: bytes) -> None:
    if len(payload) > limits.AUDIT_EVENT_BYTES_MAX:
        raise OverLimit(
            f"the event has {len(payload)} bytes; the most is {limits.AUDIT_EVENT_BYTES_MAX}"
        )


def check_event(event: AuditRow) -> None:
    """Raises unless an event is what it says about itself."""
    check_stream(event.stream)
    check_payload_size(event.payload)
    if not 0 < event.seq < limits.LAMPORT_MAX or not 0 <= event.epoch < limits.LAMPORT_MAX:
        raise BadEnvelope(f"{event.seq} of epoch {event.epoch} is no number of an audit event")
    if not 0 <= event.at < limits.LAMPORT_MAX:
        raise BadEnvelope(f"{event.at} is no time of an audit event")
    if len(event.previous) != len(BEFORE_ALL) or (event.seq == 1) != (event.previous == BEFORE_ALL):
        raise BadEnvelope("the first event of a chain, and no other, has none before it")
    if not is_whole(event):
        raise BadChecksum(f"{named(event)} does not hash to what it bears")


def is_whole(event: AuditRow) -> bool:
    """Whether an event hashes to what it bears."""
    said = (event.seq, event.id, event.at, event.payload, event.previous)
    return event_hash(event.chain, *said) == event.hash


def refuse_fork(event: AuditRow, beside: Neighbours) -> None:
    """Raises AuditForked unless an event fits to what a node has next to it."""
    at, before, after = beside
    if at is not None and at.hash != event.hash:
        raise _fork(event, at.seq, at.hash, event.hash)
    if before is not None and before.hash != event.previous:
        raise _fork(event, before.seq, before.hash, event.previous)
    if after is not None and after.previous != event.hash:
        raise _fork(event, event.seq, after.previous, event.hash)


def named(event: AuditRow) -> str:
    return f"event {event.seq} of {event.origin!r} in {event.stream!r}"


def _fork(event: AuditRow, seq: int, ours: bytes, theirs: bytes) -> AuditForked:
    return AuditForked(
        f"{named(event)}, id {id_text(event.id)}: we hold event {seq} with the hash {ours.hex()}, "
        f"and this says {theirs.hex()}"
    )
