"""The past of entities, and both sides of conflicts that wait: read from commits and the log.

A store keeps entities as they stand, and of their past only which commit made which revision. What
a revision held follows from the envelopes of its commits, from the last one that was no patch on.
A point in the past is a place in commit order: the last commit that this node had folded then.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.node.log.history import AsOf
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import BadInput, StoreCorrupt, Truncated, UnknownEntity
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.quorum.commit_record import CommitRecord, decode_stored_record
from holdfast.rules.quorum.entities import parent_of, read_fields
from holdfast.rules.quorum.intents import EntityChange, EntityOperation, decode_intent
from holdfast.rules.quorum.past import fields_of, operation_on
from holdfast.rules.quorum.state_rows import CommitRow, RevisionRow, WaitingConflict
from holdfast.rules.quorum.view import EntityRow
from holdfast.storage.ports import Reader


class PastRevision(NamedTuple):
    """One revision of an entity, with the commit that made it."""

    revision: int
    deleted: bool
    whole: bool
    offset: int
    """Where its envelope is, or was, in this node's log."""
    commit: CommitRecord


class ConflictSide(NamedTuple):
    """One entity of an intent that needs a decision: what the intent wants, and what stands."""

    wanted: EntityOperation
    stands: EntityRow | None


def entity_history(
    reader: Reader, mesh: str, type: str, id: str, after: int = 0, limit: int = CHUNK_ROWS
) -> list[PastRevision]:
    """Revisions above `after`, the lowest first. UnknownEntity if it never was."""
    rows = reader.entity_revisions(mesh, type, id, after, limit)
    if not rows and reader.entity_get(mesh, type, id) is None:
        raise UnknownEntity(f"there is no {type} {id!r}, and never was")
    return [_past(reader, mesh, row) for row in rows]


def entity_as_of(
    reader: Reader, mesh: str, type: str, id: str, point: AsOf, now_ms: int
) -> EntityRow | None:
    """An entity as it stood when the log ended at an offset, or at a time; None if it was not
    there. Truncated if an entry that made it is no longer in the log.
    """
    point.check()
    if point.lamport is not None:
        raise BadInput(
            "commit order decides entities, and a lamport is no place in it",
            hint="give an offset of the log or a time",
        )
    at_ms = point.at_ms
    offset = reader.log_at(at_ms, now_ms) if at_ms is not None else point.offset
    assert offset is not None, "one of the three was given"
    number = reader.commit_by_head(mesh, offset)
    row = reader.entity_revision_by(mesh, type, id, number)
    if row is None or row.deleted:
        return None
    whole = reader.entity_revision_by(mesh, type, id, number, whole=True)
    if whole is None:
        raise StoreCorrupt(f"{type} {id!r} has only patches for revisions")
    envelopes = [
        _envelope(reader, _commit(reader, mesh, one.number))
        for one in _between(reader, mesh, whole, row)
    ]
    operations = [operation_on(_change(envelope), type, id) for envelope in envelopes]
    record = _past(reader, mesh, row).commit
    last, fields = envelopes[-1], fields_of(operations)
    return EntityRow(
        type=type,
        id=id,
        revision=row.revision,
        fields=fields,
        parent=parent_of(type, id, read_fields(fields)),
        whole=row.whole,
        origin=last.origin,
        lamport=last.lamport,
        fence=record.fence,
        committed_at=record.committed_at,
    )


def conflict_sides(reader: Reader, waiting: WaitingConflict) -> list[ConflictSide]:
    """Both sides of a conflict, entity by entity."""
    commit = _commit(reader, waiting.mesh, waiting.number)
    change = _change(_envelope(reader, commit))
    return [
        ConflictSide(operation, reader.entity_get(waiting.mesh, operation.type, operation.id))
        for operation in change.operations
    ]


def _between(reader: Reader, mesh: str, first: RevisionRow, last: RevisionRow) -> list[RevisionRow]:
    wanted = last.revision - first.revision + 1
    return reader.entity_revisions(mesh, first.type, first.id, first.revision - 1, wanted)


def _past(reader: Reader, mesh: str, row: RevisionRow) -> PastRevision:
    commit = _commit(reader, mesh, row.number)
    record = decode_stored_record(commit.record)
    return PastRevision(row.revision, row.deleted, row.whole, commit.offset, record)


def _commit(reader: Reader, mesh: str, number: int) -> CommitRow:
    found = reader.commit_range(mesh, number, 1)
    if not found or found[0].number != number:
        raise StoreCorrupt(f"there is no record of commit {number} of {mesh!r}")
    return found[0]


def _envelope(reader: Reader, commit: CommitRow) -> Envelope:
    entry = reader.log_get(commit.offset)
    if entry is None:
        raise Truncated(
            f"the entry at offset {commit.offset} is no longer in the log",
            first_available=reader.log_bounds()[0],
            hint="look into a backup from that time",
        )
    return decode_trusted(entry.raw)


def _change(envelope: Envelope) -> EntityChange:
    body = decode_intent(envelope)
    assert isinstance(body, EntityChange), "only those make revisions, and clash"
    return body
