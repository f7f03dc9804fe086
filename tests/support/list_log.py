"""A log that a test writes out: its entries are a list, in any order of ids, with or without holes.

It is read as every other log is, in any process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.pipeline.logs.arrow import from_columns
from holdfast.pipeline.logs.log import LogBounds, ReadCommit, check_range, reading
from holdfast.rules.envelope import decode_stored
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.ids import id_text
from holdfast.rules.rows import Columns


@dataclass(frozen=True)
class ListedEntry:
    """An entry as a log has it in its columns; what its bytes say may be something else."""

    offset: int
    envelope: bytes
    """The columns of the log are those of this envelope."""
    recorded_at: int
    raw: bytes
    """The bytes that the log has."""

    @property
    def id(self) -> str:
        return id_text(decode_stored(self.envelope).id)


@dataclass(frozen=True)
class ListLog:
    """A log of these entries. Batches have at most `batch_rows` rows."""

    name: str
    entries: Sequence[ListedEntry]
    batch_rows: int = 3
    dense: bool = True
    confirmed: dict[str, int] = field(default_factory=dict, compare=False, hash=False)

    @property
    def location(self) -> str:
        return f"list of {self.name}"

    def place(self) -> LogBounds:
        return LogBounds(self.name, 1, 1, max((one.offset for one in self.entries), default=0))

    def commits(self, known: Mapping[str, int]) -> Iterator[list[ReadCommit]]:
        return iter(())

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        with reading(self.name, self.location, epoch, start, stop):
            check_range(self.place(), epoch, start, stop)
        found = [one for one in self.entries if start <= one.offset < stop]
        for at in range(0, len(found), self.batch_rows):
            yield self._batch(found[at : at + self.batch_rows])

    def _batch(self, entries: Sequence[ListedEntry]) -> pa.RecordBatch:
        says = [decode_stored(one.envelope) for one in entries]
        columns = Columns(
            offset=[one.offset for one in entries],
            id=[one.id for one in says],
            mesh=[one.mesh for one in says],
            op=[one.op for one in says],
            entity=[one.entity for one in says],
            origin=[one.origin for one in says],
            lamport=[one.lamport for one in says],
            recorded_at=[one.recorded_at for one in entries],
            raw=[one.raw for one in entries],
            upto=entries[-1].offset,
        )
        return from_columns(self.name, 1, columns)

    def register(self, consumer: str, start: int) -> None: ...

    def confirm(self, consumer: str, epoch: int, offset: int) -> None:
        self.confirmed[consumer] = max(offset, self.confirmed.get(consumer, 0))

    def close(self) -> None: ...
