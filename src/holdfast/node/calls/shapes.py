"""Documents of what is no plain JSON in the library. Ids are UUID text, every `…_at` is
milliseconds since 1970.

Each document says all that the value holds, so that a client gets the same value again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.node.calls.declare import Shape
from holdfast.node.core.change import Receipt
from holdfast.protocol.body_json import body_fields
from holdfast.rules.bodies import decode_loose, decode_value
from holdfast.rules.cursor import LogCursor
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.order import Version
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import ConflictRow, Entry, TaskEventRow, TaskRow, WarningRow
from holdfast.rules.structs import copy_to
from holdfast.rules.tasks import TaskStatus


class WriteReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A write that is in the log and on the disk."""

    id: str
    offset: int
    """Its place in the log of this node."""
    lamport: int
    peer: str
    duplicate: bool
    """The id was known with the same content: the other fields are those of the first write."""
    outcome: Outcome
    warnings: Sequence[WarningRow] = ()
    """What this node's user must know; each is told once."""


class VersionDocument(msgspec.Struct, frozen=True):
    """The version of a change: its stamp and its id."""

    lamport: int
    peer: str
    id: str


class TaskDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stands."""

    task: str
    mesh: str
    title: str
    description: str
    status: TaskStatus
    created_by: str
    created_at: int
    claimed_by: str | None
    claimed_at: int | None
    generation: int
    """How often it could be claimed: a release opens the next."""
    holder: VersionDocument | None
    """The claim that holds, or held last."""
    ended: VersionDocument | None
    ended_at: int | None
    last: VersionDocument
    """The newest change that it is made of."""
    offset: int
    updated_at: int


class TaskWritten(TaskDocument, frozen=True, kw_only=True):
    """A task as it stands after a turn."""

    warnings: Sequence[WarningRow] = ()
    """What this node's user must know; each is told once."""


class TaskEventDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One turn on a task, and what it came to."""

    task: str
    mesh: str
    turn: str
    """`create`, `claim`, `release`, `complete` or `cancel`."""
    event: str
    """What it came to."""
    generation: int
    version: VersionDocument
    against: VersionDocument | None
    """The version that it lost against."""
    event_at: int
    """By the clock of the peer that made the turn."""
    applied_at: int
    """By this node's clock."""
    title: str
    description: str
    place: int
    """Where commit order decides: its place there; else 0."""


class ConflictDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a merge discarded."""

    number: int
    mesh: str
    family: str
    owner: str
    entity: str
    reason: str
    winner: VersionDocument
    loser: VersionDocument
    loser_op: str
    loser_body: dict[str, Any]
    """What the version that lost says; empty for a turn on a task."""
    loser_bytes: bytes
    """The same as it is stored, as base64."""
    base_lamport: int | None
    base_peer: str | None
    found_at: int
    resolved_at: int | None
    resolution: str | None


class EntryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the log, with the bytes of its envelope as its origin made them."""

    offset: int
    id: str
    mesh: str
    op: str
    entity: str
    origin: str
    lamport: int
    recorded_at: int
    raw: bytes
    """The envelope, as base64."""


class LogPlace(msgspec.Struct, frozen=True):
    """A place in the log: a reader goes on after it."""

    epoch: int
    """In which the log counts."""
    offset: int


class MeshCounts(msgspec.Struct, frozen=True):
    """Live rows of a mesh."""

    counts: dict[str, int]
    """By family."""


def version_document(version: Version) -> VersionDocument:
    return VersionDocument(version.lamport, version.peer, id_text(version.id))


def read_version(document: VersionDocument) -> Version:
    return Version(document.lamport, document.peer, parse_id(document.id))


def _maybe_document(version: Version | None) -> VersionDocument | None:
    return None if version is None else version_document(version)


def _maybe_version(document: VersionDocument | None) -> Version | None:
    return None if document is None else read_version(document)


def _receipt_document(receipt: Receipt) -> WriteReceipt:
    return WriteReceipt(
        id=receipt.id,
        offset=receipt.offset,
        lamport=receipt.lamport,
        peer=receipt.peer,
        duplicate=receipt.duplicate,
        outcome=receipt.outcome,
    )


def _read_receipt(document: WriteReceipt) -> Receipt:
    return Receipt(
        parse_id(document.id),
        document.offset,
        document.lamport,
        document.peer,
        document.duplicate,
        document.outcome,
    )


def _task_document(row: TaskRow) -> TaskDocument:
    return copy_to(TaskDocument, row, **_task_versions(row))


def _task_written(row: TaskRow) -> TaskWritten:
    return copy_to(TaskWritten, row, **_task_versions(row))


def _task_versions(row: TaskRow) -> dict[str, Any]:
    return {
        "holder": _maybe_document(row.holder),
        "ended": _maybe_document(row.ended),
        "last": version_document(row.last),
    }


def _read_task(document: TaskDocument) -> TaskRow:
    return copy_to(
        TaskRow,
        document,
        known=True,
        holder=_maybe_version(document.holder),
        ended=_maybe_version(document.ended),
        last=read_version(document.last),
    )


def _event_document(row: TaskEventRow) -> TaskEventDocument:
    return copy_to(
        TaskEventDocument,
        row,
        turn=row.kind,
        event_at=row.event_time,
        version=version_document(row.version),
        against=_maybe_document(row.against),
    )


def _read_event(document: TaskEventDocument) -> TaskEventRow:
    return copy_to(
        TaskEventRow,
        document,
        kind=document.turn,
        event_time=document.event_at,
        version=read_version(document.version),
        against=_maybe_version(document.against),
    )


def _conflict_document(row: ConflictRow) -> ConflictDocument:
    # The ledger keeps no body of a turn on a task: restoring one is a new attempt.
    is_task = row.family == "task"
    body = {} if is_task else body_fields(decode_loose(row.loser_op, row.loser_body), decode_value)
    return copy_to(
        ConflictDocument,
        row,
        winner=version_document(row.winner),
        loser=version_document(row.loser),
        loser_body=body,
        loser_bytes=row.loser_body,
    )


def _read_conflict(document: ConflictDocument) -> ConflictRow:
    return copy_to(
        ConflictRow,
        document,
        winner=read_version(document.winner),
        loser=read_version(document.loser),
        loser_body=document.loser_bytes,
    )


def _entry_document(entry: Entry) -> EntryDocument:
    return copy_to(EntryDocument, entry, id=id_text(entry.id))


def _read_entry(document: EntryDocument) -> Entry:
    return copy_to(Entry, document, id=parse_id(document.id))


RECEIPT: Final = Shape(WriteReceipt, _receipt_document, _read_receipt, warns=True)
TASK: Final = Shape(TaskDocument, _task_document, _read_task)
TURN: Final = Shape(TaskWritten, _task_written, _read_task, warns=True)
TASK_EVENT: Final = Shape(TaskEventDocument, _event_document, _read_event)
CONFLICT: Final = Shape(ConflictDocument, _conflict_document, _read_conflict)
ENTRY: Final = Shape(EntryDocument, _entry_document, _read_entry)
LOG_PLACE: Final = Shape(
    LogPlace, lambda place: LogPlace(*place), lambda found: LogCursor(found.epoch, found.offset)
)
COUNTS: Final = Shape(MeshCounts, MeshCounts, lambda document: document.counts)
