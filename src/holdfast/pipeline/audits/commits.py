"""Whether what quorums have committed is one order, the same in every log.

A commit has a number, which counts the commits of a mesh without gaps, and a fence, which only
grows. So three things cannot be, whoever tells them: one number with two entries, two commits under
one fence (or two coordinators in one lease epoch), and a higher number with an older fence, which
is an entry that was committed but not in its leader's order. And a log that has a commit has all
commits before it.

A recovery after a lost majority may leave commits behind: its group begins at a number that the one
before it had given. Its operator was told, so that is a notice, and the order is judged without
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.audits.arrays import Flags, Numbers, coded, ints, millis, rows_at, starts
from holdfast.pipeline.audits.fences import FENCES
from holdfast.pipeline.audits.origins import GAPS
from holdfast.pipeline.audits.shape import FINDING, NOTICE, Found, FoundRow, found
from holdfast.pipeline.lake.schema import COMMITS, arrow_schema

COLUMNS: Final = (
    *("log", "epoch", "mesh", "number", "id"),
    *("incarnation", "lease_epoch", "coordinator", "sequence", "committed_at"),
)
_FENCE: Final = ("incarnation", "lease_epoch", "sequence")


def empty_commits() -> pa.Table:
    return arrow_schema(COMMITS).empty_table().select(COLUMNS)


class CommitOrder:
    """The commits of some meshes, each once, in the order of their numbers."""

    def __init__(self, rows: pa.Table) -> None:
        (meshes,), self.mesh_names = coded(rows["mesh"])
        (ids,), self.id_names = coded(rows["id"])
        (peers,), self.peer_names = coded(rows["coordinator"])
        numbers = ints(rows["number"])
        fence = [ints(rows[name]) for name in _FENCE]
        (logs,), _ = coded(rows["log"])
        order = np.lexsort((logs, peers, *reversed(fence), ids, numbers, meshes))
        keys = [part[order] for part in (meshes, numbers, ids, *fence, peers)]
        once = order[starts(*keys)] if len(order) else order
        gone = _left_behind(rows, meshes, numbers, fence[0])[once]
        self.lost = rows.take(pa.array(once[gone]))
        """Those that a recovery has left behind."""
        once = once[~gone]
        self.rows = rows.take(pa.array(once))
        self.mesh, self.number, self.id = meshes[once], numbers[once], ids[once]
        self.fence = [part[once] for part in fence]
        self.peer = peers[once]
        self.made = millis(self.rows["committed_at"])


def _left_behind(rows: pa.Table, meshes: Numbers, numbers: Numbers, groups: Numbers) -> Flags:
    """Which rows are of commits from whose number on a later group (incarnation) has counted anew.
    A log that has both is another matter: no node folds the later one first.
    """
    gone = np.zeros(len(meshes), np.bool_)
    pairs = np.unique(np.stack([meshes, groups], axis=1), axis=0)
    known, counts = np.unique(pairs[:, 0], return_counts=True)
    several = np.isin(pairs[:, 0], known[counts > 1])
    for mesh, group in pairs[several].tolist():
        ours = meshes == mesh
        first = numbers[ours & (groups == group)].min()
        gone |= ours & (groups < group) & (numbers >= first)
    if gone.any():
        (logs,), _ = coded(rows["log"])
        order = np.lexsort((numbers, meshes, ints(rows["epoch"]), logs))
        parts = np.cumsum(starts(logs[order], ints(rows["epoch"])[order], meshes[order]))
        # Groups grow within a log; the parts keep logs and meshes apart.
        sizes = parts * (1 + int(groups.max())) + groups[order]
        gone[order[sizes < np.maximum.accumulate(sizes)]] = False
    return gone


def judge_left_behind(order: CommitOrder) -> list[Found]:
    """Commits that a recovery has lost."""
    rows = order.lost

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        for row in rows_at(rows, np.array(places, np.int64)):
            said = f"commit {row['number']} of {row['mesh']} was left behind by a recovery"
            yield _row(row, 1, said)

    made = millis(rows["committed_at"])
    return found(FENCES.name, NOTICE, np.ones(rows.num_rows, np.int64), made, rows_of)


def judge_order(order: CommitOrder) -> list[Found]:
    """One number, one entry; and the fences grow with the numbers."""
    n = len(order.mesh)
    same_mesh = _as_before(order.mesh)
    twice = same_mesh & _as_before(order.number)
    twice[:-1] |= twice[1:].copy()
    older = np.zeros(n, np.bool_)
    equal = same_mesh.copy()
    for part in order.fence:
        older |= equal & _less_than_before(part)
        equal &= _as_before(part)
    older |= equal & ~_as_before(order.number)  # the same fence under another number
    older &= ~_as_before(order.number) | ~same_mesh

    def said(row: dict[str, Any], place: int) -> str:
        if twice[place]:
            return f"commit {row['number']} of {row['mesh']} is not the same entry in all logs"
        return (
            f"commit {row['number']} of {row['mesh']} has the fence {_shown(row)}, which is not "
            "newer than that of the commit before it: it was not committed in its leader's order"
        )

    return _found(order.rows, order.made, twice | older, said)


def judge_commit_fences(order: CommitOrder) -> list[Found]:
    """Two commits under one fence, or two coordinators in one lease epoch."""
    incarnation, lease, sequence = order.fence
    by = np.lexsort((order.number, order.peer, sequence, lease, incarnation, order.mesh))
    epochs = np.cumsum(starts(order.mesh[by], incarnation[by], lease[by])) - 1
    fences = np.cumsum(starts(epochs, sequence[by])) - 1
    commits = starts(fences, order.number[by], order.id[by])
    many = np.bincount(fences, weights=commits)[fences] > 1 if len(by) else commits
    by_peer = np.lexsort((order.peer[by], epochs))
    others = starts(epochs[by_peer], order.peer[by][by_peer])
    leads = np.bincount(epochs[by_peer], weights=others)[epochs] > 1 if len(by) else commits
    wrong, two = np.zeros(len(by), np.bool_), np.zeros(len(by), np.bool_)
    wrong[by], two[by] = many | leads, leads

    def said(row: dict[str, Any], place: int) -> str:
        if two[place]:
            of = f"lease epoch {row['lease_epoch']} of {row['mesh']}"
            return f"{of} has more than one coordinator"
        return f"more than one entry of {row['mesh']} was committed under {_shown(row)}"

    return _found(order.rows, order.made, wrong, said)


def judge_commit_gaps(rows: pa.Table) -> list[Found]:
    """Numbers that a log leaves out."""
    (logs,), _ = coded(rows["log"])
    (meshes,), _ = coded(rows["mesh"])
    epochs, numbers = ints(rows["epoch"]), ints(rows["number"])
    order = np.lexsort((numbers, meshes, epochs, logs))
    begins = starts(logs[order], epochs[order], meshes[order])
    sorted_numbers = numbers[order]
    before = np.zeros(len(order), np.int64)
    before[1:] = sorted_numbers[:-1]
    before[begins] = 0
    missing = np.maximum(sorted_numbers - before - 1, 0)
    at = np.flatnonzero(missing)
    made = millis(rows["committed_at"])[order][at]

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        chosen = at[places]
        for row, count in zip(rows_at(rows, order[chosen]), missing[chosen].tolist(), strict=True):
            first, last = row["number"] - count, row["number"] - 1
            which = f"commit {first}" if count == 1 else f"commits {first} to {last}"
            yield _row(row, count, f"{row['log']} has no {which} of {row['mesh']}, and later ones")

    return found(GAPS.name, FINDING, missing[at], made, rows_of)


def _found(rows: pa.Table, made: Numbers, wrong: Flags, said: Any) -> list[Found]:
    at = np.flatnonzero(wrong)

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        chosen = at[places]
        for row, place in zip(rows_at(rows, chosen), chosen.tolist(), strict=True):
            yield _row(row, 1, said(row, place))

    return found(FENCES.name, FINDING, np.ones(len(at), np.int64), made[at], rows_of)


def _row(row: dict[str, Any], weight: int, detail: str) -> FoundRow:
    known = {name: row[name] for name in ("log", "epoch", "mesh", "id")}
    return FoundRow(weight=weight, detail=detail, at=row["committed_at"], **known)


def _shown(row: dict[str, Any]) -> str:
    return "sequence {sequence} of {coordinator} in lease epoch {lease_epoch}".format(**row)


def _as_before(column: Numbers) -> Flags:
    same = np.zeros(len(column), np.bool_)
    same[1:] = column[1:] == column[:-1]
    return same


def _less_than_before(column: Numbers) -> Flags:
    less = np.zeros(len(column), np.bool_)
    less[1:] = column[1:] < column[:-1]
    return less
