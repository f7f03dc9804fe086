"""Rows as the documents that `--json` prints and that tables are made of.

Keys are stable and only ever added. Ids are UUID text, stamps are `lamport` and `peer`, every
`…_at` is milliseconds since 1970.
"""

from __future__ import annotations

import os
from base64 import b64encode
from typing import Any

import msgspec

from holdfast.node.core.views import LastKnown
from holdfast.protocol.body_json import body_fields
from holdfast.rules.bodies import decode_loose, decode_trusted_body, decode_value
from holdfast.rules.canonical import stored_meta
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import EntryDamaged
from holdfast.rules.ids import id_text
from holdfast.rules.order import Version
from holdfast.rules.rows import ConflictRow, Entry, MeshRow, ModelRow, TaskEventRow, TaskRow

Document = dict[str, Any]


def path(of: os.PathLike[str]) -> str:
    """A path as text: JSON must be UTF-8, and the name of a folder need not be."""
    return os.fsencode(of).decode("utf-8", "replace")


def plain(report: msgspec.Struct) -> Document:
    """A report of the library field by field, with its paths as text."""
    document: Document = msgspec.to_builtins(report, enc_hook=_path_only)
    return document


def _path_only(value: object) -> object:
    if isinstance(value, os.PathLike):
        return path(value)
    raise NotImplementedError


def in_mesh(row: msgspec.Struct, mesh: str) -> Document:
    """A row of a family, field by field, with the mesh that it belongs to."""
    return {"mesh": mesh, **msgspec.structs.asdict(row)}


def last_known(version: LastKnown) -> Document:
    """The fields in which an older version of a file differs from its newest entry."""
    fields = msgspec.structs.asdict(version)
    return {"status": fields.pop("status"), "size": len(fields.pop("content")), **fields}


def model(row: ModelRow) -> Document:
    return {"model": f"{row.provider}:{row.name}:{row.version}", **msgspec.structs.asdict(row)}


def mesh(row: MeshRow) -> Document:
    fields = msgspec.structs.asdict(row)
    del fields["forgotten_floor"]  # how the node remembers, and no figure for people
    return {"mesh": fields.pop("slug"), **fields}


def task(row: TaskRow) -> Document:
    return {
        "task": row.task,
        **_fields(row, "mesh title description status created_by created_at claimed_by"),
        **_fields(row, "claimed_at generation holder ended ended_at"),
        "lamport": row.last.lamport,
        "peer": row.last.peer,
        **_fields(row, "offset updated_at"),
    }


def task_event(row: TaskEventRow) -> Document:
    return {
        **_fields(row, "mesh task event"),
        "turn": row.kind,
        "generation": row.generation,
        "id": id_text(row.version.id),
        "lamport": row.version.lamport,
        "peer": row.version.peer,
        "against": _field(row.against),
        "event_at": row.event_time,
        "applied_at": row.applied_at,
    }


def conflict(row: ConflictRow) -> Document:
    """A conflict with the body of the version that lost. The ledger keeps no body of a turn on a
    task: restoring one is a new attempt.
    """
    document = _fields(row, " ".join(row.__struct_fields__))
    del document["base_lamport"], document["base_peer"]  # by these the node judges the entry
    is_task = row.family == "task"
    body = {} if is_task else body_fields(decode_loose(row.loser_op, row.loser_body), decode_value)
    return {**document, "loser_body": body}


def entry(row: Entry) -> Document:
    """One place in the log, with what its envelope says; `body` is null for an unknown op."""
    head = {
        "offset": row.offset,
        "id": id_text(row.id),
        "mesh": row.mesh,
        "op": row.op,
        "entity": row.entity,
        "peer": row.origin,
        "lamport": row.lamport,
        "recorded_at": row.recorded_at,
    }
    try:
        envelope = decode_trusted(row.raw)
        body = decode_trusted_body(envelope)
    except EntryDamaged as error:
        return {**head, "unreadable": str(error), "raw": b64encode(row.raw).decode()}
    return {
        **head,
        "owner": envelope.owner,
        "epoch": envelope.epoch,
        "seq": envelope.seq,
        "created_at": envelope.created_at,
        "meta": stored_meta(envelope.meta) if envelope.meta else None,
        "body": None if body is None else body_fields(body, decode_value),
    }


def _fields(row: msgspec.Struct, names: str) -> Document:
    return {name: _field(getattr(row, name)) for name in names.split()}


def _field(value: Any) -> Any:
    if isinstance(value, Version):
        return {"lamport": value.lamport, "peer": value.peer, "id": id_text(value.id)}
    return value
