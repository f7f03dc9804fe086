"""Silver: the state that all envelopes together make, kept up to date at the cost of what is new.

Each table has a base, sorted into buckets by key, and increments: small files that are folds of
what came since. A fold takes the envelopes that bronze has got since the last fold, and then

- a small table is merged with them and rewritten, so that on a laptop the base is always current;
- a large table gets an increment appended, which costs the same whatever the size of the base;
- when the increments outgrow a share of the base, or `compact` is called, they are merged into it.

Which envelopes a table has taken in stands in the commits of base and increments themselves (an
application id `bronze` with the version of bronze). A job that is killed between merging increments
and dropping them leaves both, which is harmless: merging the same rows twice gives the same rows.

Tasks have no increments: they are made of the task events, again whenever these change.

The caller holds `Lake.working`, so that one job at a time works on a lake. If another job commits
first all the same, the commit is refused (`LakeMoved`) and a rerun goes on from there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.fold import (
    can_scan_locally,
    fold_family,
    fold_files,
    merged,
    tasks_from,
    write_folded,
)
from holdfast.pipeline.fold.winners import BUCKET, bucketed
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
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
"""The tables that are folded from bronze; tasks are made of their events."""


class TableFold(msgspec.Struct, frozen=True, kw_only=True):
    """What a fold did to one table."""

    name: str
    changes: int
    """How many new envelopes of its family there were."""
    how: str
    """`appended` as an increment, `merged` into the base, or `rebuilt`."""
    seconds: float


class FoldReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a fold did."""

    version: int
    """The version of bronze that silver has taken in."""
    tables: list[TableFold]
    seconds: float

    @property
    def changes(self) -> int:
        by_family = {FAMILY_OF[table.name]: table.changes for table in self.tables}
        return sum(by_family.values())


# --- reading -------------------------------------------------------------------------------------


def current(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """A table of the state as it is now: base and increments together. The base is not shuffled:
    the keys that changed since are few, and every task gets them.
    """
    if name == "tasks":
        return _current_tasks(spark, lake)
    # Increments first: one that is merged meanwhile is then read twice, and not left out.
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
    if not tasks_are_current(lake):
        # A job was killed after it had merged events and before it made tasks of them.
        return tasks_from(current(spark, lake, EVENTS))
    if not waiting:
        return base.read(spark).select(*columns)
    new = increments.read(spark)
    touched = F.broadcast(new.select(*keys).distinct())
    turns = events.read(spark).join(touched, keys, "left_semi").unionByName(new)
    left = base.read(spark).join(touched, keys, "left_anti").select(*columns)
    return left.unionByName(tasks_from(turns))


def tasks_are_current(lake: Lake) -> bool:
    """Whether the table `tasks` was made of the events that its base has now."""
    return lake.silver("tasks").txn(EVENTS) == _made_at(lake.silver(EVENTS))


def position(lake: Lake, name: str) -> int:
    """The version of bronze that a table has taken in; -1 if none."""
    tables = (lake.silver(name), lake.increments(name))
    return max(-1 if (at := table.txn(BRONZE)) is None else at for table in tables)


def is_current(lake: Lake, name: str) -> bool:
    """Whether a table has taken in all envelopes of bronze. Not every version of bronze brings new
    ones: compaction and vacuum make versions too.
    """
    return not _newer(lake.bronze, position(lake, name))


# --- folding -------------------------------------------------------------------------------------


def fold_lake(
    spark: SparkSession, lake: Lake, *, full: bool = False, progress: Progress = no_progress
) -> FoldReport:
    """Brings silver up to date with bronze; with `full` all of it is rebuilt."""
    began = time.monotonic()
    lake = lake.fresh()
    bronze = lake.bronze
    since = {name: -1 if full else position(lake, name) for name in FOLDED}
    new = _new_changes(spark, bronze, since)
    done: list[TableFold] = []
    for number, name in enumerate(FOLDED):
        progress(f"fold {name}", number, len(FOLDED))
        if new[name] or (full and lake.silver(name).exists):
            done.append(_fold_table(spark, lake, name, since[name], new[name], full=full))
        elif _newer(bronze, position(lake, name)):
            _note(lake, name)
        if name == EVENTS:
            _make_tasks(spark, lake)
    progress("fold", len(FOLDED), len(FOLDED))
    seconds = time.monotonic() - began
    return FoldReport(version=bronze.version, tables=done, seconds=seconds)


def _new_changes(spark: SparkSession, bronze: Table, since: dict[str, int]) -> dict[str, int]:
    """How many envelopes each table has not taken in. The statistics of a file with one family and
    one batch say so; the rows of other files are counted by one job over two narrow columns.
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
        # The result has one row for each family, however many batches there are.
        beyond = {at: F.count_if(F.col("batch") > at).alias(str(at)) for at in set(since.values())}
        counted = bronze.read_files(spark, mixed).groupBy("family").agg(*beyond.values()).collect()
        for row in counted:
            found.update({(row["family"], at): row[str(at)] for at in beyond})
    return {name: found[FAMILY_OF[name], at] for name, at in since.items()}


def _newer(bronze: Table, version: int) -> list[File]:
    """The files of bronze that may have rows of later batches than this version."""
    return bronze.files(lambda file: file.may_hold("batch", version + 1, LAMPORT_MAX))


def _note(lake: Lake, name: str) -> None:
    """Notes that bronze has nothing new for a table, so that the next fold need not find that out
    again. It makes the table if there is none yet, so that other tools can read every table.
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
    """The fold of what came to bronze since, as staged files of a table."""
    files = files_for(changes)
    if can_scan_locally(name, lake.bronze, changes):
        new = _newer(lake.bronze, since)
        write = partial(write_folded, name, spark, lake.bronze, new, since, files=files)
        return table.stage_by(lambda folder: write(folder=folder)).files
    return table.stage(_folded(spark, lake, name, since, changes, files=files)).files


def _folded(
    spark: SparkSession, lake: Lake, name: str, since: int, changes: int, *, files: int = 0
) -> DataFrame:
    """The fold of what came to bronze since."""
    new = _newer(lake.bronze, since)
    if can_scan_locally(name, lake.bronze, changes):
        return fold_files(name, spark, lake.bronze, new, since, files=files)
    fresh = lake.bronze.read_files(spark, new)
    if any(file.low.get("batch", since) <= since for file in new):
        # Only if needed: another number in the plan makes Spark compile all of it again.
        fresh = fresh.where(F.col("batch") > since)
    return fold_family(name, fresh, changes, files=files)


def is_behind(base: int, waiting: int) -> bool:
    """Whether so many waiting rows should be merged into a base of that size."""
    if base <= SILVER_SMALL_ROWS or waiting > SILVER_BEHIND_ROWS_MAX:
        return True
    return waiting * 100 > base * SILVER_BEHIND_PERCENT_MAX


def files_for(rows: int) -> int:
    return max(1, min(FOLD_BUCKETS, -(-rows // FOLD_FILE_ROWS)))


def _drop(increments: Table, txns: dict[str, int]) -> None:
    if increments.files():
        increments.commit([], increments.files(), txns=txns)


def _made_at(events: Table) -> int | None:
    """The version of the events that up-to-date tasks have noted."""
    return events.version if events.exists else None


def _make_tasks(spark: SparkSession, lake: Lake) -> None:
    """Makes the table `tasks` again if the events have changed."""
    if tasks_are_current(lake):
        return
    events, base = lake.silver(EVENTS), lake.silver("tasks")
    made = tasks_from(events.read(spark), files=files_for(events.rows))
    files = base.stage(made).files if events.rows else ()
    base.commit(files, base.files(), txns={EVENTS: events.version})


# --- compacting ----------------------------------------------------------------------------------


def compact(
    spark: SparkSession,
    lake: Lake,
    names: Sequence[str] = FOLDED,
    *,
    progress: Progress = no_progress,
) -> list[str]:
    """Merges all increments into their bases, rewriting only files with buckets that changed;
    returns the tables that had increments.
    """
    lake = lake.fresh()
    done: list[str] = []
    wanted = [name for name in FOLDED if name in names or (name == EVENTS and "tasks" in names)]
    for number, name in enumerate(wanted):
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
