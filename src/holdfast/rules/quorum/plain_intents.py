"""A fast reader for what a quorum commits most: one entity that stands alone is put as a whole.

Nearly all strong writes are such, and every node reads each of them. For them the rules of
`envelope` and `intents` are stated as types, so that msgspec checks them while it decodes.

`read_plain` never refuses an intent. It returns None for everything that is not surely good, and
the caller then reads it with `envelope` and `intents`. So only those say what is refused and why.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.rules import limits, names
from holdfast.rules.bodies import check_value
from holdfast.rules.canonical import check_spelling
from holdfast.rules.data_classes import ENTITY_TYPES
from holdfast.rules.envelope import UNCOUNTED, Envelope
from holdfast.rules.errors import BadInput
from holdfast.rules.ids import TOO_LATE
from holdfast.rules.quorum.entities import canonical, check_given, refuse_inexact
from holdfast.rules.quorum.hierarchy import is_unshaped
from holdfast.rules.quorum.intents import EntityChange, EntityOperation

CHANGE: Final = "entity.change"

_Count = Annotated[int, Meta(ge=1, lt=limits.LAMPORT_MAX)]
_Time = Annotated[int, Meta(ge=0, lt=limits.SOURCE_TIME_MS_MAX)]
_Revision = Annotated[int, Meta(ge=0, lt=limits.LAMPORT_MAX)]
_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Name = Annotated[str, Meta(min_length=1)]


class PlainIntent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields of an envelope, each with the values that it has in a plain intent."""

    protocol: Literal["holdfast"]
    version: Literal["1.0"]
    id: _Id
    mesh: _Name
    op: Literal["entity.change"]
    entity: _Name
    owner: Literal[""]
    origin: _Name
    epoch: Annotated[int, Meta(ge=UNCOUNTED, le=UNCOUNTED)]
    seq: _Count
    lamport: _Count
    created_at: _Time
    write_class: Literal["strong"]
    state: Literal["intent"]
    fingerprint: Annotated[bytes, Meta(min_length=32, max_length=32)]
    base: None
    meta: Annotated[bytes, Meta(max_length=0)]
    body: Annotated[bytes, Meta(max_length=limits.INTENT_BYTES_MAX)]
    to: None
    reply_to: Literal[""]
    priority: Literal["now", "next", "low"]
    fence: None
    intent: _Id
    committed_at: None


class _Put(msgspec.Struct, array_like=True, frozen=True, gc=False):
    kind: Literal["put"]
    type: Literal["mission", "project_settings", "agent_definition"]
    id: Annotated[str, Meta(min_length=1, max_length=limits.ENTITY_ID_BYTES_MAX)]
    base: _Revision | None
    fields: bytes
    removed: Annotated[list[str], Meta(max_length=0)]
    expected_epoch: None
    guard: None


class _Change(msgspec.Struct, array_like=True, frozen=True, gc=False):
    operations: tuple[_Put]


class PlainPut(msgspec.Struct, frozen=True, gc=False):
    """What such an intent says, once every rule that needs no state has been asked."""

    raw: bytes
    id: bytes
    mesh: str
    name: str
    """What its envelope says it is about."""
    origin: str
    lamport: int
    fingerprint: bytes
    type: str
    entity: str
    """The id of the entity."""
    base: int | None
    fields: bytes
    """As rows keep them."""


assert PlainIntent.__struct_fields__ == Envelope.__struct_fields__, "the order of the bytes"
assert _Put.__struct_fields__ == EntityOperation.__struct_fields__, "the order of the bytes"
assert _Change.__struct_fields__ == EntityChange.__struct_fields__, "the order of the bytes"
assert all(map(is_unshaped, ("mission", "project_settings", "agent_definition")))
assert limits.ENTITY_ID_BYTES_MAX + max(map(len, ENTITY_TYPES)) < limits.PATH_BYTES_MAX

_read: Final = msgspec.msgpack.Decoder(PlainIntent).decode
_read_body: Final = msgspec.msgpack.Decoder(_Change).decode
_encode: Final = msgspec.msgpack.Encoder().encode

_NAMES_MAX: Final = 4096

_good_names: set[tuple[str, str]] = set()
"""Meshes and origins that were checked: the same few come again and again."""


def read_plain(raw: bytes) -> PlainPut | None:
    """Reads a plain intent that breaks no rule; None for everything else."""
    if len(raw) > limits.ENVELOPE_BYTES_MAX:
        return None
    try:
        made = _read(raw)
        body = _read_body(made.body)
        if raw != _encode(made) or made.body != _encode(body):
            return None
        return plain_put(raw, made, body.operations[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadInput):
        return None


def made_plain(raw: bytes, made: Envelope) -> PlainPut | None:
    """The same of an envelope that this process has just encoded as `raw`: the id is one that it
    has made or parsed, the names are its own.
    """
    if made.op != CHANGE:
        return None
    try:
        body = _read_body(made.body)
        if made.body != _encode(body) or len(raw) > limits.ENVELOPE_BYTES_MAX:
            return None
        return plain_put(raw, made, body.operations[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadInput):
        return None


def plain_put(raw: bytes, made: PlainIntent | Envelope, put: _Put) -> PlainPut | None:
    """Asks what the types do not say."""
    id, mesh, origin, entity = made.id, made.mesh, made.origin, put.id
    if id != made.intent or id[6] >> 4 != 7 or id[8] >> 6 != 2 or id[:6] >= TOO_LATE:
        return None
    if (mesh, origin) not in _good_names:
        _check_names(mesh, origin)
    type, name = put.type, made.entity
    if not entity.isascii() or "\0" in entity or name != f"{type}/{entity}":
        return None
    fields = check_value(put.fields)
    if fields.__class__ is not dict:
        return None
    row = canonical(fields)
    if row != put.fields:
        check_spelling(put.fields, fields)
    refuse_inexact(put.fields, fields)
    check_given(type, fields, whole=True)
    if len(row) > limits.ENTITY_BYTES_MAX:
        return None
    return PlainPut(
        raw, id, mesh, name, origin, made.lamport, made.fingerprint, type, entity, put.base, row
    )


def _check_names(mesh: str, origin: str) -> None:
    names.check_mesh(mesh)
    names.check_peer(origin)
    if len(_good_names) >= _NAMES_MAX:
        _good_names.clear()  # a writer of ever new names slows down only itself
    _good_names.add((mesh, origin))
