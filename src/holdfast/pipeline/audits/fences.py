"""Whether two commits were made under one fence.

A strong write carries its fence: the lease epoch, the coordinator and the sequence number under
which it was decided. One lease epoch of a mesh has one coordinator, and one sequence number decides
one write. The fence stands only in the bytes of the envelope, so the bytes of strong writes, and of
no others, are decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.audits.arrays import Flags, coded, ints, millis, rows_at, starts, whole
from holdfast.pipeline.audits.shape import FINDING, PLACE, Audit, Found, FoundRow, found
from holdfast.rules.envelope import decode_trusted

COLUMNS: Final = (*PLACE, "mesh", "origin", "entity", "id", "created_at")
FENCED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("log", "mesh", "origin", "entity", "id", "coordinator")),
        *((name, pa.int64()) for name in ("epoch", "offset", "lease_epoch", "sequence")),
        ("created_at", pa.timestamp("us", "UTC")),
    ]
)
_STRONG: Final = "strong"
_COMMITTED: Final = "committed"


def is_fenced(rows: pa.Table) -> Flags:
    """Which rows are strong writes that were committed."""
    kept: Flags = np.ones(rows.num_rows, np.bool_)
    for column, value in (("write_class", _STRONG), ("state", _COMMITTED)):
        (numbers,), names = coded(rows[column])
        kept &= numbers == (names.index(value) if value in names else -2)
    return kept


def open_fences(rows: pa.Table) -> pa.Table:
    """The rows that carry a fence, with its three parts as columns."""
    strong = rows.filter(pa.array(is_fenced(rows)))
    fences = [decode_trusted(raw).fence for raw in strong["raw"].to_pylist()]
    there = [fence for fence in fences if fence is not None]
    kept = strong.select(COLUMNS).filter(
        pa.array([fence is not None for fence in fences], pa.bool_())
    )
    parts = {name: whole(kept[name]).cast(FENCED.field(name).type) for name in COLUMNS}
    parts["lease_epoch"] = pa.array([fence.lease_epoch for fence in there], pa.int64())
    parts["coordinator"] = pa.array([fence.coordinator for fence in there], pa.string())
    parts["sequence"] = pa.array([fence.sequence for fence in there], pa.int64())
    return pa.table({name: parts[name] for name in FENCED.names}, schema=FENCED)


def judge_fences(rows: pa.Table) -> list[Found]:
    """All strong writes of some meshes."""
    (meshes,), _ = coded(rows["mesh"])
    (coordinators,), names = coded(rows["coordinator"])
    leases, sequences = ints(rows["lease_epoch"]), ints(rows["sequence"])
    order = np.lexsort((sequences, coordinators, leases, meshes))
    lease = np.cumsum(starts(meshes[order], leases[order])) - 1
    decided = np.cumsum(starts(lease, coordinators[order], sequences[order])) - 1
    times = np.bincount(decided)[decided] if len(order) else decided
    firsts = np.flatnonzero(starts(lease))
    lasts = np.append(firsts[1:], len(order)) - 1
    least, most = (coordinators[order][at][lease] for at in (firsts, lasts))
    wrong = (least != most) | (times > 1)

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        at = np.flatnonzero(wrong)[places]
        for row, place in zip(rows_at(rows, order[at]), at.tolist(), strict=True):
            under = "sequence {sequence} of {coordinator} in lease epoch {lease_epoch}".format(
                **row
            )
            others = f"{names[least[place]]} and {names[most[place]]}"
            detail = f"{under}, which has another coordinator too: {others}"
            if times[place] > 1:
                detail = f"{times[place]} writes were committed under {under}"
            known = {name: row[name] for name in COLUMNS if name != "created_at"}
            yield FoundRow(weight=int(times[place]), detail=detail, at=row["created_at"], **known)

    made = millis(rows["created_at"])[order][wrong]
    return found(FENCES.name, FINDING, times[wrong], made, rows_of)


FENCES: Final = Audit(
    "fences", "two commits, or two coordinators, under one fence", "writes under the same fence"
)
