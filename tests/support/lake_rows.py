"""Rows of a node and rows of the lake, in one form, so that they can be compared column by column.

Ids as text, times as milliseconds, JSON as text: as silver names and keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import BRONZE, FAMILY_OF, SILVER
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.logs.unpack import decode_header
from holdfast.rules.audit_chain import AuditRow
from holdfast.rules.bodies import Fact, MessageSend, decode_body, family_of
from holdfast.rules.data_classes import ENTITY_TYPES
from holdfast.rules.envelope import decode
from holdfast.rules.ids import id_text
from holdfast.rules.order import Version
from holdfast.rules.quorum.commit_record import decode_stored_record
from holdfast.rules.quorum.intents import EntityChange, decode_intent
from holdfast.rules.quorum.past import operation_on
from holdfast.rules.quorum.state_rows import CommitRow
from holdfast.rules.quorum.view import EntityRow
from holdfast.storage.ports import Reader, Store

_ALL = 1 << 40
STAMPED = tuple(name for name in SILVER if FAMILY_OF[name] not in ("entity", "audit"))
"""The tables that histories fill which have neither a quorum nor audit streams."""

Row = tuple[Any, ...]
Rows = dict[str, list[Row]]


def held(store: Store) -> Rows:
    """Every row of every table, as silver should have it."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SILVER}
    with store.read() as reader:
        found["models"] = [_plain(row) for row in reader.model_list()]
        for mesh in reader.mesh_list():
            for name, row in _of_mesh(reader, mesh.slug):
                found[name].append(row)
        found["facts"] = list(_facts(reader))
        found["messages"] = list(_messages(reader))
    return {
        name: sorted((_in_order(name, row) for row in rows), key=repr)
        for name, rows in found.items()
    }


def _of_mesh(reader: Reader, mesh: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from (("state", _plain(row)) for row in reader.state_scan(mesh, "", "", _ALL))
    for memory in reader.memory_scan(mesh, None, ("", ""), _ALL):
        yield "memory", {**_plain(memory), "created_at": memory.created_at or None}
    for audited in reader.audit_scan(mesh, None, None, ("", "", -1, 0), _ALL):
        yield "audit_events", _event(audited)
    for file in reader.file_scan(mesh, None, ("", ""), _ALL):
        yield "files", {**_plain(file), "created_at": file.created_at or None}
    for _, vector in reader.vector_scan(mesh, None, 0, _ALL, live_only=False):
        yield "vectors", _plain(vector)
    for task in reader.task_scan(mesh, None, "", _ALL, known_only=False):
        events = reader.task_events(mesh, task.task)
        number = max(event.place for event in events) // 2 or None
        yield "tasks", {**_plain(task), "number": number}
        for event in events:
            number = event.place // 2 or None
            yield "task_events", {**_plain(event), "number": number}
    commits = {row.number: row for row in reader.commit_range(mesh, 0, _ALL)}
    for type in ENTITY_TYPES:
        for entity in reader.entity_list(mesh, type, "", _ALL, live_only=False):
            yield from _entity(reader, mesh, entity, commits)


def _entity(
    reader: Reader, mesh: str, row: EntityRow, commits: dict[int, CommitRow]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """An entity, and each of its revisions with the commit and the envelope that made it."""
    made: dict[str, Any] = {}
    for revision in reader.entity_revisions(mesh, row.type, row.id, 0, _ALL):
        commit = commits[revision.number]
        record, entry = decode_stored_record(commit.record), reader.log_get(commit.offset)
        assert entry is not None
        envelope = decode(entry.raw)
        change = decode_intent(envelope)
        assert isinstance(change, EntityChange)
        operation = operation_on(change, row.type, row.id)
        made = {
            **{"mesh": mesh, "type": row.type, "entity": row.id, "revision": revision.revision},
            **{"lamport": envelope.lamport, "peer": envelope.origin, "id": id_text(envelope.id)},
            **{"updated_at": envelope.created_at, "number": revision.number},
            **{"committed_at": record.committed_at, **msgspec.structs.asdict(record.fence)},
        }
        fields = {"fields": operation.fields.decode(), "removed": list(operation.removed)}
        yield "entity_revisions", {**made, **fields, "kind": operation.kind}
    fence = msgspec.structs.asdict(row.fence)
    assert {**made, "revision": row.revision, "peer": row.origin, **fence} == made
    last = {"fields": row.fields.decode(), "parent": row.parent, "whole": row.whole}
    yield "entities", {**made, **last, "tombstone": row.deleted}


def _event(row: AuditRow) -> dict[str, Any]:
    return {
        **{"mesh": row.mesh, "stream": row.stream, "origin_epoch": row.epoch, "seq": row.seq},
        **{"event_time": row.at, "payload": row.payload.decode(), "hash": row.hash.hex()},
        **{"previous": row.previous.hex(), "lamport": row.lamport, "peer": row.origin},
        **{"id": id_text(row.id), "created_at": row.at},
    }


def _facts(reader: Reader) -> Iterator[dict[str, Any]]:
    for entry in reader.log_range(0, _ALL, _ALL):
        envelope = decode(entry.raw)
        body = decode_body(envelope)
        if isinstance(body, Fact):
            yield {
                **{"mesh": envelope.mesh, "subject": envelope.entity, "predicate": body.predicate},
                **{"object": body.object.decode(), "objects": [one.hex() for one in body.objects]},
                **{"meta": envelope.meta.decode() or None, "created_at": envelope.created_at},
                **{"lamport": envelope.lamport, "peer": envelope.origin},
                "id": id_text(envelope.id),
            }


def _messages(reader: Reader) -> Iterator[dict[str, Any]]:
    for entry in reader.log_range(0, _ALL, _ALL):
        envelope = decode(entry.raw)
        body = decode_body(envelope)
        if isinstance(body, MessageSend):
            assert envelope.to is not None
            yield {
                **{"mesh": envelope.mesh, "kind": envelope.to[0], "ref": envelope.to[1]},
                **{"sender": envelope.origin, "priority": envelope.priority},
                **{"reply_to": envelope.reply_to, "content_type": body.content_type},
                **{"content": body.content, "meta": envelope.meta.decode() or None},
                **{"lamport": envelope.lamport, "id": id_text(envelope.id)},
                "created_at": envelope.created_at,
            }


def _plain(row: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(row).items():
        if name in ("holder", "ended", "against", "last", "version") and not isinstance(value, str):
            prefix = "" if name in ("last", "version") else f"{name}_"
            plain.update(_version(prefix, value))
        elif name in ("value", "metadata"):
            plain[name] = value.decode()
        elif isinstance(value, tuple):
            plain[name] = list(value)
        elif name == "id" and isinstance(value, bytes):
            plain[name] = id_text(value)
        else:
            plain[name] = value
    return plain


def _version(prefix: str, version: Version | None) -> dict[str, Any]:
    if version is None:
        return {f"{prefix}{part}": None for part in ("lamport", "peer", "id")}
    return {
        f"{prefix}lamport": version.lamport,
        f"{prefix}peer": version.peer,
        f"{prefix}id": id_text(version.id),
    }


def _in_order(name: str, row: dict[str, Any]) -> Row:
    return tuple(row[column] for column in SILVER[name].names)


def silver_rows(name: str, frame: DataFrame) -> list[Row]:
    """What a frame of silver holds."""
    assert [(f.name, f.dataType) for f in frame.schema if f.name != "bucket"] == [
        (f.name, f.dataType) for f in SILVER[name]
    ]
    columns = [
        F.unix_millis(field.name).alias(field.name)
        if isinstance(field.dataType, TimestampType)
        else F.col(field.name)
        for field in SILVER[name]
    ]
    return sorted((_values(row) for row in frame.select(*columns).collect()), key=repr)


def _values(row: Iterable[Any]) -> Row:
    return tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)


def bronze_of(spark: SparkSession, homes: Iterable[Path], batch: int = 0) -> DataFrame:
    """What the logs of some homes hold, each envelope once, as bronze would have it."""
    frame: DataFrame = spark.createDataFrame(bronze_table(homes, batch))
    return frame


def bronze_table(homes: Iterable[Path], batch: int = 0) -> pa.Table:
    """The same by Arrow."""
    tables = []
    for home in homes:
        log = open_log(str(home))
        place = log.place()
        batches = log.batches(place.epoch, place.first, place.head + 1)
        tables += [pa.Table.from_batches([decode_header(part)]) for part in batches]
        log.close()
    whole = pa.concat_tables(tables)
    assert whole.column("problem").null_count == len(whole)
    first: dict[str, int] = {}
    for at, id in enumerate(whole.column("id").to_pylist()):
        first.setdefault(id, at)
    once = whole.take(pa.array(list(first.values()), pa.int64()))
    families = [family_of(op) for op in once.column("op").to_pylist()]
    once = once.append_column("family", pa.array(families, pa.string()))
    once = once.append_column("batch", pa.array([batch] * len(once), pa.int64()))
    once = once.append_column("day", once.column("recorded_at").cast(pa.date32()))
    return once.select(BRONZE.names)


def put_bronze(lake: Lake, rows: pa.Table, *, files: int = 1) -> Lake:
    """Adds a batch in so many files or some more, as an ingest does."""
    lake = lake.fresh()
    numbers = pa.array([lake.bronze.version + 1] * len(rows), pa.int64())
    rows = rows.set_column(rows.column_names.index("batch"), "batch", numbers)
    step = max(1, -(-len(rows) // files))
    written: list[File] = []
    for begin in range(0, len(rows), step):
        part = rows.slice(begin, step).sort_by([("day", "ascending"), ("id", "ascending")])
        written += lake.bronze.writer().write([part])
    lake.bronze.commit(written)
    return lake.fresh()


def arrow_rows(name: str, table: pa.Table) -> list[Row]:
    """What a table of silver holds that was read by Arrow."""
    assert [name for name in table.column_names if name != "bucket"] == SILVER[name].names
    columns = []
    for field in SILVER[name]:
        column = table[field.name]
        if isinstance(field.dataType, TimestampType):
            column = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        columns.append(column.to_pylist())
    return sorted(zip(*columns, strict=True), key=repr)
