"""One Spark session for a long time: if its Java dies, the next caller gets a new one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pyspark.sql import SparkSession

from holdfast.pipeline.spark.session import forget_dead, is_alive

log = logging.getLogger("holdfast")


class WarmSession:
    """The session, for any thread."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None
        self.starts = 0
        """How many times Spark was started."""

    def __call__(self) -> SparkSession:
        with self._lock:
            if self._spark is not None and not is_alive():
                log.warning("Spark has ended by itself; it is started again")
                forget_dead()
                self._spark = None
            if self._spark is None:
                self._spark = self._start()
                self.starts += 1
            return self._spark
