"""A fast decoder for what arrives most: plain facts.

A zone sends facts by the hundred thousand. Nearly all of them are plain: one version, no fence, no
destination, no objects. For those every rule of `envelope` and `bodies` is stated as a type, so
that msgspec checks it while it decodes.

`read_fact` never refuses an envelope. It returns None for everything that is not surely good, and
the caller then decodes it with `envelope` and `bodies`. So only those say what is refused and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.rules import limits, names
from holdfast.rules.bodies import Fact, check_value
from holdfast.rules.canonical import check_meta, check_spelling
from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import BadInput
from holdfast.rules.ids import TOO_LATE

if TYPE_CHECKING:
    from holdfast.rules.arrivals import Arrived

FACT: Final = "fact.append"
_OP: Final = FACT.encode()

_Count = Annotated[int, Meta(ge=1, lt=limits.LAMPORT_MAX)]
_Time = Annotated[int, Meta(ge=0, lt=limits.SOURCE_TIME_MS_MAX)]
_Name = Annotated[str, Meta(min_length=1)]


class PlainFact(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields of an envelope, each with the values that it has in a plain fact."""

    protocol: Literal["holdfast"]
    version: Literal["1.0"]
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    mesh: _Name
    op: Literal["fact.append"]
    entity: _Name
    owner: Literal[""]
    origin: _Name
    epoch: _Count
    seq: _Count
    lamport: _Count
    created_at: _Time
    write_class: Literal["append-only", "queued"]
    state: Literal["committed"]
    fingerprint: Annotated[bytes, Meta(min_length=32, max_length=32)]
    base: None
    meta: Annotated[bytes, Meta(max_length=limits.META_BYTES_MAX)]
    body: bytes
    to: None
    reply_to: Literal[""]
    priority: Literal["now", "next", "low"]
    fence: None
    intent: None
    committed_at: None


assert PlainFact.__struct_fields__ == Envelope.__struct_fields__, "the order in which it is encoded"

_read: Final = msgspec.msgpack.Decoder(PlainFact).decode
_read_body: Final = msgspec.msgpack.Decoder(Fact).decode
_encode: Final = msgspec.msgpack.Encoder().encode

_NAMES_MAX: Final = 4096

_good_names: set[tuple[str, str, str]] = set()
"""Meshes, origins and predicates that were checked: the same few come again and again."""


def read_fact(raw: bytes) -> Arrived | None:
    """Decodes a plain fact that breaks no rule; None for everything else."""
    if len(raw) > limits.ENVELOPE_BYTES_MAX or _OP not in raw:
        return None  # to look for the word costs a tenth of what the decoder's refusal does
    try:
        fact = _read(raw)
        body = _read_body(fact.body)
        id, mesh, origin, entity = fact.id, fact.mesh, fact.origin, fact.entity
        if (mesh, origin, body.predicate) not in _good_names:
            _check_names(mesh, origin, body.predicate)
        if id[6] >> 4 != 7 or id[8] >> 6 != 2 or id[:6] >= TOO_LATE or body.objects:
            return None
        if not entity.isascii() or "\0" in entity or len(entity) > limits.SUBJECT_BYTES_MAX:
            names.check_key(entity, "subject", limits.SUBJECT_BYTES_MAX)
        check_spelling(body.object, check_value(body.object))
        if fact.meta:
            check_meta(fact.meta)
        if fact.body != _encode((body.predicate, body.object)) or raw != _encode(fact):
            return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadInput):
        return None
    return id, mesh, FACT, entity, origin, fact.lamport, raw


def _check_names(mesh: str, origin: str, predicate: str) -> None:
    names.check_mesh(mesh)
    names.check_peer(origin)
    names.check_key(predicate, "predicate", limits.PREDICATE_BYTES_MAX)
    if len(_good_names) >= _NAMES_MAX:
        _good_names.clear()  # a sender of ever new names slows down only itself
    _good_names.add((mesh, origin, predicate))
