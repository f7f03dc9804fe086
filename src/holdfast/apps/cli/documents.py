"""Rows as the documents that `--json` prints and that tables are made of.

Keys are stable and only ever added. Ids are UUID text, stamps are `lamport` and `peer`, every
`…_at` is milliseconds since 1970.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from holdfast.node.core.change import Receipt
from holdfast.node.core.views import (
    Consumer,
    FileInfo,
    Hit,
    LastKnown,
    Memory,
    PeerInfo,
    StateEntry,
)
from holdfast.protocol.body_json import body_fields
from holdfast.rules.bodies import decode_loose, decode_trusted_body, decode_value
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.ids import id_text
from holdfast.rules.order import Version
from holdfast.rules.rows import ConflictRow, Entry, MeshRow, ModelRow, TaskEventRow, TaskRow

Document = dict[str, Any]


def path(found: os.PathLike[str]) -> str:
    """A path as text: JSON must be UTF-8, and the name of a folder need not be."""
    return os.fsencode(found).decode("utf-8", "replace")


def plain(report: msgspec.Struct) -> Document:
    """A report of the library field by field, with its paths as text."""
    said: Document = msgspec.to_builtins(report, enc_hook=_path_only)
    return said


def _path_only(value: object) -> object:
    if isinstance(value, os.PathLike):
        return path(value)
    raise NotImplementedError


def receipt(done: Receipt, mesh: str, **what: object) -> Document:
    return {
        "id": done.id,
        "mesh": mesh,
        **what,
        "lamport": done.lamport,
        "peer": done.peer,
        "offset": done.offset,
        "duplicate": done.duplicate,
        "outcome": done.outcome.value,
    }


def state(entry: StateEntry, mesh: str) -> Document:
    return {
        "mesh": mesh,
        "key": entry.key,
        "value": entry.value,
        "lamport": entry.lamport,
        "peer": entry.peer,
        "updated_at": entry.updated_at,
    }


def memory(found: Memory, mesh: str) -> Document:
    return {
        "mesh": mesh,
        "peer": found.peer,
        "key": found.key,
        "value": found.value,
        "tags": found.tags,
        "lamport": found.lamport,
        "updated_at": found.updated_at,
    }


def file(info: FileInfo, mesh: str) -> Document:
    return {"mesh": mesh, **msgspec.structs.asdict(info)}


def last_known(found: LastKnown) -> Document:
    """What differs from the file's entry where an older content stands in."""
    return {
        "status": found.status,
        "size": len(found.content),
        "sha256": found.sha256,
        "lamport": found.lamport,
        "updated_at": found.updated_at,
    }


def hit(found: Hit, mesh: str) -> Document:
    return {"mesh": mesh, **msgspec.structs.asdict(found)}


def model(row: ModelRow) -> Document:
    return {"model": f"{row.provider}:{row.name}:{row.version}", **msgspec.structs.asdict(row)}


def peer(info: PeerInfo, mesh: str) -> Document:
    return {"mesh": mesh, **msgspec.structs.asdict(info)}


def consumer(found: Consumer) -> Document:
    return msgspec.structs.asdict(found)


def mesh(row: MeshRow) -> Document:
    fields = msgspec.structs.asdict(row)
    return {"mesh": fields.pop("slug"), **fields}


def task(row: TaskRow) -> Document:
    return {
        "task": row.task,
        "mesh": row.mesh,
        "title": row.title,
        "description": row.description,
        "status": row.status.value,
        "created_by": row.created_by,
        "created_at": row.created_at,
        "claimed_by": row.claimed_by,
        "claimed_at": row.claimed_at,
        "generation": row.generation,
        "holder": _version(row.holder),
        "ended": _version(row.ended),
        "ended_at": row.ended_at,
        "lamport": row.last.lamport,
        "peer": row.last.peer,
        "offset": row.offset,
        "updated_at": row.updated_at,
    }


def task_event(row: TaskEventRow) -> Document:
    return {
        "mesh": row.mesh,
        "task": row.task,
        "event": row.event,
        "turn": row.kind,
        "generation": row.generation,
        "id": id_text(row.version.id),
        "lamport": row.version.lamport,
        "peer": row.version.peer,
        "against": _version(row.against),
        "event_at": row.event_time,
        "applied_at": row.applied_at,
    }


def conflict(row: ConflictRow) -> Document:
    return {
        "number": row.number,
        "mesh": row.mesh,
        "family": row.family,
        "owner": row.owner,
        "entity": row.entity,
        "reason": row.reason,
        "winner": _version(row.winner),
        "loser": _version(row.loser),
        "loser_op": row.loser_op,
        "loser_body": _loser_body(row),
        "found_at": row.found_at,
        "resolved_at": row.resolved_at,
        "resolution": row.resolution,
    }


def entry(found: Entry) -> Document:
    """One place in the log, with what its envelope says; `body` is null for an unknown op."""
    envelope = decode_trusted(found.raw)
    body = decode_trusted_body(envelope)
    return {
        "offset": found.offset,
        "id": id_text(found.id),
        "mesh": found.mesh,
        "op": found.op,
        "entity": found.entity,
        "owner": envelope.owner,
        "peer": found.origin,
        "lamport": found.lamport,
        "epoch": envelope.epoch,
        "seq": envelope.seq,
        "created_at": envelope.created_at,
        "recorded_at": found.recorded_at,
        "meta": decode_value(envelope.meta) if envelope.meta else None,
        "body": None if body is None else body_fields(body, decode_value),
    }


def _loser_body(row: ConflictRow) -> Document:
    # The ledger keeps no body of a turn on a task: restoring one is a new attempt.
    return (
        {}
        if row.family == "task"
        else body_fields(decode_loose(row.loser_op, row.loser_body), decode_value)
    )


def _version(version: Version | None) -> Document | None:
    if version is None:
        return None
    return {"lamport": version.lamport, "peer": version.peer, "id": id_text(version.id)}
