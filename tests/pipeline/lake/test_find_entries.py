"""Damaged entries of a home, found again in a lake."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import apsw
from pyspark.sql import SparkSession

from holdfast.node.library.node import open_node
from holdfast.node.recovery.refetch import refetch_entries
from holdfast.pipeline.lake.find_entries import find_entries
from holdfast.pipeline.lake.lake import Lake
from support.filled_lake import pour
from support.keeping import fill, make_home, team


def test_P2_a_damaged_entry_is_found_again_in_a_lake(spark: SparkSession, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with make_home(home) as node:
        fill(team(node), 3)
        were = [entry.raw for entry in node.log.range()]
    lake = Lake.open(tmp_path / "lake", create=True)
    assert list(find_entries(lake, ["x"])) == [], "a lake that has nothing yet"
    pour(lake, home)
    with closing(apsw.Connection(str(home / "data.db"))) as connection:
        connection.execute("UPDATE log SET raw = zeroblob(50) WHERE offset IN (2, 7)")
    found = refetch_entries(home, {"the lake": partial(find_entries, lake.fresh())})
    assert found.mended == (2, 7)
    with open_node(home) as node:
        assert [entry.raw for entry in node.log.range()] == were
