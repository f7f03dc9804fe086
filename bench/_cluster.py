"""A standalone cluster of Spark: a master and some workers, each a process of its own.

with Cluster(folder, workers=2) as cluster:
    start(master=cluster.url)
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Final

import pyspark

from holdfast.pipeline.spark.java import java_home

PATIENCE_S: Final = 240
_LOOK_S: Final = 0.05
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_LIGHT: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_ROOM: Final = "org.apache.spark.deploy"


class Cluster:
    """It runs for the length of a `with` block."""

    def __init__(self, folder: Path, *, workers: int, cores: int = 1, memory: str = "1g") -> None:
        self.folder = folder
        self.url = ""
        self.workers: list[int] = []
        """The process ids of the workers."""
        self._count = workers
        self._size = ("--cores", str(cores), "--memory", memory)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            log = self._start("master", f"{_ROOM}.master.Master", "--host", "127.0.0.1")
            self.url = self._said(log, _MASTER)
            for number in range(self._count):
                self._start_worker(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers, which end their executors, and then the master."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(PATIENCE_S)

    def work_dir(self, number: int) -> Path:
        """Where a worker keeps the folders of its executors: `<application>/<executor>`."""
        return self.folder / f"work-{number}"

    def _start_worker(self, number: int) -> None:
        work = ("--work-dir", str(self.work_dir(number)), self.url)
        name = f"worker-{number}"
        log = self._start(name, f"{_ROOM}.worker.Worker", "--host", "127.0.0.1", *self._size, *work)
        self._said(log, re.compile("(Successfully registered with master)"))
        self.workers.append(self._processes[-1].pid)

    def _start(self, name: str, kind: str, *words: str) -> Path:
        log = self.folder / f"{name}.log"
        home = java_home(os.environ)
        jars = Path(pyspark.__file__).parent / "jars" / "*"
        command = [str(home / "bin" / "java"), *_LIGHT, "-cp", str(jars), kind]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--port", "0", "--webui-port", "0", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "JAVA_HOME": str(home),
                    "SPARK_HOME": str(Path(pyspark.__file__).parent),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    # What the scripts of Spark would say.
                    "SPARK_SCALA_VERSION": "2.13",
                },
            )
        self._processes.append(process)
        return log

    def _said(self, log: Path, pattern: re.Pattern[str]) -> str:
        """Waits until a process says this; returns what the first group of the pattern matches."""

        process, deadline = self._processes[-1], monotonic() + PATIENCE_S
        while (match := pattern.search(log.read_text(errors="replace"))) is None:
            if process.poll() is not None or monotonic() > deadline:
                raise RuntimeError(
                    f"Spark did not start: {log.read_text(errors='replace')[-2000:]}"
                )
            sleep(_LOOK_S)
        return match[1]
