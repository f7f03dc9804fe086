"""Silver: the state that all envelopes together make, kept up to date at the cost of what is new.

Each table has a base, sorted into buckets by key, and increments: small files that are folds of
what came since. A fold takes the envelopes that bronze has got since the last fold, and then

- a small table is merged with them and rewritten, so that on a laptop the base is always current;
- a large table gets an increment appended, which costs the same whatever the size of the base;
- when the increments outgrow a share of the base, or `compact` is called, they are merged into it.

All tables are folded together, in one exchange between tasks (`scatter.py`, `gather.py`); the
driver plans it and commits.

Which envelopes a table has taken in stands in the commits of base and increments themselves
(`taken.py`), and so does the number of its buckets. A job that is killed between merging increments
and dropping them leaves both, which is harmless: merging the same rows twice gives the same rows.

Things (tasks, entities) have no increments: they are made of their turns, again whenever the base
of these changes. Turns come from bronze and, where a quorum decides, from `commits`.

The caller holds `Lake.working`, so that one job at a time works on a lake. If another job commits
first all the same, the commit is refused (`LakeMoved`) and a rerun goes on from there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import SparkSession

from holdfast.pipeline.fold import taken
from holdfast.pipeline.fold.buckets import BUCKETS_COARSE
from holdfast.pipeline.fold.columns import ops_of
from holdfast.pipeline.fold.count import count_new
from holdfast.pipeline.fold.gather import Gather, Gathered
from holdfast.pipeline.fold.plan import HeldFiles, Span, shares_of, spans_for, spans_of
from holdfast.pipeline.fold.scatter import Scatter, TableRoute
from holdfast.pipeline.fold.taken import Sources
from holdfast.pipeline.lake.delta import Table, fingerprint
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import BRONZE, Lake, Progress, no_progress
from holdfast.pipeline.lake.schema import COMMITTED, FAMILY_OF, MADE_OF, MAKES, SILVER
from holdfast.pipeline.lake.writer import FileWriter
from holdfast.pipeline.spark.spark_workers import workers_of
from holdfast.pipeline.spark.workers import Workers
from holdfast.rules.errors import JobFailed
from holdfast.rules.limits import (
    FOLD_BUCKETS,
    FOLD_FILE_ROWS,
    LAKE_FILE_ROWS,
    LAMPORT_MAX,
    SILVER_BEHIND_PERCENT_MAX,
    SILVER_BEHIND_ROWS_MAX,
    SILVER_SMALL_ROWS,
)

BUCKETS: Final = "buckets"
REBUILT: Final = "rebuilt"
EVENTS: Final = "task_events"
FOLDED: Final = tuple(name for name in SILVER if name not in MADE_OF)
"""The tables that are folded from bronze and commits; things are made of their turns."""


class TableFold(msgspec.Struct, frozen=True, kw_only=True):
    """What a fold did to one table."""

    name: str
    changes: int
    """How many new envelopes of its family there were."""
    how: str
    """`appended` as an increment, `merged` into the base, or `rebuilt`."""


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


# --- how far silver is ----------------------------------------------------------------------------


def things_are_current(lake: Lake, name: str) -> bool:
    """Whether a table of things was made of the turns that their base has now, and nobody else has
    changed it since.
    """
    made, turns = lake.silver(name), MADE_OF[name]
    return made.txn(turns) == _made_at(lake.silver(turns)) and made.is_as_left is not False


def position(lake: Lake, name: str) -> int:
    """The last batch that a table has taken in; -1 if none."""
    return _Tables.of(lake, name).position


def is_current(lake: Lake, name: str) -> bool:
    """Whether a table has taken in all that its sources have. Not every version of bronze brings
    new envelopes: compaction and vacuum make versions too.
    """
    table = _Tables.of(lake, name)
    at = table.position
    return not table.newer(at) and (at >= 0 or not table.base.files())


def is_little(lake: Lake) -> bool:
    """Whether a fold has so little to read and to write that the driver can do it by itself."""
    tables = [_Tables.of(lake, name) for name in FOLDED]
    since = min(table.position for table in tables)
    new = sum(f.rows for source in (lake.bronze, lake.commits) for f in _newer(source, since))
    written = sum(table.base.rows for table in tables if _is_due(table, new))
    return new <= LAKE_FILE_ROWS and written <= SILVER_SMALL_ROWS


class _Tables(NamedTuple):
    """Base and increments of a table, at the versions that a job works on."""

    name: str
    base: Table
    increments: Table
    sources: Sources
    things: Table | None
    """What is made of the turns of the base; None for a table of anything else."""

    @classmethod
    def of(cls, lake: Lake, name: str) -> _Tables:
        things = lake.silver(MAKES[name]) if name in MAKES else None
        sources = taken.sources_of(lake, name)
        return cls(name, lake.silver(name), lake.increments(name), sources, things)

    @property
    def position(self) -> int:
        return taken.position(self.sources, self.base, self.increments)

    def newer(self, at: int) -> list[File]:
        """The files of its sources that may have rows of later batches."""
        return [file for source in self.sources.tables for file in _newer(source, at)]

    @property
    def makes(self) -> FileWriter | None:
        return None if self.things is None else self.things.writer()


# --- folding -------------------------------------------------------------------------------------


def fold_lake(
    spark: SparkSession | Workers,
    lake: Lake,
    *,
    full: bool = False,
    progress: Progress = no_progress,
) -> FoldReport:
    """Brings silver up to date with bronze; with `full` all of it is rebuilt."""
    began, workers = time.monotonic(), workers_of(spark, lake.proof)
    lake = _widened(lake.fresh())
    tables = {name: _Tables.of(lake, name) for name in FOLDED}
    progress("fold", 0, len(FOLDED))
    plans = _planned(workers, lake, tables, full=full)
    made = _carried_out(workers, lake, plans)
    done: list[TableFold] = []
    for number, (name, table) in enumerate(tables.items()):
        progress(f"fold {name}", number, len(FOLDED))
        one = made.get(name)
        anew = name in plans and plans[name].how == REBUILT and table.base.exists
        if one and (one.changes or one.is_touched or anew):
            _commit(table, plans[name], one)
            done.append(TableFold(name=name, changes=one.changes, how=plans[name].how))
        elif table.newer(table.position) or not table.base.exists:
            _note(table)
        if table.things is not None:
            _make_things(workers, lake, name)
    progress("fold", len(FOLDED), len(FOLDED))
    seconds = time.monotonic() - began
    return FoldReport(version=lake.bronze.version, tables=done, seconds=seconds)


def _widened(lake: Lake) -> Lake:
    """With all columns, also where an earlier version of Holdfast made the tables."""
    tables = [table for name in FOLDED for table in (lake.silver(name), lake.increments(name))]
    grown = [table for table in tables if table.widened() is not table]
    return lake.fresh() if grown else lake


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a table is folded."""

    how: str
    since: int
    buckets: int
    spans: list[Span]


class _Made(msgspec.Struct, kw_only=True):
    """What the tasks made of a table."""

    changes: int = 0
    spans: list[tuple[Span, Gathered]] = []

    @property
    def is_touched(self) -> bool:
        return any(one.made for _, one in self.spans)

    @property
    def files(self) -> list[File]:
        return [file for _, one in self.spans for file in one.files]

    @property
    def things(self) -> list[File]:
        return [file for _, one in self.spans for file in one.things]


class _Amount(NamedTuple):
    """Rows of bronze, and about how many bytes they have."""

    rows: int
    size: int


def _planned(
    workers: Workers, lake: Lake, tables: Mapping[str, _Tables], *, full: bool
) -> dict[str, _Plan]:
    """How each table is folded that may have something new."""
    since = {name: -1 if full else table.position for name, table in tables.items()}
    files = _newer(lake.bronze, min(since[name] for name in since if ops_of(name)))
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)

    def with_changes(changes: Mapping[str, int], parallelism: int) -> dict[str, _Plan]:
        return {
            name: _plan_table(
                table,
                since[name],
                _Amount(changes[name], size * changes[name] // max(1, rows)),
                parallelism,
            )
            for name, table in tables.items()
            if changes[name] or (since[name] < 0 and table.base.exists)
        }

    at_most = {name: sum(f.rows for f in tables[name].newer(at)) for name, at in since.items()}
    if _is_decided(tables, at_most):
        plans = with_changes(at_most, 1)
        if not any(span.forced for plan in plans.values() for span in plan.spans):
            return plans
    # A table that is written again whatever comes must have something new.
    found = count_new(workers, lake.bronze, files, since)
    for name in COMMITTED:
        found[name] += sum(file.rows for file in _newer(lake.commits, since[name]))
    return with_changes(found, workers.parallelism)


def _is_decided(tables: Mapping[str, _Tables], at_most: Mapping[str, int]) -> bool:
    """Whether it is clear what to do with each table without a count of what is new for it."""
    if max(at_most.values()) > FOLD_FILE_ROWS:
        return False
    for name, table in tables.items():
        base, waiting = table.base.rows, table.increments.rows
        if is_behind(base, waiting + at_most[name]) and not is_behind(base, waiting):
            return False
    return True


def _plan_table(table: _Tables, since: int, new: _Amount, parallelism: int) -> _Plan:
    if since >= 0 and _is_due(table, new.rows):
        spans = _merging(table, new, parallelism)
        return _Plan(how="merged", since=since, buckets=FOLD_BUCKETS, spans=spans)
    rebuilt = since < 0
    target = table.base if rebuilt else table.increments
    buckets = FOLD_BUCKETS if rebuilt else buckets_of(table.base)
    spans = spans_of(
        table.name,
        spans_for(*new, parallelism),
        buckets=buckets,
        writer=target.writer(),
        makes=table.makes if rebuilt else None,
    )
    how = REBUILT if rebuilt else "appended"
    return _Plan(how=how, since=since, buckets=buckets, spans=spans)


def _is_due(table: _Tables, new: int) -> bool:
    """Whether what waits is merged into the base. Increments of another number of buckets were left
    by a job that was killed after it had merged them.
    """
    base, increments = table.base, table.increments
    left = bool(increments.files()) and buckets_of(increments) != buckets_of(base)
    return left or is_behind(base.rows, increments.rows + new)


def is_behind(base: int, waiting: int) -> bool:
    """Whether so many waiting rows should be merged into a base of that size."""
    if base <= SILVER_SMALL_ROWS or waiting > SILVER_BEHIND_ROWS_MAX:
        return True
    return waiting * 100 > base * SILVER_BEHIND_PERCENT_MAX


def _merging(table: _Tables, new: _Amount, parallelism: int) -> list[Span]:
    """The spans of a table whose base takes in its increments and what is new."""
    both = (table.base, table.increments)
    rows = new.rows + sum(part.rows for part in both)
    size = new.size + sum(file.size for part in both for file in part.files())
    return spans_of(
        table.name,
        spans_for(rows, size, parallelism),
        buckets=FOLD_BUCKETS,
        writer=table.base.writer(),
        base=held_files(table.base),
        increments=held_files(table.increments),
        makes=table.makes,
    )


def held_files(table: Table) -> HeldFiles:
    return HeldFiles(reader=table.reader(), files=tuple(table.files()), buckets=buckets_of(table))


def buckets_of(table: Table) -> int:
    """How many buckets a table has; that is noted in its commits, as the position is."""
    noted = table.txn(BUCKETS)
    return BUCKETS_COARSE if noted is None else noted


def _newer(source: Table, version: int) -> list[File]:
    """The files of bronze or commits that may have rows of later batches than this one."""
    return source.files(lambda file: file.may_hold("batch", version + 1, LAMPORT_MAX))


def _carried_out(workers: Workers, lake: Lake, plans: Mapping[str, _Plan]) -> dict[str, _Made]:
    """What the tasks made of bronze: all tables together, in one exchange."""
    made = {name: _Made() for name in plans}
    if not plans:
        return made
    files = _since(lake.bronze, [plan for name, plan in plans.items() if ops_of(name)])
    committed = _since(lake.commits, [plan for name, plan in plans.items() if name in COMMITTED])
    spans = [span for plan in plans.values() for span in plan.spans]
    scatter = Scatter(
        bronze=lake.bronze.reader(),
        shares=shares_of(files, workers.parallelism),
        routes=_routes(plans),
        commits=lake.commits.reader(),
        commit_shares=shares_of(committed, workers.parallelism),
        lost=lake.known_commits.lost if committed else {},
    )
    tasks = len(scatter.shares) + len(scatter.commit_shares)
    found = workers.exchange("fold", scatter, tasks, Gather(spans=spans), len(spans))
    read = sum(one.rows for one in found.scattered)
    planned = sum(file.rows for file in (*files, *committed))
    if read != planned:
        raise JobFailed(f"fold: {read} rows of bronze were read where there are {planned}")
    for one in found.scattered:
        for name, changes in one.changes.items():
            made[name].changes += changes
    for span, gathered in zip(spans, found.gathered, strict=False):
        made[span.name].spans.append((span, gathered))
    return made


def _since(source: Table, plans: Sequence[_Plan]) -> list[File]:
    """The files of a source that have something new for these tables."""
    return _newer(source, min(plan.since for plan in plans)) if plans else []


def _routes(plans: Mapping[str, _Plan]) -> list[TableRoute]:
    """Where the rows of each table go: the spans of all tables are numbered in one row."""
    routes: list[TableRoute] = []
    first = 0
    for name, plan in plans.items():
        starts = [span.first for span in plan.spans]
        routes.append(
            TableRoute(
                name=name, since=plan.since, buckets=plan.buckets, first=first, starts=starts
            )
        )
        first += len(starts)
    return routes


# --- committing ----------------------------------------------------------------------------------


def _commit(table: _Tables, plan: _Plan, made: _Made) -> None:
    txns = {**taken.notes(table.sources), BUCKETS: plan.buckets}
    _check_written(table.name, made)
    if plan.how == "appended":
        noted = taken.notes(table.sources, table.base)
        table.increments.commit(made.files, txns={**txns, **noted})
    elif plan.how == REBUILT:
        _commit_base(table, made, table.base.files(), txns)
    elif made.is_touched:
        _commit_base(table, made, _replaced(table, made), txns)
    else:
        _note(table)


def _commit_base(
    table: _Tables, made: _Made, remove: Sequence[File], txns: Mapping[str, int]
) -> None:
    """Commits the files of a base that the tasks have written, and drops the increments."""
    table.base.commit(made.files, remove, txns=txns)
    if table.increments.files() or table.increments.is_as_left is False:
        _drop(table.increments, {**txns, taken.BASE: txns[BRONZE]})
    if table.things is not None:
        _commit_things(table.name, table.things, made, table.base.fresh())


def _drop(increments: Table, txns: Mapping[str, int]) -> None:
    increments.commit([], increments.files(), txns=txns)


def _commit_things(name: str, things: Table, made: _Made, turns: Table) -> None:
    """`turns`: the base that the things were made of."""
    txns = {name: _made_at(turns) or 0, BUCKETS: FOLD_BUCKETS}
    things.commit(made.things, things.files(), txns=txns)


def _note(table: _Tables) -> None:
    """Notes that there is nothing new for a table, so that the next fold need not find that out
    again. It makes the table if there is none yet, so that other tools can read every table.
    """
    if table.base.exists:
        table.increments.commit([], txns=taken.notes(table.sources, table.base))
    else:
        table.base.commit([], txns=taken.notes(table.sources))


def _check_written(name: str, made: _Made) -> None:
    """What a task has lost on its way into files must not be committed."""
    for _, one in made.spans:
        for kept, files in ((one.kept, one.files), (one.things_kept, one.things)):
            written = sum(file.rows for file in files)
            if kept != written:
                raise JobFailed(f"fold {name}: {kept} rows were to be written, {written} were")


def _replaced(table: _Tables, made: _Made) -> list[File]:
    """The files of a base that the tasks have written again. All rows of these and of all
    increments must have been read.
    """
    read: Counter[str] = Counter()
    again: set[str] = set()
    for span, one in made.spans:
        read.update(one.held)
        if one.made and span.base is not None:
            again.update(file.path for file in span.base.files)
    replaced = table.base.files(lambda file: file.path in again)
    for file in (*replaced, *table.increments.files()):
        if read[file.path] != file.rows:
            raise JobFailed(
                f"{read[file.path]} of {file.rows} rows of {file.path} were merged into "
                f"{table.base.root}; nothing was changed",
                hint="its rows may not lie in the buckets of their keys: rebuild silver",
            )
    return replaced


# --- things, and compacting ----------------------------------------------------------------------


def _made_at(turns: Table) -> int | None:
    """What up-to-date things have noted: which files their turns have."""
    return fingerprint(file.path for file in turns.files()) if turns.exists else None


def _make_things(workers: Workers, lake: Lake, name: str) -> None:
    """Makes the things of the turns of a base, if they were not made with them: a job was killed
    between the two, or there are no turns yet.
    """
    lake = lake.fresh()
    if things_are_current(lake, MAKES[name]):
        return
    table = _Tables.of(lake, name)
    assert table.things is not None
    spans = [
        msgspec.structs.replace(span, forced=True, increments=None, writer=None)
        for span in _merging(table, _Amount(0, 0), workers.parallelism)
    ]
    found = workers.run(
        f"make {MAKES[name]}", Gather(spans=spans), len(spans) if table.base.rows else 0
    )
    made = _Made(spans=list(zip(spans, found, strict=False)))
    _check_written(name, made)
    _commit_things(name, table.things, made, table.base)


def compact(
    workers: Workers,
    lake: Lake,
    names: Sequence[str] = FOLDED,
    *,
    progress: Progress = no_progress,
) -> list[str]:
    """Merges all increments into their bases, rewriting only files with buckets that changed;
    returns the tables that had increments.
    """
    lake = lake.fresh()
    wanted = [name for name in FOLDED if name in names or MAKES.get(name) in names]
    tables = {name: _Tables.of(lake, name) for name in wanted}
    # What was changed by others is folded again from the start, and not put together.
    due = [
        name for name, table in tables.items() if table.increments.files() and table.position >= 0
    ]
    progress("compact silver", 0, len(wanted))
    spans = [
        span for name in due for span in _merging(tables[name], _Amount(0, 0), workers.parallelism)
    ]
    gather = Gather(spans=spans)
    made = {name: _Made() for name in due}
    for span, one in zip(spans, workers.run("compact silver", gather, len(spans)), strict=True):
        made[span.name].spans.append((span, one))
    for number, name in enumerate(wanted):
        progress(f"compact {name}", number, len(wanted))
        if name in made:
            table = tables[name]
            _check_written(name, made[name])
            txns = {**taken.kept_notes(table.base, table.increments), BUCKETS: FOLD_BUCKETS}
            _commit_base(table, made[name], _replaced(table, made[name]), txns)
        if name in MAKES:
            _make_things(workers, lake, name)
    return due
