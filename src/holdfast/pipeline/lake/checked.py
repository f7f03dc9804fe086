"""Whether the lake holds what it says it has read, looked at before each run.

The first look is cheap: the tables must have as many rows as `reads` says. Only if they differ,
all places are read and compared. What `reads` does not know of is noted there; what the lake has
lost is reported, log by log.
"""

from __future__ import annotations

from holdfast.pipeline.lake.compare import MissingPlaces
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reads import BATCH, PART, replace_reads
from holdfast.pipeline.lake.schema import SILVER


def checked(lake: Lake) -> tuple[Lake, dict[Key, MissingPlaces]]:
    """The lake with `reads` as it has to be, and what is missing, by log. The caller holds
    `Lake.working`.
    """
    lake = _past_silver(lake)
    if lake.is_whole() or lake.reads.txn(PART) is not None:
        return lake, {}
    found = lake.compare()
    if found.differs or not lake.reads.exists:
        replace_reads(lake.reads, found.reads)
        lake = lake.fresh()
    return lake, {one.key: one for one in found.missing}


def _past_silver(lake: Lake) -> Lake:
    """Takes batch numbers that silver has seen out of use, if bronze and `reads` were set back to
    before them: silver would take new batches with these numbers for known ones.
    """
    seen = max(lake.folded(name) for name in SILVER)
    if seen < lake.next_batch:
        return lake
    lake.reads.commit([], txns={BATCH: seen})
    return lake.fresh()
