"""What the table `commits` holds, as its own files say.

New files have the commits of one log and mesh each, so that their statistics say what they hold;
only files that were put together since are looked into.

Each group of voters of a mesh goes on from the number where the one before it ended. Only a
recovery that lost commits begins earlier: then the commits of the group before it, from that number
on, are part of no order any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File

Numbers = dict[tuple[str, int], dict[str, int]]
"""By log and epoch, by mesh: the number of the last commit that the lake has."""
_LOG: Final = ("log", "epoch", "mesh")
_BYTES: Final = ("mesh", "incarnation")
_KNOWN: Final = ("log", "epoch", "mesh", "incarnation", "number", "first")


class LostCommits(NamedTuple):
    """Commits of an incarnation that a recovery has left behind: the next one went on from an
    earlier number.
    """

    incarnation: int
    first: int
    """All numbers from this one on that the incarnation, or one before it, has given."""


Lost = Mapping[str, Sequence[LostCommits]]
"""By mesh; meshes that have lost none are left out."""


def is_lost(lost: Lost, mesh: str, incarnation: int, number: int) -> bool:
    """Whether a commit is part of no order any more."""
    return any(incarnation <= one.incarnation and number >= one.first for one in lost.get(mesh, ()))


class KnownCommits(NamedTuple):
    """What the lake has of the commits of all logs."""

    ends: Numbers
    bytes: dict[tuple[str, int], list[range]]
    """By mesh and incarnation: of which numbers it has the envelopes."""

    def lacks(self, rows: pa.Table) -> pa.Array:
        """For each row of a piece whether nobody has brought the envelope of its commit yet."""
        lacking = []
        for mesh, incarnation, number in zip(
            *(rows[name].to_pylist() for name in (*_BYTES, "number")), strict=True
        ):
            spans = self.bytes.get((mesh, incarnation), ())
            lacking.append(not any(number in span for span in spans))
        return pa.array(lacking, pa.bool_())

    def first_lacking(self, mesh: str, last: int) -> int:
        """The first commit of a mesh up to a number whose envelope nobody has brought; 0 if there
        is none.
        """
        at = 1
        spans = [span for (of, _), spans in self.bytes.items() if of == mesh for span in spans]
        for span in _joined(spans):
            if at not in span:
                break
            at = span.stop
        return at if at <= last else 0

    @property
    def lost(self) -> Lost:
        """What recoveries have left behind."""
        found: dict[str, list[LostCommits]] = {}
        for mesh in {mesh for mesh, _ in self.bytes}:
            spans = sorted((at, spans) for (of, at), spans in self.bytes.items() if of == mesh)
            for (before, earlier), (_, later) in pairwise(spans):
                first = later[0].start
                if earlier[-1].stop > first:
                    found.setdefault(mesh, []).append(LostCommits(before, first))
        return found

    @property
    def lost_count(self) -> int:
        """How many of the commits whose envelopes are here are lost."""
        count = 0
        for mesh, cuts in self.lost.items():
            for (of, incarnation), spans in self.bytes.items():
                firsts = [
                    cut.first for cut in cuts if of == mesh and incarnation <= cut.incarnation
                ]
                for span in spans if firsts else ():
                    count += max(0, span.stop - max(span.start, min(firsts)))
        return count

    def add(self, rows: pa.Table) -> None:
        """Notes the envelopes of rows that go to the table."""
        _add_bytes(self.bytes, rows)


def known_commits(table: Table) -> KnownCommits:
    """How far the lake is, from what it holds."""
    known = KnownCommits({}, {})
    mixed: list[File] = []
    for file in table.files() if table.exists else ():
        values = [file.only(name) for name in _KNOWN if name != "number"]
        low, high = file.low.get("number"), file.high.get("number")
        if None in values or low is None or high is None or file.rows != high + 1 - low:
            mixed.append(file)
            continue
        log, epoch, mesh, incarnation, first = values
        ends = known.ends.setdefault((log, epoch), {})
        ends[mesh] = max(ends.get(mesh, 0), high)
        if first:
            known.bytes.setdefault((mesh, incarnation), []).append(range(low, high + 1))
    if mixed:
        rows, _ = table.load(mixed, _KNOWN)
        for row in rows.group_by(_LOG).aggregate([("number", "max")]).to_pylist():
            ends = known.ends.setdefault((row["log"], row["epoch"]), {})
            ends[row["mesh"]] = max(ends.get(row["mesh"], 0), row["number_max"])
        _add_bytes(known.bytes, rows)
    for key, spans in known.bytes.items():
        known.bytes[key] = _joined(spans)
    return known


def _add_bytes(known: dict[tuple[str, int], list[range]], rows: pa.Table) -> None:
    there = rows.filter(rows["first"]).select([*_BYTES, "number"])
    for group in there.group_by(_BYTES).aggregate([("number", "list")]).to_pylist():
        key = (group["mesh"], group["incarnation"])
        numbers = np.unique(np.array(group["number_list"], np.int64))
        cuts = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1), len(numbers)]
        runs = [range(int(numbers[a]), int(numbers[b - 1]) + 1) for a, b in pairwise(cuts)]
        known[key] = _joined([*known.get(key, []), *runs])


def _joined(spans: Sequence[range]) -> list[range]:
    """The same numbers in as few spans as possible."""
    found: list[range] = []
    for span in sorted(spans, key=lambda span: span.start):
        if found and span.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, span.stop))
        else:
            found.append(span)
    return found
