"""New vectors for old texts: all that one model has embedded, embedded by another.

    reembed(spark, lake, mesh="team", source=old.fingerprint, target=minilm.MODEL,
            embed="holdfast.pipeline.minilm:embed", to="unix:/home/ana/holdfast/api.sock")

The texts are those of the live vectors of the source model in silver. A text is left out if its key
has a newer vector of the target model already, or was deleted there since. The executors embed the
rest and write it back through the sink as ordinary changes. The old vectors stay, until their model
is dropped. A node writes only vectors of its own, so what other peers own is left to a run for
their nodes, and counted.

The embedding function takes a list of texts and returns as many vectors. It is a callable, or
`module:name`, which each executor imports.

**Repeats.** The id of a new vector follows from the mesh, both models and the vector that it
replaces, so the node recognises what was written before and does not write it twice. Once the lake
has read it back, it is not even embedded again. Large work is divided into rounds; a run that was
cut short goes on with the first round that it had not finished.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.embed.rounds import Rounds
from holdfast.pipeline.fold.current import current
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.lake.schema import arrow_schema, columns
from holdfast.pipeline.sink.deliver import open_target
from holdfast.pipeline.source import source as sources
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.rules.errors import BadInput, BadVector
from holdfast.rules.ids import id_time_ms, parse_id
from holdfast.rules.limits import REEMBED_ROUND_ROWS, REEMBED_TEXTS_MAX, SECOND_MS
from holdfast.rules.order import ORDER_COLUMNS
from holdfast.rules.vectors import Model, pack

Embed = Callable[[list[str]], Sequence[Any]]

_KEY: Final = ("owner", "key")
_GIVEN: Final = ("id", *_KEY, "content", "metadata")
_MADE: Final = columns(
    "source string, time timestamp, owner string, key string, content string, metadata string, "
    "embedding binary"
)
_ARROW: Final = arrow_schema(_MADE)
_NAMED_MAX: Final = 20
_ROUNDS_MAX: Final = 16
"""A bound on the rounds, because each round scans all vectors for its share."""


class ReembedReport(msgspec.Struct, frozen=True, kw_only=True):
    """How many vectors there were, and what was done with them."""

    mesh: str
    source: str
    target: str
    vectors: int
    """Live vectors of the source model."""
    up_to_date: int
    """How many of them the target model has already."""
    embedded: int
    """How many were embedded and written, by this run or the stopped run that it continued."""
    empty: int
    """How many have no text, so that they cannot be embedded."""
    empty_keys: tuple[str, ...]
    """The first keys without a text, as owner/key."""
    of_others: int
    """How many belong to other peers than the node that was written to."""
    resumed_rounds: int


def reembed(
    spark: SparkSession,
    lake: Lake,
    *,
    mesh: str,
    source: str | Model,
    target: Model,
    embed: str | Embed,
    to: str,
    options: Mapping[str, str] | None = None,
    round_rows: int = REEMBED_ROUND_ROWS,
    progress: Progress = no_progress,
) -> ReembedReport:
    """Embeds by the model `target` the texts that `source`, a model or its fingerprint, has
    embedded, and writes the vectors to the node at `to`, with these options of the sink.
    """
    old = source.fingerprint if isinstance(source, Model) else source
    new = target.fingerprint
    if old == new:
        raise BadInput("source and target are the same model", hint="name another target")
    if isinstance(embed, str):
        resolved(embed)  # so that a function that cannot be imported is an error at once
    sources.register(spark)
    owner = _peer_of(to, options or {})
    with spark_errors("re-embedding"):
        everything = current(spark, lake.fresh(), "vectors").where(F.col("mesh") == mesh)
        vectors = everything.where(F.col("owner") == owner)
        live = everything.where((F.col("model") == old) & F.col("live"))
        of_others = live.where(F.col("owner") != owner).count()
        counts, empty_keys = _survey(with_verdicts(vectors, old, new))
        rounds = Rounds(lake, f"reembed {mesh} {old} {new} to {to}")
        wanted = min(_ROUNDS_MAX, -(-counts["pending"] // max(1, round_rows)))
        for number, count in rounds.run(wanted):
            progress(f"embed {counts['pending']} texts: round", number + 1, count)
            share = F.pmod(F.xxhash64(*_KEY), F.lit(count)) == number
            pending = with_verdicts(vectors.where(share), old, new).where("state = 'pending'")
            write = f"reembed {old} {new}"
            _write(spark, pending, target, embed, to, mesh, write, options or {})
    return ReembedReport(
        mesh=mesh,
        source=old,
        target=new,
        vectors=sum(counts.values()),
        up_to_date=counts["done"],
        embedded=counts["pending"],
        empty=counts["empty"],
        empty_keys=tuple(empty_keys),
        of_others=of_others,
        resumed_rounds=rounds.resumed,
    )


def _peer_of(location: str, options: Mapping[str, str]) -> str:
    target = open_target(location, {name.lower(): value for name, value in options.items()})
    try:
        return target.peer()
    finally:
        target.close()


def with_verdicts(vectors: DataFrame, source: str, target: str) -> DataFrame:
    """The live vectors of the model `source` with a column `state`: `done` if the model `target`
    has a newer row for its key, `empty` without a text, else `pending`.
    """
    version = F.struct(*ORDER_COLUMNS)
    newest = (
        vectors.where(F.col("model") == target).groupBy(*_KEY).agg(F.max(version).alias("theirs"))
    )
    live = vectors.where((F.col("model") == source) & F.col("live")).withColumn("ours", version)
    state = (
        F.when(F.col("theirs") > F.col("ours"), "done")
        .when(F.col("content") == "", "empty")
        .otherwise("pending")
    )
    return live.join(newest, list(_KEY), "left").withColumn("state", state)


def _survey(rows: DataFrame) -> tuple[dict[str, int], list[str]]:
    counts = {"pending": 0, "done": 0, "empty": 0}
    counts.update({row.state: row["count"] for row in rows.groupBy("state").count().collect()})
    if not counts["empty"]:
        return counts, []
    name = F.concat_ws("/", *_KEY).alias("name")
    some = rows.where("state = 'empty'").select(name).limit(_NAMED_MAX)
    return counts, sorted(row.name for row in some.collect())


def _write(
    spark: SparkSession,
    pending: DataFrame,
    target: Model,
    embed: str | Embed,
    to: str,
    mesh: str,
    write: str,
    options: Mapping[str, str],
) -> None:
    # Embedding is expensive, so it is spread over all cores, however few the rows are.
    tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or "8")
    made = (
        pending.select(*_GIVEN)
        .repartition(tasks, "id")
        .mapInArrow(partial(embed_batches, embed, target), _MADE)
    )
    constants = {
        "op": "vector.store",
        "mesh": mesh,
        "provider": target.provider,
        "model": target.name,
        "version": target.version,
        "dim": str(target.dim),
    }
    sink = {**options, **constants, "writeId": write, "key": "source", "valueFormat": "json"}
    made.write.format("holdfast").mode("append").options(**sink).save(to)


# --- on an executor ------------------------------------------------------------------------------


def resolved(embed: str | Embed) -> Embed:
    """The function that embeds; `module:name` is imported."""
    if not isinstance(embed, str):
        return embed
    module, _, name = embed.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"{embed!r} is not a function that can be imported: {error}",
            hint="write it as module:function, as in holdfast.pipeline.minilm:embed",
        ) from None
    if not callable(found):
        raise BadInput(f"{embed!r} is not a function")
    function: Embed = found
    return function


def embed_batches(
    embed: str | Embed, target: Model, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """New vectors for rows with texts, some at a time."""
    function = resolved(embed)
    for batch in batches:
        for start in range(0, batch.num_rows, REEMBED_TEXTS_MAX):
            yield _embedded(function, target, batch.slice(start, REEMBED_TEXTS_MAX))


def _embedded(embed: Embed, target: Model, rows: pa.RecordBatch) -> pa.RecordBatch:
    texts = rows.column("content").to_pylist()
    vectors = embed(texts)
    if len(vectors) != len(texts):
        raise BadVector(f"the model gave {len(vectors)} vectors for {len(texts)} texts")
    ids = rows.column("id").to_pylist()
    return pa.RecordBatch.from_arrays(
        [
            rows.column("id"),
            pa.array(
                [id_time_ms(parse_id(id)) * SECOND_MS for id in ids], _ARROW.field("time").type
            ),
            *(rows.column(name) for name in (*_KEY, "content", "metadata")),
            pa.array(
                [pack(vector, target.dim, target.quantization) for vector in vectors], pa.binary()
            ),
        ],
        schema=_ARROW,
    )
