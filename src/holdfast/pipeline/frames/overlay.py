"""The state as it is now, of its base and of what was folded since, merged by Arrow.

The base may be large and the increments are small. So an overlay says which keys of the base are
not to be shown, and which rows are shown in their place; every engine then reads the base as a
stream or by a scan of its own. The merge rules are those of `rules.merge` and the order is that of
`rules.order`, as everywhere else; texts are compared by their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from holdfast.pipeline.fold.buckets import BUCKETS_COARSE, key_hashes, places_of
from holdfast.pipeline.fold.merge import merged, newest, turned
from holdfast.pipeline.fold.turned import turn_fold
from holdfast.pipeline.lake.schema import FAMILY_OF, KEYS, MADE_OF, SILVER, arrow_schema
from holdfast.rules.merge import MERGES, Merge
from holdfast.rules.order import ORDER_COLUMNS

_ROW: Final = "row"


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
    assert name not in MADE_OF, "things are made of the overlay of their turns"
    rows = new.select(SILVER[name].names)
    if not rows.num_rows:
        return Overlay(rows)
    merge = MERGES[FAMILY_OF[name]]
    if merge is Merge.LAST_WRITER:
        return _last_writer(name, base, folded(name, [rows]))
    keys = rows.select(KEYS[name])
    if merge is Merge.EACH or name == "models":
        # Rows of one key are equal, so those of the base need not be read.
        return Overlay(folded(name, [rows]), keys)
    met = _met(base, SILVER[name].names, keys)
    return Overlay(folded(name, [met, rows]), keys)


def over_things(name: str, turns: ds.Dataset, new: pa.Table) -> Overlay:
    """The overlay over the base of things that turns make which were folded since."""
    if not new.num_rows:
        return Overlay(arrow_schema(SILVER[name]).empty_table())
    keys, columns = new.select(KEYS[name]), list(turn_fold(name).columns)
    return Overlay(things_from(name, [_met(turns, columns, keys), new.select(columns)]), keys)


def things_from(name: str, turns: Sequence[pa.Table]) -> pa.Table:
    """The things that these turns make together."""
    return _whole(name, turned(name, pa.concat_tables(turns), BUCKETS_COARSE))


def folded(name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """The rows of a table that several folds of it make together."""
    return _whole(name, merged(name, parts, BUCKETS_COARSE))


def _whole(name: str, pieces: Iterable[pa.Table]) -> pa.Table:
    schema = arrow_schema(SILVER[name])
    return pa.concat_tables([schema.empty_table(), *(some.select(schema.names) for some in pieces)])


def _last_writer(name: str, base: ds.Dataset, rows: pa.Table) -> Overlay:
    """Of the base only keys and versions are read: where its row is newer, it stays."""
    keys = list(KEYS[name])
    narrow = [*keys, *ORDER_COLUMNS]
    met = _met(base, narrow, rows.select(keys))
    both = pa.concat_tables([met, rows.select(narrow)])
    places = places_of(key_hashes([both[key] for key in keys]), BUCKETS_COARSE)
    won = newest(both, places, keys) - met.num_rows
    shown = rows.take(pa.array(won[won >= 0]))
    return Overlay(shown, shown.select(keys))


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
