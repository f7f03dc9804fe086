"""What `reads` says was read, compared with what the tables hold.

Each row of `reads` is a claim: so many entries lie between two offsets of a log. A claim that holds
less is a loss: somebody has set back a table, or a file is gone. Rows that no claim covers come
from a job that was killed before it could note them, or `reads` itself was set back: they become
claims again. A position never moves over places that are not there.

Nothing here reads or writes: tables of numbers come in, and go out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake.held import (
    AGAIN,
    ASIDE,
    ENTRIES,
    NEW,
    ORPHAN,
    STRANGE,
    TOLD,
    Key,
    Numbers,
    Offsets,
    numbers,
)
from holdfast.pipeline.lake.reads import ARROW, Read, as_rows

_QUARANTINE: Final = (ASIDE, TOLD, STRANGE)
_COUNTED: Final = {
    "new": (NEW,),
    "again": (AGAIN, ORPHAN),
    "quarantined": (ASIDE,),
    "noted": _QUARANTINE,
}
"""By column of `reads`: the kinds of places that it counts."""


@dataclass(frozen=True)
class MissingPlaces:
    """Entries of one log that were read and that the lake no longer holds."""

    key: Key
    ranges: tuple[tuple[int, int], ...]
    """Ranges [start, stop) of offsets that the lake does not hold. In a broker's log some of these
    offsets may never have had an entry.
    """
    rows: int
    """How many entries are missing in these ranges."""
    notes: int = 0
    """How many rows about this log are missing in quarantine besides."""
    untold: tuple[tuple[int, int], ...] = ()
    """Ranges [start, stop) without entries where such a row may have told of a gap."""

    def __str__(self) -> str:
        log, epoch = self.key
        spans = [f"{start} to {stop - 1}" for start, stop in self.ranges]
        shown = ", ".join(spans[:_SHOWN])
        more = f" and {len(spans) - _SHOWN} more ranges" if len(spans) > _SHOWN else ""
        if not self.rows:
            return f"{self.notes} notes in quarantine about log {log!r} in epoch {epoch}"
        all_of = sum(stop - start for start, stop in self.ranges) == self.rows
        some = "" if all_of else f"{self.rows} of the "
        return f"{some}offsets {shown}{more} in epoch {epoch} of log {log!r}"


_SHOWN: Final = 5


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    reads: pa.Table
    """What `reads` has to say. Claims that do not hold stand in it as they were."""
    differs: bool
    """Whether `reads` says something else now."""
    missing: tuple[MissingPlaces, ...] = ()
    orphans: Mapping[Key, list[tuple[int, int]]] = field(default_factory=dict)
    """By log: ranges of sightings whose envelope bronze does not have."""


def compared(reads: pa.Table, runs: pa.Table, trusted: Mapping[Key, int]) -> Comparison:
    """Compares claims with the runs that the tables hold. `trusted`: by log, the offset up to which
    bronze itself says that it was read, where this can be believed.
    """
    found: list[pa.Table] = [ARROW.empty_table()]
    missing: list[MissingPlaces] = []
    for key in sorted(_keys(reads) | _keys(runs)):
        claims, here = _of(reads, key), _of(runs, key)
        log = _Log(key, claims, here)
        lacking = log.lacking()
        if lacking is not None:
            missing.append(lacking)
        more = log.unclaimed(trusted.get(key, 0))
        found.append(_Log(key, pa.concat_tables([claims, more]), here).settled())
    whole = pa.concat_tables(found)
    order = [("log", "ascending"), ("epoch", "ascending"), ("first", "ascending")]
    differs = not whole.sort_by(order).equals(reads.sort_by(order))
    return Comparison(whole, differs, tuple(missing), _orphans(runs))


def _orphans(runs: pa.Table) -> dict[Key, list[tuple[int, int]]]:
    found: dict[Key, list[tuple[int, int]]] = {}
    for run in _of_kinds(runs, (ORPHAN,)).to_pylist():
        found.setdefault((run["log"], run["epoch"]), []).append((run["start"], run["stop"]))
    return found


def given_up(reads: pa.Table, keys: Collection[Key]) -> pa.Table:
    """The same without the claims of some logs to entries that are missing: what is held of their
    ranges is all that there is.
    """
    pairs = zip(reads.column("log").to_pylist(), reads.column("epoch").to_pylist(), strict=True)
    kept = np.array([pair not in keys for pair in pairs], np.int64)
    for name in ("rows", "noted"):
        reads = _with(reads, name, numbers(reads, name) * kept)
    return reads


def _keys(rows: pa.Table) -> set[Key]:
    pairs = rows.select(["log", "epoch"]).group_by(["log", "epoch"]).aggregate([])
    return {(row["log"], row["epoch"]) for row in pairs.to_pylist()}


def _of(rows: pa.Table, key: Key) -> pa.Table:
    return rows.filter((pc.field("log") == key[0]) & (pc.field("epoch") == key[1]))


def _of_kinds(runs: pa.Table, kinds: Sequence[int]) -> pa.Table:
    return runs.filter(pc.field("kind").isin(list(kinds)))


class _Log:
    """The claims about one log, and what is held of it."""

    def __init__(self, key: Key, claims: pa.Table, runs: pa.Table) -> None:
        self._key = key
        self._runs = runs
        self._entries = Offsets(_of_kinds(runs, ENTRIES))
        self._notes = Offsets(_of_kinds(runs, _QUARANTINE))
        order = [("first", "ascending"), ("last", "descending"), ("rows", "descending")]
        claims = claims.sort_by(order).combine_chunks()
        last = numbers(claims, "last")
        # A claim within another one is a repair of it, and says nothing more.
        self._furthest = np.maximum.accumulate(last) if len(last) else last
        inside = np.zeros(len(last), bool)
        inside[1:] = last[1:] <= self._furthest[:-1]
        self._claims = claims.filter(pa.array(~inside)).combine_chunks()
        self._first, self._stop = self._ranges(self._claims)
        self._rows = numbers(self._claims, "rows")
        self._lacking = self._rows - self._entries.count(self._first, self._stop)
        noted = numbers(self._claims, "noted")
        self._unnoted = noted - self._notes.count(self._first, self._stop)

    def _ranges(self, claims: pa.Table) -> tuple[Numbers, Numbers]:
        return numbers(claims, "first"), numbers(claims, "last") + 1

    @property
    def _broken(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which claims do not hold."""
        return (self._lacking > 0) | (self._unnoted > 0)

    def lacking(self) -> MissingPlaces | None:
        at = np.flatnonzero(self._lacking > 0)
        holes: list[tuple[int, int]] = []
        for one in at:
            holes += self._entries.holes(int(self._first[one]), int(self._stop[one]))
        rows = int(self._lacking[at].sum())
        quiet = np.flatnonzero((self._unnoted > 0) & (self._lacking <= 0))
        if not rows and not len(quiet):
            return None
        told = set(numbers(_of_kinds(self._runs, (TOLD,)), "start").tolist())
        untold = [
            hole
            for one in quiet
            for hole in self._entries.holes(int(self._first[one]), int(self._stop[one]))
            if hole[0] not in told
        ]
        notes = int(self._unnoted[quiet].sum())
        return MissingPlaces(self._key, tuple(dict.fromkeys(holes)), rows, notes, tuple(untold))

    def settled(self) -> pa.Table:
        """The claims, with true counts where they hold."""
        claims, broken = self._claims, self._broken
        # Ranges of different claims may overlap; each place counts once.
        first = self._first.copy()
        first[1:] = np.maximum(first[1:], np.maximum.accumulate(self._stop)[:-1])
        for name, kinds in _COUNTED.items():
            true = Offsets(_of_kinds(self._runs, kinds)).count(first, self._stop)
            claims = _with(claims, name, np.where(broken, numbers(claims, name), true))
        held = self._entries.count(self._first, self._stop)
        return _with(claims, "rows", np.maximum(self._rows, held))

    def unclaimed(self, trusted: int) -> pa.Table:
        """New claims for what is held and not claimed, batch by batch.

        It counts as far as bronze has rows of this log: bronze commits last, so all before them was
        read. Beyond them only places that follow without a hole count, since a killed job may have
        left others in sightings and quarantine.
        """
        made: list[Read] = []
        for between, parts in groupby(self._free_spans(), itemgetter("between")):
            spans = list(parts)
            end = max(span["stop_max"] for span in spans)
            begin = int(self._stop[between - 1]) if between else 1
            sure = max(begin, min(trusted + 1, end), *(span["sure_max"] for span in spans))
            limit = next((hole for hole, _ in self._entries.holes(sure, end)), end)
            for span in spans:
                stop = min(span["stop_max"], limit)
                if span["start_min"] < stop:
                    made.append(self._claim(span["batch"], span["start_min"], stop))
        return as_rows(made)

    def _claim(self, batch: int, first: int, stop: int) -> Read:
        log, epoch = self._key
        rows = int(self._entries.count(np.array([first]), np.array([stop]))[0])
        return Read(log=log, epoch=epoch, first=first, last=stop - 1, rows=rows, batch=batch)

    def _free_spans(self) -> list[dict[str, int]]:
        """By batch: the first and the last of its places that no claim covers, and how far bronze
        has some of them. A span lies `between` two claims.
        """
        runs = _of_kinds(self._runs, (*ENTRIES, TOLD)).combine_chunks()
        claimed = Offsets(pa.table({"start": self._first, "stop": self._stop}))
        start, stop = numbers(runs, "start"), numbers(runs, "stop")
        open_runs = runs.filter(pa.array(claimed.count(start, stop) < stop - start))
        parts = [
            {"batch": run["batch"], "start": begin, "stop": end, "sure": end * (run["kind"] == NEW)}
            for run in open_runs.to_pylist()
            for begin, end in claimed.holes(run["start"], run["stop"])
        ]
        if not parts:
            return []
        free = pa.Table.from_pylist(parts)
        between = np.searchsorted(self._first, numbers(free, "start"))
        spans = free.append_column("between", pa.array(between)).group_by(["between", "batch"])
        ends = spans.aggregate([("start", "min"), ("stop", "max"), ("sure", "max")])
        found: list[dict[str, int]] = ends.sort_by(
            [("between", "ascending"), ("start_min", "ascending")]
        ).to_pylist()
        return found


def _with(rows: pa.Table, name: str, values: Numbers) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, pa.int64()))
