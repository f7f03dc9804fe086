"""Planned = read = staged, or nothing is committed and nothing is confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pytest

from holdfast.pipeline.ingest.ingest import IngestReport, ingest_planned
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.ingest.take import Taken
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import JobFailed, LakeNotSeen, LogForked
from holdfast.rules.filters import EVERYTHING, Filter
from support import envelopes
from support.list_log import ListedEntry, ListLog

T = TypeVar("T")


def log_of(name: str, numbers: range, kind: type[ListLog] = ListLog) -> ListLog:
    entries = []
    for offset, number in enumerate(numbers, 1):
        id = envelopes.make_id(number)
        raw = envelopes.state_set("k", number, lamport=1 + number, id=id)
        entries.append(ListedEntry(offset, raw, 10 * number, raw))
    return kind(name, tuple(entries))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


@pytest.fixture
def logs() -> list[ListLog]:
    return [log_of("ana", range(9)), log_of("bob", range(4, 12))]


def ingest(lake: Lake, logs: list[ListLog], workers: DriverWorkers) -> IngestReport:
    return ingest_planned(lambda: workers, lake, make_plan(lake.fresh(), logs))


def assert_untouched(lake: Lake, logs: list[ListLog]) -> None:
    fresh = lake.fresh()
    assert not any(table.exists for table in (fresh.bronze, fresh.sightings, fresh.quarantine))
    assert fresh.positions() == []
    assert all(log.confirmed == {} for log in logs)


class Unmounted(DriverWorkers):
    """Its tasks run where something else lies in the place of the lake."""

    def __init__(self, lake: Lake, there: Callable[[Path], object], proof: bool) -> None:
        self._root = Path(lake.root)
        self._there = there
        self._proof = lake.proof if proof else None

    def run(self, what: str, work: Callable[[int], T], count: int) -> list[T]:
        away = self._root.with_name("away")
        self._root.rename(away)
        self._there(self._root)
        try:
            if self._proof is not None:
                self._proof()
            return super().run(what, work, count)
        finally:
            self._root.rename(self._root.with_name("elsewhere"))
            away.rename(self._root)


def other_lake(root: Path) -> None:
    Lake.open(root, create=True)


@pytest.mark.parametrize("proof", [True, False])
@pytest.mark.parametrize("there", [Path.mkdir, other_lake])
def test_P2_nothing_is_confirmed_that_tasks_wrote_where_the_driver_does_not_see_it(
    lake: Lake, logs: list[ListLog], there: Callable[[Path], object], proof: bool
) -> None:
    with pytest.raises(LakeNotSeen):
        ingest(lake, logs, Unmounted(lake, there, proof))
    assert_untouched(lake, logs)
    # Without the proof they did write, as tasks did before there was one.
    assert proof or list((Path(lake.root).parent / "elsewhere" / "bronze").rglob("*.parquet"))


class Short(ListLog):
    """Ends before its end, without an error."""

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        yield from super().batches(epoch, start, stop - 1, filter)


class Swapped(ListLog):
    """Another log lies where a task looks."""

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        yield from replace(self, name="eve").batches_of_all(epoch, start, stop)

    def batches_of_all(self, epoch: int, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        yield from ListLog.batches(self, epoch, start, stop)


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [(Short, JobFailed, "8 of 9 entries came"), (Swapped, LogForked, "another log lies there")],
)
def test_P2_a_log_that_gives_less_or_something_else_is_left_out_and_named(
    lake: Lake, logs: list[ListLog], kind: type[ListLog], error: type[Exception], says: str
) -> None:
    bad = log_of("ana", range(9), kind)
    report = ingest(lake, [bad, logs[1]], DriverWorkers())
    (failure,) = report.failures
    assert isinstance(failure.error, error)
    assert f"offsets 1 to 9 in epoch 1 of log 'ana' at {bad.location}: " in failure.error.message
    assert says in failure.error.message
    assert bad.confirmed == {}
    assert (report.new, lake.fresh().offsets) == (8, {("bob", 1): 8})


class Lying(DriverWorkers):
    """Its reports are changed on their way."""

    def __init__(self, change: Callable[[Taken], Taken]) -> None:
        self._change = change

    def run(self, what: str, work: Callable[[int], T], count: int) -> list[T]:
        change: Any = self._change
        return [change(one) for one in super().run(what, work, count)]


def without_portion(taken: Taken) -> Taken:
    return msgspec.structs.replace(taken, portions=taken.portions[1:])


def without_range(taken: Taken) -> Taken:
    return msgspec.structs.replace(taken, ranges=taken.ranges[1:])


def without_file(taken: Taken) -> Taken:
    first, *rest = taken.portions
    return msgspec.structs.replace(
        taken, portions=[msgspec.structs.replace(first, bronze=()), *rest]
    )


def with_less_read(taken: Taken) -> Taken:
    first, *rest = taken.ranges
    less = msgspec.structs.replace(first, read=first.read - 1)
    return msgspec.structs.replace(taken, ranges=[less, *rest])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without_portion, "are staged"),
        (without_range, "other ranges"),
        (without_file, "files for bronze have 0 rows"),
        (with_less_read, "9 entries were planned, and 8 were read"),
    ],
)
def test_P2_reports_that_do_not_add_up_change_nothing(
    lake: Lake, logs: list[ListLog], change: Callable[[Taken], Taken], says: str
) -> None:
    report = ingest(lake, logs, Lying(change))
    assert [failure.log for failure in report.failures] == ["ana", "bob"]
    assert says in report.failures[0].error.message
    assert_untouched(lake, logs)


class Twice(DriverWorkers):
    """Every task runs a second time beside the first, as with speculation; one report counts."""

    def run(self, what: str, work: Callable[[int], T], count: int) -> list[T]:
        super().run(what, work, count)
        return super().run(what, work, count)


def test_P2_a_task_that_ran_twice_counts_once(lake: Lake, logs: list[ListLog]) -> None:
    report = ingest(lake, logs, Twice())
    assert (report.failures, report.new, report.again) == ([], 12, 5)
    fresh = lake.fresh()
    assert (fresh.bronze.rows, fresh.sightings.rows) == (12, 5)
    assert len({file.path for file in fresh.bronze.files()}) == len(fresh.bronze.files())
    assert [set(log.confirmed.values()) for log in logs] == [{9}, {8}]
