"""A change again, in a mesh of another name: what a mesh becomes that is published under it.

Every envelope bears the name of its mesh, so it cannot just be called something else. A copy has
the stamp, the origin, the owner, the base and the time of the original, and hence wins and loses
against the other copies as the originals do among each other. It has an id of its own, because one
home holds both: derived, so that a copy that was cut short finds what it has made. The origin's
count of its envelopes is left out, as in whatever another node has exported.

Tasks are named by the id of their creation: they get new names. Audit events bear the name of the
mesh in their hashes: the hashes are made again, in the order of each chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from msgspec.structs import replace

from holdfast.rules.audit_chain import BEFORE_ALL, AuditChain, AuditRow, event_hash
from holdfast.rules.bodies import family_of
from holdfast.rules.envelope import UNCOUNTED, decode_trusted, encode
from holdfast.rules.fingerprint import fingerprint
from holdfast.rules.ids import id_text, id_time_ms, parse_id, uuid7, uuid8
from holdfast.rules.limits import FREE_NAMES_LOOKED_AT, MESH_SLUG_CHARS_MAX

_TAG: Final = b"holdfast copy 1\0"


def copied(raw: bytes, mesh: str) -> bytes:
    """The envelope of the same change in a mesh of this name; not for audit events."""
    envelope = decode_trusted(raw)
    family = family_of(envelope.op)
    assert family not in ("audit", "message"), "audit events are chained, messages are not copied"
    copy = replace(
        envelope, id=copied_id(envelope.id, mesh), mesh=mesh, epoch=UNCOUNTED, seq=envelope.lamport
    )
    if family == "task":
        task = id_text(copied_id(parse_id(envelope.entity), mesh))
        copy = replace(copy, entity=task)
        if envelope.op != "task.create":  # that was asked for before the task had a name
            asked = fingerprint(kind=copy.op, ref=task, body=b"", meta=copy.meta)
            copy = replace(copy, fingerprint=asked)
    return encode(copy)


def copied_id(id: bytes, mesh: str) -> bytes:
    """Of the same version: one that is computed tells no time."""
    digest = sha256(_TAG + mesh.encode() + b"\0" + id).digest()
    return uuid7(id_time_ms(id), digest[:10]) if id[6] >> 4 == 7 else uuid8(digest)


def copied_event(row: AuditRow, before: AuditRow | None, mesh: str) -> AuditRow:
    """An event of an audit stream in the copy. `before` is the copy of the one that is next below
    it here.
    """
    follows = before is not None and (before.stream, before.origin, before.epoch, before.seq) == (
        *(row.stream, row.origin, row.epoch),
        row.seq - 1,
    )
    previous = BEFORE_ALL if row.seq == 1 else row.previous
    if follows:
        assert before is not None
        previous = before.hash
    chain, id = AuditChain(mesh, row.stream, row.origin, row.epoch), copied_id(row.id, mesh)
    hash = event_hash(chain, row.seq, id, row.at, row.payload, previous)
    return replace(row, mesh=mesh, id=id, previous=previous, hash=hash)


def other_names(mesh: str) -> Iterator[str]:
    """Names that a mesh might have instead of one that is taken, the best first."""
    for number in range(2, 2 + FREE_NAMES_LOOKED_AT):
        ending = f"-{number}"
        yield f"{mesh[: MESH_SLUG_CHARS_MAX - len(ending)]}{ending}"
