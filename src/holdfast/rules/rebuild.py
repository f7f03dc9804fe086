"""Envelopes that are rebuilt from rows, for changes whose envelope is no longer in the log.

A log forgets its old entries; the tables keep what came of them. A node that publishes a whole mesh
therefore needs envelopes for rows that have none any more. Such an envelope has the id, the stamp,
the origin and the owner of the change that made the row, so it meets the same versions everywhere,
and a node that has the first envelope knows it as the same change. What no table keeps is missing
in it: the caller's `meta`, the base that the writer had seen, and the origin's epoch and seq.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.rules.audit_chain import AuditRow
from holdfast.rules.bodies import (
    NOTHING,
    AuditAppend,
    Body,
    FileShare,
    MemorySet,
    StateSet,
    TaskCreate,
    TaskTurn,
    VectorDelete,
    VectorStore,
    encode_body,
    family_of,
    version_of_body,
)
from holdfast.rules.data_classes import data_class_of, write_class_of
from holdfast.rules.envelope import UNCOUNTED, VERSION, Envelope, encode
from holdfast.rules.fingerprint import fingerprint
from holdfast.rules.order import Version
from holdfast.rules.rows import (
    FileRow,
    MemoryRow,
    ModelRow,
    StateRow,
    TaskEventRow,
    VectorRow,
    VersionedRow,
)


def rebuild_envelope(
    row: VersionedRow, first: bytes | None, model: ModelRow | None = None
) -> bytes:
    """The envelope of the change that made a row, live or dead. `first` is the fingerprint of its
    first envelope, if it is still known; vectors need the model that made them.
    """
    op, entity, owner, body = _change_of(row, model)
    encoded = NOTHING if body is None else encode_body(body)
    asked = encoded
    if isinstance(body, MemorySet | FileShare) and body.created_at:
        asked = encode_body(replace(body, created_at=0))  # nobody asks for that
    found = fingerprint(kind=op, ref=entity, body=asked) if first is None else first
    version = VERSION if body is None else version_of_body(body)
    at = row.updated_at
    return _envelope(row.mesh, op, entity, owner, row.version, at, found, encoded, version)


def rebuild_turn(event: TaskEventRow, first: bytes | None) -> bytes:
    """The envelope of one turn on a task."""
    op = f"task.{event.kind}"
    body: Body | None = None
    if event.kind == "create":
        body = TaskCreate(event.title, event.description)
    elif event.kind in ("claim", "release"):
        body = TaskTurn(event.generation)
    encoded = NOTHING if body is None else encode_body(body)
    found = first
    if found is None and event.kind == "create":
        found = fingerprint(kind=op, ref="-", body=encoded)  # requested before the task had an id
    elif found is None:
        found = fingerprint(
            kind=op, ref=event.task, body=b""
        )  # its generation comes from the state
    return _envelope(
        event.mesh, op, event.task, "", event.version, event.event_time, found, encoded
    )


def rebuild_event(row: AuditRow) -> bytes:
    """The envelope of one event of an audit stream."""
    body = AuditAppend(row.epoch, row.seq, row.at, row.previous, row.hash, row.payload)
    asked = fingerprint(kind="audit.append", ref=row.stream, body=row.payload)
    version = Version(row.lamport, row.origin, row.id)
    encoded = encode_body(body)
    return _envelope(row.mesh, "audit.append", row.stream, "", version, row.at, asked, encoded)


def _change_of(row: VersionedRow, model: ModelRow | None) -> tuple[str, str, str, Body | None]:
    """Op, entity, owner and body of the change that made a row; deletions have no body."""
    if isinstance(row, StateRow):
        return (
            ("state.delete", row.key, "", None)
            if row.tombstone
            else ("state.set", row.key, "", StateSet(row.value))
        )
    if isinstance(row, MemoryRow):
        return (
            ("memory.forget", row.key, row.owner, None)
            if row.tombstone
            else ("memory.set", row.key, row.owner, MemorySet(row.value, row.tags, row.created_at))
        )
    if isinstance(row, FileRow):
        if row.tombstone:
            return "file.delete", row.path, row.owner, None
        share = FileShare(bytes.fromhex(row.sha256), row.size, row.content, row.created_at)
        return "file.share", row.path, row.owner, share
    assert isinstance(row, VectorRow)
    if row.tombstone:
        return "vector.delete", row.key, row.owner, VectorDelete(row.model)
    assert model is not None, "a vector needs its model"
    stored = VectorStore(
        model.provider,
        model.name,
        model.version,
        model.dim,
        model.quantization,
        row.embedding,
        row.content,
        row.metadata,
    )
    return "vector.store", row.key, row.owner, stored


def _envelope(
    mesh: str,
    op: str,
    entity: str,
    owner: str,
    version: Version,
    created_at: int,
    first: bytes,
    body: bytes,
    envelope_version: str = VERSION,
) -> bytes:
    return encode(
        Envelope(
            version=envelope_version,
            id=version.id,
            mesh=mesh,
            op=op,
            entity=entity,
            owner=owner,
            origin=version.peer,
            epoch=UNCOUNTED,
            seq=version.lamport,
            lamport=version.lamport,
            created_at=created_at,
            write_class=write_class_of(data_class_of(family_of(op)), voters=False).value,
            fingerprint=first,
            body=body,
        )
    )
