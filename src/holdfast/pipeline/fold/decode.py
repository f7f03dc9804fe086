"""From the bytes of envelopes to the columns of silver, a whole Arrow array at a time.

Spark cannot read msgpack, so Python does: most bodies all at once (`decode_at_once`), the others
with the code of `rules.bodies` that nodes use. Python gets only `raw` of the rows that are kept,
and gives only the columns that stand nowhere else; all other columns stay in Spark.

Bronze holds no envelope whose body could not be read when it came in. One that cannot be read now
came in when this Holdfast was older and did not know its op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StructField, StructType

from holdfast.pipeline.fold.decode_at_once import columns_at_once
from holdfast.pipeline.lake.schema import SILVER, arrow_schema
from holdfast.pipeline.logs.packed import merged, others
from holdfast.rules.bodies import (
    AuditAppend,
    Body,
    Fact,
    FileShare,
    MemorySet,
    MessageSend,
    StateSet,
    TaskCreate,
    TaskTurn,
    VectorStore,
    decode_trusted_body,
)
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import JobFailed

_NULL: Final = b"null"
_Bodies = list[Body | None]
_Envelopes = list[Envelope]
_Columns = Sequence[Sequence[Any]]


def _state(bodies: _Bodies, envelopes: _Envelopes) -> _Columns:
    return ([body.value if isinstance(body, StateSet) else _NULL for body in bodies],)


def _memory(bodies: _Bodies, envelopes: _Envelopes) -> _Columns:
    sets = [body if isinstance(body, MemorySet) else None for body in bodies]
    return (
        [_NULL if body is None else body.value for body in sets],
        [() if body is None else body.tags for body in sets],
        [_first(body) for body in sets],
    )


def _first(body: MemorySet | FileShare | None) -> int | None:
    """When the first version was made, as the lake counts: in microseconds."""
    return None if body is None or not body.created_at else body.created_at * 1000


def _files(bodies: _Bodies, envelopes: _Envelopes) -> _Columns:
    shares = [body if isinstance(body, FileShare) else None for body in bodies]
    return (
        ["" if body is None else body.sha256.hex() for body in shares],
        [0 if body is None else body.size for body in shares],
        [None if body is None else body.content for body in shares],
        [_first(body) for body in shares],
    )


def _vectors(bodies: _Bodies, envelopes: _Envelopes) -> _Columns:
    stores = [body if isinstance(body, VectorStore) else None for body in bodies]
    return (
        ["" if body is None else body.content for body in stores],
        [_NULL if body is None else body.metadata for body in stores],
        [b"" if body is None else body.embedding for body in stores],
    )


def _models(bodies: _Bodies, envelopes: _Envelopes) -> _Columns:
    models = [body.identity() if isinstance(body, VectorStore) else None for body in bodies]
    fields = ("provider", "name", "version", "dim", "quantization")
    return [
        [None if model is None else getattr(model, field) for model in models] for field in fields
    ]


def _turns(bodies: _Bodies, envelopes: _Envelopes) -> _Columns:
    creates = [body if isinstance(body, TaskCreate) else None for body in bodies]
    return (
        [body.generation if isinstance(body, TaskTurn) else 0 for body in bodies],
        ["" if body is None else body.title for body in creates],
        ["" if body is None else body.description for body in creates],
    )


def _facts(bodies: _Bodies, envelopes: _Envelopes) -> _Columns:
    facts = [body for body in bodies if isinstance(body, Fact)]
    return (
        [body.predicate for body in facts],
        [body.object for body in facts],
        [[digest.hex() for digest in body.objects] for body in facts],
    )


def _events(bodies: _Bodies, envelopes: _Envelopes) -> _Columns:
    events = [body for body in bodies if isinstance(body, AuditAppend)]
    return (
        [body.epoch for body in events],
        [body.seq for body in events],
        [body.at * 1000 for body in events],  # as the lake counts: microseconds
        [body.payload for body in events],
        [body.previous.hex() for body in events],
        [body.hash.hex() for body in events],
    )


def _messages(bodies: _Bodies, envelopes: _Envelopes) -> _Columns:
    """Most columns of a message stand in the envelope and not in the body."""
    sent = [body for body in bodies if isinstance(body, MessageSend)]
    # Only an unchecked message has no destination: it came in when the op was not known yet.
    to = [envelope.to or (None, None) for envelope in envelopes]
    return (
        [kind for kind, _ in to],
        [ref for _, ref in to],
        [envelope.origin for envelope in envelopes],
        [envelope.priority for envelope in envelopes],
        [envelope.reply_to for envelope in envelopes],
        [body.content_type for body in sent],
        [body.content for body in sent],
    )


_Read = Callable[[_Bodies, _Envelopes], _Columns]
_READERS: Final[dict[str, tuple[_Read, tuple[str, ...]]]] = {
    "state": (_state, ("value",)),
    "memory": (_memory, ("value", "tags", "created_at")),
    "files": (_files, ("sha256", "size", "content", "created_at")),
    "vectors": (_vectors, ("content", "metadata", "embedding")),
    "models": (_models, ("provider", "name", "version", "dim", "quantization")),
    "task_events": (_turns, ("generation", "title", "description")),
    "facts": (_facts, ("predicate", "object", "objects")),
    "audit_events": (
        _events,
        ("origin_epoch", "seq", "event_time", "payload", "previous", "hash"),
    ),
    "messages": (
        _messages,
        ("kind", "ref", "sender", "priority", "reply_to", "content_type", "content"),
    ),
}
"""By table: the function that reads the bodies, and the columns that it gives."""


def with_body(name: str, rows: DataFrame) -> DataFrame:
    """The rows with the columns that only the bytes have, in the place of `raw`."""
    columns = _READERS[name][1]
    # The `kind` of a message is that of its destination, and not the last word of the op.
    others = [column for column in rows.columns if column != "raw" and column not in columns]
    read = rows.select(*others, _decoded(name, F.col("raw")).alias("body"))
    return read.select(*others, *(F.col(f"body.{column}").alias(column) for column in columns))


def _decoded(name: str, raw: Column) -> Column:
    def read(raws: pa.Array) -> pa.Array:
        return decode_body(name, raws)

    make: Any = arrow_udf  # its type demands an argument that it warns about
    decoded: Column = make(read, _body_schema(name))(raw)
    return decoded


def _body_schema(name: str) -> StructType:
    # Without comments: Spark takes a struct with other comments for another type.
    columns = (SILVER[name][column] for column in _READERS[name][1])
    return StructType([StructField(column.name, column.dataType) for column in columns])


def decode_body(name: str, raws: pa.Array) -> pa.StructArray:
    """The columns of one table, from the bytes of envelopes."""
    columns = body_columns(name, raws)
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def body_columns(name: str, raws: pa.Array | pa.ChunkedArray) -> dict[str, pa.Array]:
    """The columns of one table by their names, from the bytes of envelopes."""
    columns = _READERS[name][1]
    if isinstance(raws, pa.ChunkedArray):
        raws = raws.combine_chunks()
    raws = raws.cast(pa.binary())
    rows, found = columns_at_once(name, raws)
    if len(rows) == len(raws) and found:
        return {column: found[column] for column in columns}
    rest = others(rows, len(raws))
    read = one_by_one(name, raws.take(pa.array(rest)))
    arrays = [found.get(column, read[column][:0]) for column in columns]
    return dict(zip(columns, merged(rows, arrays, rest, list(read.values())), strict=True))


def one_by_one(name: str, raws: pa.Array) -> dict[str, pa.Array]:
    """The same, each envelope and each body read by itself, by the code of nodes."""
    read, columns = _READERS[name]
    values = read(*_opened(raws.to_pylist()))
    kinds = arrow_schema(_body_schema(name)).types
    arrays = [_array(part, kind) for part, kind in zip(values, kinds, strict=True)]
    return dict(zip(columns, arrays, strict=True))


def _opened(raws: list[bytes]) -> tuple[_Bodies, _Envelopes]:
    try:
        envelopes = [decode_trusted(raw) for raw in raws]
        return [decode_trusted_body(envelope) for envelope in envelopes], envelopes
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JobFailed(
            f"bronze holds an envelope whose body this version cannot read: {error}",
            hint="copy the lake with `redecode`: what cannot be read goes to quarantine",
        ) from error


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.string() and values and isinstance(values[0], bytes):
        # JSON text as UTF-8 bytes: only the type has to change.
        return pa.array(values, pa.binary()).view(pa.string())
    return pa.array(values, kind)
