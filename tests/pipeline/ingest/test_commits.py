"""Commit records come into the lake beside the envelopes: once for each log, in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.node.library.node import open_node
from holdfast.pipeline.audits.gold import run_audits
from holdfast.pipeline.jobs.run import RunReport, run
from holdfast.pipeline.lake.known_commits import known_commits
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import open_log
from holdfast.rules.envelope import encode
from support.commit_pages import mission, page_of, take
from support.daemon import make_home, running
from support.envelopes import MESH
from support.sole_voter import SoleVoter, give_voters
from support.sparkless import no_spark


def ran(lake: Lake, *locations: str, **options: Any) -> RunReport:
    logs = [open_log(location, options) for location in locations]
    try:
        report = run(no_spark, lake.fresh(), logs, fold=False)
    finally:
        for log in logs:
            log.close()
    assert report.ok, report.failures
    return report


def rows(lake: Lake) -> list[tuple[Any, ...]]:
    table = lake.fresh().commits
    found, _ = table.load(table.files(), ["log", "mesh", "number", "outcome", "reason", "sequence"])
    return sorted(tuple(row.values()) for row in found.to_pylist())


def committed(home: Path, *ids: str, origin: str = "ana") -> None:
    with open_node(home, sync="normal") as node:
        engine = node._engine
        if engine.read("test", lambda tx: tx.quorum_get(MESH)) is None:
            give_voters(engine, MESH)
        for id in ids:
            SoleVoter(engine, MESH).commit(encode(mission(id, origin=origin)))


def test_Q4_records_of_what_was_committed_are_in_the_lake_once_for_each_log(tmp_path: Path) -> None:
    ana, bob = (make_home(tmp_path / name, name, MESH) for name in ("ana", "bob"))
    lake = Lake.open(tmp_path / "lake", create=True)
    committed(ana, "a", "b")
    ran(lake, str(ana))
    first = [
        ("ana", MESH, 1, "applied", None, 1),
        ("ana", MESH, 2, "applied", None, 2),
    ]
    assert rows(lake) == first
    ran(lake, str(ana))
    assert rows(lake) == first  # nothing twice
    assert known_commits(lake.fresh().commits).ends == {("ana", 1): {MESH: 2}}
    # A node without a vote has the same records, beside its own log.
    committed(ana, "c")
    with open_node(ana, sync="normal") as source, open_node(bob, sync="normal") as node:
        take(node._engine.store, page_of(source._engine.store))
    ran(lake, str(ana), str(bob))
    assert [row[:3] for row in rows(lake)] == [
        (log, MESH, number) for log in ("ana", "bob") for number in (1, 2, 3)
    ]
    report = run_audits(None, lake.fresh(), ["fences", "gaps"], write=False)
    assert [(one.findings, one.notices) for one in report.audits] == [(0, 0), (0, 0)]


def test_Q4_records_come_from_a_node_that_is_served_and_from_a_home_alike(tmp_path: Path) -> None:
    home = make_home(tmp_path / "ana", "ana", MESH)
    committed(home, "a", "b")
    lakes = [Lake.open(tmp_path / name, create=True) for name in ("served", "disk")]
    with running(home) as up:
        ran(lakes[0], f"unix:{up.home}/api.sock")
    ran(lakes[1], str(home))
    assert rows(lakes[0]) == rows(lakes[1]) != []
