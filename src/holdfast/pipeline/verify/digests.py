"""Digests of frames: the lake's side of a comparison, computed by the tasks that have the rows.

Each task of Spark turns its Arrow batches into digests with the functions that the nodes use, and
gives one small row for each mesh and bucket. So the driver gets a bounded number of rows, however
large the tables are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial, reduce
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.node.log.digests import HeldRow, held_row
from holdfast.pipeline.lake.schema import arrow_schema, columns
from holdfast.pipeline.verify.expected import untagged
from holdfast.rules import digests as rules
from holdfast.rules.digests import DigestTally

_LANES: Final = tuple(f"lane{n}" for n in range(8))
_PARTS: Final = columns(
    "mesh string, table string, bucket int, rows bigint"
    + "".join(f", {lane} bigint" for lane in _LANES)
)
_FOUND: Final = columns("matched binary, held binary")

Tallies = dict[tuple[str, str], DigestTally]
"""By tagged mesh and table."""


def tallies(frames: Mapping[str, DataFrame], forgotten: Mapping[str, int]) -> Tallies:
    """The digests of some tables, in one job. Meshes are tagged (see `Scope.tag`); those that
    `forgotten` does not name are left out.
    """
    parts = [
        frame.select(*_names(table)).mapInArrow(partial(_parts, table, dict(forgotten)), _PARTS)
        for table, frame in frames.items()
    ]
    summed = (
        reduce(DataFrame.unionByName, parts)
        .groupBy("mesh", "table", "bucket")
        .agg(F.sum("rows").alias("rows"), *(F.sum(lane).alias(lane) for lane in _LANES))
    )
    found: Tallies = {}
    for row in summed.collect():
        tally = found.setdefault((row["mesh"], row["table"]), DigestTally())
        tally.add_lanes(row["bucket"], row["rows"], [row[lane] for lane in _LANES])
    return found


def unmatched(
    frame: DataFrame,
    table: str,
    tag: str,
    bucket: int,
    forgotten: int,
    known: Collection[str],
    most: int,
) -> tuple[set[str], list[HeldRow]]:
    """Of one bucket: which of the digests in `known` its rows have, and the first rows by key, at
    most `most`, that have another digest.
    """
    find = partial(_unmatched, table, forgotten, bucket, frozenset(known), most)
    rows = (
        frame.where(F.col("mesh") == tag).select(*_names(table)).mapInArrow(find, _FOUND).collect()
    )
    matched = {bytes(row["matched"]).hex() for row in rows if row["matched"] is not None}
    held = [_decode(bytes(row["held"])) for row in rows if row["held"] is not None]
    return matched, sorted(held, key=lambda row: row.key)[:most]


_encode: Final[Callable[[Any], bytes]] = msgspec.msgpack.encode


def _decode(raw: bytes) -> HeldRow:
    return msgspec.msgpack.decode(raw, type=HeldRow)


def _names(table: str) -> list[str]:
    return [column.name for column in rules.columns_of(table)]


# --- on the executors ----------------------------------------------------------------------------


def values(table: str, batch: pa.RecordBatch) -> tuple[list[str], list[list[Any]]]:
    """The tags of the meshes, and the columns of a batch as `rules.digests` takes them."""
    tags, *others = (
        _plain(batch.column(at), column.kind) for at, column in enumerate(rules.columns_of(table))
    )
    return tags, [[untagged(tag) for tag in tags], *others]


def _plain(column: pa.Array, kind: rules.Kind) -> list[Any]:
    if kind == "time":
        column = pc.divide(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1000)
    elif kind == "id":
        column = pc.replace_substring(column, "-", "")
    values: list[Any] = column.to_pylist()
    return values


def _parts(
    table: str, forgotten: Mapping[str, int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    found: dict[str, DigestTally] = {}
    for batch in batches:
        tags, columns = values(table, batch)
        digests = rules.digest_columns(table, columns, map(forgotten.get, tags))
        for tag, made in zip(tags, digests, strict=True):
            if made is not None:
                found.setdefault(tag, DigestTally()).add(*made)
    rows = [
        (tag, table, bucket, rows, *tally.lanes(bucket))
        for tag, tally in found.items()
        for bucket, rows in tally.counts.items()
    ]
    if rows:
        yield _batch(_PARTS, rows)


def _unmatched(
    table: str,
    forgotten: int,
    bucket: int,
    known: frozenset[str],
    most: int,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    matched: list[str] = []
    apart: list[HeldRow] = []
    for batch in batches:
        _, columns = values(table, batch)
        for row in zip(*columns, strict=True):
            if rules.bucket_of(table, row) != bucket:
                continue
            if not rules.is_covered(table, row, forgotten):
                continue
            digest = rules.row_digest(table, row).hex()
            if digest in known:
                matched.append(digest)
            else:
                apart.append(held_row(table, row))
                if len(apart) > 2 * most:
                    apart = sorted(apart, key=lambda held: held.key)[:most]
    apart = sorted(apart, key=lambda held: held.key)[:most]
    rows = [
        *((bytes.fromhex(digest), None) for digest in matched),
        *((None, _encode(held)) for held in apart),
    ]
    if rows:
        yield _batch(_FOUND, rows)


def _batch(schema: StructType, rows: list[Any]) -> pa.RecordBatch:
    arrow = arrow_schema(schema)
    values = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(values, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
