"""The fold of many changes without Spark rows, second step: rows sorted into buckets.

To hand rows from Python to Spark, and to let Spark move, sort and store them, costs more than to
find and decode them. So the tasks keep them in Arrow. Each task writes the rows that its scan
(`local_scan`) lets pass into one temporary file, portion by portion, each portion bucket by bucket.
The tasks of the next step (`local_merge`) take their buckets out of all these files.

The files are not compressed: they are mapped into memory, and only the used parts are read. They
lie beside the files that are made of them, and are removed when those are complete. No commit names
what a killed job leaves, so a vacuum removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.pipeline.fold.local_scan import LocalScan
from holdfast.pipeline.fold.spark_hash import buckets_of
from holdfast.rules.limits import FOLD_PORTION_BYTES
from holdfast.storage.files.durable import rename_file

T = TypeVar("T", pa.RecordBatch, pa.Table)


class LocalPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The step as an object that Spark sends to the tasks."""

    scan: LocalScan
    keys: Sequence[str]
    """The key columns of the table."""
    buckets: int
    folder: str

    @property
    def paths(self) -> list[str]:
        """The temporary files, one for each share of the scan."""
        return [f"{self.folder}/share-{n:05}.arrow" for n in range(len(self.scan.shares))]

    def __call__(self, number: int) -> None:
        """Writes the file of one share."""
        with (
            replacing(self.paths[number]) as temporary,
            pa.ipc.new_file(temporary, self.scan.schema) as file,
        ):
            for batches in portions(self.scan.share(self.scan.shares[number])):
                self._write_portion(file, pa.concat_batches(batches))

    def _write_portion(self, file: Any, rows: pa.RecordBatch) -> None:
        """Writes a batch for each bucket, also empty ones, so that its number tells the bucket."""
        buckets = buckets_of([rows[key] for key in self.keys], self.buckets)
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(self.buckets), side="right")
        sorted_rows, begin = rows.take(pa.array(order)), 0
        for end in ends.tolist():
            file.write_batch(sorted_rows.slice(begin, end - begin))
            begin = end


def portions(parts: Iterable[T]) -> Iterator[list[T]]:
    """Neighbouring parts in lists of about `FOLD_PORTION_BYTES` bytes."""
    held: list[T] = []
    size = 0
    for part in parts:
        held.append(part)
        size += part.nbytes
        if size >= FOLD_PORTION_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """A temporary path to write to; it gets the name `path` at the end of the block, so that a task
    that runs twice never leaves half a file there. The commit flushes the file later.
    """
    temporary = f"{path}.{uuid4().hex}"
    try:
        yield temporary
        rename_file(Path(temporary), Path(path))
    finally:
        Path(temporary).unlink(missing_ok=True)
