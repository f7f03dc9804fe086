"""Which places Spark's own Java can read, and how it is told to reach them.

Spark reads files through Hadoop's file systems. Those for disks and HDFS come with it; those for
object stores are jars that a cluster has or has not (`hadoop-aws` for `s3a:`). We ask before a
scan is planned, so that no job has to fail first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

SCHEMES: Final = "spark.holdfast.schemes"
"""Setting of a session on Spark Connect: more schemes that its server reads, with commas between.
"""
_ALWAYS: Final = ("file", "hdfs", "viewfs", "dbfs")


def reads_scheme(spark: SparkSession, scheme: str) -> bool:
    """Whether Spark itself can read files of a scheme. A server of Spark Connect cannot be asked:
    there it is what comes with Spark, and what the setting `spark.holdfast.schemes` names.
    """
    if is_remote(spark):
        named = spark.conf.get(SCHEMES, "") or ""
        return scheme in (*_ALWAYS, *(name.strip() for name in named.split(",")))
    java = spark._jvm
    assert java is not None, "a session that is not remote has a Java"
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        java.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JError:
        return False
    return True


def set_hadoop(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Sets how Hadoop's file systems reach a place, inside the running Java: neither a command line
    nor Spark's own settings show it. A server of Spark Connect has its own settings.
    """
    if is_remote(spark):
        return
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in settings.items():
        conf.set(name, value)


def is_remote(spark: SparkSession) -> bool:
    """Whether this is a session on Spark Connect, whose Java is out of reach."""
    # By name: the class itself would bring the packages of Spark Connect along.
    return type(spark).__module__.startswith("pyspark.sql.connect")
