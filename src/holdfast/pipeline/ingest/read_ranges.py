"""Planned stretches of logs, read by Spark: who reads what, and the rows with what their bytes say.

It reads as the format `holdfast` does. But a batch for the lake is planned to the offset, each log
is reached in its own way, and one log may lie in two places; so the tasks are made here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession

from holdfast.pipeline.ingest.plan import LogStretch
from holdfast.pipeline.lake import schema
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.rules.limits import LAKE_FILE_ROWS, SOURCE_PARTITION_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

_TASKS: Final = 8
"""A batch that is worth it is cut into so many parts or more."""


def tasks_of(batch: Sequence[LogStretch]) -> list[list[LogStretch]]:
    """Stretches for each task. Each task makes a file, so small ones are put together; and logs
    take turns, so that all nodes are asked at once.
    """
    total = sum(part.rows for part in batch)
    if total <= LAKE_FILE_ROWS:
        return [list(batch)]
    most = min(SOURCE_PARTITION_ROWS, max(LAKE_FILE_ROWS, total // _TASKS))
    cut = [list(_cut(part, most)) for part in batch]
    tasks: list[list[LogStretch]] = [[]]
    rows = 0
    for part in chain(*zip_longest(*cut)):
        if part is None:
            continue
        if tasks[-1] and rows + part.rows > most:
            tasks.append([])
            rows = 0
        tasks[-1].append(part)
        rows += part.rows
    return tasks


def _cut(part: LogStretch, rows: int) -> Iterator[LogStretch]:
    count = -(-part.rows // rows)
    for number in range(count):
        start = part.start + part.rows * number // count
        stop = part.start + part.rows * (number + 1) // count
        yield LogStretch(part.log, part.key, start, stop)


def read_pieces(spark: SparkSession, tasks: Sequence[Sequence[LogStretch]]) -> DataFrame:
    """A partition for each task, with the columns `schema.ENVELOPE`."""
    logs: list[ReadableLog] = []
    work: list[list[tuple[int, int, int, int]]] = []
    for task in tasks:
        for part in task:
            if part.log not in logs:
                logs.append(part.log)
        work.append([(logs.index(p.log), p.key[1], p.start, p.stop) for p in task])
    # Each is opened only where it is read.
    packed = [pickle.dumps(log) for log in logs]

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for log, epoch, start, stop in work[number]:
                    yield from _read(packed[log], epoch, start, stop)

    return spark.range(0, len(work), 1, len(work)).mapInArrow(read, schema.ENVELOPE)


def _read(packed: bytes, epoch: int, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    from holdfast.pipeline.logs.unpack import decode_header
    from holdfast.pipeline.source.source import speaking

    with speaking():
        log: ReadableLog = pickle.loads(packed)
        try:
            for batch in log.batches(epoch, start, stop):
                yield decode_header(batch)
        finally:
            log.close()
