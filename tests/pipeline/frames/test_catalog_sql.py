"""SQL for engines that read Delta by themselves."""

from __future__ import annotations

from pathlib import Path

import duckdb
from deltalake import DeltaTable

from holdfast.pipeline.frames.catalog_sql import Dialect, make_missing, statements
from holdfast.pipeline.frames.frame import LakeFrames
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import MADE_OF, SILVER

SCAN = "CREATE MACRO delta_scan(place) AS TABLE SELECT * FROM read_parquet(place || '/*.parquet')"


def test_P2_the_statements_for_other_engines_name_every_table(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    for dialect in Dialect:
        made = list(statements(lake, dialect, "plants.lake"))
        assert len(made) == 1 + len(LakeFrames(lake).tables) + 2 * len(SILVER) - len(MADE_OF)
        assert f"{lake.root}/gold/findings" in "".join(made)
        assert all(f"{lake.root}/increments/{name}" in "".join(made) for name in ("state", "facts"))
    told = " ".join(statements(lake, Dialect.DELTA, "x"))
    assert "`lamport` COMMENT 'the logical time of the version" in told


def test_P2_duckdb_takes_the_statements_for_a_lake_that_was_never_written_to(
    tmp_path: Path,
) -> None:
    """DuckDB gets its Delta extension from the network, so a function of that name stands in for
    it and reads files with the columns of the tables.
    """
    lake = Lake.open(tmp_path / "lake", create=True)
    assert make_missing(lake) == len(LakeFrames(lake).tables) + len(SILVER) - len(MADE_OF)
    assert make_missing(lake) == 0
    for log in Path(lake.root).rglob("_delta_log"):
        table = DeltaTable(log.parent)
        duckdb.from_arrow(table.to_pyarrow_table()).write_parquet(f"{log.parent}/none.parquet")
    with duckdb.connect() as connection:
        connection.execute(SCAN)
        for statement in statements(lake, Dialect.DUCKDB, "holdfast"):
            connection.execute(statement)
        for name, columns in SILVER.items():
            found = connection.sql(f"SELECT * FROM holdfast.{name}")
            assert found.columns == columns.names
            assert found.fetchall() == []
