"""The child process of the pipeline's fault tests: it fills a lake, says what it does, and may die.

    python pipeline_process.py FOLDER HOME… [--die-at POINT NTH] [--whole] [--master M] [--held F]

In FOLDER it makes `lake` and `snapshot`: half of the first home, then all; a fold after each; then
everything is compacted, and a snapshot is made. A line on stdout says what comes next, before and
after each step that can be seen from outside. What an earlier life has done is not done again.

With `--whole` dying takes the Java process along; without, Java and its workers are left to find
out by themselves, as when the kernel kills the driver for want of memory.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.node.snapshots.manifest import NAME
from holdfast.pipeline.fold import silver
from holdfast.pipeline.ingest import ingest
from holdfast.pipeline.ingest.ingest import ingest_logs
from holdfast.pipeline.jobs import compaction
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.disk import HomeLog
from holdfast.pipeline.logs.log import ReadableLog, open_log
from holdfast.pipeline.snapshot import files
from holdfast.pipeline.snapshot.build import build_snapshot
from holdfast.pipeline.snapshot.files import SnapshotTarget
from holdfast.pipeline.spark.session import start
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from support.held_log import HalfLog, HeldLog

BATCH_ROWS = 150
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = {
    # Everything runs once, on little data: to compile it well costs more than it saves.
    "spark.driver.memory": "1g",
    "spark.driver.defaultJavaOptions": QUICK,
    "spark.executor.defaultJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Points:
    """Says where the process is, and ends it at one of these places."""

    def __init__(self, die_at: Sequence[str] | None, whole: bool) -> None:
        self._point, self._left = (die_at[0], int(die_at[1])) if die_at else ("", 0)
        self._whole = whole

    def at(self, point: str) -> None:
        print(point, flush=True)
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                die = os.killpg if self._whole else os.kill
                die(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str, what: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def act(*args: Any, **options: Any) -> Any:
            said = what(*args)
            self.at(f"{said}: before")
            result = real(*args, **options)
            self.at(f"{said}: after")
            return result

        setattr(owner, name, act)


def watch(points: Points, lake: Lake) -> None:
    def of(verb: str) -> Callable[..., str]:
        return lambda table, *rest: f"{verb} {table.root.removeprefix(lake.root + '/')}"

    for name in ("stage", "commit", "discard"):
        points.around(Table, name, of(name))
    points.around(SparkWorkers, "run", lambda workers, what, *rest: what)
    points.around(SparkWorkers, "exchange", lambda workers, what, *rest: what)
    points.around(Table, "_flush_log", of("flush"))
    points.around(HomeLog, "confirm", lambda *rest: "confirm")
    points.around(SnapshotTarget, "prepare", lambda *rest: "prepare snapshot")
    points.around(SnapshotTarget, "publish", lambda *rest: "publish snapshot")
    points.around(SnapshotTarget, "remove_strays", lambda *rest: "tidy snapshot")
    points.around(files, "durable_replace", lambda *rest: "draft snapshot")


def behind(lake: Lake, log: ReadableLog) -> bool:
    """A lake that has more of a log than there is must not read it: it would not know it again."""
    place = log.place()
    return (lake.position(place.log, place.epoch) or 0) < place.head


def work(folder: Path, homes: Sequence[str], points: Points, master: str, held: str) -> None:
    lake = Lake.open(folder / "lake", create=True)
    watch(points, lake)
    # So that Spark's tasks read also the little that there is.
    vars(ingest).update(LAKE_FILE_ROWS=0)
    # So that a fold adds to what is there, and there is something to compact.
    vars(silver).update(SILVER_SMALL_ROWS=0, SILVER_BEHIND_PERCENT_MAX=1000)
    local = {"spark.local.dir": str(folder / "spark"), "spark.sql.warehouse.dir": str(folder)}
    spark = start(master=master, conf={**CONF, **local}, log=folder / "spark.log")
    logs: list[ReadableLog] = [open_log(home) for home in homes]
    if held:
        logs[0] = HeldLog(logs[0], held)
    half = HalfLog(logs[0])
    with lake.working("a cycle"):
        for some in ([half], logs) if behind(lake, half) else (logs,):
            points.at("ingest")
            report = ingest_logs(spark, lake, some, max_rows=BATCH_ROWS)
            assert not report.failures, report.failures
            points.at("fold")
            silver.fold_lake(SparkWorkers(spark, lake.proof), lake)
        points.at("compact")
        compaction.compact(SparkWorkers(spark, lake.proof), lake)
        points.at("snapshot")
        if not (folder / "snapshot" / NAME).exists():
            build_snapshot(spark, lake, str(folder / "snapshot"))
    points.at("done")
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("homes", nargs="+")
    parser.add_argument("--die-at", nargs=2, metavar=("POINT", "NTH"))
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--held", default="", help="a folder: see support/held_log.py")
    given = parser.parse_args()
    points = Points(given.die_at, given.whole)
    work(given.folder, given.homes, points, given.master, given.held)


if __name__ == "__main__":
    main()
