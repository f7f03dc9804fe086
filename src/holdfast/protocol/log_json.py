"""An entry of the log as JSON, for people and their tools.

Values that were written as JSON go into the answer as the text that is stored, if that is one JSON
value on one line. Earlier code stored what was neither; no such content can end a line or add a
field here (`rules.canonical.on_one_line`). An op that this version does not know, and an entry that
cannot be read, is shown as its bytes, so that nothing is left out and no reader stops there.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import msgspec

from holdfast.protocol.body_json import body_fields
from holdfast.rules.bodies import Body, Fact, decode_trusted_body
from holdfast.rules.canonical import on_one_line
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import EntryDamaged
from holdfast.rules.ids import id_text

UNSET: Final = msgspec.UNSET


class LogEntryJson(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the log."""

    offset: int
    id: str
    mesh: str
    op: str
    entity: str
    origin: str
    epoch: int
    """The epoch of the origin's log when it wrote this."""
    seq: int
    lamport: int
    created_at: int
    """By the clock of the origin."""
    recorded_at: int | None = None
    """By the clock of this node; only in answers of the ranged read."""
    owner: str = ""
    meta: msgspec.Raw | None = None
    subject: str = ""
    """This and the next three are the fields of a fact. Other ops have a `body`."""
    predicate: str = ""
    object: msgspec.Raw | msgspec.UnsetType = UNSET
    objects: list[str] = []
    body: dict[str, Any] | None = None
    raw: str = ""
    """The whole envelope as base64, of an op that this version does not know, or one that cannot be
    read.
    """
    unreadable: str = ""
    """Why the bytes of the entry cannot be read; then nothing but `offset` and `raw` is known."""


def entry_json(offset: int, raw: bytes, recorded_at: int | None = None) -> LogEntryJson:
    try:
        envelope = decode_trusted(raw)
        body = decode_trusted_body(envelope)
    except EntryDamaged as error:
        return _unreadable(offset, raw, recorded_at, error)
    return LogEntryJson(
        offset=offset,
        id=id_text(envelope.id),
        mesh=envelope.mesh,
        op=envelope.op,
        entity=envelope.entity,
        origin=envelope.origin,
        epoch=envelope.epoch,
        seq=envelope.seq,
        lamport=envelope.lamport,
        created_at=envelope.created_at,
        recorded_at=recorded_at,
        owner=envelope.owner,
        meta=_json(envelope.meta) if envelope.meta else None,
        **_content(envelope.entity, body, raw),
    )


def _content(entity: str, body: Body | None, raw: bytes) -> dict[str, Any]:
    if body is None:
        return {"raw": b64encode(raw).decode()}
    fields = body_fields(body, _json)
    return {"subject": entity, **fields} if isinstance(body, Fact) else {"body": fields}


def _json(raw: bytes) -> msgspec.Raw:
    return msgspec.Raw(on_one_line(raw))


def _unreadable(offset: int, raw: bytes, recorded_at: int | None, error: Exception) -> LogEntryJson:
    return LogEntryJson(
        offset=offset,
        id="",
        mesh="",
        op="",
        entity="",
        origin="",
        epoch=0,
        seq=0,
        lamport=0,
        created_at=0,
        recorded_at=recorded_at,
        raw=b64encode(raw).decode(),
        unreadable=str(error),
    )
