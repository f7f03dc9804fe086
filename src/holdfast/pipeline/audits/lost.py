"""Whether the lake holds what it says it has read, and what it has confirmed to the nodes.

Nothing may be confirmed that the lake does not hold: a node forgets what all its readers have
confirmed. So bronze, sightings and quarantine together must have as many entries of each log, in
each range, as `reads` says; and no node may have a confirmation of ours beyond a place that is
missing. All places are read for that, whatever the cheap look before a run says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.pipeline.audits.live_facts import LiveFacts
from holdfast.pipeline.lake.compare import MissingPlaces
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reads import PART
from holdfast.pipeline.lake.schema import columns

LOST_PLACES: Final = columns(
    "log string, epoch bigint, offset bigint, confirmed bigint, detail string"
)
"""Ranges that are missing: where they begin, and up to where this log has a confirmation of ours;
null if its node was not asked.
"""
LostPlaces = tuple[str, int, int, int | None, str]


def lost_places(lake: Lake, facts: LiveFacts) -> list[LostPlaces]:
    """What is missing, as rows of `LOST_PLACES`. A copy of a part of a lake has read no log."""
    if not lake.bronze.exists or lake.reads.txn(PART) is not None:
        return []
    confirmed = {
        (log.log, log.epoch): frontier
        for log in facts.logs
        for reader, frontier in log.readers.items()
        if reader.endswith(lake.consumer)
    }
    return [
        (*missing.key, start, confirmed.get(missing.key), detail)
        for missing in lake.compare().missing
        for start, detail in _told(missing)
    ]


def _told(missing: MissingPlaces) -> Iterator[tuple[int, str]]:
    size = sum(stop - start for start, stop in missing.ranges)
    for start, stop in missing.ranges:
        some = "" if size == missing.rows else f"{missing.rows} in all of the "
        yield start, f"{some}offsets {start} to {stop - 1} were read, and the lake has lost them"
    if missing.notes:
        yield 0, f"{missing.notes} notes about this log are gone from quarantine"
