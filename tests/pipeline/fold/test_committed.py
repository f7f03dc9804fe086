"""Where a quorum decides, silver is what nodes hold: by the order of commits, not by stamps.

The homes are real, the order is random, and the lake reads it in pieces: bronze and commits apart,
in any cuts, with limits so low that all ways of folding are taken.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast.node.library.node import open_node
from holdfast.pipeline.fold import silver
from holdfast.pipeline.fold.silver import compact, fold_lake
from holdfast.pipeline.frames.frame import LakeFrames
from holdfast.pipeline.ingest.commits import ingest_commits
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.jobs.run import run
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.spark.workers import DriverWorkers
from support.daemon import make_home
from support.envelopes import MESH
from support.lake_rows import Rows, arrow_rows, held
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
