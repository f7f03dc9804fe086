"""An entry of the log as JSON, for people and their tools.

Values that were written as JSON go into the answer as the text that is stored; the node does not
parse them. An op that this version does not know is shown as its bytes, so that nothing is left
out.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import msgspec

from holdfast.protocol.body_json import body_fields
from holdfast.rules.bodies import Body, Fact, decode_trusted_body
from holdfast.rules.envelope import decode_trusted
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
    """The whole envelope as base64, of an op that this version does not know."""


def entry_json(offset: int, raw: bytes, recorded_at: int | None = None) -> LogEntryJson:
    envelope = decode_trusted(raw)
    body = decode_trusted_body(envelope)
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
        meta=msgspec.Raw(envelope.meta) if envelope.meta else None,
        **_content(envelope.entity, body, raw),
    )


def _content(entity: str, body: Body | None, raw: bytes) -> dict[str, Any]:
    if body is None:
        return {"raw": b64encode(raw).decode()}
    fields = body_fields(body, msgspec.Raw)
    return {"subject": entity, **fields} if isinstance(body, Fact) else {"body": fields}
