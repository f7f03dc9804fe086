"""What silver has noted counts only as long as it holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from holdfast.pipeline.fold import silver, taken
from holdfast.pipeline.fold.silver import FOLDED, compact, fold_lake
from holdfast.pipeline.frames.frame import LakeFrames
from holdfast.pipeline.jobs.run import needs_fold
from holdfast.pipeline.lake.checked import checked
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import SILVER, arrow_schema
from holdfast.pipeline.spark.workers import DriverWorkers
from support.read_in_turns import ReadInTurns, read_in_turns
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
        return taken.position(taken.Sources(tables["bronze"]), tables["base"], tables["increments"])

    def add(self, batch: int, rows: int = 2) -> None:
        bronze = self.lake.fresh().bronze
        bronze.commit(bronze.stage_rows(rows_of(bronze, batch, rows)).files)

    def fold(self, name: str) -> None:
        tables = self.tables
        table = tables[name]
        sources = taken.Sources(tables["bronze"])
        notes = taken.notes(sources, tables["base"] if name == "increments" else None)
        old = table.files() if name == "base" else []
        table.commit(table.stage_rows(rows_of(table, 0, 1)).files, old, txns=notes)


def rows_of(table: Table, batch: int, rows: int) -> pa.Table:
    schema = arrow_schema(table.schema)
    known = {"batch": batch} if "batch" in schema.names else {}
    return pa.Table.from_pylist([known] * rows, schema=schema)


@pytest.fixture
def tables(tmp_path: Path) -> Silver:
    return Silver(tmp_path)


def test_P3_notes_that_hold_are_the_position(tables: Silver) -> None:
    assert tables.position == 2
    for table in tables.tables.values():
        cleaned(table, Path())
    assert tables.position == 2
    tables.add(3)
    assert tables.position == 2
    # What is put together out of two batches is counted row by row.
    bronze = tables.lake.fresh().bronze
    whole, _ = bronze.load(bronze.files(), [field.name for field in bronze.reader().schema])
    days = pa.nulls(whole.num_rows, pa.date32())
    merged = bronze.stage_rows(whole.append_column("day", days))
    bronze.commit(merged.files, bronze.files(), data_change=False)
    assert tables.position == 2


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
    tables: Silver, harm: Callable[[Silver], None]
) -> None:
    harm(tables)
    assert tables.position == -1


def test_P3_increments_of_an_older_day_are_no_harm(tables: Silver) -> None:
    """The base has taken in what they have: merging it twice gives the same."""
    tables.keep("third")
    tables.add(3)
    tables.fold("base")
    put_back(tables.tables["increments"], tables.older("third", tables.tables["increments"]))
    assert tables.position == 3
    shutil.rmtree(tables.tables["increments"].root)
    assert tables.position == 3


def rows_in(lake: Lake) -> dict[str, list[Any]]:
    """The state that a reader of the lake finds."""
    frames = LakeFrames(lake.fresh())
    return {name: sorted(map(repr, frames[name].arrow().to_pylist())) for name in FOLDED}


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> ReadInTurns:
    """Folded after each half. Some tables have a base of the first half with increments on it, and
    in the others these are merged.
    """

    def fold(lake: Lake) -> None:
        fold_lake(DriverWorkers(), lake)
        compact(DriverWorkers(), lake, ["state", "facts", "task_events"])

    folder = tmp_path_factory.mktemp("folded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(silver, "SILVER_SMALL_ROWS", 0)
        patch.setattr(silver, "SILVER_BEHIND_PERCENT_MAX", 10_000)
        found = read_in_turns(folder, fold)
    assert any(found.lake.increments(name).files() for name in FOLDED)
    return found


@pytest.mark.parametrize("harm", [restored, put_back, cloned], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("part", ["bronze", "silver", "increments", "all"])
def test_P3_after_any_table_was_set_back_the_next_fold_makes_the_state_of_bronze(
    folded: ReadInTurns, tmp_path: Path, part: str, harm: Harm
) -> None:
    lake = folded.copied(tmp_path).lake
    of_silver = [f"{kind}/{name}" for kind in ("silver", "increments") for name in SILVER]
    tables = [lake.bronze.root, *(f"{lake.root}/{name}" for name in of_silver)]
    for root in tables:
        older = Path(root.replace(lake.root, str(folded.older), 1))
        if part in (root[len(lake.root) + 1 :].split("/")[0], "all") and older.exists():
            harm(Table(root, StructType([])), older)
    checked(lake.fresh())

    fold_lake(DriverWorkers(), lake.fresh())

    found = rows_in(lake)
    fold_lake(DriverWorkers(), lake.fresh(), full=True)
    assert found == rows_in(lake)


def test_P3_tasks_that_another_tool_has_changed_are_made_again(
    folded: ReadInTurns, tmp_path: Path
) -> None:
    lake = folded.copied(tmp_path).lake
    fold_lake(DriverWorkers(), lake.fresh())
    before = tasks_in(lake)
    assert before
    assert not needs_fold(lake.fresh())
    DeltaTable(lake.silver("tasks").root).delete()
    assert tasks_in(lake) == before
    assert needs_fold(lake.fresh())
    fold_lake(DriverWorkers(), lake.fresh())
    assert not needs_fold(lake.fresh())
    assert tasks_in(lake) == before


def tasks_in(lake: Lake) -> list[Any]:
    rows = (
        LakeFrames(lake.fresh())
        .tasks.arrow()
        .sort_by([("mesh", "ascending"), ("task", "ascending")])
    )
    found: list[Any] = rows.to_pylist()
    return found
