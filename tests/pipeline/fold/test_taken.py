"""What silver has noted counts only as long as it holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.pipeline.fold import taken
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import arrow_schema
from support.set_back import Harm, cleaned, cloned, put_back, restored


class Silver:
    """A bronze with rows of some batches, and a table with base and increments, as folds leave
    them: batches 0 and 1 in the base, 2 in the increments.
    """

    def __init__(self, folder: Path) -> None:
        self.lake = Lake.open(folder / "lake", create=True)
        self.add(0)
        self.fold("base")
        self.keep("first")
        self.add(1)
        self.fold("base")
        self.keep("second")
        self.add(2)
        self.fold("increments")

    def keep(self, name: str) -> None:
        shutil.copytree(self.lake.root, f"{self.lake.root}-{name}")

    def older(self, name: str, table: Table) -> Path:
        return Path(table.root.replace(self.lake.root, f"{self.lake.root}-{name}", 1))

    @property
    def tables(self) -> dict[str, Table]:
        lake = self.lake.fresh()
        return {
            "bronze": lake.bronze,
            "base": lake.silver("facts"),
            "increments": lake.increments("facts"),
        }

    @property
    def position(self) -> int:
        tables = self.tables
        return taken.position(tables["bronze"], tables["base"], tables["increments"])

    def add(self, batch: int, rows: int = 2) -> None:
        bronze = self.lake.fresh().bronze
        bronze.commit(bronze.stage_rows(rows_of(bronze, batch, rows)).files)

    def fold(self, name: str) -> None:
        tables = self.tables
        table = tables[name]
        notes = taken.notes(tables["bronze"], tables["base"] if name == "increments" else None)
        old = table.files() if name == "base" else []
        table.commit(table.stage_rows(rows_of(table, 0, 1)).files, old, txns=notes)


def rows_of(table: Table, batch: int, rows: int) -> pa.Table:
    schema = arrow_schema(table.schema)
    known = {"batch": batch} if "batch" in schema.names else {}
    return pa.Table.from_pylist([known] * rows, schema=schema)


@pytest.fixture
def silver(tmp_path: Path) -> Silver:
    return Silver(tmp_path)


def test_P3_notes_that_hold_are_the_position(silver: Silver) -> None:
    assert silver.position == 2
    for table in silver.tables.values():
        cleaned(table, Path())
    assert silver.position == 2
    silver.add(3)
    assert silver.position == 2
    # What is put together out of two batches is counted row by row.
    bronze = silver.lake.fresh().bronze
    whole, _ = bronze.load(bronze.files(), [field.name for field in bronze.reader().schema])
    days = pa.nulls(whole.num_rows, pa.date32())
    merged = bronze.stage_rows(whole.append_column("day", days))
    bronze.commit(merged.files, bronze.files(), data_change=False)
    assert silver.position == 2


def _bronze_loses_a_batch(silver: Silver) -> None:
    restored(silver.tables["bronze"], silver.older("second", silver.tables["bronze"]))


def _bronze_of_a_backup(silver: Silver) -> None:
    put_back(silver.tables["bronze"], silver.older("second", silver.tables["bronze"]))


def _lost_rows_come_back(silver: Silver) -> None:
    _bronze_loses_a_batch(silver)
    silver.add(7)


def _base_of(harm: Harm) -> Callable[[Silver], None]:
    def act(silver: Silver) -> None:
        harm(silver.tables["base"], silver.older("first", silver.tables["base"]))

    act.__name__ = f"base_{harm.__name__}"
    return act


def _increments_restored(silver: Silver) -> None:
    silver.add(3)
    silver.fold("increments")
    table = silver.tables["increments"]
    assert table.delta is not None
    table.delta.restore(0)


@pytest.mark.parametrize(
    "harm",
    [
        _bronze_loses_a_batch,
        _bronze_of_a_backup,
        _lost_rows_come_back,
        *map(_base_of, (restored, put_back, cloned)),
        _increments_restored,
    ],
    ids=lambda harm: harm.__name__.strip("_"),
)
def test_P3_a_table_whose_notes_no_longer_hold_is_folded_from_the_start(
    silver: Silver, harm: Callable[[Silver], None]
) -> None:
    harm(silver)
    assert silver.position == -1


def test_P3_increments_of_an_older_day_are_no_harm(silver: Silver) -> None:
    """The base has taken in what they have: merging it twice gives the same."""
    silver.keep("third")
    silver.add(3)
    silver.fold("base")
    put_back(silver.tables["increments"], silver.older("third", silver.tables["increments"]))
    assert silver.position == 3
    shutil.rmtree(silver.tables["increments"].root)
    assert silver.position == 3
