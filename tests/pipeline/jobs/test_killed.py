"""Jobs that die between any two of their steps, in one process: the next one goes on.

One lake goes through all of it, and every commit is at some time the last that a job has made.
Reading logs is tested in the same way in test_ingest.py, and with real processes in tests/faults.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.node.library.node import open_node
from holdfast.node.snapshots.manifest import NAME, PARTS
from holdfast.pipeline.fold import silver
from holdfast.pipeline.fold.current import current
from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.jobs import compaction
from holdfast.pipeline.jobs.run import needs_fold
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake, log_app
from holdfast.pipeline.lake.reads import Read, note_reads
from holdfast.pipeline.lake.schema import SILVER
from holdfast.pipeline.logs.disk import HomeLog
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.snapshot.files import SnapshotTarget
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import AlreadyExists
from support.histories import grow
from support.lake_rows import Rows, bronze_of, held, silver_rows

pytestmark = pytest.mark.timeout(600)

FOLDED = ("state", "memory", "tasks", "task_events")


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


class Killing:
    """Lets so many commits happen, and dies before the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.last = ""
        real = Table.commit

        def commit(table: Table, *args: Any, **options: Any) -> int:
            if self.left == 0:
                raise Killed
            self.left -= 1
            self.last = "/".join(table.root.split("/")[-2:])
            return real(table, *args, **options)

        monkeypatch.setattr(Table, "commit", commit)

    def lives_of(self, job: Callable[[], object], after: Callable[[str], None]) -> list[str]:
        """Runs a job again and again until it gets to its end: the first life commits nothing, each
        other one thing, or more if that one had been done before. Returns the last of each life.
        """
        done: list[str] = []
        commits = 0
        while True:
            self.left, self.last = commits, ""
            try:
                job()
            except Killed:
                commits = commits + 1 if self.last in done else 1
                done.append(self.last)
                self.left = -1
                after(self.last)
            else:
                self.left = -1
                return [*done, self.last]


def put(lake: Lake, rows: DataFrame) -> None:
    """Adds a batch, as an ingest does."""
    lake = lake.fresh()
    numbered = rows.withColumn("batch", F.lit(lake.bronze.version + 1).cast("bigint"))
    staged = lake.bronze.stage(numbered.coalesce(1), sort_by=("day", "id"))
    lake.bronze.commit(staged.files)


def assert_current(spark: SparkSession, lake: Lake, rows: Rows, *names: str) -> None:
    for name in names:
        assert silver_rows(name, current(spark, lake.fresh(), name)) == rows[name], name


def test_R2_a_fold_or_compaction_that_is_killed_between_any_two_commits_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silver, "SILVER_SMALL_ROWS", 0)
    monkeypatch.setattr(silver, "SILVER_BEHIND_PERCENT_MAX", 10_000)
    histories = grow(31, tmp_path, nodes=2, meshes=2, ops=220)
    with histories.open(histories.peers[0]) as node:
        rows = held(node._engine.store)
    # Three families are enough: the others are folded by the same steps.
    kept = F.col("family").isin("state", "memory", "task")
    bronze = bronze_of(spark, histories.homes.values()).where(kept).cache()
    lake = Lake.open(tmp_path / "lake", create=True)
    killing = Killing(monkeypatch)
    # First two of them: of the others a fold notes that there is nothing.
    early = F.col("family").isin("state", "task") & (F.col("lamport") % 2 == 0)
    put(lake, bronze.where(early))
    done = killing.lives_of(lambda: fold_lake(DriverWorkers(), lake), lambda _: None)
    assert done == [
        *("", "silver/state", "silver/memory", "silver/files", "silver/vectors", "silver/models"),
        *("silver/task_events", "silver/tasks", "silver/entity_revisions", "silver/entities"),
        *("silver/facts", "silver/audit_events", "silver/messages"),
    ]
    assert not needs_fold(lake.fresh()), "a run would start Spark for nothing, each time"
    assert all(lake.silver(name).exists for name in SILVER)

    put(lake, bronze.where(~early))
    done = killing.lives_of(lambda: fold_lake(DriverWorkers(), lake), lambda _: None)
    assert done == [
        *("", "increments/state", "silver/memory", "increments/files", "increments/vectors"),
        *("increments/models", "increments/task_events", "increments/facts"),
        *("increments/audit_events", "increments/messages"),
    ]
    assert not needs_fold(lake.fresh())
    assert_current(spark, lake, rows, *FOLDED)

    # Compacting changes nothing that can be seen, wherever it ends.
    touches = {
        **{"silver/state": "state", "silver/task_events": "tasks"},
        **{"increments/state": "state", "increments/task_events": "tasks"},
    }

    def look_at(last: str) -> None:
        if last in touches:
            assert_current(spark, lake, rows, touches[last])

    done = killing.lives_of(lambda: compaction.compact(DriverWorkers(), lake), look_at)
    assert done == [
        # What is merged and not yet dropped is merged again, which changes nothing.
        *("", "silver/state", "silver/state", "increments/state"),
        *("silver/task_events", "silver/task_events", "increments/task_events"),
        *("silver/tasks", "lake/bronze"),
    ]
    assert [name for name in silver.FOLDED if lake.increments(name).files()] == []
    assert_current(spark, lake, rows, *FOLDED)
    days = [file.partition["day"] for file in lake.fresh().bronze.files()]
    assert len(days) == len(set(days))
    assert not needs_fold(lake.fresh())
    bronze.unpersist()


@pytest.mark.parametrize("where", ["temporary", "draft", "published"])
def test_R2_a_snapshot_that_is_killed_while_it_gets_its_name_is_made_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder = tmp_path / "snapshot"

    def dies(*_: object, **__: object) -> None:
        raise Killed

    target = SnapshotTarget(str(folder))
    target.prepare()
    (folder / PARTS / "old.gz").touch()
    with monkeypatch.context() as patch:
        if where == "temporary":
            patch.setattr(os, "replace", dies)
        elif where == "draft":
            patch.setattr(os, "link", dies)
        # What a process does on its way out, one that is killed does not do.
        patch.setattr(Path, "unlink", dies if where == "published" else lambda *_, **__: None)
        with pytest.raises(Killed):
            target.publish(b"{}", "one")
    left = {entry.name for entry in folder.iterdir()}
    assert left > {PARTS}
    assert (NAME in left) == (where == "published")
    if where == "published":
        with pytest.raises(AlreadyExists, match="holds a snapshot already"):
            SnapshotTarget(str(folder)).prepare()
        return

    target = SnapshotTarget(str(folder))
    target.prepare()
    (folder / PARTS / "new.gz").touch()
    target.publish(b"{}", "two")
    assert target.remove_strays({f"{PARTS}/new.gz"}) >= 1
    assert sorted(entry.name for entry in folder.iterdir()) == [NAME, PARTS]
    assert [entry.name for entry in (folder / PARTS).iterdir()] == ["new.gz"]


def test_R2_what_a_killed_job_has_not_flushed_is_safe_before_it_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may come right after the node has forgotten what the lake has."""
    with open_node(tmp_path / "ana", peer="ana", create=True, sync="normal") as node:
        id = node.create_mesh("team").state.set("k", 1).id
    lake = Lake.open(tmp_path / "lake", create=True)

    def dies(*_: object) -> None:
        raise Killed

    read = Read(log="ana", epoch=1, first=1, last=1, rows=0, last_id=id, batch=0)
    with monkeypatch.context() as patch:
        patch.setattr(Table, "_flush_log", dies)
        with pytest.raises(Killed):
            lake.bronze.commit([], txns={log_app("ana", 1): 1})
        with pytest.raises(Killed):
            note_reads(lake.reads, [read])
    done: list[str] = []
    flush, confirm = Table._flush_log, HomeLog.confirm

    def flushed(table: Table, version: int) -> None:
        flush(table, version)
        done.append(f"{Path(table.root).name} {version}")

    def confirmed(log: HomeLog, consumer: str, epoch: int, offset: int) -> None:
        confirm(log, consumer, epoch, offset)
        done.append(f"confirmed {offset}")

    monkeypatch.setattr(Table, "_flush_log", flushed)
    monkeypatch.setattr(HomeLog, "confirm", confirmed)
    assert make_plan(lake.fresh(), [open_log(str(tmp_path / "ana"))]).failures == []
    assert done == ["bronze 0", "reads 0", "confirmed 1"]
