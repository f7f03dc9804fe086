"""How much of bronze a table of silver has taken in, and whether that can still be believed.

Every commit of a base or of its increments notes the last batch of bronze that it covers, how many
rows bronze had then, and, for increments, the last batch that the base covered. What was noted
survives a RESTORE, and a table may come from another day than the tables beside it. So the notes
count only together:

- the table has the files that its last commit left;
- the increments do not stand on a base that was newer than the one that is there;
- bronze still has all rows that the table has taken in.

If one of these does not hold, the table has to be folded again from the start: position -1.

Batch numbers are compared, not versions of bronze: a bronze that comes from a backup counts its
versions again, while batch numbers are never used twice (`Lake.next_batch`).
"""

from __future__ import annotations

from typing import Final

import pyarrow.compute as pc

from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.held import last_batch
from holdfast.pipeline.lake.lake import BRONZE

TAKEN: Final = "taken"
"""The application id with which a commit notes how many rows bronze had."""
BASE: Final = "base"
"""The application id with which increments note the last batch that their base covered."""


def newest(bronze: Table) -> int:
    """The last batch that bronze may have; batches that come later have greater numbers."""
    return max(bronze.version, last_batch(bronze))


def notes(bronze: Table, base: Table | None = None) -> dict[str, int]:
    """What a commit notes that covers all of bronze; with `base` for the increments on it."""
    noted = {BRONZE: newest(bronze), TAKEN: bronze.rows}
    return noted if base is None else {**noted, BASE: _noted(base, BRONZE)}


def kept_notes(base: Table, increments: Table) -> dict[str, int]:
    """The notes for a base that takes in its increments, and nothing else."""
    newer = max((base, increments), key=lambda table: _noted(table, BRONZE))
    return {app: _noted(newer, app) for app in (BRONZE, TAKEN) if newer.txn(app) is not None}


def position(bronze: Table, base: Table, increments: Table) -> int:
    """The last batch of bronze that a table has taken in; -1 if none, or if notes do not hold."""
    if any(table.is_as_left is False for table in (base, increments)):
        return -1
    at, waiting = _noted(base, BRONZE), _noted(increments, BRONZE)
    if at < 0 or _noted(increments, BASE) > at:
        return -1
    newer = increments if waiting > at else base
    at, taken = max(at, waiting), newer.txn(TAKEN)
    if at > newest(bronze):
        return -1
    # Tables of earlier code have not noted it.
    return at if taken is None or taken == rows_upto(bronze, at) else -1


def _noted(table: Table, app: str) -> int:
    found = table.txn(app)
    return -1 if found is None else found


def rows_upto(bronze: Table, batch: int) -> int:
    """How many rows of bronze are of this batch or an earlier one. Only files that were put
    together out of earlier and later batches are read, one column of them.
    """
    rows = 0
    for file in bronze.files():
        low, high = file.low.get("batch"), file.high.get("batch")
        if low is None or high is None or low <= batch < high:
            found, gone = bronze.load([file], ["batch"])
            rows += 0 if gone else pc.sum(pc.less_equal(found["batch"], batch)).as_py() or 0
        elif high <= batch:
            rows += file.rows
    return rows
