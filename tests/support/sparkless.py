"""For jobs so small that Spark must not be started for them."""

from __future__ import annotations

from pyspark.sql import SparkSession


def no_spark() -> SparkSession:
    raise AssertionError("so little needs no Spark")
