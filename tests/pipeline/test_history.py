"""The past, out of bronze: as of a stamp, a time, a place in a log; and lakes made of a part."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.node.library.node import Node
from holdfast.node.log.history import AsOf
from holdfast.node.log.history import memory_as_of as node_memory_as_of
from holdfast.node.log.history import state_as_of as node_state_as_of
from holdfast.pipeline.fold.current import current
from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.history import Range, backfill, state_as_of
from holdfast.pipeline.ingest.ingest import ingest_logs
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import SILVER
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import BadInput, BadPath, PastEnd
from support.histories import Histories, grow
from support.lake_rows import held, silver_rows

pytestmark = pytest.mark.timeout(400)  # many jobs, on a machine that may be busy


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    return grow(5, tmp_path_factory.mktemp("homes"), nodes=2, meshes=4, ops=700)


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession, histories: Histories, tmp_path_factory: pytest.TempPathFactory
) -> Lake:
    lake = Lake.open(tmp_path_factory.mktemp("lakes") / "lake", create=True)
    logs = [open_log(str(home)) for home in histories.homes.values()]
    report = ingest_logs(spark, lake, logs)
    assert not report.failures
    fold_lake(DriverWorkers(), lake)
    return lake.fresh()


def live(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    names = SILVER["state"].names
    key, lamport, peer, dead = (names.index(n) for n in ("key", "lamport", "peer", "tombstone"))
    return sorted((row[key], row[lamport], row[peer]) for row in rows if not row[dead])


LATER = 10**15


def held_then(node: Node, mesh: str, point: AsOf) -> list[tuple[Any, ...]]:
    found = node_state_as_of(node._engine.store, mesh, None, point, LATER)
    return sorted((entry.key, entry.lamport, entry.peer) for entry in found)


def test_P9_the_past_is_what_the_node_says_it_was(
    spark: SparkSession, histories: Histories, lake: Lake
) -> None:
    peer = histories.peers[1]
    with histories.open(peer) as node:
        entries = list(node.log.range())
        middle = entries[len(entries) // 2]
        mesh = middle.mesh
        points: list[tuple[AsOf, dict[str, Any]]] = [
            (AsOf(lamport=middle.lamport), {"lamport": middle.lamport}),
            (AsOf(offset=middle.offset), {"log": peer, "offset": middle.offset}),
            (AsOf(at_ms=middle.recorded_at), {"log": peer, "at": middle.recorded_at}),
        ]
        for point, when in points:
            rows = silver_rows("state", state_as_of(spark, lake, "state", mesh, **when))
            assert live(rows) == held_then(node, mesh, point), when
            assert {row[0] for row in rows} == {mesh}
        memory = state_as_of(spark, lake, "memory", mesh, lamport=middle.lamport)
        point = AsOf(lamport=middle.lamport)
        assert memory.where("NOT tombstone").count() == len(
            node_memory_as_of(node._engine.store, mesh, None, point, LATER)
        )
        # At the end it is the present, and anywhere at all something is known sooner or later.
        now = [row for row in held(node._engine.store)["tasks"] if row[0] == mesh]
        end = datetime.fromtimestamp(max(entry.recorded_at for entry in entries) / 1000, UTC)
        assert silver_rows("tasks", state_as_of(spark, lake, "tasks", mesh, at=end)) == now


def test_P9_only_one_point_can_be_asked_for(spark: SparkSession, lake: Lake) -> None:
    for when in (
        {},
        {"lamport": 1, "at": 1},
        {"log": "ana"},
        {"offset": 1},
        {"log": "ana", "offset": 1, "lamport": 1},
        {"at": datetime(2026, 1, 1)},
        {"log": "nobody", "offset": 1},
    ):
        with pytest.raises(BadInput):
            state_as_of(spark, lake, "state", "mesh-1", **when)
    with pytest.raises(PastEnd):
        state_as_of(spark, lake, "state", "mesh-1", log="ana", offset=1 << 40)


def test_P9_a_copy_of_the_lake_read_anew_is_the_same(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    copy = Lake.open(tmp_path / "copy", create=True)
    report = backfill(spark, lake, copy, redecode=True)
    copy = copy.fresh()
    assert (report.envelopes, report.quarantined) == (lake.bronze.rows, 0)
    assert copy.positions() == lake.positions()
    assert copy.sightings.rows == lake.sightings.rows > 0
    for name in SILVER:
        ours, theirs = (silver_rows(name, current(spark, one, name)) for one in (lake, copy))
        assert ours == theirs, name
    columns = [column for column in lake.bronze.schema.names if column != "batch"]
    one, other = (at.bronze.read(spark).select(*columns) for at in (lake, copy))
    assert one.exceptAll(other).count() == other.exceptAll(one).count() == 0
    with pytest.raises(BadPath):
        backfill(spark, lake, copy)


def test_P9_a_part_of_the_lake_makes_a_lake_of_that_part(
    spark: SparkSession, histories: Histories, lake: Lake, tmp_path: Path
) -> None:
    copy = Lake.open(tmp_path / "copy", create=True)
    mesh, peer = histories.meshes[0], histories.peers[1]
    head = histories.heads[peer] // 2
    backfill(spark, lake, copy, Range(mesh=mesh, log=peer, last=head))
    copy = copy.fresh()
    assert 0 < copy.bronze.rows < lake.bronze.rows
    # It has not read any log to anywhere.
    assert copy.positions() == []
    then = state_as_of(spark, lake, "state", mesh, log=peer, offset=head)
    assert silver_rows("state", current(spark, copy, "state")) == silver_rows("state", then)
    with pytest.raises(BadInput):
        backfill(spark, lake, Lake.open(tmp_path / "other", create=True), Range(first=1))
