"""The first step: a task reads a range of ids and sends on what the nodes must hold of it.

The place of an envelope in bronze is the first where it was seen. The task has all other places of
its ids too, so it knows for each node which envelopes its log held. It makes rows of them with the
functions of a fold and sends them to the tasks that merge them; where the last writer wins, only
those that may win. Entries that a log still has are looked at here.

The meshes of rows get the number of the node, so that one fold serves all nodes. But rows go where
silver has their keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Generic, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.fold.buckets import key_hashes
from holdfast.pipeline.fold.columns import (
    STRONG,
    among,
    needed_for,
    ops_of,
    rows_of,
    taken_from,
)
from holdfast.pipeline.fold.committed import NEEDED, rows_of_commits, upto
from holdfast.pipeline.fold.scatter import TableRoute
from holdfast.pipeline.fold.sieve import passing
from holdfast.pipeline.ingest.dedupe import CONFLICT
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.id_ranges import IdRange, groups_in, inside
from holdfast.pipeline.lake.known_commits import Lost
from holdfast.pipeline.lake.reader import FileReader, OpenedFile
from holdfast.pipeline.lake.schema import COMMITTED, FAMILY_OF, KEYS
from holdfast.pipeline.spark.workers import Parcel, Scattering, packed
from holdfast.pipeline.verify.digests import L
from holdfast.pipeline.verify.expected import Numbers, Scope, counting
from holdfast.rules.limits import FOLD_SIEVE_ROWS_AT_ONCE
from holdfast.rules.merge import MERGES, Merge

LOG: Final = "log"
_TIME: Final = "lamport"
_PLACE: Final = ("log", "epoch", "offset", "id")
_FEW: Final = ("log", "mesh", "owner", "op", "origin", "model", "write_class")
"""Columns of few different values, which Arrow reads as dictionaries."""


class _Seen(NamedTuple):
    """Places of one scope."""

    scope: Scope
    ids: pa.Array | pa.ChunkedArray
    offsets: Numbers


class _Held(NamedTuple):
    """Rows of a row group that count for a scope; a row that was seen twice is there twice."""

    scope: Scope
    rows: Numbers
    offsets: Numbers


class VerifyScatter(msgspec.Struct, Generic[L], frozen=True, kw_only=True):
    """The step as an object that is sent to the tasks."""

    bronze: FileReader
    sightings: FileReader
    quarantine: FileReader
    ranges: Sequence[IdRange]
    scopes: Sequence[Scope]
    routes: Sequence[TableRoute]
    """The tables that are made, and where their rows go."""
    look: L | None
    """What is done with entries of logs; None if nothing is."""
    commits: FileReader
    commit_shares: Sequence[Sequence[File]] = ()
    """Files of `commits`: their tasks have the numbers behind those of the ranges."""
    lost: Lost = {}

    def __call__(self, number: int) -> Scattering[L | None]:
        if number >= len(self.ranges):
            yield from self._committed(self.commit_shares[number - len(self.ranges)])
            return None
        ids = self.ranges[number]
        look = None if self.look is None else self.look.begun()
        again = self._again(ids)
        for file in ids.bronze:
            with self.bronze.open(file, _FEW) as opened:
                for at in groups_in(opened, ids):
                    held = self._held(opened.group(at, _PLACE), ids, again)
                    if held:
                        yield from self._sent(opened, at, held, look)
        return look

    def _committed(self, share: Sequence[File]) -> Iterator[Parcel]:
        """What the nodes must hold of commits: each up to its number."""
        routes = {route.name: route for route in self.routes}
        columns = ["mesh", "number", *NEEDED]
        for file in share:
            with self.commits.open(file) as opened:
                for some in opened.batches(columns, rows=FOLD_SIEVE_ROWS_AT_ONCE):
                    for scope in self.scopes:
                        ours = upto(some, scope.commits)
                        for name, rows in rows_of_commits(ours, self.lost).items():
                            if name in routes:
                                yield from _parcels(routes[name], rows, scope)

    def _again(self, ids: IdRange) -> list[_Seen]:
        """Where the scopes have seen the ids of the range again, the same bytes or others."""
        found: list[_Seen] = []
        for reader, files in ((self.sightings, ids.sightings), (self.quarantine, ids.quarantine)):
            columns = [*_PLACE, *(["reason"] if "reason" in reader.schema.names else [])]
            for file in files:
                with reader.open(file, ["log"]) as opened:
                    for at in groups_in(opened, ids):
                        rows = opened.group(at, columns)
                        if "reason" in columns:
                            rows = rows.filter(pc.equal(rows["reason"], CONFLICT))
                        found += self._places(rows, ids)
        return found

    def _places(self, rows: pa.Table, ids: IdRange) -> Iterator[_Seen]:
        keep = inside(rows, ids)
        for scope in self.scopes:
            flags = counting(scope, rows)
            if keep is not None:
                flags &= keep
            if flags.any():
                offsets = rows["offset"].to_numpy()[flags]
                yield _Seen(scope, rows["id"].filter(pa.array(flags)), offsets)

    def _held(self, rows: pa.Table, ids: IdRange, again: Sequence[_Seen]) -> list[_Held]:
        """What the scopes have of a row group of bronze."""
        keep = inside(rows, ids)
        bounds = pc.min_max(rows["id"]).as_py()
        found: list[_Held] = []
        for scope in self.scopes:
            flags = counting(scope, rows)
            if keep is not None:
                flags &= keep
            first = np.flatnonzero(flags)
            places, offsets = [first], [rows["offset"].to_numpy()[first]]
            for seen in again:
                if seen.scope is scope:
                    near = _between(seen.ids, bounds["min"], bounds["max"])
                    few = seen.ids.take(pa.array(near))
                    at = pc.fill_null(pc.index_in(few, value_set=rows["id"]), -1)
                    there = at.to_numpy().astype(np.int64)
                    places.append(there[there >= 0])
                    offsets.append(seen.offsets[near][there >= 0])
            if sum(map(len, places)):
                found.append(_Held(scope, np.concatenate(places), np.concatenate(offsets)))
        return found

    def _sent(
        self, opened: OpenedFile, group: int, held: Sequence[_Held], look: L | None
    ) -> Iterator[Parcel]:
        needed = {"mesh", "id", "raw", "op", "entity", "write_class", _TIME}.union(
            *(needed_for(route.name) for route in self.routes if ops_of(route.name))
        )
        whole = opened.group(group, sorted(needed))
        for scope, places, offsets in held:
            if look is not None:
                entries = _of_meshes(whole, places[offsets >= scope.first], scope)
                if entries.num_rows:
                    look.add(LOG, _tagged(entries.select(["mesh", "id", "raw"]), scope))
            changes = _of_meshes(whole, np.unique(places), scope)
            for route in self.routes:
                if not ops_of(route.name):
                    continue  # only commits make rows of it
                rows = _made(route.name, changes)
                if rows.num_rows:
                    yield from _parcels(route, rows, scope)


def _between(ids: pa.ChunkedArray, low: str, high: str) -> Numbers:
    near = pc.and_(pc.greater_equal(ids, low), pc.less_equal(ids, high))
    return np.flatnonzero(near.to_numpy(zero_copy_only=False))


def _of_meshes(whole: pa.Table, places: Numbers, scope: Scope) -> pa.Table:
    """These rows, as far as the node has their meshes."""
    if len(places) != whole.num_rows or (np.diff(places) != 1).any():
        whole = whole.take(pa.array(places))
    flags = among(whole["mesh"], sorted(scope.forgotten))
    return whole if flags.all() else whole.filter(pa.array(flags))


def _made(name: str, changes: pa.Table) -> pa.Table:
    """The rows of a table that envelopes make, without those that cannot win."""
    flags = among(changes["op"], ops_of(name))
    if name in COMMITTED:
        flags &= ~among(changes["write_class"], [STRONG])
    rows = changes if flags.all() else changes.filter(pa.array(flags))
    if rows.num_rows and MERGES[FAMILY_OF[name]] is Merge.LAST_WRITER:
        sources = taken_from(name)
        keys = [rows[sources[key]] for key in KEYS[name]]
        may_win = passing(key_hashes(keys), rows[_TIME].to_numpy(), keys)
        rows = rows if may_win.all() else rows.filter(pa.array(may_win))
    return rows_of(name, rows)


def _tagged(rows: pa.Table, scope: Scope) -> pa.Table:
    meshes = pc.binary_join_element_wise(scope.tag(""), rows["mesh"].cast(pa.string()), "")
    return rows.set_column(rows.column_names.index("mesh"), "mesh", meshes)


def _parcels(route: TableRoute, rows: pa.Table, scope: Scope) -> Iterator[Parcel]:
    tagged = _tagged(rows, scope)
    if len(route.starts) == 1:
        yield Parcel(route.first, rows.num_rows, packed(tagged))
        return
    targets = route.targets(rows)
    for target in np.unique(targets).tolist():
        some = tagged.filter(pa.array(targets == target))
        yield Parcel(target, some.num_rows, packed(some))
