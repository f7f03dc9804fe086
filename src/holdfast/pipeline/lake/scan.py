"""Rows of a table's files as a frame of Spark, where Spark's Java cannot read the place itself.

Python tasks read the files by Arrow, with the client that wrote them. So a lake in an object store
needs no jars. Spark's own scan is better where it is possible: it reads only the columns that a
query asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.reader import FileReader
from holdfast.pipeline.spark.session import ARROW_ROWS, SCAN_BYTES


def scan_by_tasks(
    spark: SparkSession, reader: FileReader, files: Sequence[File], columns: StructType
) -> DataFrame:
    """The rows of files, with the columns that the reader gives."""
    shares = _shares(files)
    numbers = spark.range(0, len(shares), 1, len(shares))
    return numbers.mapInArrow(partial(_read, reader, shares), columns)


def _shares(files: Sequence[File]) -> list[list[File]]:
    """The files of each task: as many as `SCAN_BYTES` hold, at least one."""
    shares: list[list[File]] = []
    room = 0
    for file in files:
        if not shares or file.size > room:
            shares.append([])
            room = SCAN_BYTES
        shares[-1].append(file)
        room -= file.size
    return shares


def _read(
    reader: FileReader, shares: list[list[File]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on an executor: the rows of the shares whose numbers it is given."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for file in shares[number]:
                with reader.open(file) as opened:
                    for rows in opened.batches(rows=ARROW_ROWS):
                        yield from rows.to_batches()
