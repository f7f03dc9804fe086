"""The columns of the lake, declared once: what the source gives, and what every table holds.

Ids are UUID text in lower case: it sorts as the bytes do, people can read it, and file statistics
prune by it. Times are timestamps with the milliseconds that a node keeps. Values that callers wrote
as JSON are kept as the JSON text that they were encoded to once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "array<string>": ArrayType(StringType()),
    "bigint": LongType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
}


def columns(text: str) -> StructType:
    """Columns as SQL writes them: `log string, epoch bigint`. Spark's own parser for this needs a
    running session.
    """
    pairs = (column.split() for column in text.split(","))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


def joined(*parts: StructType) -> StructType:
    """The columns of all parts, in their order."""
    return StructType([field for part in parts for field in part.fields])


def without(schema: StructType, *names: str) -> StructType:
    """The columns of a schema except these."""
    return StructType([field for field in schema.fields if field.name not in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """A Spark schema as an Arrow schema, with times in UTC as Delta keeps them."""
    arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return arrow


PLACE: Final = columns("log string, epoch bigint, offset bigint")
"""Where an envelope was read: whose log, in which epoch of that log, at which offset."""

LOG: Final = joined(
    PLACE,
    columns(
        "id string, mesh string, op string, entity string, origin string, lamport bigint, "
        "recorded_at timestamp, raw binary"
    ),
)
"""What the source gives: the log as it is."""

HEADER: Final = columns(
    "owner string, origin_epoch bigint, seq bigint, created_at timestamp, write_class string, "
    "state string, base_lamport bigint, base_peer string, fingerprint binary, meta string, "
    "model string"
)
"""What only the envelope's bytes say. `model` is empty except for vectors."""

ENVELOPE: Final = joined(LOG, HEADER, columns("problem string"))
"""What the source gives with `columns=envelope`. `problem` says why the bytes could not be read."""

BRONZE: Final = joined(LOG, HEADER, columns("family string, batch bigint, day date"))
"""Every envelope once, with the place where it was first seen."""

SIGHTINGS: Final = joined(PLACE, columns("id string, recorded_at timestamp, batch bigint"))
"""Where envelopes that bronze has were seen again."""

QUARANTINE: Final = joined(
    PLACE,
    columns(
        "id string, reason string, detail string, raw binary, recorded_at timestamp, batch bigint"
    ),
)
"""What could not be read or may not be folded, with the reason and the bytes."""

_VERSION: Final = columns("lamport bigint, peer string, id string")
_CHANGED: Final = joined(_VERSION, columns("updated_at timestamp, tombstone boolean"))

SILVER: Final[dict[str, StructType]] = {
    "state": joined(columns("mesh string, key string, value string"), _CHANGED),
    "memory": joined(
        columns("mesh string, owner string, key string, value string, tags array<string>"),
        _CHANGED,
    ),
    "files": joined(
        columns(
            "mesh string, owner string, path string, sha256 string, size bigint, content binary"
        ),
        _CHANGED,
    ),
    "vectors": joined(
        columns(
            "mesh string, owner string, key string, model string, content string, "
            "metadata string, embedding binary"
        ),
        _CHANGED,
        columns("live boolean"),
    ),
    "models": columns(
        "id string, provider string, name string, version string, dim int, quantization string"
    ),
    "tasks": joined(
        columns(
            "mesh string, task string, known boolean, title string, description string, "
            "created_by string, created_at timestamp, status string, generation bigint, "
            "holder_lamport bigint, holder_peer string, holder_id string, claimed_at timestamp, "
            "ended_lamport bigint, ended_peer string, ended_id string, ended_at timestamp"
        ),
        _VERSION,
        columns("updated_at timestamp"),
    ),
    "task_events": joined(
        columns("mesh string, task string"),
        _VERSION,
        columns(
            "kind string, generation bigint, event string, event_time timestamp, "
            "against_lamport bigint, against_peer string, against_id string, title string, "
            "description string"
        ),
    ),
    "facts": joined(
        columns(
            "mesh string, subject string, predicate string, object string, "
            "objects array<string>, meta string"
        ),
        _VERSION,
        columns("created_at timestamp"),
    ),
    # `kind` and `ref` say where a message was to go. Who has read it, only the readers' nodes know.
    "messages": columns(
        "mesh string, kind string, ref string, sender string, priority string, reply_to string, "
        "content_type string, content binary, meta string, lamport bigint, id string, "
        "created_at timestamp"
    ),
}
"""The tables of a node, without the columns that are true of one node only."""

SILVER_STORED: Final[dict[str, StructType]] = {
    name: joined(table, columns("bucket int")) for name, table in SILVER.items()
}
"""Silver as its files hold it: with the bucket of the key, by which files are sorted and compacted.
"""

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
"""By silver table: the columns that say which thing a row is about."""

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
"""By silver table: the family of envelopes that it is made of."""
