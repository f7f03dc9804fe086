"""The driver of the cluster tests: runs into a lake that some executors see and others do not.

    python cluster_process.py FOLDER MASTER WORK… -- HOME…

The lake is named by a path that leads every process elsewhere, as a mount that one machine lacks:
below the folder in which the process runs. The driver runs in FOLDER, where the lake is; an
executor runs in a folder of its own below its worker's WORK. One line of JSON for each step says
what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession

from faults.pipeline_process import CONF
from holdfast.pipeline.fold import silver
from holdfast.pipeline.ingest import ingest
from holdfast.pipeline.jobs.run import run
from holdfast.pipeline.jobs.sources import log_source
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.session import start
from holdfast.rules.errors import HoldfastError
from support.waiting import until

HERE = "/proc/self/cwd/lake"


def main(folder: Path, master: str, works: list[Path], homes: list[str]) -> None:
    os.chdir(folder)
    for module in (ingest, silver):
        # So little the driver would do by itself.
        module.LAKE_FILE_ROWS = 0
    # So that Spark's tasks read also the little that there is.
    vars(ingest).update(LAKE_FILE_ROWS=0)
    spark = start(master=master, conf={**CONF, "spark.executor.memory": "512m"})
    lake = Lake.open(HERE, create=True)
    folders = executor_folders(spark, works)
    step("no executor sees the lake", spark, lake, homes)
    (folders[0] / "lake").symlink_to(folder / "lake")
    step("one executor sees the lake", spark, lake, homes[:2])
    for seeing in folders[1:]:
        (seeing / "lake").symlink_to(folder / "lake")
    step("all executors see the lake", spark, lake, homes[:2])
    killer = Thread(target=kill_one_that_works, args=(spark, works))
    killer.start()
    step("an executor dies", spark, lake, homes)
    killer.join()
    spark.stop()


def step(name: str, spark: SparkSession, lake: Lake, homes: list[str]) -> None:
    try:
        report = run(spark, lake.fresh(), [log_source(home) for home in homes])
        errors = [failure.error.code for failure in report.failures]
        read, fold = report.ingest.read, report.fold is not None
    except HoldfastError as error:
        errors, read, fold = [error.code], 0, False
    rows = lake.fresh().bronze.rows
    print(json.dumps({"step": name, "errors": errors, "read": read, "fold": fold, "rows": rows}))
    sys.stdout.flush()


def executor_folders(spark: SparkSession, works: list[Path]) -> list[Path]:
    """The folders in which the executors run, once all of them do."""
    app = spark.sparkContext.applicationId
    until(lambda: all(list((work / app).glob("*/stderr")) for work in works), 240)
    return [next((work / app).glob("*/stderr")).parent for work in works]


def kill_one_that_works(spark: SparkSession, works: list[Path]) -> None:
    """Kills the Java of one executor as soon as a job runs."""
    tracker = spark.sparkContext.statusTracker()
    until(lambda: bool(tracker.getActiveJobsIds()), 240)
    last = str(works[-1])
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes()
            cwd = os.readlink(process / "cwd")
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in words and cwd.startswith(last):
            os.kill(int(process.name), signal.SIGKILL)
            print(json.dumps({"step": "killed"}), flush=True)
            return


if __name__ == "__main__":
    words = sys.argv[1:]
    cut = words.index("--")
    main(Path(words[0]), words[1], [Path(word) for word in words[2:cut]], words[cut + 1 :])
