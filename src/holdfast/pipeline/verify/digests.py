"""What tasks do with the rows that nodes must have: digests of them, or a search among them.

Both are made in parts, by the tasks that have the rows, with the functions that the nodes use, and
put together by the driver. A part is small, however many rows there were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.node.log.digests import HeldRow, held_row
from holdfast.pipeline.verify.expected import untagged
from holdfast.rules import digests as rules
from holdfast.rules.digests import DigestTally

_LANES = 8
_ROWS_AT_ONCE = 20_000

Tallies = dict[tuple[str, str], DigestTally]
"""By tagged mesh and table."""


class Look(Protocol):
    """Something that is found out about rows."""

    def begun(self: L) -> L:
        """The same with nothing found yet, for a task."""

    def add(self, table: str, rows: pa.Table) -> None:
        """Takes in rows whose meshes are tagged (see `Scope.tag`)."""

    def absorb(self: L, other: L) -> None:
        """Takes in what another task has found."""


L = TypeVar("L", bound=Look)


class Tallying:
    """Makes the digests of tables. Meshes that `forgotten` does not name are left out."""

    def __init__(self, forgotten: Mapping[str, int]) -> None:
        self._forgotten = dict(forgotten)
        self.found: Tallies = {}

    def begun(self) -> Tallying:
        return Tallying(self._forgotten)

    def add(self, table: str, rows: pa.Table) -> None:
        for tag, some in by_mesh(rows):
            bound = self._forgotten.get(tag)
            if bound is not None:
                tally = self.found.setdefault((tag, table), DigestTally())
                for begin in range(0, some.num_rows, _ROWS_AT_ONCE):
                    _tally(tally, table, some.slice(begin, _ROWS_AT_ONCE), bound)

    def absorb(self, other: Tallying) -> None:
        for place, part in other.found.items():
            tally = self.found.setdefault(place, DigestTally())
            for bucket, rows in part.counts.items():
                tally.add_lanes(bucket, rows, part.lanes(bucket))


class Searching:
    """Looks into one bucket of one table: which of the digests in `known` its rows have, and the
    first rows by key, at most `most`, that have another digest.
    """

    def __init__(
        self, table: str, bucket: int, forgotten: int, known: Collection[str], most: int
    ) -> None:
        self._about = (table, bucket, forgotten, frozenset(known), most)
        self.matched: set[str] = set()
        self.apart: list[HeldRow] = []

    def begun(self) -> Searching:
        return Searching(*self._about)

    def add(self, table: str, rows: pa.Table) -> None:
        wanted, bucket, forgotten, known, most = self._about
        if table != wanted:
            return
        for row in zip(*values(table, rows), strict=True):
            if rules.bucket_of(table, row) != bucket or not rules.is_covered(table, row, forgotten):
                continue
            digest = rules.row_digest(table, row).hex()
            if digest in known:
                self.matched.add(digest)
            else:
                self.apart.append(held_row(table, row))
                if len(self.apart) > 2 * most:
                    self._cut()
        self._cut()

    def absorb(self, other: Searching) -> None:
        self.matched |= other.matched
        self.apart += other.apart
        self._cut()

    def _cut(self) -> None:
        self.apart = sorted(self.apart, key=lambda held: held.key)[: self._about[-1]]


def values(table: str, rows: pa.Table) -> list[list[Any]]:
    """The columns of rows as `rules.digests` takes them; meshes lose their tags."""
    tags, *others = (_plain(rows[column.name], column.kind) for column in rules.columns_of(table))
    known = {tag: untagged(tag) for tag in set(tags)}
    return [[known[tag] for tag in tags], *others]


def by_mesh(rows: pa.Table) -> list[tuple[str, pa.Table]]:
    """The rows of each mesh."""
    meshes = pc.unique(rows["mesh"]).to_pylist()
    if len(meshes) == 1:
        return [(meshes[0], rows)]
    return [(mesh, rows.filter(pc.equal(rows["mesh"], mesh))) for mesh in meshes]


def _plain(column: pa.ChunkedArray, kind: rules.Kind) -> list[Any]:
    if kind == "time":
        column = pc.divide(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1000)
    elif kind == "id":
        column = pc.replace_substring(column, "-", "")
    found: list[Any] = column.to_pylist()
    return found


def _tally(tally: DigestTally, table: str, rows: pa.Table, forgotten: int) -> None:
    """Adds rows of one mesh. Their digests are added up as lanes, by numpy."""
    numbers, digests = rules.digest_columns(table, values(table, rows), forgotten)
    if not numbers:
        return
    buckets = np.array(numbers, np.int64)
    lanes = np.frombuffer(b"".join(digests), ">u4").reshape(-1, _LANES).astype(np.int64)
    sums = np.zeros((rules.BUCKETS, _LANES), np.int64)
    np.add.at(sums, buckets, lanes)
    counts = np.bincount(buckets, minlength=rules.BUCKETS)
    for bucket in np.flatnonzero(counts).tolist():
        tally.add_lanes(bucket, int(counts[bucket]), sums[bucket].tolist())
