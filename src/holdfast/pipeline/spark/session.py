"""A Spark session with settings that fit the machine.

Without `master` and `remote`, Spark runs in this process on all cores. `master` names a cluster,
`remote` a Spark Connect server; all other settings then come from there and from `conf`.

Spark prints a lot on stderr. With `log` all of that goes into this file instead.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, Queue
from time import monotonic
from typing import Any, Final

from holdfast.pipeline.spark.java import java_home
from holdfast.rules.errors import BadInput, JobFailed, NoSpark, Unreachable
from holdfast.rules.limits import GIB, MIB, SECOND_MS, SPARK_REACH_MS_MAX

try:
    import deltalake  # noqa: F401
    import pandas  # noqa: F401 - PySpark's Arrow functions want it
    import pyarrow  # noqa: F401
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError, PySparkValueError
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession
except ImportError as missing:
    raise NoSpark(f"the pipeline needs packages that are not here: {missing}") from None

DRIVER_BYTES_MIN: Final = 1 * GIB
DRIVER_BYTES_MAX: Final = 5 * GIB
ARROW_ROWS: Final = 16_384
SCAN_BYTES: Final = 32 * MIB
"""How much Parquet one task reads: so little that two cores share even a small table."""
_PARTITIONS_PER_CORE: Final = 4
REDACTED: Final = r"(?i)secret|password|token|access[.]?key|account[.]key"
"""Names of settings whose values Spark shows nowhere: those that it hides itself, and the keys of
accounts at Azure."""
BY_TASKS: Final = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for jobs whose rows Java only passes on, from task to task: to compile what it runs well
costs more than it saves."""
SMALL: Final = {
    **BY_TASKS,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for little data that is read once: without them Spark plans and compiles longer than it
computes."""
_launch: Final[Callable[..., Any]] = launch_gateway
_REPEATERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers by which PySpark prints each error that it raises once more, with Java's whole stack."""


def start(
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    name: str = "holdfast",
    log: Path | None = None,
) -> SparkSession:
    """Starts a Spark session, or returns the one that this process has already."""
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
    elif remote:
        _reach(remote)
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


def _reach(remote: str) -> None:
    """Unreachable if no server of Spark Connect answers there. The client itself would go on trying
    for ten minutes. Only the address is named: what follows it may hold a token.
    """
    import grpc
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    try:
        builder = DefaultChannelBuilder(remote)
    except PySparkValueError as error:
        raise BadInput(
            "the remote is no address of Spark Connect", hint="write it as sc://host:15002"
        ) from error
    channel = builder.toChannel()
    states: Queue[Any] = Queue()
    note = states.put
    channel.subscribe(note, try_to_connect=True)
    until = monotonic() + SPARK_REACH_MS_MAX / SECOND_MS
    settled = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
    state, why = None, "the connection was refused or broken off"
    try:
        while state not in settled:
            state = states.get(timeout=max(0, until - monotonic()))
    except Empty:
        why = f"nothing answered within {SPARK_REACH_MS_MAX / SECOND_MS:g} s"
    finally:
        channel.unsubscribe(note)
        channel.close()
    if state is not grpc.ChannelConnectivity.READY:
        raise Unreachable(f"there is no Spark Connect server at {builder.endpoint}: {why}")


def is_running() -> bool:
    """Whether this process has a session already, which `start` would return."""
    return SparkSession.getActiveSession() is not None


def is_alive() -> bool:
    """Whether the Java that this process has started is still there. True if it has started none,
    as with a server of Spark Connect.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def forget_dead() -> None:
    """Forgets the session of this process, whose Java has ended: the next `start` starts anew."""
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def _start_java(master: str, name: str, settings: Mapping[str, str], log: Path) -> None:
    """Starts the Java of Spark, with its output in a file."""
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
    """Settings for any session, also on a shared Spark."""
    return {
        # Results must not depend on the time zone of a machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
        "spark.sql.files.maxPartitionBytes": str(SCAN_BYTES),
        "spark.sql.parquet.compression.codec": "zstd",
        # Tables are read by the names of their files; the driver finds them faster than a job does.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1024",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    }


def settings_for(master: str, cores: int, memory: int) -> dict[str, str]:
    """All settings that differ from Spark's defaults; only those that were seen to help."""
    common = {
        **session_settings(),
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.redaction.regex": REDACTED,
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
        # With two cores a garbage collector that runs beside the program does not pay.
        "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC",
    }


def memory_bytes() -> int:
    """The memory of this machine, or the part of it that this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total
