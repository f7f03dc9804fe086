"""The process that reads homes into the lake of a demo, and says in lines of JSON what it found:

python -m holdfast.apps.demo.lake_reading LAKE MESH HOME...
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.rules.errors import NoJava, NoSpark

LEFT_OUT: Final = "left_out"
READ: Final = "read"
FOLDED: Final = "folded"
AUDITED: Final = "audited"
_ROWS_MOST: Final = 100


def main(root: Path, mesh: str, homes: list[str]) -> None:
    try:
        _read_all(root, mesh, homes)
    except (NoSpark, NoJava) as missing:
        _say(LEFT_OUT, missing.message, missing.hint)


def _read_all(root: Path, mesh: str, homes: list[str]) -> None:
    from holdfast.pipeline.spark.session import SMALL, start  # isort: skip - says what is missing
    from holdfast.pipeline.spark.failures import spark_errors

    with (
        tempfile.TemporaryDirectory(prefix="spark-", dir=root.parent) as scratch,
        spark_errors("the demo"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Spark warns about itself
        java = f'{SMALL["spark.driver.defaultJavaOptions"]} "-Djava.io.tmpdir={scratch}"'
        own = {"spark.sql.warehouse.dir": f"{scratch}/warehouse", "spark.local.dir": scratch}
        conf = {**SMALL, **own, "spark.driver.defaultJavaOptions": java}
        spark = start(conf=conf, log=Path(scratch) / "spark.log")
        try:
            _show(spark, root, mesh, homes)
        finally:
            spark.stop()


def _show(spark: Any, root: Path, mesh: str, homes: list[str]) -> None:
    from holdfast import pipeline
    from holdfast.pipeline.audits import AUDITS

    lake = pipeline.Lake.open(root, create=True)
    sources = pipeline.remember(lake, [pipeline.log_source(home) for home in homes])
    logs = pipeline.run(spark, lake, sources).ingest.logs
    read, new = sum(log.read for log in logs), sum(log.new for log in logs)
    _say(READ, len(logs), read, new, sum(log.lag_after for log in logs))
    lake = lake.fresh()
    found = pipeline.table_rows(spark, lake, "state", mesh, limit=_ROWS_MOST)
    _say(FOLDED, {row["key"]: row["value"] for row in found.documents()})
    with lake.working("the demo"):
        audited = pipeline.run_audits(None, lake, list(AUDITS))
    details = "; ".join(one.detail for audit in audited.audits for one in audit.sample)
    _say(AUDITED, len(audited.audits), audited.findings, details)


def _say(*words: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(words) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
