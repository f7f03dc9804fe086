"""The columns of the lake, declared once: what the source gives, and what every table holds.

Ids are UUID text in lower case: it sorts as the bytes do, can be read by people, and file
statistics prune by it. Times are timestamps with the milliseconds that a node keeps. Values that
callers wrote as JSON are the JSON text that they were encoded to once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TEXT: Final = StringType()
_LONG: Final = LongType()
_INT: Final = IntegerType()
_TIME: Final = TimestampType()
_BYTES: Final = BinaryType()
_BOOL: Final = BooleanType()
_TEXTS: Final = ArrayType(_TEXT)


def _struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind, True) for name, kind in columns.items()])


def joined(*parts: StructType) -> StructType:
    return StructType([field for part in parts for field in part.fields])


def without(schema: StructType, *names: str) -> StructType:
    return StructType([field for field in schema.fields if field.name not in names])


PLACE: Final = _struct(log=_TEXT, epoch=_LONG, offset=_LONG)
"""Where an envelope was read: whose log, in which of its generations, at which offset."""

LOG: Final = joined(
    PLACE,
    _struct(
        id=_TEXT,
        mesh=_TEXT,
        op=_TEXT,
        entity=_TEXT,
        origin=_TEXT,
        lamport=_LONG,
        recorded_at=_TIME,
        raw=_BYTES,
    ),
)
"""What the source gives: the log as it is."""

HEADER: Final = _struct(
    owner=_TEXT,
    origin_epoch=_LONG,
    seq=_LONG,
    created_at=_TIME,
    write_class=_TEXT,
    state=_TEXT,
    base_lamport=_LONG,
    base_peer=_TEXT,
    fingerprint=_BYTES,
    meta=_TEXT,
    model=_TEXT,
)
"""What stands in the envelope's bytes besides; `model` is empty but for vectors."""

ENVELOPE: Final = joined(LOG, HEADER, _struct(problem=_TEXT))
"""What the source gives with `columns=envelope`; `problem` says why the rest could not be read."""

BRONZE: Final = joined(LOG, HEADER, _struct(family=_TEXT, batch=_LONG, day=DateType()))
"""Every envelope once, with the place where it was first seen."""
BRONZE_PARTITIONS: Final = ("day",)

SIGHTINGS: Final = joined(PLACE, _struct(id=_TEXT, recorded_at=_TIME, batch=_LONG))
"""Where envelopes that bronze has were seen again."""

QUARANTINE: Final = joined(
    PLACE,
    _struct(id=_TEXT, reason=_TEXT, detail=_TEXT, raw=_BYTES, recorded_at=_TIME, batch=_LONG),
)
"""What could not be read or may not be folded, with the reason and the bytes."""

_VERSION: Final = _struct(lamport=_LONG, peer=_TEXT, id=_TEXT)
_ROW: Final = joined(_VERSION, _struct(updated_at=_TIME, tombstone=_BOOL))

STATE: Final = joined(_struct(mesh=_TEXT, key=_TEXT, value=_TEXT), _ROW)
MEMORY: Final = joined(_struct(mesh=_TEXT, owner=_TEXT, key=_TEXT, value=_TEXT, tags=_TEXTS), _ROW)
FILES: Final = joined(
    _struct(mesh=_TEXT, owner=_TEXT, path=_TEXT, sha256=_TEXT, size=_LONG, content=_BYTES), _ROW
)
VECTORS: Final = joined(
    _struct(
        mesh=_TEXT,
        owner=_TEXT,
        key=_TEXT,
        model=_TEXT,
        content=_TEXT,
        metadata=_TEXT,
        embedding=_BYTES,
    ),
    _ROW,
    _struct(live=_BOOL),
)
MODELS: Final = _struct(
    id=_TEXT, provider=_TEXT, name=_TEXT, version=_TEXT, dim=_INT, quantization=_TEXT
)
TASKS: Final = joined(
    _struct(
        mesh=_TEXT,
        task=_TEXT,
        known=_BOOL,
        title=_TEXT,
        description=_TEXT,
        created_by=_TEXT,
        created_at=_TIME,
        status=_TEXT,
        generation=_LONG,
        holder_lamport=_LONG,
        holder_peer=_TEXT,
        holder_id=_TEXT,
        claimed_at=_TIME,
        ended_lamport=_LONG,
        ended_peer=_TEXT,
        ended_id=_TEXT,
        ended_at=_TIME,
    ),
    _VERSION,
    _struct(updated_at=_TIME),
)
TASK_EVENTS: Final = joined(
    _struct(mesh=_TEXT, task=_TEXT),
    _VERSION,
    _struct(
        kind=_TEXT,
        generation=_LONG,
        event=_TEXT,
        event_time=_TIME,
        against_lamport=_LONG,
        against_peer=_TEXT,
        against_id=_TEXT,
        title=_TEXT,
        description=_TEXT,
    ),
)
FACTS: Final = joined(
    _struct(
        mesh=_TEXT,
        subject=_TEXT,
        predicate=_TEXT,
        object=_TEXT,
        objects=_TEXTS,
        meta=_TEXT,
    ),
    _VERSION,
    _struct(created_at=_TIME),
)
MESSAGES: Final = _struct(
    mesh=_TEXT,
    kind=_TEXT,
    ref=_TEXT,
    sender=_TEXT,
    priority=_TEXT,
    reply_to=_TEXT,
    content_type=_TEXT,
    content=_BYTES,
    meta=_TEXT,
    lamport=_LONG,
    id=_TEXT,
    created_at=_TIME,
)
"""`kind` and `ref` say where a message was to go. Who has read it, only the readers' nodes know."""

SILVER: Final[dict[str, StructType]] = {
    "state": STATE,
    "memory": MEMORY,
    "files": FILES,
    "vectors": VECTORS,
    "models": MODELS,
    "tasks": TASKS,
    "task_events": TASK_EVENTS,
    "facts": FACTS,
    "messages": MESSAGES,
}
"""What a node would hold: its rows without what is true of one node only."""

SILVER_STORED: Final[dict[str, StructType]] = {
    name: joined(columns, _struct(bucket=_INT)) for name, columns in SILVER.items()
}
"""As the tables hold it: with the bucket of the key, by which files are sorted and compacted."""

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "state": ("mesh", "key"),
    "memory": ("mesh", "owner", "key"),
    "files": ("mesh", "owner", "path"),
    "vectors": ("mesh", "owner", "key", "model"),
    "models": ("id",),
    "tasks": ("mesh", "task"),
    "task_events": ("mesh", "task"),
    "facts": ("id",),
    "messages": ("id",),
}
"""What a row of each is about."""

FAMILY_OF: Final[dict[str, str]] = {
    "state": "state",
    "memory": "memory",
    "files": "file",
    "vectors": "vector",
    "models": "vector",
    "tasks": "task",
    "task_events": "task",
    "facts": "fact",
    "messages": "message",
}
"""The family of envelopes that each table is made of."""
