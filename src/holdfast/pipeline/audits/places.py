"""Whether the lake has each envelope once and each place of a log once, and left none out.

Bronze has every envelope once, sightings the places where it was seen again, quarantine what could
not be kept. Together they have every place of every log that was read.

Ids are judged by the task that has them; places where all runs of a log come together (see `runs`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.audits.arrays import (
    NONE,
    Numbers,
    Spans,
    coded,
    ints,
    millis,
    numbered,
    reach,
    rows_at,
    starts,
)
from holdfast.pipeline.audits.runs import contested
from holdfast.pipeline.audits.scan import Share
from holdfast.pipeline.audits.shape import FINDING, NOTICE, Audit, Found, FoundRow, found
from holdfast.pipeline.ingest.dedupe import CONFLICT
from holdfast.pipeline.lake.schema import GAP, LOST

_PLACED: Final = ("log", "epoch", "offset", "id")


# --- ids, by the task that has them --------------------------------------------------------------


def judge_ids(share: Share) -> list[Found]:
    """Ids that bronze has twice, or that only sightings have."""
    high, low = share.words
    order = np.lexsort((low, high))
    twice = ~starts(high[order], low[order])
    lost = share.envelopes < 0
    if not twice.any() and not lost.any():
        return []
    bronze, again = (table.select([*_PLACED, "recorded_at"]) for table in (share.rows, share.again))
    rows = pa.concat_tables([bronze, again])
    number = numbered(rows["id"])
    kept = np.zeros(rows.num_rows, np.int64)
    kept[: bronze.num_rows] = 1
    times = np.bincount(number, weights=kept).astype(np.int64)[number]
    wrong = np.flatnonzero(times != 1)

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        at = wrong[places]
        for row, count in zip(rows_at(rows, at), times[at].tolist(), strict=True):
            detail = f"bronze has it {count} times"
            if not count:
                detail = "it was seen again here, and bronze does not have it"
            known = {name: row[name] for name in _PLACED}
            yield FoundRow(weight=max(1, count), detail=detail, at=row["recorded_at"], **known)

    return found(
        ORPHANS.name,
        FINDING,
        np.maximum(times[wrong], 1),
        millis(rows["recorded_at"])[wrong],
        rows_of,
    )


def judge_conflicts(share: Share) -> list[Found]:
    """Ids that came with other bytes than bronze has."""
    (reasons,), names = coded(share.aside["reason"])
    other = np.flatnonzero(reasons == (names.index(CONFLICT) if CONFLICT in names else -2))
    if not len(other):
        return []
    conflicts = share.aside.take(pa.array(other))
    first = pc.fill_null(
        pc.index_in(conflicts["id"], value_set=share.rows["id"].combine_chunks()), -1
    )
    at = first.to_numpy().astype(np.int64)

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        known = at[places]
        kept = iter(rows_at(share.rows, known[known >= 0]))
        for row, place in zip(rows_at(conflicts, places), known.tolist(), strict=True):
            bronze = next(kept) if place >= 0 else {}
            before = " is known"
            if bronze:
                before = f" was seen first at offset {bronze['offset']} of log {bronze['log']}"
            yield FoundRow(
                weight=1,
                detail=f"the same id with other bytes{before}: {row['detail']}",
                at=row["recorded_at"],
                **{name: row[name] for name in _PLACED},
                **{name: bronze.get(name) for name in ("mesh", "origin", "entity")},
            )

    times = millis(conflicts["recorded_at"])
    return found(ORPHANS.name, FINDING, np.ones(len(at), np.int64), times, rows_of)


# --- places, where all runs of a log come together -----------------------------------------------


def aside_places(share: Share) -> pa.Table:
    """The places of quarantine, with what they say if they begin a gap."""
    aside = share.aside
    gaps = pc.is_in(aside["reason"].cast(pa.string()), value_set=pa.array([GAP, LOST]))
    said = pc.if_else(gaps, aside["detail"], pa.scalar(None, pa.string()))
    return aside.select(["log", "epoch", "offset"]).append_column("gap", said)


class PlaceRuns:
    """All runs of places of some logs, sorted."""

    def __init__(self, runs: pa.Table, aside: pa.Table) -> None:
        (logs, others), self._names = coded(runs["log"], aside["log"])
        epochs, offsets = ints(runs["epoch"]), ints(runs["offset"])
        order = np.lexsort((offsets, epochs, logs))
        self.runs = runs.take(pa.array(order))
        self.log, self.epoch, self.offset = logs[order], epochs[order], offsets[order]
        self.last, self.rows = ints(self.runs["last"]), ints(self.runs["rows"])
        self.group = np.cumsum(starts(self.log, self.epoch)) - 1
        self.aside = (others, ints(aside["epoch"]), ints(aside["offset"]))
        self.gaps = aside["gap"]

    def contested(self) -> Spans:
        at = np.flatnonzero(starts(self.group))
        names = [
            (self._names[log], epoch)
            for log, epoch in zip(self.log[at].tolist(), self.epoch[at].tolist(), strict=True)
        ]
        return contested(self.group, names, self.offset, self.last, self.rows)

    def begun(self) -> dict[tuple[str, int], int]:
        """By log and epoch: the first offset that was read. What stands there may be of another
        origin than the log, or could not be read.
        """
        others, epochs, offsets = self.aside
        read = self.gaps.is_null().to_numpy()
        logs = np.concatenate([self.log, others[read]])
        all_epochs = np.concatenate([self.epoch, epochs[read]])
        places = np.concatenate([self.offset, offsets[read]])
        order = np.lexsort((places, all_epochs, logs))
        first = order[starts(logs[order], all_epochs[order])]
        return {
            (self._names[log], epoch): place
            for log, epoch, place in zip(
                logs[first].tolist(),
                all_epochs[first].tolist(),
                places[first].tolist(),
                strict=True,
            )
        }

    def twice(self) -> list[Found]:
        """Places that were read more than once."""
        if not len(self.offset):
            return []
        same = np.cumsum(starts(self.group, self.offset)) - 1
        times = np.bincount(same)[same]
        wrong = np.flatnonzero(times > 1)

        def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
            at = wrong[places]
            for row, count in zip(rows_at(self.runs, at), times[at].tolist(), strict=True):
                yield FoundRow(
                    weight=count,
                    detail=f"this place was read {count} times",
                    at=row["recorded_at"],
                    **{name: row[name] for name in _PLACED},
                )

        newest = millis(self.runs["recorded_at"])[wrong]
        return found(ORPHANS.name, FINDING, times[wrong], newest, rows_of)

    def holes(self, partly: Collection[str]) -> list[Found]:
        """Gaps between the places that were read of a log, and ranges that were truncated before
        the lake could read them. `partly`: the logs of which the lake does not get all entries: a
        reader that may read only some meshes does not get the places of the others, and a broker's
        log lacks what had expired before. What ingest noted as a gap is missing in any case.
        """
        others, epochs, offsets = self.aside
        logs = np.concatenate([self.log, others])
        all_epochs = np.concatenate([self.epoch, epochs])
        first = np.concatenate([self.offset, offsets])
        last = np.concatenate([self.last, offsets])
        is_gap = np.zeros(len(first), np.bool_)
        is_gap[len(self.log) :] = self.gaps.is_valid().to_numpy()
        order = np.lexsort((first, all_epochs, logs))
        group = np.cumsum(starts(logs[order], all_epochs[order])) - 1
        first, last, is_gap = first[order], last[order], is_gap[order]
        before = reach(group, last)
        after_gap = (before != NONE) & (reach(group, np.where(is_gap, last, NONE)) == before)
        hole = (before != NONE) & ~after_gap & (first > before + 1)
        wrong = np.flatnonzero(is_gap | hole)
        some = np.isin(logs[order], [at for at, name in enumerate(self._names) if name in partly])
        # What was truncated before the lake first read the log is no fault.
        excused = ((some & ~is_gap) | (before == NONE))[wrong]
        missing = np.where(is_gap, _next(group, first) - first, first - before - 1)[wrong]
        said = pa.chunked_array([pa.nulls(len(self.log), pa.string()), *self.gaps.chunks])

        def rows_of(at: Numbers, places: Sequence[int]) -> Iterable[FoundRow]:
            chosen = at[places]
            for place, gap in zip(
                chosen.tolist(), said.take(pa.array(order[wrong[chosen]])).to_pylist(), strict=True
            ):
                row = wrong[place]
                hole = f"offsets {before[row] + 1} to {first[row] - 1} were not read"
                yield FoundRow(
                    weight=int(missing[place]),
                    log=self._names[logs[order[row]]],
                    epoch=int(all_epochs[order[row]]),
                    offset=int(first[row]),
                    detail=hole if gap is None else gap,
                )

        parts: list[Found] = []
        for severity, chosen in ((FINDING, ~excused), (NOTICE, excused)):
            at = np.flatnonzero(chosen)
            parts += found(OFFSETS.name, severity, missing[at], None, partial(rows_of, at))
        return parts


def _next(group: Numbers, first: Numbers) -> Numbers:
    """The first offset of the next run of the same log; one more than its own for the last."""
    after = first + 1
    after[:-1] = np.where(group[1:] == group[:-1], first[1:], after[:-1])
    return after


ORPHANS: Final = Audit(
    "orphans",
    "ids that bronze has not or has twice, places read twice, one id with two contents",
    "how many times it is there",
)
OFFSETS: Final = Audit(
    "offsets",
    "holes in what was read of a log, and what was read and is not there",
    "how many offsets are missing",
)
