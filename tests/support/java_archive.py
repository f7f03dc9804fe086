"""The classes of Spark in a file, from which every Java that the tests start gets them.

    python -m support.java_archive FILE

Half of what a short job of Spark costs is Java's: it finds, reads and checks the same twenty
thousand classes each time. It can map them from an archive instead, which it writes itself when it
ends; here after one small job of the pipeline. Nothing else changes: Java looks whether the archive
was made by this Java and from these jars, and if not it starts as ever.

`make test` keeps the file in the environment, beside the jars. Without it tests only take longer.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"
OPTIONS = "SPARK_SUBMIT_OPTS"
"""What Spark hands to the Java of a driver, and to no other."""
QUIET = "-Xlog:disable"
"""What Java says about an archive goes to stdout, which is not ours."""


def use() -> None:
    """From now on, in this process and in those that it starts."""
    if ARCHIVE.is_file() and ARCHIVE.stat().st_size:
        os.environ.setdefault(OPTIONS, f"-XX:SharedArchiveFile={ARCHIVE} {QUIET}")


def make(target: Path) -> None:
    """Writes the archive; an empty one if this Java knows no archives."""
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    os.environ[OPTIONS] = f"-XX:ArchiveClassesAtExit={draft} {QUIET}"
    with tempfile.TemporaryDirectory() as folder:
        _small_job(Path(folder))
    if not draft.exists():
        print("this Java keeps no archive of classes: tests will take longer", file=sys.stderr)
        draft.touch()
    draft.replace(target)


def _small_job(folder: Path) -> None:
    """Reads a log, folds it, looks at it; then waits for Java to end."""
    from pyspark import SparkContext

    import holdfast
    from holdfast.pipeline.fold import silver
    from holdfast.pipeline.fold.current import current
    from holdfast.pipeline.ingest.ingest import ingest_logs
    from holdfast.pipeline.lake.lake import Lake
    from holdfast.pipeline.logs.log import open_log
    from holdfast.pipeline.spark import session
    from holdfast.pipeline.spark.spark_workers import SparkWorkers

    with holdfast.open(folder / "ana", peer="ana", create=True, sync="normal") as node:
        mesh = node.create_mesh("team")
        mesh.state.set("build", "green")
        mesh.tasks.create("ship")
    warnings.simplefilter("ignore")  # Spark's own, about itself
    conf = {**session.SMALL, "spark.local.dir": str(folder)}
    spark = session.start(master="local[2]", conf=conf, log=folder / "spark.log")
    lake = Lake.open(folder / "lake", create=True)
    ingest_logs(spark, lake, [open_log(str(folder / "ana"))])
    silver.fold_lake(SparkWorkers(spark, lake.proof), lake)
    current(spark, lake.fresh(), "state").createOrReplaceTempView("state")
    assert spark.sql("select count(*) from state").first() == (1,)
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
