"""Which places of which logs the lake holds, found in the tables themselves.

Only narrow columns are read. What comes out is small: runs of offsets that follow each other, each
of one log, one batch and one kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.schema import GAP, LOST, UNKNOWN_OP

Key = tuple[str, int]
"""A log by its name and epoch."""

NEW, AGAIN, ORPHAN, ASIDE, TOLD, STRANGE = range(6)
"""The kinds of runs: places in bronze; in sightings; in sightings of what bronze lacks; in
quarantine and not in bronze; places where quarantine tells of offsets that nobody has; notes about
entries of bronze with an op that is not known.
"""
ENTRIES: Final = (NEW, AGAIN, ASIDE)
Numbers = np.ndarray[Any, np.dtype[np.int64]]
_PLACE: Final = ("log", "epoch", "offset")
_GROUP: Final = ("log", "epoch", "kind", "batch")

RUNS: Final = pa.schema(
    [
        ("log", pa.string()),
        ("epoch", pa.int64()),
        ("kind", pa.int64()),
        ("batch", pa.int64()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
    ]
)


@dataclass(frozen=True)
class HeldPlaces:
    """What the tables hold."""

    runs: pa.Table
    """`RUNS`: all offsets in [start, stop) are there."""
    gone: Mapping[str, Sequence[File]] = field(default_factory=dict)
    """By table: files that a commit names and that are not there."""


def held_by(bronze: Table, sightings: Table, quarantine: Table) -> HeldPlaces:
    """Reads the places of all three tables."""
    parts: list[pa.Table] = []
    gone: dict[str, Sequence[File]] = {}
    for table, read in ((bronze, _bronze_runs), (quarantine, _quarantine_runs)):
        for file in table.files():
            found, lost = read(table, file)
            parts.append(found)
            if lost:
                gone[table.root] = (*gone.get(table.root, ()), file)
    parts.append(_sighted(bronze, sightings, gone))
    return HeldPlaces(joined_runs(parts), gone)


def _bronze_runs(table: Table, file: File) -> tuple[pa.Table, bool]:
    """The runs of one file, and whether it is gone."""
    rows, gone = table.load([file], [*_PLACE, "batch"])
    return runs_of(rows, np.full(rows.num_rows, NEW)), bool(gone)


def _quarantine_runs(table: Table, file: File) -> tuple[pa.Table, bool]:
    rows, gone = table.load([file], [*_PLACE, "batch", "reason"])
    return runs_of(rows, _kinds(rows.column("reason"))), bool(gone)


def _sighted(bronze: Table, sightings: Table, gone: dict[str, Sequence[File]]) -> pa.Table:
    """The runs of sightings, orphans apart. A job that was killed before its commit to bronze has
    left such; or bronze was set back.
    """
    rows, lost = sightings.load(sightings.files(), [*_PLACE, "batch", "id"])
    if lost:
        gone[sightings.root] = lost
    if not rows.num_rows:
        return RUNS.empty_table()
    ids = rows.column("id").combine_chunks()
    least, most = pc.min(ids).as_py(), pc.max(ids).as_py()
    known = np.zeros(len(ids), bool)
    for file in bronze.files(lambda file: file.may_hold("id", least, most)):
        near = _within(ids, file.low.get("id", least), file.high.get("id", most))
        if len(near):
            there = bronze.load([file], ["id"])[0].column("id").combine_chunks()
            known[near] |= pc.is_in(ids.take(near), value_set=there).to_numpy(zero_copy_only=False)
    return runs_of(rows, np.where(known, AGAIN, ORPHAN))


def _within(ids: pa.Array, least: str, most: str) -> pa.Array:
    """The places of the ids between two bounds, both included. Only those are looked up in a file
    with these bounds: to compare texts costs much less than to look them up.
    """
    return pc.indices_nonzero(pc.and_(pc.greater_equal(ids, least), pc.less_equal(ids, most)))


def _kinds(reasons: pa.ChunkedArray) -> Numbers:
    told = pc.is_in(reasons, value_set=pa.array([GAP, LOST])).to_numpy()
    return np.where(told, TOLD, np.where(pc.equal(reasons, UNKNOWN_OP).to_numpy(), STRANGE, ASIDE))


def runs_of(rows: pa.Table, kinds: Numbers) -> pa.Table:
    """Rows with a place and a batch, as runs."""
    offset = rows.column("offset")
    columns = {
        **{name: rows.column(name) for name in ("log", "epoch", "batch")},
        **{"kind": pa.array(kinds, pa.int64()), "start": offset, "stop": pc.add(offset, 1)},
    }
    return joined_runs([pa.table(columns).select(RUNS.names)])


def joined_runs(parts: Iterable[pa.Table]) -> pa.Table:
    """All runs, sorted. Those of one log, batch and kind that touch or overlap become one."""
    whole = pa.concat_tables([RUNS.empty_table(), *parts])
    whole = whole.sort_by([(name, "ascending") for name in (*_GROUP, "start")]).combine_chunks()
    while whole.num_rows:
        start, stop = numbers(whole, "start"), numbers(whole, "stop")
        first = np.ones(len(start), bool)
        first[1:] = start[1:] > stop[:-1]
        for name in _GROUP:
            group = numbers(whole, name)
            first[1:] |= group[1:] != group[:-1]
        if first.all():
            break
        at = np.flatnonzero(first)
        ends = pa.array(np.maximum.reduceat(stop, at))
        whole = whole.take(pa.array(at)).set_column(RUNS.get_field_index("stop"), "stop", ends)
    return whole


def numbers(table: pa.Table, name: str) -> Numbers:
    """A column as numbers; a text becomes its number among the different texts."""
    column = table.column(name).combine_chunks()
    if pa.types.is_string(column.type):
        column = column.dictionary_encode().indices
    found: Numbers = column.to_numpy(zero_copy_only=False)
    return found


class Offsets:
    """A set of offsets of one log."""

    def __init__(self, runs: pa.Table) -> None:
        """`runs` are of one log, whatever their batches and kinds."""
        order = runs.select(["start", "stop"]).sort_by("start")
        start, stop = numbers(order, "start"), numbers(order, "stop")
        upto = np.maximum.accumulate(stop) if len(stop) else stop
        first = np.ones(len(start), bool)
        first[1:] = start[1:] > upto[:-1]
        at = np.flatnonzero(first)
        self._start = start[at]
        self._stop = np.maximum.reduceat(stop, at) if len(at) else stop
        self._before = np.concatenate([[0], np.cumsum(self._stop - self._start)])

    def count(self, start: Numbers, stop: Numbers) -> Numbers:
        """By range: how many offsets of [start, stop) are in the set."""
        return self._below(stop) - self._below(start)

    def _below(self, offset: Numbers) -> Numbers:
        at = np.searchsorted(self._start, offset)
        over = np.where(at > 0, np.append(self._stop, 0)[at - 1] - offset, 0)
        below: Numbers = self._before[at] - np.maximum(over, 0)
        return below

    def holes(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of [start, stop) that are not in the set."""
        inside = (self._stop > start) & (self._start < stop)
        ends = np.concatenate([[start], np.minimum(self._stop[inside], stop)])
        starts = np.concatenate([np.maximum(self._start[inside], start), [stop]])
        return [(int(a), int(b)) for a, b in zip(ends, starts, strict=True) if a < b]


def last_batch(bronze: Table) -> int:
    """The greatest number of a batch that bronze has rows of; -1 if it has none."""
    return max((file.high.get("batch", -1) for file in bronze.files()), default=-1)


def id_at(tables: Iterable[Table], key: Key, offset: int) -> str:
    """The id of the entry at a place; empty if these tables have none there."""
    log, epoch = key
    here = (pc.field("log") == log) & (pc.field("epoch") == epoch) & (pc.field("offset") == offset)
    for table in tables:
        near = table.files(
            lambda file: file.may_hold("log", log, log) and file.may_hold("offset", offset, offset)
        )
        for file in near:
            found = table.load([file], [*_PLACE, "id"])[0].filter(here)
            if found.num_rows:
                return found.column("id")[0].as_py() or ""
    return ""
