"""From envelopes to the rows that a node would hold: pure functions from frames to frames.

`fold_family` takes any part of bronze. The merge of a family decides which rows it makes;
`rules.merge.MERGES` names it for nodes and for the lake alike. `merged` joins the rows of several
folds: folding the parts and merging them gives the same as folding the whole, in any split, in any
order, however often a part is repeated.

With `files` the result is laid out as the tables store it: in so many files, by bucket and key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.decode import with_body
from holdfast.pipeline.fold.local_merge import LocalMerge
from holdfast.pipeline.fold.local_partition import LocalPartition
from holdfast.pipeline.fold.local_scan import LocalScan
from holdfast.pipeline.fold.tasks import events_of, tasks_of, turns_of
from holdfast.pipeline.fold.winners import BUCKET, contenders, gathered, winners, with_live
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.schema import FAMILY_OF, KEYS, SILVER, SILVER_STORED, arrow_schema
from holdfast.rules.bodies import OPS, family_of
from holdfast.rules.limits import (
    FOLD_BUCKETS,
    FOLD_KEYS_AT_ONCE_ROWS_MAX,
    FOLD_SHARE_ROWS_MAX,
    FOLD_SIEVE_ROWS_MAX,
    FOLD_TWO_SCANS_ROWS_MIN,
)
from holdfast.rules.merge import DELETES, MERGES, Merge

_ENTITY: Final = {"files": "path", "task_events": "task", "facts": "subject"}
"""By table: the column for the envelope's `entity`; `key` in the others."""
_TIME: Final = {"task_events": "event_time", "facts": "created_at", "messages": "created_at"}
"""By table: the column for the envelope's `created_at`; `updated_at` in the others."""
_MADE_LIKE: Final = {"tasks": "task_events", "models": "vectors"}
"""Tables that are made of the same changes as another one."""
_SHARES_MIN: Final = 2


def fold_family(name: str, bronze: DataFrame, rows: int = 0, *, files: int = 0) -> DataFrame:
    """The rows of one silver table, made of these envelopes. `rows`: about how many envelopes there
    are, if that is known; if they are many, `bronze` is scanned twice.
    """
    changes = changes_of(name, bronze)
    merge = MERGES[FAMILY_OF[name]]
    if merge is Merge.TURNS:
        turns = turns_of(changes)
        folded = tasks_of(turns) if name == "tasks" else events_of(turns)
        return _laid_out(name, folded, files)
    if name == "models":
        return _laid_out(name, _models(changes), files)
    if merge is Merge.LAST_WRITER and rows >= FOLD_TWO_SCANS_ROWS_MIN:
        spread = rows <= FOLD_KEYS_AT_ONCE_ROWS_MAX
        changes = contenders(changes, KEYS[name], spread=spread)
    kept = _joined(name, changes, files)
    if files:
        # Before the bytes are decoded, so that Python runs once for each file.
        kept = kept.coalesce(files)
    return with_body(name, kept).select(*_columns(name, files))


def fold_files(
    name: str, spark: SparkSession, bronze: Table, new: Sequence[File], since: int, *, files: int
) -> DataFrame:
    """The same for what came to bronze after the batch `since`, all of it in the files `new`. The
    tasks read these files themselves and let few rows but the winners pass.
    """
    scan = scan_for(name, bronze, new, since)
    passed = _tasks(spark, len(scan.shares)).mapInArrow(scan, SILVER[name])
    return merged(name, passed, files=files)


def write_folded(
    name: str,
    spark: SparkSession,
    bronze: Table,
    new: Sequence[File],
    since: int,
    *,
    files: int,
    folder: str,
) -> None:
    """The same, straight into files of the table in `folder`: Spark only starts the tasks."""
    Path(folder).mkdir(parents=True)
    keys = KEYS[name]
    partition = LocalPartition(
        scan=scan_for(name, bronze, new, since), keys=keys, buckets=FOLD_BUCKETS, folder=folder
    )
    shares = partition.paths
    merge = LocalMerge(
        schema=arrow_schema(SILVER_STORED[name]),
        keys=keys,
        shares=shares,
        buckets=FOLD_BUCKETS,
        files=files,
        folder=folder,
    )
    try:
        _run_tasks(spark, len(shares), partition)
        _run_tasks(spark, files, merge)
    finally:
        for share in shares:
            Path(share).unlink(missing_ok=True)


def _tasks(spark: SparkSession, count: int) -> DataFrame:
    """The numbers below `count`, each in a partition of its own."""
    return spark.range(0, count, 1, count)


def _run_tasks(spark: SparkSession, count: int, work: Callable[[int], None]) -> None:
    """Calls `work` with each number below `count`, each in a Spark task of its own."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                work(number)
            yield batch

    tasks = _tasks(spark, count)
    tasks.mapInArrow(run, tasks.schema).collect()


def scan_for(name: str, bronze: Table, new: Sequence[File], since: int) -> LocalScan:
    taken = _taken(name)
    return LocalScan(
        name=name,
        schema=arrow_schema(SILVER[name]),
        keys=[taken[key] for key in KEYS[name]],
        taken=taken,
        ops=ops_of(name),
        since=since,
        shares=[[bronze.uri(file) for file in share] for share in shares_of(new)],
    )


def can_scan_locally(name: str, bronze: Table, rows: int) -> bool:
    """Whether so many changes are better read from the files without Spark. In an object store only
    Spark is known to be able to read them.
    """
    wins = MERGES[FAMILY_OF[name]] is Merge.LAST_WRITER
    fits = FOLD_TWO_SCANS_ROWS_MIN <= rows <= FOLD_SIEVE_ROWS_MAX
    return wins and fits and bronze.folder.local is not None


def shares_of(files: Sequence[File]) -> list[list[File]]:
    """The files of each task, so that all tasks have about the same number of rows."""
    rows = sum(file.rows for file in files)
    count = max(_SHARES_MIN, -(-rows // FOLD_SHARE_ROWS_MAX))
    shares: list[list[File]] = [[] for _ in range(count)]
    taken = [0] * count
    for file in sorted(files, key=lambda file: (-file.rows, file.path)):
        least = taken.index(min(taken))
        shares[least].append(file)
        taken[least] += file.rows
    return [share for share in shares if share]


def merged(name: str, parts: DataFrame, *, files: int = 0) -> DataFrame:
    """The rows that several folds of one table make together."""
    assert name != "tasks", "a task is made of all of its events"
    if name == "task_events":
        return _laid_out(name, events_of(parts), files)
    return _finished(name, _joined(name, parts, files), files)


def tasks_from(events: DataFrame, *, files: int = 0) -> DataFrame:
    """The rows of the table `tasks`, made of task events."""
    return _laid_out("tasks", tasks_of(events), files)


def ops_of(name: str) -> list[str]:
    """The ops that make rows of a table. Ops that this version does not know make none."""
    return sorted(op for op in OPS if family_of(op) == FAMILY_OF[name])


def changes_of(name: str, bronze: DataFrame) -> DataFrame:
    """The envelopes that a table is made of: their bytes, and the columns of bronze under the names
    that silver has for them.
    """
    like = _MADE_LIKE.get(name, name)
    known = {column: F.col(source) for column, source in _taken(like).items()}
    known["kind"] = F.substring_index("op", ".", -1)
    known["tombstone"] = F.col("op").isin(*sorted(DELETES))
    columns = [known[column].alias(column) for column in SILVER[like].names if column in known]
    return bronze.where(F.col("op").isin(*ops_of(name))).select(*columns, "raw")


def _taken(name: str) -> dict[str, str]:
    """By column of a table: the column of bronze that it comes from."""
    known = {column: column for column in ("mesh", "owner", "model", "meta", "lamport", "id")}
    known |= {_ENTITY.get(name, "key"): "entity", _TIME.get(name, "updated_at"): "created_at"}
    known["peer"] = "origin"
    return {column: known[column] for column in SILVER[name].names if column in known}


def _joined(name: str, rows: DataFrame, files: int) -> DataFrame:
    """The rows that the merge of the family keeps, of changes or of folded rows."""
    keys = KEYS[name]
    if files:
        rows, keys = gathered(name, rows, files), (BUCKET, *keys)
    match MERGES[FAMILY_OF[name]]:
        case Merge.LAST_WRITER:
            return winners(rows, keys)
        case Merge.NEWEST_LIVES if name == "vectors":
            return with_live(rows, keys)
        case _:
            once = rows.dropDuplicates(list(keys))
            return once.sortWithinPartitions(*keys) if files else once


def _laid_out(name: str, rows: DataFrame, files: int) -> DataFrame:
    """Folded rows, in the order of the table."""
    if not files:
        return _finished(name, rows, files)
    placed = gathered(name, rows, files).sortWithinPartitions(BUCKET, *KEYS[name])
    return _finished(name, placed, files)


def _finished(name: str, rows: DataFrame, files: int) -> DataFrame:
    whole = rows.select(*_columns(name, files))
    return whole.coalesce(files) if files else whole


def _columns(name: str, files: int) -> list[str]:
    return (SILVER_STORED if files else SILVER)[name].names


def _models(changes: DataFrame) -> DataFrame:
    """Every model that a vector was stored with, decoded from one envelope of each."""
    stores = changes.where(~F.col("tombstone"))
    first = stores.groupBy("model").agg(F.min("id").alias("id"))
    one_each = stores.join(F.broadcast(first), ["model", "id"], "left_semi")
    return with_body("models", one_each.select(F.col("model").alias("id"), "raw"))
