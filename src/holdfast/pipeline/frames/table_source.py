"""The Spark format `holdfast_lake`: a table of a lake as it is when a query asks for it.

    spark.read.format("holdfast_lake").option("table", "state").load("/srv/lake")

It needs no jars. The tables of the state are shown as they are now: each task reads files of the
base and shows over them what was folded since. A catalog of Spark can hold it, so that whoever asks
that catalog gets the current state (`catalog.py`).

Spark finds the format by itself where Holdfast is installed: it looks for packages whose names
begin with `pyspark_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from holdfast.pipeline.frames.frame import LakeFrame, LakeFrames
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reader import fitted
from holdfast.pipeline.lake.schema import arrow_schema
from holdfast.rules.errors import BadInput, UnknownKey
from holdfast.rules.limits import LAKE_FILE_BYTES, SOURCE_BATCH_ROWS

NAME: Final = "holdfast_lake"
_NEEDED: Final = frozenset({"path", "table"})
_SIFT: Final = "pushfilters"
_OVER: Final = None
"""The partition with the rows that are shown over the base."""


class LakeTableSource(spark.DataSource):
    """One table of a lake. Options: `path`, the place of the lake; `table`; all others are given to
    the object store. With `pushFilters` = `true` files without wanted rows are left out, which
    needs spark.sql.python.filterPushdown.enabled.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return self._found()[1].columns

    def reader(self, schema: StructType) -> spark.DataSourceReader:
        sift = str(self._given.get(_SIFT, "")).lower() == "true"
        return (SiftingReader if sift else LakeTableReader)(*self._found(), schema)

    @property
    def _given(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.options.items()}

    def _found(self) -> tuple[Lake, LakeFrame]:
        options = self._given
        if missing := _NEEDED - options.keys():
            raise BadInput(
                f"the format {NAME} needs the option {min(missing)}",
                hint="a table of a catalog gets its options by a view: holdfast pipeline register",
            )
        others = {k: value for k, value in options.items() if k not in {*_NEEDED, _SIFT}}
        lake = Lake.open(options["path"], options=others or None)
        frames, table = LakeFrames(lake), options["table"]
        if table not in frames.tables:
            known = ", ".join(frames.tables)
            raise UnknownKey(f"a lake has no table {table!r}", hint=f"use: {known}")
        return lake, frames[table]


class LakeTableReader(spark.DataSourceReader):
    """Plans and reads. It is made by the driver for one query and travels to its tasks, with the
    rows that are shown over the base; so all tasks see one version of the table.
    """

    def __init__(self, lake: Lake, frame: LakeFrame, schema: StructType) -> None:
        base, self._over = frame.stored()
        self._all = [] if base is None else base.files()
        self._files = None if base is None else base.reader()
        self._schema = arrow_schema(schema)
        self._filters: list[Any] = []
        self._proof = lake.proof

    def partitions(self) -> Sequence[spark.InputPartition]:
        groups: list[Any] = [_OVER] if self._over.rows.num_rows else []
        groups += _shares([file for file in self._all if _may_hold(self._filters, file)])
        # Spark wants one partition at least.
        return [spark.InputPartition(group) for group in groups or [[]]]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        self._proof()
        if partition.value is _OVER:
            yield from fitted(self._over.rows, self._schema).to_batches(SOURCE_BATCH_ROWS)
            return
        for file in partition.value:
            yield from self._rows(file)

    def _rows(self, file: File) -> Iterator[pa.RecordBatch]:
        assert self._files is not None, "only a table that exists has files"
        with self._files.open(file) as opened:
            for rows in opened.batches(rows=SOURCE_BATCH_ROWS):
                for name, value in file.partition.items():
                    day = None if value is None else date.fromisoformat(value)
                    rows = rows.append_column(name, pa.repeat(day, rows.num_rows))
                for batch in rows.combine_chunks().to_batches():
                    shown = self._over.shown(batch)
                    if shown.num_rows:
                        yield from fitted(pa.table(shown), self._schema).to_batches()


class SiftingReader(LakeTableReader):
    """Leaves out whole files by the filters of a query. Spark raises an error if a reader can do
    that and the session does not allow it.
    """

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:
        self._filters = filters
        return filters  # Spark filters the rows itself


def _shares(files: Sequence[File]) -> list[list[File]]:
    """The files of each task: neighbours, together about as large as a file should be."""
    shares: list[list[File]] = []
    size = LAKE_FILE_BYTES
    for file in files:
        if size + file.size > LAKE_FILE_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(file)
        size += file.size
    return shares


def _may_hold(filters: Sequence[Any], file: File) -> bool:
    """Whether a file may have rows that all filters let pass, by its bounds."""
    return all(_bounds(term, file) for term in filters)


def _bounds(term: Any, file: File) -> bool:
    """Whether a file may have rows that this filter lets pass."""
    column: tuple[str, ...] = getattr(term, "attribute", ())
    name = column[0] if len(column) == 1 else ""
    low, high = file.low.get(name), file.high.get(name)
    given: Any = getattr(term, "value", None)
    values: list[Any] = list(given) if isinstance(term, spark.In) else [given]
    if low is None or high is None or any(type(value) is not type(low) for value in values):
        return True
    if isinstance(term, spark.EqualTo | spark.In):
        return any(low <= value <= high for value in values)
    if isinstance(term, spark.GreaterThan | spark.GreaterThanOrEqual):
        return bool(high >= given)
    if isinstance(term, spark.LessThan | spark.LessThanOrEqual):
        return bool(low <= given)
    return True
