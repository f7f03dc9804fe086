"""Compares silver with what the log of each node makes.

Changes reach a node with a delay. So silver, which is made of all logs, may have rows that a node
does not have yet, or newer versions of its rows. They are counted as `behind`. The other way round
must not happen: whatever a log makes, silver has it, or something that replaced it. If not
(`astray`), silver has not been folded since the log was read, or is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake.schema import KEYS
from holdfast.pipeline.verify.digests import by_mesh
from holdfast.rules import digests as rules
from holdfast.rules.order import ORDER_COLUMNS

Flags = np.ndarray[Any, np.dtype[np.bool_]]

_MESH: Final = "mesh"
_ORDERS: Final = {"tasks": ("number", *ORDER_COLUMNS), "entities": ("revision",)}
"""By table: the columns that say which of two rows of a key is the later one; in the others these
are the columns of the one order. A commit is later than all stamps."""
_EACH_VERSION: Final = frozenset({"vectors", "task_events"})
"""Tables that keep every version of a row; only its outcome (live or not, the event) may change."""


class SilverGap(NamedTuple):
    """Differences in one table, of one mesh of one node."""

    behind: int
    """Rows of silver that the node does not have, or not in that version."""
    astray: int
    """Rows that the node's log makes, and silver has in an older version or not at all."""


Gaps = dict[tuple[str, str], SilverGap]
"""By tagged mesh and table."""


def compare_with_silver(
    table: str, silver: pa.Table, held: pa.Table, meshes: Mapping[str, str]
) -> Gaps:
    """`silver` and `held` have all rows of some keys; `held` is what the logs make, its meshes are
    tagged. `meshes`: the meshes by their tags.
    """
    ours, theirs = dict(by_mesh(held)), dict(by_mesh(silver))
    return {
        (tag, table): _compared(
            table, theirs.get(mesh, silver.slice(0, 0)), ours.get(tag, held.slice(0, 0))
        )
        for tag, mesh in meshes.items()
    }


def added(one: SilverGap | None, other: SilverGap) -> SilverGap:
    return other if one is None else SilverGap(one.behind + other.behind, one.astray + other.astray)


def _compared(table: str, silver: pa.Table, held: pa.Table) -> SilverGap:
    if not silver.num_rows or not held.num_rows:
        return SilverGap(silver.num_rows, held.num_rows)
    keys = [key for key in KEYS[table] if key != _MESH]
    keys += ORDER_COLUMNS if table in _EACH_VERSION else ()
    sides = [
        rows.select(keys).append_column(name, pa.array(np.arange(rows.num_rows)))
        for name, rows in (("theirs", silver), ("ours", held))
    ]
    joined = sides[0].join(sides[1], keys, join_type="full outer", use_threads=False)
    lacking = [joined[name].null_count for name in ("ours", "theirs")]
    pairs = joined.filter(pc.and_(pc.is_valid(joined["theirs"]), pc.is_valid(joined["ours"])))
    theirs, ours = silver.take(pairs["theirs"]), held.take(pairs["ours"])
    same: Flags = np.ones(pairs.num_rows, np.bool_)
    for column in rules.columns_of(table):
        if column.name != _MESH:
            same &= _equal(theirs[column.name], ours[column.name])
    apart = pa.array(~same)
    ahead = int(np.count_nonzero(_ahead(table, theirs.filter(apart), ours.filter(apart))))
    return SilverGap(
        behind=lacking[0] + ahead, astray=lacking[1] + int(np.count_nonzero(~same)) - ahead
    )


def _ahead(table: str, theirs: pa.Table, ours: pa.Table) -> Flags:
    """For each pair of rows of one key that differ: whether silver may have another row."""
    if table in _EACH_VERSION:
        return np.ones(theirs.num_rows, np.bool_)
    # A late turn with an earlier stamp changes a task, but not its last version.
    found: Flags = np.full(theirs.num_rows, table == "tasks")
    for column in reversed(_ORDERS.get(table, ORDER_COLUMNS)):
        some, others = theirs[column], ours[column]
        if column == "number":
            some, others = (pc.fill_null(part, 0) for part in (some, others))
        greater = pc.greater(some, others).to_numpy(zero_copy_only=False)
        found = np.where(_equal(some, others), found, greater)
    return found


def _equal(some: pa.ChunkedArray, others: pa.ChunkedArray) -> Flags:
    """For each pair of values: whether they are the same, nulls too."""
    if pa.types.is_list(some.type):
        return _equal_lists(some.combine_chunks(), others.combine_chunks())
    equal = pc.fill_null(pc.equal(some, others), False)
    nulls = pc.and_(pc.is_null(some), pc.is_null(others))
    found: Flags = pc.or_(equal, nulls).to_numpy(zero_copy_only=False)
    return found


def _equal_lists(some: pa.ListArray, others: pa.ListArray) -> Flags:
    lengths = [pa.chunked_array([pc.list_value_length(part)]) for part in (some, others)]
    found = _equal(*lengths).copy()
    alike = np.flatnonzero(found)
    one, other = (part.take(pa.array(alike)) for part in (some, others))
    differs = ~_equal(*(pa.chunked_array([part.flatten()]) for part in (one, other)))
    found[alike[pc.list_parent_indices(one).to_numpy()[differs]]] = False
    return found
