"""The envelope: the one record that carries a change.

A state change, a message, a fact, an intent and an audit event are all envelopes. The canonical
bytes are made once, at the origin; everyone else stores, sends, verifies and hashes those bytes and
never re-encodes them.

The bytes are a msgpack array in the order of the fields below. A minor version may add fields at
the end: an older node reads the ones it knows and keeps the rest, because it keeps the bytes. A
different major version is refused.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.rules import ids, limits, names
from holdfast.rules.errors import BadEnvelope, OverLimit, UnsupportedProtocol

PROTOCOL: Final = "holdfast"
VERSION: Final = "1.0"
MAJOR: Final = VERSION.split(".")[0]

PRIORITIES: Final = frozenset({"now", "next", "low"})
STATES: Final = frozenset({"intent", "committed", "rejected", "queued", "reconciled"})
WRITE_CLASSES: Final = frozenset({"strong", "append-only", "queued", "local"})
DESTINATIONS: Final = frozenset({"topic", "dm", "queue"})


class Base(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the writer saw when it wrote: the stamp that this change replaces, and the expected
    lease epoch.
    """

    lamport: int
    peer: str
    lease_epoch: int | None = None


class Fence(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Under whose authority a strong write was made: lease epoch, coordinator, its sequence."""

    lease_epoch: int
    coordinator: str
    sequence: int


class Envelope(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One change, as its origin wrote it."""

    protocol: str = PROTOCOL
    version: str = VERSION
    id: bytes
    mesh: str
    op: str
    """What happens, as `family.verb`: `state.set`, `task.claim`, `fact.append` …"""
    entity: str
    """To what: the key, path, task id or subject."""
    owner: str = ""
    """Whose: the peer under whose name memory, vectors and files are kept; empty where a mesh has
    one of each.
    """
    origin: str
    epoch: int
    """The generation of the origin's log. It grows when a home is restored and may have gone back
    in time.
    """
    seq: int
    """Counts the origin's own envelopes of this mesh within its epoch, without gaps."""
    lamport: int
    created_at: int
    write_class: str = "queued"
    state: str = "committed"
    fingerprint: bytes
    base: Base | None = None
    meta: bytes = b""
    """Canonical JSON (RFC 8785) of what the caller attached, or empty."""
    body: bytes = b""
    """The op's own fields, see `bodies`."""
    to: tuple[str, str] | None = None
    """Destination kind and reference, of messages only."""
    reply_to: str = ""
    priority: str = "next"
    fence: Fence | None = None
    intent: bytes | None = None
    committed_at: int | None = None


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Envelope)

encode = _encoder.encode


def decode(raw: bytes) -> Envelope:
    """Reads canonical bytes and checks every field: what passes here may enter a store."""
    if len(raw) > limits.ENVELOPE_BYTES_MAX:
        raise OverLimit(
            f"the envelope has {len(raw)} bytes; the most is {limits.ENVELOPE_BYTES_MAX}"
        )
    try:
        envelope = _decoder.decode(raw)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise BadEnvelope(f"the envelope cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise BadEnvelope("the envelope holds text that is not UTF-8") from None
    return check(envelope)


def decode_trusted(raw: bytes) -> Envelope:
    """Reads bytes that passed `decode` before they were stored."""
    return _decoder.decode(raw)


def check(envelope: Envelope) -> Envelope:
    """Every rule that holds for every op. The op's own rules are in `bodies`."""
    if envelope.protocol != PROTOCOL:
        raise UnsupportedProtocol(f"protocol {envelope.protocol!r} is not {PROTOCOL!r}")
    major, _, minor = envelope.version.partition(".")
    if major != MAJOR or not minor.isdecimal():
        raise UnsupportedProtocol(f"version {envelope.version!r} is not of major version {MAJOR}")
    ids.check_id(envelope.id)
    names.check_mesh(envelope.mesh)
    names.check_key(envelope.op, "op", 64)
    names.check_key(envelope.entity, "entity", limits.PATH_CHARS_MAX)
    names.check_peer(envelope.origin)
    if envelope.owner:
        names.check_peer(envelope.owner)
    _check_numbers(envelope)
    _check_words(envelope)
    if len(envelope.meta) > limits.META_BYTES_MAX:
        raise OverLimit(f"meta has {len(envelope.meta)} bytes; the most is {limits.META_BYTES_MAX}")
    if envelope.base is not None:
        names.check_peer(envelope.base.peer)
        if not 1 <= envelope.base.lamport < envelope.lamport:
            raise BadEnvelope("the base is not older than the change that replaces it")
    return envelope


def _check_numbers(envelope: Envelope) -> None:
    if not 1 <= envelope.lamport < limits.LAMPORT_MAX:
        raise BadEnvelope(f"lamport {envelope.lamport} is not a positive 63-bit integer")
    for name, number in (("seq", envelope.seq), ("epoch", envelope.epoch)):
        if not 1 <= number < limits.LAMPORT_MAX:
            raise BadEnvelope(f"{name} {number} is not a positive 63-bit integer")
    for name, time in (
        ("created_at", envelope.created_at),
        ("committed_at", envelope.committed_at),
    ):
        if time is not None and not 0 <= time < limits.LAMPORT_MAX:
            raise BadEnvelope(f"{name} {time} is not a time in milliseconds")
    if len(envelope.fingerprint) != 32:
        raise BadEnvelope(f"the fingerprint has {len(envelope.fingerprint)} bytes, not 32")
    if envelope.intent is not None and len(envelope.intent) != 16:
        raise BadEnvelope("the intent id has not 16 bytes")


def _check_words(envelope: Envelope) -> None:
    for name, word, words in (
        ("write class", envelope.write_class, WRITE_CLASSES),
        ("state", envelope.state, STATES),
        ("priority", envelope.priority, PRIORITIES),
    ):
        if word not in words:
            raise BadEnvelope(f"{name} {word!r} is not one of {', '.join(sorted(words))}")
    if envelope.to is not None and envelope.to[0] not in DESTINATIONS:
        raise BadEnvelope(f"destination kind {envelope.to[0]!r} is not topic, dm or queue")
