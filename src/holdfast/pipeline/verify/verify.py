"""Does every node hold what its log makes of it? The lake has the log, so it can tell.

A node says at which offset of its log it stands and gives digests of what it holds (see
`rules.digests` for what they cover). The lake reads up to that offset, folds the envelopes that the
log held (see `expected`) with the code that makes silver, and makes the same digests. Where a
bucket differs, the rows of both sides are fetched and the first that differs is named, with its
stamps and envelope ids.

A node that has not received everything yet is not wrong. It is compared with what it has received,
and the rows of silver that it will still receive are counted as `behind`. Silver itself must have
all that the logs make, or what replaced it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from pyspark.sql import SparkSession

from holdfast.node.log.digests import BucketRows, Digests, HeldRow, TableDigests
from holdfast.pipeline.fold.silver import is_current
from holdfast.pipeline.fold.turned import turns_table
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.spark.workers import DriverWorkers, Workers
from holdfast.pipeline.verify.digests import Searching, Tallies, Tallying
from holdfast.pipeline.verify.expected import (
    OffsetRange,
    ReadRanges,
    Scope,
    count_of,
    ranges_of,
    read_ranges,
)
from holdfast.pipeline.verify.job import look_at
from holdfast.pipeline.verify.node_digests import NodeDigests, node_digests
from holdfast.pipeline.verify.silver import Gaps
from holdfast.rules import digests as rules
from holdfast.rules.digests import DigestTally
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import AUDIT_DRIVER_ROWS_MAX, VERIFY_DRIVER_ROWS_MAX

Status = Literal["same", "differs", "unsure", "skipped"]
_ROWS_APART_MAX: Final = 100
_STEPS: Final = 2
"""The steps of a run besides one for each node: reading, and folding."""
_LOG: Final = "log"
_CHANGED: Final = (
    "the node has other bytes for this entry than the lake has read; "
    "if they have changed there, run: holdfast doctor --repair --lake FOLDER"
)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first row of a table that the two sides have differently."""

    mesh: str
    table: str
    bucket: str
    key: list[Any]
    """The key of the row in its mesh and table; empty if the row was not found."""
    node: dict[str, Any] | None
    """The row as the node has it, with its stamp and envelope id; None if the node has none."""
    lake: dict[str, Any] | None
    """The row as the log makes it; None if the log makes none."""
    note: str = ""


class TableReport(msgspec.Struct, frozen=True, kw_only=True):
    """One table of one mesh, compared."""

    mesh: str
    table: str
    rows: int
    """How many rows the node has."""
    expected: int
    """How many rows its log makes."""
    buckets: int
    """In how many of the 256 buckets the two differ."""


class VerifiedLog(msgspec.Struct, frozen=True, kw_only=True):
    """One node, compared."""

    log: str
    location: str
    status: Status
    reason: str = ""
    """Why the node is unsure or was skipped, or differs for another reason than one of its rows."""
    epoch: int = 0
    head: int = 0
    """Where the node stood in its log."""
    tables: tuple[TableReport, ...] = ()
    differences: tuple[Difference, ...] = ()
    """The first differing row of every table that differs."""
    behind: dict[str, int] = {}
    """By table: rows of silver that this node has not received yet, or not in that version."""
    astray: dict[str, int] = {}
    """By table: rows that the log makes and that silver has in an older version, or not at all.
    That is an error, unless silver has not been folded since the log was read."""

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for all nodes. Only the status `differs` is an error."""

    logs: tuple[VerifiedLog, ...]

    @property
    def differs(self) -> bool:
        return any(log.status == "differs" for log in self.logs)


class _NodeAnswer(msgspec.Struct, frozen=True):
    """A node and the digests that it gave."""

    number: int
    log: ReadableLog
    name: str
    source: NodeDigests
    digests: Digests

    def scope(self, spans: Sequence[OffsetRange]) -> Scope:
        forgotten = {mesh: held.forgotten_lamport for mesh, held in self.digests.meshes.items()}
        return Scope(self.number, self.name, spans, self.digests.first, forgotten, self.commits)

    @property
    def commits(self) -> dict[str, int]:
        """By mesh with voters: the last commit that the node has folded."""
        meshes = self.digests.meshes.items()
        return {mesh: held.commit_number for mesh, held in meshes if held.commit_number}


def verify_nodes(
    spark: SparkSession | Callable[[], SparkSession] | None,
    lake: Lake,
    logs: Sequence[ReadableLog],
    *,
    catch_up: Callable[[], object] | None = None,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Compares nodes with the lake. `catch_up` is called to read their logs into the lake up to
    their heads; without it a log that has grown since it was last read cannot be judged. `spark`
    may be a function that starts Spark: up to some million rows the driver does the work by itself.
    Without `spark` it always does.
    """
    run = _Run(spark, lake, catch_up, progress, steps=len(logs) + _STEPS)
    reports: dict[int, VerifiedLog] = {}
    answers: list[_NodeAnswer] = []
    for number, log in enumerate(logs):
        run.tell(f"{log.location}: asking for digests")
        try:
            one = _ask(number, log)
        except HoldfastError as error:
            # A node that is away must not stop the comparison of the others.
            reports[number] = VerifiedLog(
                log="", location=log.location, status="unsure", reason=error.message
            )
        else:
            if isinstance(one, VerifiedLog):
                reports[number] = one
            else:
                answers.append(one)
    with spark_errors("verify"):
        reports.update(run.compare(answers) if answers else {})
    return VerifyReport(logs=tuple(reports[number] for number in sorted(reports)))


def _ask(number: int, log: ReadableLog) -> _NodeAnswer | VerifiedLog:
    """Asks a node for its digests; gives the report at once for a log without tables."""
    name, source = log.place().log, node_digests(log)
    if source is not None:
        return _NodeAnswer(number, log, name, source, source.digests())
    reason = "a broker or an export holds a log and no tables"
    return VerifiedLog(log=name, location=log.location, status="skipped", reason=reason)


class _Run:
    """One comparison of all nodes with one lake."""

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession] | None,
        lake: Lake,
        catch_up: Callable[[], object] | None,
        progress: Progress,
        steps: int,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._catch_up = catch_up
        self._progress = progress
        self._step, self._steps = 0, steps
        self._names: list[str] = []
        self._read: ReadRanges = {}

    def tell(self, what: str) -> None:
        self._progress(f"verify: {what}", min(self._step, self._steps), self._steps)
        self._step += 1

    def compare(self, answers: Sequence[_NodeAnswer]) -> dict[int, VerifiedLog]:
        self._update(sorted({one.name for one in answers}))
        reports: dict[int, VerifiedLog] = {}
        judged: list[tuple[_NodeAnswer, Scope, str]] = []
        for one in answers:
            node = one.digests
            spans, missing = ranges_of(self._read[one.name], node.epoch, node.first, node.head)
            if unread := self._unread(one.commits):
                reports[one.number] = _report(one, "unsure", unread)
            elif spans:
                judged.append((one, one.scope(spans), missing))
            else:
                reports[one.number] = _report(one, "unsure", missing)
        if not judged:
            return reports
        scopes = [scope for _, scope, _ in judged]
        self.tell(f"folding what {len(scopes)} logs held")
        look, near = look_at(self._crew(scopes), self._lake, scopes, Tallying(_forgotten(scopes)))
        for one, scope, missing in judged:
            reports[one.number] = self._judge(one, scope, missing, look.found, near)
        return reports

    def _unread(self, commits: Mapping[str, int]) -> str:
        """Which commits the lake lacks that a node has folded, in a sentence; empty if none."""
        known = self._lake.known_commits if commits else None
        for mesh, last in sorted(commits.items()):
            assert known is not None
            if lacking := known.first_lacking(mesh, last):
                return f"the lake has not read commit {lacking} of {mesh}, the node is at {last}"
        return ""

    def _crew(self, scopes: Sequence[Scope] = ()) -> Workers:
        """The driver itself if there is little to do, else Spark."""
        rows = self._lake.bronze.rows + self._lake.sightings.rows
        little = rows <= AUDIT_DRIVER_ROWS_MAX and count_of(scopes) <= VERIFY_DRIVER_ROWS_MAX
        if little or self._spark is None:
            return DriverWorkers()
        if callable(self._spark):
            self._spark = self._spark()
        return SparkWorkers(self._spark, self._lake.proof)

    def _update(self, names: list[str]) -> None:
        """Lets the lake catch up with the nodes, and notes what it has of their logs."""
        self._names = names
        if self._catch_up is not None:
            self.tell("reading the logs up to where the nodes are")
            self._catch_up()
        self._lake = self._lake.fresh()
        self._read = read_ranges(self._crew(), self._lake, names)

    def _judge(
        self,
        one: _NodeAnswer,
        scope: Scope,
        missing: str,
        made: Tallies,
        near: Gaps,
    ) -> VerifiedLog:
        differences = tuple(self._differences(one, scope, made))
        status: Status = "same"
        reason = ""
        if differences:
            reason = missing or _repaired(one.digests)
            status = "unsure" if reason else "differs"
        behind, astray = _counts(scope, near)
        lacks = [table for table, count in astray.items() if count and self._is_folded(table)]
        if lacks:
            status = "differs"
            reason = f"silver lacks what this log makes, in {', '.join(lacks)}, though it is folded"
        return msgspec.structs.replace(
            _report(one, status, reason),
            tables=tuple(_tables(one.digests, scope, made)),
            differences=differences,
            behind=behind,
            astray=astray,
        )

    def _is_folded(self, table: str) -> bool:
        """Whether silver has taken in all that bronze has."""
        return is_current(self._lake, turns_table(table))

    # --- which row -------------------------------------------------------------------------------

    def _differences(self, one: _NodeAnswer, scope: Scope, made: Tallies) -> Iterator[Difference]:
        """For each table that differs: the first row of the first mesh and bucket that does."""
        for table in rules.TABLES:
            for mesh, held in sorted(one.digests.meshes.items()):
                apart = _apart(held.tables[table], made.get((scope.tag(mesh), table)))
                if apart:
                    self.tell(f"{one.name}: {table} of {mesh} differs, looking for the row")
                    yield self._first_row(one, scope, mesh, table, apart[0])
                    break

    def _first_row(
        self, one: _NodeAnswer, scope: Scope, mesh: str, table: str, bucket: str
    ) -> Difference:
        difference = Difference(mesh=mesh, table=table, bucket=bucket, key=[], node=None, lake=None)
        try:
            rows = one.source.bucket_rows(mesh, table, bucket)
        except HoldfastError as error:
            return msgspec.structs.replace(difference, note=f"no rows came: {error.message}")
        if (rows.epoch, rows.head) != (one.digests.epoch, one.digests.head):
            # The node has changed since it made its digests; so the lake has to catch up.
            spans = self._spans_at(one.name, rows)
            if not spans:
                note = f"the node went on to offset {rows.head} before its rows were fetched"
                return msgspec.structs.replace(difference, note=note)
            scope = scope._replace(spans=spans, first=rows.first)
        if self._unread({mesh: rows.commit_number} if rows.commit_number else {}):
            note = f"the node went on to commit {rows.commit_number} before its rows were fetched"
            return msgspec.structs.replace(difference, note=note)
        scope = scope._replace(commits={mesh: rows.commit_number})
        # Only what can be in the bucket is made once more.
        scope = scope._replace(forgotten={mesh: rows.forgotten_lamport})
        known = {row.digest for row in rows.rows}
        number, bound = rules.parse_bucket(bucket), rows.forgotten_lamport
        search = Searching(table, number, bound, known, _ROWS_APART_MAX)
        crew = self._crew([scope])
        search, _ = look_at(crew, self._lake, [scope], search, tables=[table], silver=False)
        found = _first(rows, search.matched, search.apart)
        if found is None:
            return msgspec.structs.replace(difference, note=_not_found(one.digests, rows))
        key, node, lake = found
        changed = table == _LOG and node is not None and lake is not None
        return msgspec.structs.replace(
            difference,
            key=key,
            node=None if node is None else node.row,
            lake=None if lake is None else lake.row,
            note=_CHANGED if changed else "",
        )

    def _spans_at(self, name: str, rows: BucketRows) -> list[OffsetRange]:
        spans, _ = ranges_of(self._read[name], rows.epoch, rows.first, rows.head)
        if not spans and self._catch_up is not None:
            self._update(self._names)
            spans, _ = ranges_of(self._read[name], rows.epoch, rows.first, rows.head)
        return spans


def _first(
    rows: BucketRows, matched: set[str], apart: list[HeldRow]
) -> tuple[list[Any], HeldRow | None, HeldRow | None] | None:
    """The first key that the two sides have differently, with the rows of both; None if the first
    rows are the same.
    """
    node = {tuple(row.key): row for row in rows.rows if row.digest not in matched}
    lake = {tuple(row.key): row for row in apart}
    keys = sorted(node.keys() | lake.keys())
    if rows.more and rows.rows:
        # The node gave only its first rows: nothing is known of later keys.
        keys = [key for key in keys if list(key) <= rows.rows[-1].key]
    if not keys:
        return None
    return list(keys[0]), node.get(keys[0]), lake.get(keys[0])


def _not_found(digests: Digests, rows: BucketRows) -> str:
    if rows.more:
        return "the bucket has too many rows, and the first of them are the same"
    if rows.head != digests.head or rows.epoch != digests.epoch:
        return f"it differed at offset {digests.head} and no longer does at {rows.head}"
    return "the digests differ and the rows do not; a row may be there twice"


def _tables(digests: Digests, scope: Scope, made: Tallies) -> Iterator[TableReport]:
    for mesh, held in digests.meshes.items():
        for table in rules.TABLES:
            tally = made.get((scope.tag(mesh), table))
            yield TableReport(
                mesh=mesh,
                table=table,
                rows=held.tables[table].rows,
                expected=0 if tally is None else tally.rows,
                buckets=len(_apart(held.tables[table], tally)),
            )


def _apart(held: TableDigests, made: DigestTally | None) -> list[str]:
    """The buckets that differ, in order."""
    ours = {} if made is None else made.digests()
    return sorted(
        bucket
        for bucket in held.buckets.keys() | ours.keys()
        if held.buckets.get(bucket) != ours.get(bucket)
    )


def _counts(scope: Scope, near: Gaps) -> tuple[dict[str, int], dict[str, int]]:
    """Rows that the node lacks, and rows that silver lacks, by table."""
    behind: dict[str, int] = {}
    astray: dict[str, int] = {}
    for table in rules.TABLES:
        if table != _LOG:
            found = [near.get((scope.tag(mesh), table)) for mesh in scope.forgotten]
            behind[table] = sum(one.behind for one in found if one is not None)
            astray[table] = sum(one.astray for one in found if one is not None)
    return behind, astray


def _report(one: _NodeAnswer, status: Status, reason: str) -> VerifiedLog:
    return VerifiedLog(
        log=one.name,
        location=one.log.location,
        status=status,
        reason=reason,
        epoch=one.digests.epoch,
        head=one.digests.head,
    )


def _forgotten(scopes: Sequence[Scope]) -> dict[str, int]:
    return {scope.tag(mesh): stamp for scope in scopes for mesh, stamp in scope.forgotten.items()}


def _repaired(digests: Digests) -> str:
    if digests.repaired_to is None:
        return ""
    return f"entries up to offset {digests.repaired_to} of its log were lost and it was repaired"
