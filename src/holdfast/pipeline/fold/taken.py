"""How much of bronze a table of silver has taken in, and whether that can still be believed.

Every commit of a base or of its increments notes the last batch of bronze that it covers, how many
rows bronze had then, and, for increments, the last batch that the base covered. What was noted
survives a RESTORE, and a table may come from another day than the tables beside it. So the notes
count only together:

- the table has the files that its last commit left;
- the increments do not stand on a base that was newer than the one that is there;
- bronze still has all rows that the table has taken in, and so has `commits` for the tables of
  turns, which are made of both. Their batches are numbered in one row;
- no recovery has left behind commits that the table has taken in.

If one of these does not hold, the table has to be folded again from the start: position -1.

Batch numbers are compared, not versions of bronze: a bronze that comes from a backup counts its
versions again, while batch numbers are never used twice (`Lake.next_batch`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow.compute as pc

from holdfast.pipeline.fold.columns import ops_of
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.held import last_batch
from holdfast.pipeline.lake.lake import BRONZE, Lake
from holdfast.pipeline.lake.schema import COMMITTED

TAKEN: Final = "taken"
"""The application id with which a commit notes how many rows its sources had."""
LOST: Final = "lost"
"""The application id with which a commit notes how many commits recoveries had left behind."""
BASE: Final = "base"
"""The application id with which increments note the last batch that their base covered."""


class Sources(NamedTuple):
    """What a table is made of."""

    bronze: Table | None
    """None for a table about which only quorums decide."""
    commits: Table | None = None
    """None for a table in which quorums decide nothing."""
    lost: int = 0
    """How many of the commits are part of no order any more."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(table for table in (self.bronze, self.commits) if table is not None)

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def newest(self) -> int:
        """The last batch that there may be; batches that come later have greater numbers."""
        first = 0 if self.bronze is None else self.bronze.version
        return max(first, *(last_batch(table) for table in self.tables))

    def rows_upto(self, batch: int) -> int:
        return sum(rows_upto(table, batch) for table in self.tables)


def sources_of(lake: Lake, name: str) -> Sources:
    """What a table of silver is made of."""
    if name not in COMMITTED:
        return Sources(lake.bronze)
    bronze = lake.bronze if ops_of(name) else None
    return Sources(bronze, lake.commits, lake.known_commits.lost_count)


def notes(sources: Sources, base: Table | None = None) -> dict[str, int]:
    """What a commit notes that covers all of its sources; with `base` for the increments on it."""
    noted = {BRONZE: sources.newest, TAKEN: sources.rows, LOST: sources.lost}
    return noted if base is None else {**noted, BASE: _noted(base, BRONZE)}


def kept_notes(base: Table, increments: Table) -> dict[str, int]:
    """The notes for a base that takes in its increments, and nothing else."""
    newer = max((base, increments), key=lambda table: _noted(table, BRONZE))
    known = [app for app in (BRONZE, TAKEN, LOST) if newer.txn(app) is not None]
    return {app: _noted(newer, app) for app in known}


def position(sources: Sources, base: Table, increments: Table) -> int:
    """The last batch that a table has taken in; -1 if none, or if notes do not hold."""
    if any(table.is_as_left is False for table in (base, increments)):
        return -1
    at, waiting = _noted(base, BRONZE), _noted(increments, BRONZE)
    if at < 0 or _noted(increments, BASE) > at:
        return -1
    newer = increments if waiting > at else base
    at, taken = max(at, waiting), newer.txn(TAKEN)
    if at > sources.newest or (newer.txn(LOST) or 0) != sources.lost:
        return -1
    # Tables of earlier code have not noted it.
    return at if taken is None or taken == sources.rows_upto(at) else -1


def _noted(table: Table, app: str) -> int:
    found = table.txn(app)
    return -1 if found is None else found


def rows_upto(source: Table, batch: int) -> int:
    """How many rows of a source are of this batch or an earlier one. Only files that were put
    together out of earlier and later batches are read, one column of them.
    """
    rows = 0
    for file in source.files():
        low, high = file.low.get("batch"), file.high.get("batch")
        if low is None or high is None or low <= batch < high:
            found, gone = source.load([file], ["batch"])
            rows += 0 if gone else pc.sum(pc.less_equal(found["batch"], batch)).as_py() or 0
        elif high <= batch:
            rows += file.rows
    return rows
