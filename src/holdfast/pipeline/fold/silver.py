"""Silver: the state that all envelopes together make, kept up at the cost of what is new.

Each table has a base, sorted into buckets by key, and increments: small files that are folds of
what came since. A fold takes the envelopes that bronze has got since the last one, and then

- a small table is merged with them and rewritten, so that on a laptop the base is always current;
- a large one gets an increment appended, which costs the same whatever the size of the base;
- when the increments outgrow a share of the base, or their buckets are asked to be compacted, they
  are merged into it.

Which envelopes a table has taken in stands in the commits of base and increments themselves (an
application id `bronze` with the version of bronze). A job that is killed between merging increments
and dropping them leaves both, which is harmless: a merge of the same rows twice is the same rows.

Tasks have no increments of their own: they are made of the task events, anew whenever these change.

One job at a time works on a lake: whoever calls holds `Lake.working`. If somebody else was first
all the same, the commit is refused (`LakeMoved`) and a rerun goes on from there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.fold import (
    are_for_the_scan,
    fold_family,
    fold_files,
    merged,
    tasks_from,
    write_folded,
)
from holdfast.pipeline.fold.winners import BUCKET, bucketed
from holdfast.pipeline.lake.delta import File, Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import FAMILY_OF, KEYS, SILVER
from holdfast.rules.limits import (
    FOLD_BUCKETS,
    FOLD_FILE_ROWS,
    LAMPORT_MAX,
    SILVER_BEHIND_PERCENT_MAX,
    SILVER_BEHIND_ROWS_MAX,
    SILVER_SMALL_ROWS,
)

BRONZE: Final = "bronze"
EVENTS: Final = "task_events"
FOLDED: Final = tuple(name for name in SILVER if name != "tasks")
"""What is folded from bronze; tasks are made of their events."""

Progress = Callable[[str, int, int], None]


class TableFold(msgspec.Struct, frozen=True, kw_only=True):
    """What a fold did to one table."""

    name: str
    changes: int
    """New envelopes of its family."""
    how: str
    """`appended` as an increment, `merged` into the base, or `rebuilt`."""
    seconds: float


class FoldReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a fold did."""

    version: int
    """Of bronze, up to which silver is current now."""
    tables: list[TableFold]
    seconds: float

    @property
    def changes(self) -> int:
        by_family = {FAMILY_OF[table.name]: table.changes for table in self.tables}
        return sum(by_family.values())


# --- reading -------------------------------------------------------------------------------------


def current(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """The state now: base and increments together. The base is not shuffled: the keys that were
    touched since are few, and every task gets them.
    """
    if name == "tasks":
        return _current_tasks(spark, lake)
    # Increments are looked at first: one that is merged meanwhile is then seen twice, not never.
    increments, base = lake.increments(name), lake.silver(name)
    if not increments.files():
        return base.read(spark).select(*SILVER[name].names)
    return _overlaid(name, base.read(spark), increments.read(spark)).select(*SILVER[name].names)


def _overlaid(name: str, base: DataFrame, new: DataFrame) -> DataFrame:
    keys = list(KEYS[name])
    touched = F.broadcast(new.select(*keys).distinct())
    columns = SILVER[name].names
    met = base.join(touched, keys, "left_semi").select(*columns)
    left = base.join(touched, keys, "left_anti").select(*columns)
    return left.unionByName(merged(name, met.unionByName(new.select(*columns))))


def _current_tasks(spark: SparkSession, lake: Lake) -> DataFrame:
    increments, events, base = lake.increments(EVENTS), lake.silver(EVENTS), lake.silver("tasks")
    keys, columns = list(KEYS["tasks"]), SILVER["tasks"].names
    waiting = increments.files()
    if base.txn(EVENTS) != _made_at(events):
        # A job was killed after it had merged events and before it made their tasks.
        return tasks_from(current(spark, lake, EVENTS))
    if not waiting:
        return base.read(spark).select(*columns)
    new = increments.read(spark)
    touched = F.broadcast(new.select(*keys).distinct())
    turns = events.read(spark).join(touched, keys, "left_semi").unionByName(new)
    left = base.read(spark).join(touched, keys, "left_anti").select(*columns)
    return left.unionByName(tasks_from(turns))


def position(lake: Lake, name: str) -> int:
    """The version of bronze up to which a table is folded; -1 if nothing is."""
    tables = (lake.silver(name), lake.increments(name))
    return max(-1 if (at := table.txn(BRONZE)) is None else at for table in tables)


def is_current(lake: Lake, name: str) -> bool:
    """Has a table taken in all envelopes that bronze has? Not every version of bronze brings any:
    compaction and vacuum make versions too.
    """
    return not _newer(lake.bronze, position(lake, name))


# --- folding -------------------------------------------------------------------------------------


def fold(
    spark: SparkSession, lake: Lake, *, full: bool = False, progress: Progress | None = None
) -> FoldReport:
    """Brings silver up to what bronze has; with `full` all of it is made anew."""
    began = time.monotonic()
    lake = lake.fresh()
    bronze = lake.bronze
    since = {name: -1 if full else position(lake, name) for name in FOLDED}
    new = _new_changes(spark, bronze, since)
    done: list[TableFold] = []
    for number, name in enumerate(FOLDED):
        if progress is not None:
            progress(f"fold {name}", number, len(FOLDED))
        if new[name] or (full and lake.silver(name).exists):
            done.append(_fold_table(spark, lake, name, since[name], new[name], full=full))
        elif _newer(bronze, position(lake, name)):
            _note(lake, name)
        if name == EVENTS:
            _make_tasks(spark, lake)
    if progress is not None:
        progress("fold", len(FOLDED), len(FOLDED))
    seconds = time.monotonic() - began
    return FoldReport(version=bronze.version, tables=done, seconds=seconds)


def _new_changes(spark: SparkSession, bronze: Table, since: dict[str, int]) -> dict[str, int]:
    """How many envelopes each table has not taken in. Files of one family and batch say so
    themselves; the others are counted, by one job over two narrow columns.
    """
    found: Counter[tuple[str, int]] = Counter()
    mixed: list[File] = []
    for file in _newer(bronze, min(since.values())):
        family, batch = file.only("family"), file.only("batch")
        if family is None or batch is None:
            mixed.append(file)
        else:
            found.update({(family, at): file.rows for at in set(since.values()) if batch > at})
    if mixed:
        # One row per family comes back, however many batches there are.
        beyond = {at: F.count_if(F.col("batch") > at).alias(str(at)) for at in set(since.values())}
        counted = bronze.read_files(spark, mixed).groupBy("family").agg(*beyond.values()).collect()
        for row in counted:
            found.update({(row["family"], at): row[str(at)] for at in beyond})
    return {name: found[FAMILY_OF[name], at] for name, at in since.items()}


def _newer(bronze: Table, version: int) -> list[File]:
    return bronze.files(lambda file: file.may_hold("batch", version + 1, LAMPORT_MAX))


def _note(lake: Lake, name: str) -> None:
    """There is nothing for a table, which the next fold then need not find out again. Every table
    is there after the first fold, for whoever reads the lake without us.
    """
    base = lake.silver(name)
    table = lake.increments(name) if base.exists else base
    table.commit([], txns={BRONZE: lake.bronze.version})


def _fold_table(
    spark: SparkSession, lake: Lake, name: str, since: int, changes: int, *, full: bool
) -> TableFold:
    began = time.monotonic()
    base, increments = lake.silver(name), lake.increments(name)
    txns = {BRONZE: lake.bronze.version}
    if full or since < 0:
        how = "rebuilt"
        added = _staged(spark, lake, name, since, changes, base) if changes else ()
        base.commit(added, base.files(), txns=txns)
        _drop(increments, txns)
    elif is_behind(base.rows, increments.rows + changes):
        how = "merged"
        rows = base.rows + increments.rows + changes
        parts = [base.read(spark), increments.read(spark)]
        parts.append(bucketed(name, _folded(spark, lake, name, since, changes)))
        whole = merged(name, reduce(DataFrame.unionByName, parts), files=files_for(rows))
        base.commit(base.stage(whole).files, base.files(), txns=txns)
        _drop(increments, txns)
    else:
        how = "appended"
        added = _staged(spark, lake, name, since, changes, increments)
        increments.commit(added, txns=txns)
    seconds = time.monotonic() - began
    return TableFold(name=name, changes=changes, how=how, seconds=seconds)


def _staged(
    spark: SparkSession, lake: Lake, name: str, since: int, changes: int, table: Table
) -> tuple[File, ...]:
    """What has come since, by itself, as files of a table."""
    files = files_for(changes)
    if are_for_the_scan(name, lake.bronze, changes):
        new = _newer(lake.bronze, since)
        write = partial(write_folded, name, spark, lake.bronze, new, since, files=files)
        return table.stage_by(lambda folder: write(folder=folder)).files
    return table.stage(_folded(spark, lake, name, since, changes, files=files)).files


def _folded(
    spark: SparkSession, lake: Lake, name: str, since: int, changes: int, *, files: int = 0
) -> DataFrame:
    """What has come since, by itself."""
    new = _newer(lake.bronze, since)
    if are_for_the_scan(name, lake.bronze, changes):
        return fold_files(name, spark, lake.bronze, new, since, files=files)
    fresh = lake.bronze.read_files(spark, new)
    if any(file.low.get("batch", since) <= since for file in new):
        # Only where it matters: a number in the plan has Spark compile all of it anew.
        fresh = fresh.where(F.col("batch") > since)
    return fold_family(name, fresh, changes, files=files)


def is_behind(base: int, waiting: int) -> bool:
    """Whether so many rows are better merged into a base of that size than kept beside it."""
    if base <= SILVER_SMALL_ROWS or waiting > SILVER_BEHIND_ROWS_MAX:
        return True
    return waiting * 100 > base * SILVER_BEHIND_PERCENT_MAX


def files_for(rows: int) -> int:
    return max(1, min(FOLD_BUCKETS, -(-rows // FOLD_FILE_ROWS)))


def _drop(increments: Table, txns: dict[str, int]) -> None:
    if increments.files():
        increments.commit([], increments.files(), txns=txns)


def _made_at(events: Table) -> int | None:
    """What the tasks made of these events name."""
    return events.version if events.exists else None


def _make_tasks(spark: SparkSession, lake: Lake) -> None:
    """The tasks, if their events have changed."""
    events, base = lake.silver(EVENTS), lake.silver("tasks")
    if base.txn(EVENTS) == _made_at(events):
        return
    made = tasks_from(events.read(spark), files=files_for(events.rows))
    files = base.stage(made).files if events.rows else ()
    base.commit(files, base.files(), txns={EVENTS: events.version})


# --- compacting ----------------------------------------------------------------------------------


def compact(
    spark: SparkSession,
    lake: Lake,
    names: Sequence[str] = FOLDED,
    *,
    progress: Progress | None = None,
) -> list[str]:
    """Merges all increments into their bases, rewriting only the buckets that they touch; returns
    the tables that had any.
    """
    lake = lake.fresh()
    done: list[str] = []
    wanted = [name for name in FOLDED if name in names or (name == EVENTS and "tasks" in names)]
    for number, name in enumerate(wanted):
        if progress is not None:
            progress(f"compact {name}", number, len(wanted))
        if lake.increments(name).files():
            _compact_table(spark, lake, name)
            done.append(name)
        if name == EVENTS:
            _make_tasks(spark, lake)
    return done


def _compact_table(spark: SparkSession, lake: Lake, name: str) -> None:
    increments, base = lake.increments(name), lake.silver(name)
    new = increments.read(spark)
    touched = {row[0] for row in new.select(BUCKET).distinct().collect()}
    old = base.files(lambda file: _holds(file, touched))
    rows = increments.rows + sum(file.rows for file in old)
    parts = base.read_files(spark, old).unionByName(new)
    txns = {BRONZE: position(lake, name)}
    whole = merged(name, parts, files=files_for(rows))
    base.commit(base.stage(whole).files, old, txns=txns)
    _drop(increments, txns)


def _holds(file: File, buckets: Iterable[int]) -> bool:
    return any(file.may_hold(BUCKET, bucket, bucket) for bucket in buckets)
