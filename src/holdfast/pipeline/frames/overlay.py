"""The state as it is now, of its base and of what was folded since, merged by Arrow.

The base may be large and the increments are small. So an overlay says which keys of the base are
not to be shown, and which rows are shown in their place; every engine then reads the base as a
stream or by a scan of its own. The merge rules are those of `rules.merge` and the order is that of
`rules.order`, as everywhere else; texts are compared by their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from holdfast.pipeline.fold.tasks import TURN, fold_turns
from holdfast.pipeline.lake.schema import FAMILY_OF, KEYS, SILVER, arrow_schema
from holdfast.rules.merge import MERGES, Merge
from holdfast.rules.order import ORDER_COLUMNS

_ROW: Final = "row"
_BASE: Final = "of_base"


class Overlay(msgspec.Struct, frozen=True):
    """What is shown over a base."""

    rows: pa.Table
    """Rows that are shown in addition to those of the base."""
    keys: pa.Table | None = None
    """The keys whose rows in the base are not shown; None if all of them are."""

    def shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch of the base that are shown. It must have the columns of the key."""
        if self.keys is None or not batch.num_rows:
            return batch
        met = places(batch, self.keys)
        if not len(met):
            return batch
        flags = np.ones(batch.num_rows, np.bool_)
        flags[met.to_numpy()] = False
        return batch.filter(pa.array(flags))


def overlaid(name: str, base: ds.Dataset, new: pa.Table) -> Overlay:
    """The overlay that the increments `new` make over a base of the same table."""
    assert name != "tasks", "tasks are made of the overlay of their events"
    rows = new.select(SILVER[name].names)
    if not rows.num_rows:
        return Overlay(rows)
    keys = distinct(rows.select(KEYS[name]), KEYS[name])
    match MERGES[FAMILY_OF[name]]:
        case Merge.LAST_WRITER:
            return _last_writer(name, base, newest(rows, KEYS[name]))
        case Merge.NEWEST_LIVES if name == "vectors":
            return Overlay(with_live(_together(name, base, rows, keys), KEYS[name]), keys)
        case Merge.TURNS:
            return Overlay(turned(name, _together(name, base, rows, keys)), keys)
        case _:
            # Rows of one key are equal, so those of the base need not be read.
            return Overlay(distinct(rows, KEYS[name]), keys)


def over_tasks(events: ds.Dataset, new: pa.Table) -> Overlay:
    """The overlay over the base of tasks that events make which were folded since."""
    if not new.num_rows:
        return Overlay(arrow_schema(SILVER["tasks"]).empty_table())
    keys = distinct(new.select(KEYS["tasks"]), KEYS["tasks"])
    return Overlay(turned("tasks", _together("task_events", events, new, keys)), keys)


def _last_writer(name: str, base: ds.Dataset, rows: pa.Table) -> Overlay:
    """Of the base only keys and versions are read: where its row is newer, it stays."""
    keys = list(KEYS[name])
    narrow = [*keys, *ORDER_COLUMNS]
    met = _met(base, narrow, rows.select(keys))
    both = pa.concat_tables(
        [
            met.append_column(_BASE, pa.repeat(True, met.num_rows)),
            rows.select(narrow).append_column(_BASE, pa.repeat(False, rows.num_rows)),
        ]
    )
    won = newest(both, keys)
    # One row of each key on both sides, sorted by key: so the flags are about the rows in order.
    shown = rows.filter(pc.invert(won[_BASE]))
    return Overlay(shown, shown.select(keys))


def _together(name: str, base: ds.Dataset, rows: pa.Table, keys: pa.Table) -> pa.Table:
    """These rows, and all rows of the base with one of the keys."""
    columns = SILVER[name].names
    return pa.concat_tables([_met(base, columns, keys), rows.select(columns)])


def _met(base: ds.Dataset, columns: Sequence[str], keys: pa.Table) -> pa.Table:
    """The rows of the base that have one of the keys."""
    # The last column of a key has the most values, so its bounds leave out the most row groups.
    some = pc.field(keys.column_names[-1]).isin(pc.unique(keys[-1]))
    batches = base.scanner(columns=list(columns), filter=some).to_batches()
    schema = pa.schema([base.schema.field(name) for name in columns])
    return pa.Table.from_batches(
        (batch.take(places(batch, keys)) for batch in batches), schema=schema
    )


def places(batch: pa.RecordBatch, keys: pa.Table) -> pa.Array:
    """The places of the rows that have one of the keys, in order."""
    last = keys.column_names[-1]
    wanted = keys[last].combine_chunks().cast(batch.schema.field(last).type)
    flags = pc.is_in(batch[last], value_set=wanted)
    places = pc.indices_nonzero(flags).cast(pa.int64())
    if keys.num_columns == 1 or not len(places):
        return places
    few = pa.table({name: batch[name].take(places) for name in keys.column_names})
    few = few.append_column(_ROW, places)
    found = few.join(keys, keys=keys.column_names, join_type="left semi")
    return found[_ROW].combine_chunks().sort()


# --- the merges ----------------------------------------------------------------------------------


def newest(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The newest row of each key, sorted by key."""
    ordered = _newest_first(rows, keys)
    return ordered.filter(_begins(ordered, keys))


def with_live(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Every version once; the newest of a key is live unless it is a tombstone."""
    ordered = _newest_first(rows, keys)
    first = _begins(ordered, keys)
    live = pc.and_(first, pc.invert(ordered["tombstone"]))
    marked = ordered.set_column(ordered.column_names.index("live"), "live", live)
    return marked.filter(_begins(ordered, [*keys, "id"]))


def distinct(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """One row of each key, sorted by key."""
    ordered = rows.take(pc.sort_indices(rows, [(key, "ascending") for key in keys]))
    return ordered.filter(_begins(ordered, keys))


def turned(name: str, events: pa.Table) -> pa.Table:
    """The rows of `tasks` or `task_events` that these events make."""
    ways = [(column, "ascending") for column in (*KEYS[name], *ORDER_COLUMNS)]
    ordered = events.select(TURN).take(pc.sort_indices(events, ways)).combine_chunks()
    return pa.Table.from_batches(
        fold_turns(name, iter(ordered.to_batches())), arrow_schema(SILVER[name])
    )


def _newest_first(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    ways = [(key, "ascending") for key in keys]
    ways += [(column, "descending") for column in ORDER_COLUMNS]
    return rows.take(pc.sort_indices(rows, ways))


def _begins(ordered: pa.Table, keys: Sequence[str]) -> pa.Array:
    """For each row of a sorted table: whether its key is another than that of the row before."""
    if not ordered.num_rows:
        return pa.array([], pa.bool_())
    changed = None
    for key in keys:
        column = ordered[key].combine_chunks()
        other = pc.not_equal(column[1:], column[:-1])
        changed = other if changed is None else pc.or_(changed, other)
    return pa.concat_arrays([pa.array([True]), changed])
