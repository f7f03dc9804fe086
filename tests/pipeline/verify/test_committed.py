"""Nodes of a mesh with voters against the lake: each up to the commit that it has folded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.pipeline.ingest.commits import ingest_commits
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.jobs.run import run
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import ReadableLog, open_log
from holdfast.pipeline.verify.verify import VerifyReport, verify_nodes
from support.daemon import make_home
from support.envelopes import MESH
from support.sparkless import no_spark
from support.strong_orders import StrongOrder


@pytest.fixture
def homes(tmp_path: Path) -> list[Path]:
    return [make_home(tmp_path / name, name, MESH) for name in ("ana", "bob")]


def opened(homes: list[Path]) -> list[ReadableLog]:
    return [open_log(str(home)) for home in homes]


def verified(lake: Lake, homes: list[Path]) -> VerifyReport:
    logs = opened(homes)
    report = verify_nodes(None, lake.fresh(), logs)
    for log in logs:
        log.close()
    return report


def poured(lake: Lake, homes: list[Path]) -> None:
    logs = opened(homes)
    assert run(no_spark, lake.fresh(), logs).ok
    for log in logs:
        log.close()


def test_P3_nodes_are_compared_up_to_the_commit_that_they_have_folded(
    tmp_path: Path, homes: list[Path]
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    order = StrongOrder(3, homes[0])
    order.grow(80)
    order.spread(homes[1])
    order.grow(40)  # bob has not heard of these
    poured(lake, homes)
    ana, bob = verified(lake, homes).logs
    assert (ana.status, bob.status, ana.reason, bob.reason) == ("same", "same", "", ""), (
        ana.astray,
        bob.astray,
    )
    counted = {table.table: (table.rows, table.expected) for table in ana.tables}
    assert counted["entities"][0] == counted["entities"][1] > 3
    assert ana.behind["entities"] == 0 < bob.behind["entities"]
    assert ana.behind["tasks"] == 0 < bob.behind["tasks"]
    assert not any({**ana.astray, **bob.astray}.values())


def test_P3_the_first_entity_and_the_first_task_that_differ_are_named(
    tmp_path: Path, homes: list[Path]
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    order = StrongOrder(4, homes[0])
    order.grow(80)
    poured(lake, homes[:1])
    with closing(apsw.Connection(str(homes[0] / "data.db"))) as con:
        type, id, revision = con.execute(
            "SELECT type, id, revision FROM entity ORDER BY type, id LIMIT 1"
        ).get
        con.execute(
            "UPDATE entity SET fields = '{}', revision = 99 WHERE type = ? AND id = ?", (type, id)
        )
    (ana,) = verified(lake, homes[:1]).logs
    assert ana.status == "differs"
    (difference,) = ana.differences
    assert (difference.table, difference.key) == ("entities", [type, id])
    assert difference.node is not None
    assert difference.lake is not None
    assert (difference.node["revision"], difference.lake["revision"]) == (99, revision)


def test_P3_a_node_whose_commits_the_lake_has_not_read_is_not_judged(
    tmp_path: Path, homes: list[Path]
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    order = StrongOrder(5, homes[0])
    order.grow(20)
    poured(lake, homes[:1])
    order.grow(3)
    logs = opened(homes[:1])
    (ana,) = verified(lake, homes[:1]).logs
    assert ana.status == "unsure"
    assert "the lake has not read commit" in ana.reason
    ingest_commits(lake, make_plan(lake.fresh(), logs))
    (ana,) = verified(lake, homes[:1]).logs
    assert "of epoch 1 the lake has read up to offset" in ana.reason
    for log in logs:
        log.close()
