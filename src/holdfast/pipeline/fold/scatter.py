"""The first step of a fold: a task reads its share of bronze and sends rows to where they are
merged.

A share is read once for all tables. First only narrow columns: they say which rows are new, which
table they make, and, where the last writer wins, which of them may win (`sieve.py`). Then the other
columns of the row groups that have such rows. The bytes of these rows are decoded here, and the
rows of each table go to the task that owns their bucket.

What quorums have committed comes from `commits`, in shares of its own: there every row that has
bytes counts, and strong envelopes of bronze count for nothing.

A task keeps narrow columns up to a number of bytes. Beyond that it sends what passed so far and
starts again with the rest: more rows pass, and the result is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.pipeline.fold.buckets import buckets_in, key_hashes
from holdfast.pipeline.fold.columns import (
    STRONG,
    Flags,
    among,
    needed_for,
    ops_of,
    rows_of,
    taken_from,
)
from holdfast.pipeline.fold.committed import NEEDED, rows_of_commits
from holdfast.pipeline.fold.sieve import passing
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.known_commits import Lost
from holdfast.pipeline.lake.reader import FileReader
from holdfast.pipeline.lake.schema import COMMITTED, FAMILY_OF, KEYS
from holdfast.pipeline.spark.workers import Parcel, Scattering, packed
from holdfast.rules.limits import FOLD_PORTION_BYTES, FOLD_SIEVE_BYTES_MAX, FOLD_SIEVE_ROWS_AT_ONCE
from holdfast.rules.merge import MERGES, Merge

_TIME: Final = "lamport"
_KNOWN: Final = ("op", "mesh", "owner", "entity", _TIME)
"""The columns that are read first and kept."""
_FEW: Final = ("mesh", "owner", "op", "origin", "model", "family", "write_class")
"""Columns of few different values, which Arrow reads as dictionaries."""


class TableRoute(msgspec.Struct, frozen=True, kw_only=True):
    """What is new for a table, and where its rows go."""

    name: str
    since: int
    """Batches of bronze and of commits up to this one are folded already."""
    buckets: int
    first: int
    """The number of the task that makes the first span of the table."""
    starts: Sequence[int]
    """The first bucket of each span."""

    def targets(self, rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
        """For each row the number of the task that gets it."""
        hashes = key_hashes([rows[key] for key in KEYS[self.name]])
        buckets = buckets_in(hashes, self.buckets)
        found: np.ndarray[Any, np.dtype[np.int64]] = (
            np.searchsorted(np.array(self.starts), buckets, side="right") - 1 + self.first
        )
        return found


class Scattered(msgspec.Struct, frozen=True, kw_only=True):
    """What a task read."""

    rows: int
    """All rows of its files."""
    changes: dict[str, int]
    """By table: how many new envelopes of its family there were."""


class Scatter(msgspec.Struct, frozen=True, kw_only=True):
    """The step as an object that is sent to the tasks."""

    bronze: FileReader
    shares: Sequence[Sequence[File]]
    routes: Sequence[TableRoute]
    commits: FileReader
    commit_shares: Sequence[Sequence[File]] = ()
    """Files of `commits`: their tasks have the numbers behind those of bronze."""
    lost: Lost = {}

    def __call__(self, number: int) -> Scattering[Scattered]:
        if number >= len(self.shares):
            return (yield from self._committed(self.commit_shares[number - len(self.shares)]))
        outbox = _Outbox(self.routes)
        held: list[_Group] = []
        size = rows = 0
        changes: Counter[str] = Counter()
        for file in self.shares[number]:
            with self.bronze.open(file, _FEW) as opened:
                for at in range(opened.groups):
                    narrow = opened.group(at, [*_KNOWN, "family", "write_class", "batch"])
                    group = self._looked_at(file, at, narrow, changes)
                    rows += narrow.num_rows
                    if group.wanted:
                        held.append(group)
                        size += group.rows.nbytes
                    if size > FOLD_SIEVE_BYTES_MAX:
                        yield from self._passed(held, outbox)
                        held, size = [], 0
        yield from self._passed(held, outbox)
        yield from outbox.rest()
        return Scattered(rows=rows, changes=dict(changes))

    def _committed(self, share: Sequence[File]) -> Scattering[Scattered]:
        """Sends the rows that commits make."""
        outbox = _Outbox(self.routes)
        routes = {route.name: route for route in self.routes if route.name in COMMITTED}
        rows = 0
        changes: Counter[str] = Counter()
        for file in share:
            with self.commits.open(file) as opened:
                columns = [*NEEDED, "batch"]
                for some in opened.batches(columns, rows=FOLD_SIEVE_ROWS_AT_ONCE):
                    rows += some.num_rows
                    batches = some["batch"].to_numpy()
                    for since in {route.since for route in routes.values()}:
                        made = rows_of_commits(_filtered(some, batches > since), self.lost)
                        for name, found in made.items():
                            if name in routes and routes[name].since == since:
                                changes[name] += found.num_rows
                                yield from outbox.add(name, found)
        yield from outbox.rest()
        return Scattered(rows=rows, changes=dict(changes))

    def _looked_at(
        self, file: File, number: int, narrow: pa.Table, changes: Counter[str]
    ) -> _Group:
        """A row group, with the rows of it that each table wants."""
        wanted: dict[str, Flags] = {}
        batches = narrow["batch"].to_numpy()
        weak = ~among(narrow["write_class"], [STRONG])
        for route in self.routes:
            if not ops_of(route.name):
                continue  # only commits make rows of it
            is_new = batches > route.since
            if route.name in COMMITTED:
                is_new &= weak
            family = among(narrow["family"], [FAMILY_OF[route.name]])
            if count := int(np.count_nonzero(family & is_new)):
                changes[route.name] += count
                flags = among(narrow["op"], ops_of(route.name)) & is_new
                if flags.any():
                    wanted[route.name] = flags
        return _Group(file, number, narrow.select(_KNOWN), wanted)

    def _passed(self, held: Sequence[_Group], outbox: _Outbox) -> Iterator[Parcel]:
        """Sends the rows of some groups that pass."""
        for route in self.routes:
            if MERGES[FAMILY_OF[route.name]] is Merge.LAST_WRITER:
                _sift(route.name, [group for group in held if route.name in group.wanted])
        for group in held:
            for name, rows in self._whole(group):
                yield from outbox.add(name, rows)

    def _whole(self, group: _Group) -> Iterator[tuple[str, pa.Table]]:
        """The rows that the wanted envelopes of a group make, with the names of their tables."""
        every: Flags = np.logical_or.reduce(list(group.wanted.values()))
        if not every.any():
            return
        needed = set[str]().union(*(needed_for(name) for name in group.wanted))
        others = sorted(needed - set(_KNOWN))
        with self.bronze.open(group.file, [name for name in _FEW if name in others]) as opened:
            begin, at_once = 0, _at_once(opened.metadata.row_group(group.number))
            for rows in opened.batches(others, groups=[group.number], rows=at_once):
                end = begin + rows.num_rows
                here = every[begin:end]
                if here.any():
                    known = group.rows.slice(begin, rows.num_rows)
                    for column in others:
                        known = known.append_column(column, rows[column])
                    few = _filtered(known, here)
                    for name, flags in group.wanted.items():
                        if (ours := flags[begin:end][here]).any():
                            yield name, rows_of(name, _filtered(few, ours))
                begin = end


class _Group(msgspec.Struct, frozen=True):
    """A row group whose narrow columns were read."""

    file: File
    """Not the open file: there may be more files than a process may have open."""
    number: int
    rows: pa.Table
    wanted: dict[str, Flags]
    """By table: for each row whether it is new and makes a row of the table."""


def _sift(name: str, groups: Sequence[_Group]) -> None:
    """Takes from what a table wants the rows that cannot win."""
    if not groups:
        return
    sources = taken_from(name)
    keys = [sources[key] for key in KEYS[name]]
    narrow = pa.concat_tables(
        [_filtered(group.rows.select([*keys, _TIME]), group.wanted[name]) for group in groups]
    )
    columns = [narrow[key] for key in keys]
    flags = passing(key_hashes(columns), narrow[_TIME].to_numpy(), columns)
    begin = 0
    for group in groups:
        wanted = group.wanted[name]
        end = begin + int(np.count_nonzero(wanted))
        wanted[wanted] = flags[begin:end]
        begin = end


def _filtered(rows: pa.Table, flags: Flags) -> pa.Table:
    return rows if flags.all() else rows.filter(pa.array(flags))


def _at_once(group: Any) -> int:
    """How many rows of a group are read together: fewer if they are large."""
    row: int = max(1, group.total_byte_size // max(1, group.num_rows))
    return max(1, min(FOLD_SIEVE_ROWS_AT_ONCE, FOLD_PORTION_BYTES // row))


class _Outbox:
    """Rows of each table that wait until there are enough for parcels."""

    def __init__(self, routes: Sequence[TableRoute]) -> None:
        self._routes: Mapping[str, TableRoute] = {route.name: route for route in routes}
        self._waiting: dict[str, list[pa.Table]] = {route.name: [] for route in routes}
        self._bytes: Counter[str] = Counter()
        self._models: set[str] = set()

    def add(self, name: str, rows: pa.Table) -> Iterator[Parcel]:
        if name == "models":
            rows = self._unknown_models(rows)
        if not rows.num_rows:
            return
        self._waiting[name].append(rows)
        self._bytes[name] += rows.nbytes
        if self._bytes[name] >= FOLD_PORTION_BYTES:
            yield from self._parcels(name)

    def rest(self) -> Iterator[Parcel]:
        for name, waiting in self._waiting.items():
            if waiting:
                yield from self._parcels(name)

    def _unknown_models(self, rows: pa.Table) -> pa.Table:
        """One row for each model that was not sent yet: all vectors name theirs."""
        _, places = np.unique(
            rows["id"].combine_chunks().dictionary_encode().indices.to_numpy(), return_index=True
        )
        named = rows.take(pa.array(np.sort(places)))
        new = [model not in self._models for model in named["id"].to_pylist()]
        self._models.update(named["id"].to_pylist())
        return named.filter(pa.array(new))

    def _parcels(self, name: str) -> Iterator[Parcel]:
        rows = pa.concat_tables(self._waiting[name])
        self._waiting[name], self._bytes[name] = [], 0
        route = self._routes[name]
        if len(route.starts) == 1:
            yield Parcel(route.first, rows.num_rows, packed(rows))
            return
        targets = route.targets(rows)
        order = np.argsort(targets.astype(np.uint16), kind="stable")
        ordered, targets = rows.take(pa.array(order)), targets[order]
        cuts = np.flatnonzero(np.diff(targets)) + 1
        for begin, end in zip([0, *cuts], [*cuts, len(targets)], strict=True):
            some = ordered.slice(begin, end - begin)
            yield Parcel(int(targets[begin]), some.num_rows, packed(some))
