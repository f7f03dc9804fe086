"""Where a quorum decides, silver is what nodes hold: by the order of commits, not by stamps.

The homes are real, the order is random, and the lake reads it in pieces: bronze and commits apart,
in any cuts, with limits so low that all ways of folding are taken.
"""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.node.library.node import open_node
from holdfast.pipeline.fold import silver
from holdfast.pipeline.fold.current import current
from holdfast.pipeline.fold.silver import compact, fold_lake
from holdfast.pipeline.frames.changes import changes
from holdfast.pipeline.frames.frame import LakeFrames
from holdfast.pipeline.history import backfill, state_as_of
from holdfast.pipeline.ingest.commits import ingest_commits
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.jobs.run import run
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import SILVER
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.query import run_query, table_rows
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import BadInput
from support.daemon import make_home
from support.envelopes import MESH
from support.lake_rows import Rows, arrow_rows, held, silver_rows
from support.seeds import seeds
from support.sparkless import no_spark
from support.strong_orders import StrongOrder

TABLES = ("tasks", "task_events", "entities", "entity_revisions")


def rows_of(home: Path) -> Rows:
    with open_node(home, sync="normal") as node:
        return held(node._engine.store)


def assert_same(lake: Lake, home: Path) -> None:
    frames, there = LakeFrames(lake.fresh()), rows_of(home)
    for name in TABLES:
        assert arrow_rows(name, frames[name].arrow()) == there[name], name


@pytest.mark.parametrize("seed", seeds(4))
def test_P3_silver_of_a_mesh_with_voters_is_what_its_nodes_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    homes = [make_home(tmp_path / name, name, MESH) for name in ("ana", "bob")]
    order = StrongOrder(seed, homes[0])
    lake = Lake.open(tmp_path / "lake", create=True)
    for _ in range(rng.randint(2, 4)):
        monkeypatch.setattr(silver, "SILVER_SMALL_ROWS", rng.choice((0, 200_000)))
        monkeypatch.setattr(silver, "SILVER_BEHIND_PERCENT_MAX", rng.choice((10, 10_000)))
        order.grow(60)
        order.spread(homes[1])
        logs = [open_log(str(home)) for home in homes[: rng.randint(1, 2)]]
        report = run(no_spark, lake.fresh(), logs, fold=False)
        assert report.ok, report.failures
        if rng.random() < 0.7:
            fold_lake(DriverWorkers(), lake)
        if rng.random() < 0.3:
            compact(DriverWorkers(), lake)
        # What was committed after the envelopes were read comes with the next commits.
        order.grow(5)
        ingest_commits(lake, make_plan(lake.fresh(), logs))
        fold_lake(DriverWorkers(), lake, full=rng.random() < 0.1)
        for log in logs:
            log.close()
        assert fold_lake(DriverWorkers(), lake).tables == []
        assert_same(lake, homes[0])
    compact(DriverWorkers(), lake)
    assert_same(lake, homes[0])
    assert {outcome for _, outcome in order.outcomes} >= {"applied", "superseded", "refused"}


def test_Q13_commits_that_a_recovery_has_left_behind_are_in_the_lake_and_not_in_the_state(
    tmp_path: Path,
) -> None:
    homes = [make_home(tmp_path / name, name, MESH) for name in ("ana", "bob")]
    order = StrongOrder(9, homes[0])
    order.grow(40)
    order.spread(homes[1])
    order.grow(30)  # bob has not heard of these, and ana is lost for good
    lake = Lake.open(tmp_path / "lake", create=True)
    logs = [open_log(str(home)) for home in homes]
    assert run(no_spark, lake.fresh(), logs[:1]).ok
    assert_same(lake, homes[0])
    recovered = StrongOrder(10, homes[1], tasks=0, incarnation=2)
    recovered.grow(10)
    report = run(no_spark, lake.fresh(), logs)
    assert report.ok, report.failures
    assert report.fold is not None
    hows = {table.name: table.how for table in report.fold.tables}
    assert (hows["task_events"], hows["entity_revisions"]) == ("rebuilt", "rebuilt")
    assert_same(lake, homes[1])
    assert lake.fresh().known_commits.lost_count == 30
    recovered.grow(20)
    report = run(no_spark, lake.fresh(), logs)
    assert report.fold is not None
    assert "rebuilt" not in {table.how for table in report.fold.tables}
    assert_same(lake, homes[1])
    for log in logs:
        log.close()


def test_P9_spark_folds_what_was_committed_now_and_at_any_commit_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    home, early = (make_home(tmp_path / name, name, MESH) for name in ("ana", "bob"))
    order = StrongOrder(21, home)
    order.grow(60)
    order.spread(early)
    number = order.number
    lake = Lake.open(tmp_path / "lake", create=True)
    workers = SparkWorkers(spark, lake.proof)
    with closing(open_log(str(home))) as log:
        assert run(spark, lake.fresh(), [log], fold=False).ok
        fold_lake(workers, lake)
        seen = changes(lake, "entities").upto
        order.grow(60)
        assert run(spark, lake.fresh(), [log], fold=False).ok
        fold_lake(workers, lake)
    lake, there, then = lake.fresh(), rows_of(home), rows_of(early)
    copy = Lake.open(tmp_path / "copy", create=True)
    backfill(spark, lake, copy)
    for name in TABLES:
        assert silver_rows(name, current(spark, lake, name)) == there[name], name
        assert silver_rows(name, current(spark, copy.fresh(), name)) == there[name], name
        past = state_as_of(spark, lake, name, MESH, commit=number)
        assert silver_rows(name, past) == then[name], name
        told, columns = changes(lake, name, seen), SILVER[name].names
        rows = arrow_rows(name, told.arrow().select(columns))
        assert rows == silver_rows(name, told.spark(spark).select(*columns)), name
        assert all(row in rows for row in there[name] if row not in then[name]), name
    assert state_as_of(spark, lake, "entities", MESH, at=0).isEmpty()
    wrong: list[dict[str, Any]] = [{"lamport": 5}, {"log": "ana", "offset": 3}]
    for point in (*wrong, {"commit": 3, "at": 5}):
        for name in TABLES:
            with pytest.raises(BadInput):
                state_as_of(spark, lake, name, MESH, **point)
    with pytest.raises(BadInput):
        state_as_of(spark, lake, "state", MESH, commit=3)
    gone = SILVER["entities"].names.index("tombstone")
    live = table_rows(spark, lake, "entities", MESH, limit=100)
    assert len(live.rows) == len([row for row in there["entities"] if not row[gone]])
    sql = "SELECT count(*) AS n FROM commits WHERE outcome = 'applied'"
    assert run_query(spark, lake, sql, 1).rows[0][0] > 30
