"""Logs that are held back: one is read only when a test allows it, one seems to end early.

They work in any process, also in those that Spark starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.pipeline.logs.log import LogBounds, ReadableLog, ReadCommit
from holdfast.rules.filters import EVERYTHING, Filter
from support.waiting import until


class PassingLog:
    """The log of somebody else, as it is."""

    def __init__(self, log: ReadableLog) -> None:
        self.log = log
        self.location = log.location
        self.dense = log.dense

    def place(self) -> LogBounds:
        return self.log.place()

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        yield from self.log.batches(epoch, start, stop, filter)

    def commits(self, known: Mapping[str, int]) -> Iterator[list[ReadCommit]]:
        yield from self.log.commits(known)

    def register(self, consumer: str, start: int) -> None:
        self.log.register(consumer, start)

    def confirm(self, consumer: str, epoch: int, offset: int) -> None:
        self.log.confirm(consumer, epoch, offset)

    def close(self) -> None:
        self.log.close()


class HeldLog(PassingLog):
    """Whoever reads it writes a file `reading-<pid>` into a folder, and waits there for `go`."""

    def __init__(self, log: ReadableLog, folder: str) -> None:
        super().__init__(log)
        self.folder = folder

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        folder = Path(self.folder)
        (folder / f"reading-{os.getpid()}").touch()
        until((folder / "go").exists)
        yield from super().batches(epoch, start, stop, filter)


class HalfLog(PassingLog):
    """As it was when it had half of its entries."""

    def place(self) -> LogBounds:
        whole = super().place()
        return msgspec.structs.replace(whole, head=(whole.first + whole.head) // 2)
