"""Rows of a table's files as a frame of Spark, where Spark's Java cannot read the place itself.

Python tasks read the files by Arrow, with the client that wrote them. So a lake in an object store
needs no jars. Spark's own scan is better where it is possible: it reads only the columns that a
query asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.pipeline.lake.folder import Folder
from holdfast.pipeline.lake.schema import arrow_schema
from holdfast.pipeline.spark.session import ARROW_ROWS, SCAN_BYTES


def scan_by_tasks(
    spark: SparkSession, folder: Folder, files: Sequence[tuple[str, int]], columns: StructType
) -> DataFrame:
    """The rows of files, given by path and size, with these columns."""
    shares = _shares(files)
    numbers = spark.range(0, len(shares), 1, max(1, len(shares)))
    return numbers.mapInArrow(partial(_read, folder, shares, arrow_schema(columns)), columns)


def _shares(files: Sequence[tuple[str, int]]) -> list[list[str]]:
    """The files of each task: as many as `SCAN_BYTES` hold, at least one."""
    shares: list[list[str]] = []
    room = 0
    for path, size in files:
        if not shares or size > room:
            shares.append([])
            room = SCAN_BYTES
        shares[-1].append(path)
        room -= size
    return shares


def _read(
    folder: Folder,
    shares: list[list[str]],
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs on an executor."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for path in shares[number]:
                yield from _rows(folder, path, schema)


def _rows(folder: Folder, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one file. A column that the file was written without is null."""
    with folder.system.open_input_file(folder.path(path)) as source:
        file = pq.ParquetFile(source, pre_buffer=True)
        stored = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=ARROW_ROWS, columns=stored):
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in stored
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
