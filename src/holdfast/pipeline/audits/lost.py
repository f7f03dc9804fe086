"""Whether the lake holds what it says it has read, and what it has confirmed to the nodes.

Nothing may be confirmed that the lake does not hold: a node forgets what all its readers have
confirmed. So bronze, sightings and quarantine together must have as many entries of each log, in
each range, as `reads` says; and no node may have a confirmation of ours beyond a place that is
missing. All places are read for that, whatever the cheap look before a run says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from holdfast.pipeline.audits.frontiers import FRONTIERS
from holdfast.pipeline.audits.live_facts import LiveFacts
from holdfast.pipeline.audits.places import OFFSETS
from holdfast.pipeline.audits.shape import FINDING, Found, FoundRow, found_rows
from holdfast.pipeline.lake.compare import MissingPlaces
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reads import PART


class LostPlaces(NamedTuple):
    """A range that is missing."""

    log: str
    epoch: int
    offset: int
    """Where it begins."""
    confirmed: int | None
    """Up to where this log has a confirmation of ours; None if its node was not asked."""
    detail: str
    size: int
    """How many offsets it has."""


def lost_places(lake: Lake, facts: LiveFacts) -> list[LostPlaces]:
    """What is missing. A copy of a part of a lake has read no log."""
    if not lake.bronze.exists or lake.reads.txn(PART) is not None:
        return []
    confirmed = {
        (log.log, log.epoch): frontier
        for log in facts.logs
        for reader, frontier in log.readers.items()
        if reader.endswith(lake.consumer)
    }
    return [
        LostPlaces(*missing.key, start, confirmed.get(missing.key), detail, size)
        for missing in lake.compare().missing
        for start, detail, size in _told(missing)
    ]


def judge_lost(lost: Sequence[LostPlaces]) -> list[Found]:
    """What `reads` says was read and no table has, and what of it a node may forget."""
    missing = [
        FoundRow(
            weight=one.size, log=one.log, epoch=one.epoch, offset=one.offset, detail=one.detail
        )
        for one in lost
    ]
    forgotten = [
        msgspec.structs.replace(
            row, detail=f"the lake has confirmed up to {one.confirmed}, but {one.detail}"
        )
        for one, row in zip(lost, missing, strict=True)
        if one.confirmed is not None and one.offset <= one.confirmed
    ]
    return [
        *found_rows(OFFSETS.name, FINDING, missing),
        *found_rows(FRONTIERS.name, FINDING, forgotten),
    ]


def _told(missing: MissingPlaces) -> Iterator[tuple[int, str, int]]:
    size = sum(stop - start for start, stop in missing.ranges)
    for start, stop in missing.ranges:
        some = "" if size == missing.rows else f"{missing.rows} in all of the "
        told = f"{some}offsets {start} to {stop - 1} were read, and the lake has lost them"
        yield start, told, stop - start
    if missing.notes:
        yield 0, f"{missing.notes} notes about this log are gone from quarantine", missing.notes
