"""The envelope: the one record that carries a change.

A state change, a message, a fact, an intent and an audit event are all envelopes. The canonical
bytes are made once, by the node that writes; every other node stores, sends, verifies and hashes
those bytes and never encodes them again.

The bytes are a msgpack array in the order of the fields below. A minor version may add fields at
the end: an older node reads the ones it knows and keeps the rest, because it keeps the bytes. A
different major version is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.rules import ids, limits, names
from holdfast.rules.canonical import check_meta, check_packed_form
from holdfast.rules.errors import (
    BadEnvelope,
    BadKey,
    BadStamp,
    EntryDamaged,
    OverLimit,
    UnsupportedProtocol,
)

PROTOCOL: Final = "holdfast"
VERSION: Final = "1.0"
CREATED_VERSION: Final = "1.2"
"""The version of the envelopes that replace a memory or a file: they say when it was first made."""
MAJOR: Final = VERSION.split(".")[0]

# The decoder itself refuses what is none of these words or numbers, and does so at no cost.
Priority = Literal["now", "next", "low"]
State = Literal["intent", "committed", "rejected", "queued", "reconciled"]
WriteClass = Literal["strong", "append-only", "queued", "local"]
Destination = Literal["topic", "dm", "queue"]
Positive = Annotated[int, Meta(ge=1, lt=limits.LAMPORT_MAX)]
Moment = Annotated[int, Meta(ge=0, lt=limits.LAMPORT_MAX)]
LeaseEpoch = Annotated[int, Meta(ge=0, lt=limits.LAMPORT_MAX)]
IntentId = Annotated[bytes, Meta(min_length=16, max_length=16)]

UNCOUNTED: Final = limits.LAMPORT_MAX - 1
"""The epoch of envelopes that count in no stream of their origin: those that were rebuilt from
rows, and strong ones. No log ever counts in it, so their seqs, which are the stamps, cannot be
mistaken for those that an origin gave."""


class Base(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the writer saw when it wrote: the stamp that this change replaces, and the expected
    lease epoch.
    """

    lamport: int
    peer: str
    lease_epoch: LeaseEpoch | None = None


class Fence(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The authority for a strong write: lease epoch, coordinator, and the coordinator's
    sequence.
    """

    lease_epoch: LeaseEpoch
    coordinator: str
    sequence: LeaseEpoch


class Envelope(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One change, as its origin wrote it."""

    protocol: str = PROTOCOL
    version: str = VERSION
    id: bytes
    mesh: str
    op: str
    """What happens, as `family.verb`: `state.set`, `task.claim`, `fact.append` …"""
    entity: str
    """What the change is about: the key, path, task id or subject."""
    owner: str = ""
    """The peer under whose name memory, vectors and files are kept; empty for families that have no
    owners.
    """
    origin: str
    """The peer that wrote the change."""
    epoch: Positive
    """The generation of the origin's log. It grows when a home is restored and may have gone back
    in time.
    """
    seq: Positive
    """Counts the origin's own envelopes of this mesh within its epoch, without gaps."""
    lamport: Positive
    created_at: Moment
    write_class: WriteClass = "queued"
    state: State = "committed"
    fingerprint: Annotated[bytes, Meta(min_length=32, max_length=32)]
    base: Base | None = None
    meta: bytes = b""
    """Canonical JSON (RFC 8785) of what the caller attached, or empty."""
    body: bytes = b""
    """The op's own fields, see `bodies`."""
    to: tuple[Destination, str] | None = None
    """Destination kind and reference, of messages only."""
    reply_to: str = ""
    priority: Priority = "next"
    fence: Fence | None = None
    intent: IntentId | None = None
    committed_at: Moment | None = None


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Envelope)

encode = _encoder.encode


def encode_fields(fields: tuple[object, ...]) -> bytes:
    """An envelope of these fields, all and in their order, as `encode` encodes it: for those who
    make many and need only the bytes.
    """
    return _encoder.encode(fields)


class _Head(msgspec.Struct, array_like=True):
    """The fields that an envelope of any version begins with."""

    protocol: str
    version: str


_head_decoder: Final = msgspec.msgpack.Decoder(_Head)


def decode(raw: bytes) -> Envelope:
    """Reads canonical bytes and checks every field: what passes here may enter a store."""
    envelope = decode_stored(raw)
    ids.check_new_id(envelope.id)
    _check_op(envelope.op)
    if envelope.meta:
        check_meta(envelope.meta)
    if envelope.fence is not None:
        names.check_peer(envelope.fence.coordinator)
    if max(envelope.created_at, envelope.committed_at or 0) >= limits.SOURCE_TIME_MS_MAX:
        raise BadStamp(f"it was made {envelope.created_at} ms after 1970, as no clock can say")
    check_packed_form(raw, encode(envelope), "the envelope", newer=envelope.version != VERSION)
    return envelope


def decode_stored(raw: bytes) -> Envelope:
    """Reads and checks bytes from a log of another process. Earlier code let in more forms of one
    envelope than `decode` does.
    """
    if len(raw) > limits.ENVELOPE_BYTES_MAX:
        raise OverLimit(
            f"the envelope has {len(raw)} bytes; the most is {limits.ENVELOPE_BYTES_MAX}"
        )
    try:
        envelope = _decoder.decode(raw)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(raw, error) from None
    except UnicodeDecodeError:
        raise BadEnvelope("the envelope holds text that is not UTF-8") from None
    return check(envelope)


def decode_trusted(raw: bytes) -> Envelope:
    """Reads bytes that passed `decode` before they were stored. EntryDamaged if they have changed
    since.
    """
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise EntryDamaged(f"a stored envelope cannot be read: {error}") from None


def check(envelope: Envelope) -> Envelope:
    """Checks the rules that hold for every op, beyond what the decoder checks. The op's own rules
    are in `bodies`.
    """
    _check_protocol(envelope.protocol, envelope.version)
    ids.check_id(envelope.id)
    _check_names(envelope.mesh, envelope.op, envelope.origin)
    names.check_key(envelope.entity, "entity", limits.PATH_BYTES_MAX)
    if envelope.owner:
        names.check_peer(envelope.owner)
    if len(envelope.meta) > limits.META_BYTES_MAX:
        raise OverLimit(f"meta has {len(envelope.meta)} bytes; the most is {limits.META_BYTES_MAX}")
    if envelope.base is not None:
        names.check_peer(envelope.base.peer)
        if not 1 <= envelope.base.lamport < envelope.lamport:
            raise BadEnvelope("the base is not older than the change that replaces it")
    return envelope


@lru_cache(maxsize=256)
def _check_names(mesh: str, op: str, origin: str) -> None:
    # Cached, because few names come again and again. What is refused is never cached.
    names.check_mesh(mesh)
    names.check_key(op, "op", limits.OP_CHARS_MAX)
    names.check_peer(origin)


@lru_cache(maxsize=64)
def _check_op(op: str) -> None:
    if re.fullmatch(_OP, op) is None:
        raise BadKey(f"{op!r} is no op", hint="an op is family.verb, in small letters")


def _check_protocol(protocol: str, version: str) -> None:
    if version == VERSION and protocol == PROTOCOL:
        return
    if protocol != PROTOCOL:
        raise UnsupportedProtocol(f"protocol {protocol!r} is not {PROTOCOL!r}")
    if re.fullmatch(_VERSION, version) is None:
        raise UnsupportedProtocol(f"version {version!r} is not of major version {MAJOR}")


# Not compiled here: few processes come to need them, and each costs as much as a module.
_OP: Final = r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*"
_VERSION: Final = rf"{MAJOR}\.(?:0|[1-9][0-9]{{0,8}})"
_PLACE: Final = r"(?s)(.*) - at `\$\[(\d+)\]"


def _unreadable(raw: bytes, error: Exception) -> BadEnvelope | UnsupportedProtocol:
    """Why the decoder refused it. An envelope of another major version need not be readable."""
    try:
        head = _head_decoder.decode(raw)
        _check_protocol(head.protocol, head.version)
    except UnsupportedProtocol as other:
        return other
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # not even the head can be read: the first error says why
    why = str(error)
    place = re.match(_PLACE, why)
    if place is not None:
        why = f"{Envelope.__struct_fields__[int(place[2])]}: {place[1]}"
    return BadEnvelope(f"the envelope cannot be read: {why}")
