"""The rows of one range of ids, read once for all audits.

Only the columns that the chosen audits ask for are read. The bytes of an envelope are read where
their length or the fence in them is asked for, and are dropped at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.audits.arrays import Flags, Numbers, Words, coded, id_words, ints
from holdfast.pipeline.audits.chains import CHAINED, is_event, open_events
from holdfast.pipeline.audits.fences import FENCED, is_fenced, open_fences
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.id_ranges import IdRange, groups_in, inside
from holdfast.pipeline.lake.reader import FileReader, OpenedFile

BYTES: Final = "bytes"
"""The length of an envelope, a column that bronze does not have."""
AGAIN: Final = ("log", "epoch", "offset", "id", "recorded_at")
ASIDE: Final = ("log", "epoch", "offset", "id", "reason", "detail", "recorded_at")
_FEW: Final = frozenset(
    {"log", "mesh", "origin", "family", "owner", "write_class", "state", "base_peer", "reason"}
)
_SEEN: Final = (*AGAIN, "mesh", "origin", "origin_epoch", "seq", "created_at")

Positions = Mapping[tuple[str, int], int]
"""By log and epoch: how far the lake has read it."""


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """What a task reads; Spark sends it to the tasks."""

    bronze: FileReader
    sightings: FileReader
    quarantine: FileReader
    ranges: Sequence[IdRange]
    positions: Positions
    columns: Sequence[str]
    """The columns of bronze that are read, `BYTES` among them."""
    commits: FileReader
    commit_files: Sequence[File]
    fences: bool
    chains: bool
    again: bool
    aside: bool

    def share(self, number: int) -> Share:
        """The rows of one range."""
        ids = self.ranges[number]
        rows: list[pa.Table] = []
        fenced: list[pa.Table] = []
        chained: list[pa.Table] = []
        for file in ids.bronze:
            with self.bronze.open(file, self._few(self.columns)) as opened:
                for group in groups_in(opened, ids):
                    part, keep = self._group(opened, group, ids, fenced, chained)
                    rows.append(part if keep is None else part.filter(pa.array(keep)))
        return Share(
            rows=_all(rows, self._schema),
            fenced=_all(fenced, FENCED),
            chained=_all(chained, CHAINED),
            again=self._beside(self.sightings, ids.sightings if self.again else (), AGAIN, ids),
            aside=self._beside(self.quarantine, ids.quarantine if self.aside else (), ASIDE, ids),
        )

    def commits_of(self, number: int, columns: Sequence[str]) -> pa.Table:
        """The rows of `commits` that one of the tasks reads."""
        found = [self.commits.empty(columns)]
        for file in self.commit_files[number :: len(self.ranges)]:
            with self.commits.open(file) as opened:
                found += [opened.group(at, columns) for at in range(opened.groups)]
        return pa.concat_tables(found)

    @property
    def without_rows(self) -> Share:
        """A share of a range without rows."""
        few = [self._few(columns) for columns in (AGAIN, ASIDE)]
        return Share(
            rows=self._schema.empty_table(),
            fenced=FENCED.empty_table(),
            chained=CHAINED.empty_table(),
            again=_wanted(self.sightings.schema, AGAIN, few[0]).empty_table(),
            aside=_wanted(self.quarantine.schema, ASIDE, few[1]).empty_table(),
        )

    def _group(
        self,
        opened: OpenedFile,
        group: int,
        ids: IdRange,
        fenced: list[pa.Table],
        chained: list[pa.Table],
    ) -> tuple[pa.Table, Flags | None]:
        """A row group of bronze, and which of its rows are in the range; None for all of them."""
        part = opened.group(group, [name for name in self.columns if name != BYTES])
        keep = inside(part, ids)
        strong = self.fences and is_fenced(part).any()
        events = self.chains and is_event(part).any()
        if strong or events or BYTES in self.columns:
            raw = opened.group(group, ["raw"])["raw"]
            whole = part.append_column("raw", raw)
            kept = whole if keep is None else whole.filter(pa.array(keep))
            if strong:
                fenced.append(open_fences(kept))
            if events:
                chained.append(open_events(kept))
            if BYTES in self.columns:
                part = part.append_column(BYTES, pc.cast(pc.binary_length(raw), pa.int64()))
        return part.select(self._schema.names), keep

    def _beside(
        self, reader: FileReader, files: Sequence[File], columns: Sequence[str], ids: IdRange
    ) -> pa.Table:
        """Rows of sightings or quarantine, up to the positions of bronze. They are committed before
        bronze, so they may be ahead after a job was killed; the next job puts that right.
        """
        found: list[pa.Table] = []
        few = self._few(columns)
        for file in files:
            with reader.open(file, few) as opened:
                for group in groups_in(opened, ids):
                    part = opened.group(group, columns)
                    keep = inside(part, ids)
                    part = part if keep is None else part.filter(pa.array(keep))
                    found.append(part.filter(pa.array(settled(part, self.positions))))
        return _all(found, _wanted(reader.schema, columns, few))

    @property
    def _schema(self) -> pa.Schema:
        schema = self.bronze.schema.append(pa.field(BYTES, pa.int64()))
        return _wanted(schema, self.columns, self._few(self.columns))

    def _few(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name in _FEW]


@dataclass(frozen=True)
class Share:
    """All rows of a range of ids."""

    rows: pa.Table
    """Of bronze."""
    fenced: pa.Table
    """`FENCED`: the strong writes among them."""
    chained: pa.Table
    """`CHAINED`: the events of audit streams among them."""
    again: pa.Table
    """Of sightings."""
    aside: pa.Table
    """Of quarantine."""

    @cached_property
    def words(self) -> tuple[Words, Words]:
        """The ids of `rows`."""
        return id_words(self.rows["id"])

    @cached_property
    def words_again(self) -> tuple[Words, Words]:
        return id_words(self.again["id"])

    @cached_property
    def envelopes(self) -> Numbers:
        """For each row of `again` the place of its envelope in `rows`; -1 if bronze lacks it."""
        if not self.again.num_rows:
            return np.zeros(0, np.int64)
        places = pc.index_in(_binary(self.words_again), value_set=_binary(self.words))
        found: Numbers = pc.fill_null(places, -1).to_numpy().astype(np.int64)
        return found

    @cached_property
    def seen(self) -> pa.Table:
        """Every place where an envelope of bronze was read, with what bronze says of it."""
        rows = self.rows.select([name for name in _SEEN if name in self.rows.column_names])
        there = np.flatnonzero(self.envelopes >= 0)
        if not len(there):
            return rows
        again = (
            self.again if len(there) == self.again.num_rows else self.again.take(pa.array(there))
        )
        at = pa.array(self.envelopes[there])
        columns = {
            name: again[name] if name in AGAIN else rows[name].take(at)
            for name in rows.column_names
        }
        return pa.concat_tables([rows, pa.table(columns, schema=rows.schema)])


def settled(rows: pa.Table, positions: Positions) -> Flags:
    """Which places the positions of bronze have reached."""
    (logs,), names = coded(rows["log"])
    epochs, offsets = ints(rows["epoch"]), ints(rows["offset"])
    ends = np.full(len(logs), -1, np.int64)
    for log, name in enumerate(names):
        for epoch in np.unique(epochs[logs == log]).tolist():
            ends[(logs == log) & (epochs == epoch)] = positions.get((name, epoch), -1)
    return offsets <= ends


def _binary(words: tuple[Words, Words]) -> pa.Array:
    pairs = np.column_stack([word.astype(">u8") for word in words])
    return pa.Array.from_buffers(pa.binary(16), len(pairs), [None, pa.py_buffer(pairs.tobytes())])


def _wanted(schema: pa.Schema, columns: Sequence[str], few: Sequence[str]) -> pa.Schema:
    return pa.schema(
        [
            schema.field(name).with_type(pa.dictionary(pa.int32(), pa.string()))
            if name in few
            else schema.field(name)
            for name in columns
        ]
    )


def _all(parts: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(parts) if parts else schema.empty_table()
