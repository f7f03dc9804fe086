"""The last act of the demo: Spark reads the logs of both homes into a lake.

It needs the extra `spark`. Without it the act is left out, and the demo says how to install it.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.rules.errors import NoJava, NoSpark

Say = Callable[[str], None]


def play(root: Path, homes: Sequence[Path], mesh: str, say: Say) -> bool:
    """Makes a lake in `root` from the logs of these homes; False if Spark cannot run here."""
    say("\n7. Spark reads both logs into a lake; it takes a few seconds to start")
    try:
        _play(root, homes, mesh, say)
    except (NoSpark, NoJava) as missing:
        say(f"   left out: {missing.message}")
        say(f"   get it with: {missing.hint}")
        return False
    return True


def _play(root: Path, homes: Sequence[Path], mesh: str, say: Say) -> None:
    from holdfast.pipeline.spark.session import SMALL, is_running, start  # isort: skip - says what is missing
    from holdfast.pipeline.spark.failures import spark_errors

    was_running = is_running()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-spark-") as scratch,
        spark_errors("the demo"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Spark warns about itself
        conf = {**SMALL, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
        spark = start(conf=conf, log=Path(scratch) / "spark.log")
        try:
            _show(spark, root, homes, mesh, say)
        finally:
            if not was_running:
                spark.stop()


def _show(spark: Any, root: Path, homes: Sequence[Path], mesh: str, say: Say) -> None:
    from holdfast import pipeline
    from holdfast.pipeline.audits import AUDITS

    lake = pipeline.Lake.open(root, create=True)
    logs = pipeline.remember(lake, [pipeline.log_source(str(home)) for home in homes])
    report = pipeline.run(spark, lake, logs)
    for log in report.ingest.logs:
        say(f"   {log.log}: read {log.read}, {log.new} of them new; lag {log.lag_after}")
    lake = lake.fresh()
    found = pipeline.table_rows(spark, lake, "state", mesh, key="release", limit=1)
    for row in found.documents():
        say(f"   release = {row['value']} (stamp {row['lamport']}@{row['peer']}), as on the nodes")
    with lake.working("the demo"):
        audited = pipeline.run_audits(None, lake, list(AUDITS))
    say(f"   {len(audited.audits)} audits: {audited.findings} findings, {audited.notices} notices")
    for audit in audited.audits:
        for notice in audit.sample:
            say(f"   {audit.name}: {notice.detail}")
