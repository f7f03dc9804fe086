"""Which envelopes of the lake one node must have: those that its log held up to an offset.

The lake knows every place where an envelope was seen: the first in bronze, later ones in
`sightings`, and those where its id came with other bytes in `quarantine`. For a log that was never
restored, the places of its one epoch count.

A log that was restored has a new epoch, keeps its entries up to the point of the backup, and is
read again from the first entry that it still has. From there on only the places of the new epoch
count: this node has lost what the old epoch had beyond that point. Below it, where the log had been
truncated already, the places of the epoch before count: they were the same in both epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.fold.plan import shares_of
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reader import FileReader
from holdfast.pipeline.lake.schema import GAP, LOST
from holdfast.pipeline.spark.workers import Workers

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
_PLACE: Final = ("log", "epoch", "offset")
_REASON: Final = "reason"


class OffsetRange(NamedTuple):
    """Offsets of one epoch, both ends included."""

    epoch: int
    first: int
    last: int


class Reached(NamedTuple):
    """How much of one log's epoch the lake has read."""

    first: int
    last: int
    gaps: tuple[int, ...] = ()
    """The first offsets of ranges that were truncated before the lake could read them."""


ReadRanges = Mapping[str, Mapping[int, Reached]]
"""By log and epoch."""


def read_ranges(workers: Workers, lake: Lake, logs: Sequence[str]) -> ReadRanges:
    """What the lake has of some logs, by one small job that reads the places of all rows."""
    shares = [
        (table.reader(), tuple(share))
        for table in (lake.bronze, lake.sightings, lake.quarantine)
        for share in shares_of(table.files(), workers.parallelism)
    ]
    work = _PlacesOf(shares=shares, logs=tuple(logs))
    parts = [part for found in workers.run("verify places", work, len(shares)) for part in found]
    found: dict[str, dict[int, Reached]] = {log: {} for log in logs}
    for log, epoch, part in parts:
        known = found[log].get(epoch)
        found[log][epoch] = part if known is None else _both(known, part)
    for log, epochs in found.items():
        for epoch, reached in list(epochs.items()):
            if reached.last < 0:
                # Nothing but notes about what was lost.
                del epochs[epoch]
                continue
            # The lake may not be allowed to read the last entries; its position counts them.
            last = max(reached.last, lake.position(log, epoch) or 0)
            epochs[epoch] = Reached(reached.first, last, tuple(sorted(set(reached.gaps))))
    return found


_NOWHERE: Final = Reached(np.iinfo(np.int64).max, -1)


def _both(one: Reached, other: Reached) -> Reached:
    return Reached(min(one.first, other.first), max(one.last, other.last), (*one.gaps, *other.gaps))


class _PlacesOf(msgspec.Struct, frozen=True, kw_only=True):
    """How far the rows of some files reach, as an object that is sent to the tasks."""

    shares: Sequence[tuple[FileReader, tuple[File, ...]]]
    logs: tuple[str, ...]

    def __call__(self, number: int) -> list[tuple[str, int, Reached]]:
        reader, files = self.shares[number]
        columns = [name for name in (*_PLACE, _REASON) if name in reader.schema.names]
        found: dict[tuple[str, int], Reached] = {}
        for file in files:
            with reader.open(file) as opened:
                for group in range(opened.groups):
                    for key, part in self._reached(opened.group(group, columns)):
                        found[key] = _both(found.get(key, _NOWHERE), part)
        return [(log, epoch, reached) for (log, epoch), reached in found.items()]

    def _reached(self, rows: pa.Table) -> list[tuple[tuple[str, int], Reached]]:
        rows = rows.filter(pc.is_in(rows["log"], value_set=pa.array(self.logs, pa.string())))
        gaps: list[dict[str, Any]] = []
        if _REASON in rows.column_names:
            is_gap = pc.is_in(rows[_REASON], value_set=pa.array([GAP, LOST]))
            gaps = rows.filter(is_gap).to_pylist()
            rows = rows.filter(pc.invert(is_gap))
        ends = rows.group_by(["log", "epoch"], use_threads=False).aggregate(
            [("offset", "min"), ("offset", "max")]
        )
        return [
            *(
                ((row["log"], row["epoch"]), Reached(row["offset_min"], row["offset_max"]))
                for row in ends.to_pylist()
            ),
            *(
                ((row["log"], row["epoch"]), _NOWHERE._replace(gaps=(row["offset"],)))
                for row in gaps
            ),
        ]


def ranges_of(
    read: Mapping[int, Reached], epoch: int, first: int, head: int
) -> tuple[list[OffsetRange], str]:
    """The ranges of offsets that count for a log with these bounds, newest first, and a sentence
    about what the lake has not read, or an empty text. Without ranges the node cannot be judged.
    """
    current = read.get(epoch)
    if current is None and first > head:
        # The log is empty in this epoch.
        current = Reached(first, head)
    if current is None or current.last < head:
        last = 0 if current is None else current.last
        return [], f"of epoch {epoch} the lake has read up to offset {last}, the log ends at {head}"
    spans = [OffsetRange(epoch, min(current.first, head + 1), head)]
    gaps = [at for at in current.gaps if current.first < at <= head]
    for before in sorted((known for known in read if known < epoch), reverse=True):
        below = spans[-1].first - 1
        earlier = read[before]
        if earlier.first <= below:
            spans.append(OffsetRange(before, earlier.first, min(earlier.last, below)))
            if earlier.last < below:
                gaps.append(earlier.last + 1)
            gaps += [at for at in earlier.gaps if earlier.first < at <= below]
    if spans[-1].first > 1:
        gaps.append(1)
    if not gaps:
        return spans, ""
    return spans, f"the lake has gaps in this log, from offset {', '.join(map(str, sorted(gaps)))}"


class Scope(NamedTuple):
    """What one node must hold, of the envelopes that the lake has."""

    number: int
    log: str
    spans: Sequence[OffsetRange]
    first: int
    """The first offset that its log still has."""
    forgotten: Mapping[str, int]
    """By mesh: the stamp up to which the node may have forgotten deleted rows."""
    commits: Mapping[str, int] = {}
    """By mesh with voters: the last commit that the node has folded."""

    def tag(self, mesh: str) -> str:
        """The name of a mesh with the number of this node, to keep it apart from other nodes."""
        return f"{self.number}/{mesh}"


def untagged(tag: str) -> str:
    return tag.partition("/")[2]


def count_of(scopes: Sequence[Scope]) -> int:
    """About how many envelopes count."""
    return sum(span.last - span.first + 1 for scope in scopes for span in scope.spans)


def counting(scope: Scope, places: pa.Table) -> Flags:
    """Which places (`log`, `epoch`, `offset`) count for a scope."""
    of_log = pc.equal(places["log"], scope.log).to_numpy(zero_copy_only=False)
    found: Flags = np.zeros(len(of_log), np.bool_)
    if not of_log.any():
        return found
    epochs, offsets = places["epoch"].to_numpy(), places["offset"].to_numpy()
    for span in scope.spans:
        found |= (epochs == span.epoch) & (offsets >= span.first) & (offsets <= span.last)
    found &= of_log
    return found
