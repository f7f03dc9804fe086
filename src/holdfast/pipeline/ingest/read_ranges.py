"""Planned stretches of logs, read by Spark tasks into rows with the columns `schema.ENVELOPE`.

The format `holdfast` reads logs too. But a batch for the lake is planned to the offset, each log is
reached with its own options, and one log may lie in two locations; so the tasks are made here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession

from holdfast.pipeline.ingest.plan import LogStretch
from holdfast.pipeline.lake import schema
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.pipeline.source.plan import even_parts, interleaved
from holdfast.pipeline.source.source import read_log
from holdfast.rules.limits import LAKE_FILE_ROWS, SOURCE_PARTITION_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

_TASKS: Final = 8
"""A batch that is not small is divided into at least so many tasks."""


def tasks_of(batch: Sequence[LogStretch]) -> list[list[LogStretch]]:
    """The stretches of each task. A task makes a file, so small stretches are put together; logs
    take turns, so that all nodes are asked at once.
    """
    total = sum(part.rows for part in batch)
    if total <= LAKE_FILE_ROWS:
        return [list(batch)]
    most = min(SOURCE_PARTITION_ROWS, max(LAKE_FILE_ROWS, total // _TASKS))
    cut = [
        [LogStretch(part.log, part.key, *ends) for ends in even_parts(part.start, part.stop, most)]
        for part in batch
    ]
    tasks: list[list[LogStretch]] = [[]]
    rows = 0
    for part in interleaved(cut):
        if tasks[-1] and rows + part.rows > most:
            tasks.append([])
            rows = 0
        tasks[-1].append(part)
        rows += part.rows
    return tasks


def read_stretches(spark: SparkSession, tasks: Sequence[Sequence[LogStretch]]) -> DataFrame:
    """The rows of all stretches, one partition for each task."""
    logs: list[ReadableLog] = []
    work: list[list[tuple[int, int, int, int]]] = []
    for task in tasks:
        for part in task:
            if part.log not in logs:
                logs.append(part.log)
        work.append([(logs.index(p.log), p.key[1], p.start, p.stop) for p in task])
    # As bytes, so that a worker opens only the logs that it reads.
    packed = [pickle.dumps(log) for log in logs]

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for log, epoch, start, stop in work[number]:
                    opening = partial(pickle.loads, packed[log])
                    yield from read_log(opening, epoch, start, stop, unpack=True)

    return spark.range(0, len(work), 1, len(work)).mapInArrow(read, schema.ENVELOPE)
