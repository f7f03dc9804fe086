"""A Spark session with settings that fit the machine.

Without a word about where, Spark runs in this process on all cores. `master` names a cluster,
`remote` a Spark Connect server; both take everything else from there and from `conf`.

Spark talks a lot on stderr. Whoever gives `log` finds all of that in this file instead.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.pipeline.spark.java import java_home
from holdfast.rules.errors import BadInput, JobFailed, NoSpark
from holdfast.rules.limits import GIB, MIB

try:
    import deltalake  # noqa: F401
    import pandas  # noqa: F401 - PySpark's Arrow functions want it
    import pyarrow  # noqa: F401
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession
except ImportError as missing:
    raise NoSpark(f"the pipeline needs packages that are not here: {missing}") from None

DRIVER_BYTES_MIN: Final = 1 * GIB
DRIVER_BYTES_MAX: Final = 5 * GIB
ARROW_ROWS: Final = 16_384
SCAN_BYTES: Final = 32 * MIB
"""Of Parquet that one task reads: small enough that two cores share even a small table."""
_PARTITIONS_PER_CORE: Final = 4
SMALL: Final = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For little data, looked at once: to plan and compile it well costs twice what it takes."""
_launch: Final[Callable[..., Any]] = launch_gateway
_REPEATERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark prints an error that it raises a second time through these, with Java's whole stack."""


def start(
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    name: str = "holdfast",
    log: Path | None = None,
) -> SparkSession:
    """A session, new or the one that this process has already."""
    if master and remote:
        raise BadInput("a master and a remote were both named", hint="name one of them")
    builder = SparkSession.builder.appName(name)
    if remote:
        settings = {**session_settings(), **(conf or {})}
        builder = builder.remote(remote)
    else:
        where = master or "local[*]"
        settings = {**settings_for(where, os.cpu_count() or 1, memory_bytes()), **(conf or {})}
        builder = builder.master(where)
    if not remote or remote.startswith("local"):
        os.environ["JAVA_HOME"] = str(java_home(os.environ))
        # The workers of Spark must find the packages that we have.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if log is not None:
        for repeater in _REPEATERS:
            PySparkLogger.getLogger(repeater).setLevel(logging.CRITICAL + 1)
        if not remote:
            _start_java(where, name, settings, log)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not remote:
        session.sparkContext.setLogLevel("ERROR")
    return session


def is_running() -> bool:
    """Whether this process has a session already, which `start` would give."""
    return SparkSession.getActiveSession() is not None


def _start_java(master: str, name: str, settings: Mapping[str, str], log: Path) -> None:
    """The machine that Spark runs on, with what it prints in a file."""
    if SparkContext._active_spark_context is not None:
        return
    conf = SparkConf().setMaster(master).setAppName(name).setAll(list(settings.items()))
    with log.open("ab") as out:
        try:
            gateway = _launch(conf, {"stdout": out, "stderr": out})
        except PySparkRuntimeError:
            raise JobFailed("Spark did not start", hint=f"its own words: {log}") from None
    SparkContext(conf=conf, gateway=gateway)


def session_settings() -> dict[str, str]:
    """What a session may set on any Spark, its own or a shared one."""
    return {
        # The one order compares times and texts as bytes: every machine must read them alike.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
        "spark.sql.files.maxPartitionBytes": str(SCAN_BYTES),
        "spark.sql.parquet.compression.codec": "zstd",
        # Tables are read by naming their files; to look each up is quicker done here than in a job.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1024",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    }


def settings_for(master: str, cores: int, memory: int) -> dict[str, str]:
    """What differs from Spark's own defaults, and only what was seen to help."""
    common = {
        **session_settings(),
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    if not master.startswith("local"):
        return common
    heap = max(DRIVER_BYTES_MIN, min(DRIVER_BYTES_MAX, memory // 3))
    return {
        **common,
        "spark.driver.memory": f"{heap // MIB}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(max(2, cores * _PARTITIONS_PER_CORE)),
        "spark.default.parallelism": str(cores),
        # Two cores have no use for a collector that works beside the program.
        "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC",
    }


def memory_bytes() -> int:
    """Of this machine, or of the share of it that we may use."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            said = file.read().strip()
    except OSError:
        return whole
    return min(whole, int(said)) if said.isdecimal() else whole
