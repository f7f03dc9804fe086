"""The numbers and stamps that each origin gave its envelopes: gaps, repeats, wrong stamps.

An origin numbers its envelopes of a mesh without gaps. After a restore it counts in a new epoch and
goes on from where the backup stood, so that a number may come again in another epoch, never in the
same one. Two ids with one number of one epoch mean that two homes claim to be one origin.

What a gap means depends on what the lake has read. If the origin's own log was read on both sides
of it, the entry is lost: a finding. Otherwise it may be on its way, or a filter may have kept it
out of the logs that were read: then all gaps of an origin are one notice.

All is found between neighbouring runs (see `runs`): inside a run nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.audits.arrays import (
    NONE,
    Flags,
    Numbers,
    Spans,
    coded,
    id_words,
    ints,
    millis,
    rows_at,
    shifted,
    starts,
)
from holdfast.pipeline.audits.runs import contested
from holdfast.pipeline.audits.shape import FINDING, NOTICE, PLACE, Audit, Found, FoundRow, found
from holdfast.rules.limits import LAMPORT_LEAP_MAX

OwnSpans = Mapping[tuple[str, str, int], tuple[int, int]]
"""By mesh, origin and epoch: the first and last number that were read of the origin's own log."""
LogStarts = Mapping[tuple[str, int], int]
"""By log and epoch: the first offset that was read."""
_SHOWN: Final = (*PLACE, "mesh", "origin", "entity", "id")


class OriginRuns:
    """All runs of some origins, sorted, with their neighbours. `*_1` is the row before the first
    row of a run, `*_2` the one before that; both may be of an earlier epoch.
    """

    def __init__(self, runs: pa.Table) -> None:
        (meshes,), mesh_names = coded(runs["mesh"])
        (origins,), origin_names = coded(runs["origin"])
        epochs, seqs, stamps = (ints(runs[name]) for name in ("origin_epoch", "seq", "lamport"))
        high, low = id_words(runs["id"])
        order = np.lexsort((low, high, stamps, seqs, epochs, origins, meshes))
        self.runs = runs.take(pa.array(order))
        self.origin = np.cumsum(starts(meshes[order], origins[order])) - 1
        self.epoch, self.seq, self.stamp = epochs[order], seqs[order], stamps[order]
        self.group = np.cumsum(starts(self.origin, self.epoch)) - 1
        self.rows = ints(self.runs["rows"])
        self.last_seq = ints(self.runs["last_seq"])
        self.base = ints(self.runs["base_lamport"])
        self.made = millis(self.runs["created_at"])
        at = np.flatnonzero(starts(self.group))
        self.names: list[tuple[str, str, int]] = [
            (mesh_names[mesh], origin_names[origin], epoch)
            for mesh, origin, epoch in zip(
                meshes[order][at].tolist(),
                origins[order][at].tolist(),
                self.epoch[at].tolist(),
                strict=True,
            )
        ]
        self.epoch_1 = self._before(self.epoch)
        self.seq_1 = self._before(self.last_seq)
        self.stamp_1 = self._before(ints(self.runs["last_lamport"]))
        # The row before the last one of a longer run has another number than that.
        alone_1 = self._before(self.rows) == 1
        epoch_2, seq_2 = (self._before(column, 2) for column in (self.epoch, self.last_seq))
        self.twice_before = (
            alone_1 & (epoch_2 == self.epoch_1) & (seq_2 == self.seq_1) & (epoch_2 != NONE)
        )
        epoch_after, seq_after = (self._before(column, -1) for column in (self.epoch, self.seq))
        self.as_before = (self.epoch_1 == self.epoch) & (self.seq_1 == self.seq)
        self.as_after = (self.rows == 1) & (epoch_after == self.epoch) & (seq_after == self.seq)

    def _before(self, column: Numbers, by: int = 1) -> Numbers:
        """The value of a neighbour of the same origin."""
        found = shifted(column, by)
        found[shifted(self.origin, by) != self.origin] = NONE
        return found

    def contested(self) -> Spans:
        """Where two runs claim the same numbers."""
        return contested(self.group, self.names, self.seq, self.last_seq, self.rows)


def judge_repeats(runs: OriginRuns) -> list[Found]:
    twice = np.flatnonzero(runs.as_before | runs.as_after)

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        at = twice[places]
        other = np.where(runs.as_before[at], at - 1, np.minimum(at + 1, len(runs.seq) - 1))
        ids = rows_at(runs.runs.select(["id", "last_id"]), other)
        for row, before, near in zip(
            rows_at(runs.runs, at), runs.as_before[at].tolist(), ids, strict=True
        ):
            id = near["last_id"] if before else near["id"]
            yield _row(
                row,
                1,
                f"number {row['seq']} of epoch {row['origin_epoch']} is also that of {id}: two "
                f"homes claim to be {row['origin']}",
            )

    return found(REPEATS.name, FINDING, np.ones(len(twice), np.int64), runs.made[twice], rows_of)


def judge_stamps(runs: OriginRuns) -> list[Found]:
    # Next to a number that two homes claim, the order is not known.
    alone = ~runs.as_before & ~runs.as_after & ~runs.twice_before
    back = alone & (runs.epoch_1 == runs.epoch) & (runs.stamp <= runs.stamp_1)
    replaces = runs.base >= runs.stamp
    known = np.maximum(runs.stamp_1, 0)
    leap = runs.stamp - known > LAMPORT_LEAP_MAX
    wrong = np.flatnonzero(back | replaces | leap)
    weights = np.max(
        [
            np.where(back, runs.stamp_1 - runs.stamp + 1, 0),
            np.where(replaces, runs.base - runs.stamp + 1, 0),
            np.where(leap, runs.stamp - known, 0),
        ],
        axis=0,
    )[wrong]

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        at = wrong[places]
        said = (flags[at].tolist() for flags in (back, replaces, leap))
        before = zip(runs.stamp_1[at].tolist(), runs.seq_1[at].tolist(), strict=True)
        kinds = zip(rows_at(runs.runs, at), weights[places].tolist(), before, *said, strict=True)
        for row, weight, (stamp_1, seq_1), is_back, is_base, is_leap in kinds:
            seq, stamp = row["seq"], row["lamport"]
            parts = []
            if is_back:
                parts.append(
                    f"number {seq} has stamp {stamp}, not after stamp {stamp_1} of number {seq_1}"
                )
            if is_base:
                parts.append(f"stamp {stamp} replaces {row['base_lamport']}, which is not older")
            if is_leap:
                parts.append(f"stamp {stamp} is over 2^48 ahead of {max(stamp_1, 0)}")
            yield _row(row, weight, "; ".join(parts))

    return found(STAMPS.name, FINDING, weights, runs.made[wrong], rows_of)


def judge_gaps(runs: OriginRuns, own: OwnSpans, begun: LogStarts) -> list[Found]:
    inside = runs.epoch_1 == runs.epoch
    begin = np.maximum(runs.seq_1, 0) + 1
    holes = np.flatnonzero(runs.seq > begin)
    if not len(holes):
        return []
    lost = _lost(runs, holes, inside, own, begun)
    sure = holes[lost]

    def lost_rows(places: Sequence[int]) -> Iterable[FoundRow]:
        at = sure[places]
        for row, first in zip(rows_at(runs.runs, at), begin[at].tolist(), strict=True):
            yield FoundRow(
                weight=row["seq"] - first,
                mesh=row["mesh"],
                origin=row["origin"],
                id=row["id"],
                at=row["created_at"],
                detail=f"numbers {first} to {row['seq'] - 1} of epoch {row['origin_epoch']} are "
                "missing, and the origin's own log was read past them",
            )

    parts = found(GAPS.name, FINDING, (runs.seq - begin)[sure], runs.made[sure], lost_rows)
    return parts + _unsure(runs, holes[~lost], begin)


def _lost(
    runs: OriginRuns, holes: Numbers, inside: Flags, own: OwnSpans, begun: LogStarts
) -> Flags:
    """Whether the origin's own log was read before the gap and after it."""
    spans = [own.get(name, (NONE, NONE)) for name in runs.names]
    first, last = (
        np.array([span[end] for span in spans], np.int64)[runs.group[holes]] for end in (0, 1)
    )
    starts_at = np.array([begun.get(name[1:], NONE) for name in runs.names], np.int64)
    known = first != NONE
    past = known & (last >= runs.seq[holes])
    from_start = (runs.epoch_1[holes] == NONE) & (starts_at[runs.group[holes]] == 1)
    lost: Flags = past & np.where(inside[holes], first <= runs.seq_1[holes], from_start)
    return lost


def _unsure(runs: OriginRuns, holes: Numbers, begin: Numbers) -> list[Found]:
    """All other gaps of an origin in one notice."""
    groups, place = np.unique(runs.group[holes], return_inverse=True)
    counts = np.bincount(place, minlength=len(groups))
    missing, least = np.zeros(len(groups), np.int64), np.full(len(groups), np.iinfo(np.int64).max)
    most, newest = np.full(len(groups), NONE), np.full(len(groups), NONE)
    np.add.at(missing, place, (runs.seq - begin)[holes])
    np.minimum.at(least, place, begin[holes])
    np.maximum.at(most, place, runs.seq[holes] - 1)
    np.maximum.at(newest, place, runs.made[holes])

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        for at in places:
            mesh, origin, epoch = runs.names[groups[at]]
            yield FoundRow(
                weight=int(missing[at]),
                mesh=mesh,
                origin=origin,
                at=int(newest[at]),
                detail=f"{missing[at]} numbers of epoch {epoch} between {least[at]} and {most[at]} "
                f"are missing (holes: {counts[at]}); the origin's own log was not read there",
            )

    return found(GAPS.name, NOTICE, missing, newest, rows_of)


# --- the order in an origin's own log ------------------------------------------------------------


class OwnRuns:
    """All runs of some origins' own logs, sorted by their places."""

    def __init__(self, runs: pa.Table) -> None:
        (logs,), log_names = coded(runs["log"])
        (meshes,), mesh_names = coded(runs["mesh"])
        epochs, offsets = ints(runs["epoch"]), ints(runs["offset"])
        order = np.lexsort((ints(runs["seq"]), offsets, meshes, epochs, logs))
        self.runs = runs.take(pa.array(order))
        self.group = np.cumsum(starts(logs[order], epochs[order], meshes[order])) - 1
        self.offset, self.last = offsets[order], ints(self.runs["last"])
        self.seq, self.last_seq = ints(self.runs["seq"]), ints(self.runs["last_seq"])
        at = np.flatnonzero(starts(self.group))
        self.names: list[tuple[str, int, str]] = [
            (log_names[log], epoch, mesh_names[mesh])
            for log, epoch, mesh in zip(
                logs[order][at].tolist(),
                epochs[order][at].tolist(),
                meshes[order][at].tolist(),
                strict=True,
            )
        ]

    def contested(self) -> Spans:
        return contested(self.group, self.names, self.offset, self.last, ints(self.runs["rows"]))

    def spans(self) -> OwnSpans:
        """The first and last numbers in each origin's own log."""
        least = np.full(len(self.names), np.iinfo(np.int64).max)
        most = np.full(len(self.names), NONE)
        np.minimum.at(least, self.group, self.seq)
        np.maximum.at(most, self.group, self.last_seq)
        return {
            (mesh, log, epoch): (int(least[at]), int(most[at]))
            for at, (log, epoch, mesh) in enumerate(self.names)
        }


def judge_own_order(own: OwnRuns) -> list[Found]:
    """Entries of an origin's own log that are not in the order in which it wrote them. The same
    number at two places is found by the audit `orphans`.
    """
    before, place = shifted(own.last_seq), shifted(own.last)
    wrong = np.flatnonzero(~starts(own.group) & (own.seq < before))
    weights = (before - own.seq)[wrong]

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        at = wrong[places]
        near = zip(before[at].tolist(), place[at].tolist(), strict=True)
        for row, weight, (seq_1, offset_1) in zip(
            rows_at(own.runs, at), weights[places].tolist(), near, strict=True
        ):
            detail = (
                f"number {row['seq']} lies at offset {row['offset']} of the origin's own log, "
                f"after number {seq_1} at offset {offset_1}"
            )
            yield _row({**row, "origin": row["log"], "entity": None}, weight, detail)

    return found(STAMPS.name, FINDING, weights, millis(own.runs["created_at"])[wrong], rows_of)


def _row(row: Mapping[str, Any], weight: int, detail: str) -> FoundRow:
    known = {name: row[name] for name in _SHOWN}
    return FoundRow(weight=weight, detail=detail, at=row["created_at"], **known)


GAPS: Final = Audit(
    "gaps", "numbers that an origin gave and no log had", "how many numbers are missing"
)
REPEATS: Final = Audit(
    "repeats", "numbers that an origin gave twice", "none: the newest come first"
)
STAMPS: Final = Audit(
    "stamps", "stamps that do not grow, or leap, or replace newer ones", "how far they are off"
)
