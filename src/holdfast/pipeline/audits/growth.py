"""How much is written: envelopes and their bytes, per mesh, family and day."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.audits.scan import BYTES, Share
from holdfast.pipeline.audits.shape import Measure
from holdfast.pipeline.lake.schema import arrow_schema, described
from holdfast.rules.limits import DAY_MS

GROWTH_SCHEMA: Final = described(
    """
    mesh string: the mesh
    family string: the family of the envelopes
    day date: the UTC day of the times inside their ids
    rows bigint: how many envelopes there are of that day
    bytes bigint: how many bytes these envelopes have
    """
)
COLUMNS: Final = ("id", "mesh", "family", BYTES)
_ID_TIME_SHIFT: Final = np.uint64(16)


def growth_of(share: Share) -> pa.Table:
    """Counted by the day of the time inside the id."""
    times = (share.words[0] >> _ID_TIME_SHIFT).astype(np.int64)
    days = pa.array((times // DAY_MS).astype(np.int32)).cast(pa.date32())
    rows = share.rows.select(["mesh", "family", BYTES]).append_column("day", days)
    rows = rows.append_column("rows", pa.array(np.ones(rows.num_rows, np.int64)))
    return grown(rows)


def grown(parts: pa.Table) -> pa.Table:
    """Figures of several shares together."""
    schema = arrow_schema(GROWTH_SCHEMA)
    plain = parts.select(schema.names).cast(schema)
    sums = plain.group_by(["mesh", "family", "day"], use_threads=False).aggregate(
        [("rows", "sum"), ("bytes", "sum")]
    )
    return (
        sums.rename_columns({"rows_sum": "rows", "bytes_sum": "bytes"})
        .select(schema.names)
        .cast(schema)
        .sort_by([(name, "ascending") for name in ("mesh", "family", "day")])
    )


GROWTH: Final = Measure("growth", "envelopes and bytes per mesh, family and day", GROWTH_SCHEMA)
