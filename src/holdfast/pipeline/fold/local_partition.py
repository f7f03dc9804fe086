"""The fold of many changes without Spark's rows, first half: what passes the sieve, by bucket.

To hand rows from Python to Spark, and to let Spark move, sort and store them, costs more than to
find and decode them. So the tasks keep them in Arrow. Each writes what it lets pass into one file
of passing use, portion by portion, and every portion lies there bucket by bucket. The tasks that
come after (see `gather`) take their buckets out of all these files.

The files are not compressed: they are mapped into memory, and only what is used of them is read.
They lie beside the files that are made of them, and are removed when these are there. What a killed
job leaves no commit names, so a vacuum removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.pipeline.fold.local_scan import LocalScan
from holdfast.pipeline.fold.spark_hash import buckets_of
from holdfast.rules.limits import FOLD_PORTION_BYTES
from holdfast.storage.files.durable import rename_file


class LocalPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rows go that pass: it travels to the tasks."""

    sieve: LocalScan
    keys: Sequence[str]
    """Columns of the table that make the key."""
    buckets: int
    folder: str

    @property
    def paths(self) -> list[str]:
        """The files of all shares."""
        return [self._path(number) for number in range(len(self.sieve.shares))]

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the shares whose numbers come in, and gives the batches back."""
        for batch in tasks:
            for number in batch.column(0).to_pylist():
                self._write(number)
            yield batch

    def _path(self, number: int) -> str:
        return f"{self.folder}/share-{number:05}.arrow"

    def _write(self, number: int) -> None:
        path = self._path(number)
        with replacing(path) as passing, pa.ipc.new_file(passing, self.sieve.schema) as file:
            for rows in portions(self.sieve.share(self.sieve.shares[number])):
                self._write_portion(file, rows)

    def _write_portion(self, file: Any, rows: pa.RecordBatch) -> None:
        """A batch for each bucket, empty ones too: so the number of a batch tells its bucket."""
        buckets = buckets_of([rows[key] for key in self.keys], self.buckets)
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(self.buckets), side="right")
        sorted_rows, begin = rows.take(pa.array(order)), 0
        for end in ends.tolist():
            file.write_batch(sorted_rows.slice(begin, end - begin))
            begin = end


def portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= FOLD_PORTION_BYTES:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """A path to write to instead of another, whose place it takes at the end: of a task that runs
    twice, nobody finds half a file. What a commit will name is flushed there.
    """
    passing = f"{path}.{uuid4().hex}"
    try:
        yield passing
        rename_file(Path(passing), Path(path))
    finally:
        Path(passing).unlink(missing_ok=True)
