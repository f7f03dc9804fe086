"""Rows in good order, told by their ends: what a task says of its numbers and places.

An origin numbers its envelopes 1, 2, 3 …, and a log its entries. A task that has many of them finds
long runs in which nothing is wrong, each number one higher than the one before. No row of another
task can lie inside such a run, unless a number was given twice. So a task sends the ends of its
runs, and not its rows: of millions of rows some hundred runs are left, and their neighbours are
compared where all runs of an origin or a log come together.

If runs overlap after all, something may be wrong between their ends. Then the tasks look again, and
send the rows in the overlapping spans one by one. So the result never depends on how the lake was
divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.pipeline.audits.arrays import (
    NONE,
    Flags,
    Numbers,
    Spans,
    among_spans,
    coded,
    ints,
    joined_spans,
    nullable,
    reach,
    shifted,
    starts,
    texted,
    whole,
)
from holdfast.pipeline.audits.scan import Share
from holdfast.rules.envelope import UNCOUNTED
from holdfast.rules.limits import AUDIT_SPANS_MAX, LAMPORT_LEAP_MAX

ORIGINS: Final = "origins"
OWN: Final = "own"
PLACES: Final = "places"


class Explode(msgspec.Struct, frozen=True):
    """Where rows are sent one by one, by the kind of run."""

    origins: Spans = {}
    """By mesh, origin and its epoch: numbers."""
    own: Spans = {}
    """By log, epoch and mesh: offsets."""
    places: Spans = {}
    """By log and epoch: offsets."""

    @property
    def any(self) -> bool:
        return bool(self.origins or self.own or self.places)


# --- what tasks send -----------------------------------------------------------------------------


def origin_runs(share: Share, explode: Spans) -> pa.Table:
    """The numbers and stamps that each origin gave. A run has numbers without a gap and stamps that
    grow and do not leap; none of its rows replaces a newer one.
    """
    rows, words = share.rows, share.words
    counted = np.flatnonzero(ints(rows["origin_epoch"]) != UNCOUNTED)
    if len(counted) < rows.num_rows:
        # Strong writes, and what a node made again: no origin has counted them.
        rows = rows.take(pa.array(counted))
        words = (words[0][counted], words[1][counted])
    (meshes,), mesh_names = coded(rows["mesh"])
    (origins,), origin_names = coded(rows["origin"])
    epochs, seqs, stamps = (ints(rows[name]) for name in ("origin_epoch", "seq", "lamport"))
    bases = ints(rows["base_lamport"])
    high, low = words
    order = np.lexsort((low, high, stamps, seqs, epochs, origins, meshes))
    group, names = _grouped(
        order, (meshes, origins, epochs), lambda at: (mesh_names[at[0]], origin_names[at[1]], at[2])
    )
    seq, stamp = seqs[order], stamps[order]
    # In Python's whole numbers nothing overflows; here a leap is looked for without a difference.
    leaps = stamp > shifted(stamp) + LAMPORT_LEAP_MAX
    replaces = bases[order] >= stamp
    begins = starts(group) | (seq != shifted(seq) + 1) | (stamp <= shifted(stamp)) | leaps
    begins |= replaces | _after(replaces)
    begins |= _apart(group, names, seq, explode)
    first, last = _ends(begins, order)
    return pa.table(
        {
            "mesh": texted(meshes[first], mesh_names),
            "origin": texted(origins[first], origin_names),
            "origin_epoch": pa.array(epochs[first]),
            **_places(rows, first),
            "entity": whole(rows["entity"]).take(pa.array(first)),
            "base_lamport": nullable(bases[first]),
            "seq": pa.array(seqs[first]),
            "lamport": pa.array(stamps[first]),
            "last_seq": pa.array(seqs[last]),
            "last_lamport": pa.array(stamps[last]),
            "last_id": whole(rows["id"]).take(pa.array(last)),
            "rows": pa.array(_counts(begins)),
        }
    )


def own_runs(share: Share, explode: Spans) -> pa.Table:
    """What each origin's own log has, in the epoch in which the origin wrote it. There they lie in
    the order in which they were written. After a restore the log may also hold older ones
    that came back from other nodes. A run has numbers without a gap.
    """
    seen = share.seen
    (logs, origins), names = coded(seen["log"], seen["origin"])
    own = np.flatnonzero((logs == origins) & (ints(seen["epoch"]) == ints(seen["origin_epoch"])))
    (meshes,), mesh_names = coded(seen["mesh"])
    logs, meshes, epochs = logs[own], meshes[own], ints(seen["epoch"])[own]
    seqs, offsets = ints(seen["seq"])[own], ints(seen["offset"])[own]
    # What was read twice at one place is taken in the order of its numbers.
    order = np.lexsort((seqs, offsets, meshes, epochs, logs))
    group, of_group = _grouped(
        order, (logs, epochs, meshes), lambda at: (names[at[0]], at[1], mesh_names[at[2]])
    )
    seq, offset = seqs[order], offsets[order]
    begins = starts(group) | (seq != shifted(seq) + 1) | (offset == shifted(offset))
    begins |= _apart(group, of_group, offset, explode)
    first, last = _ends(begins, order)
    return pa.table(
        {
            "mesh": texted(meshes[first], mesh_names),
            **_places(seen, own[first]),
            "seq": pa.array(seqs[first]),
            "last": pa.array(offsets[last]),
            "last_seq": pa.array(seqs[last]),
            "rows": pa.array(_counts(begins)),
        }
    )


def place_runs(share: Share, explode: Spans) -> pa.Table:
    """The places where envelopes were read. A run has offsets without a gap."""
    rows = _seen_places(share)
    (logs,), names = coded(rows["log"])
    epochs, offsets = ints(rows["epoch"]), ints(rows["offset"])
    order = np.lexsort((offsets, epochs, logs))
    group, of_group = _grouped(order, (logs, epochs), lambda at: (names[at[0]], at[1]))
    offset = offsets[order]
    begins = starts(group) | (offset != shifted(offset) + 1)
    begins |= _apart(group, of_group, offset, explode)
    first, last = _ends(begins, order)
    return pa.table(
        {
            **_places(rows, first),
            "last": pa.array(offsets[last]),
            "rows": pa.array(_counts(begins)),
        }
    )


def _seen_places(share: Share) -> pa.Table:
    columns = ["log", "epoch", "offset", "id", "recorded_at"]
    return pa.concat_tables([share.rows.select(columns), share.again.select(columns)])


def _grouped(
    order: Numbers, columns: Sequence[Numbers], name: Any
) -> tuple[Numbers, list[tuple[Any, ...]]]:
    """The number of each sorted row's group, and the names of the groups by number."""
    ordered = [column[order] for column in columns]
    begins = starts(*ordered)
    firsts = zip(*(column[begins].tolist() for column in ordered), strict=True)
    return np.cumsum(begins) - 1, [name(at) for at in firsts]


def _apart(
    group: Numbers, names: Sequence[tuple[Any, ...]], values: Numbers, explode: Spans
) -> Flags:
    """Where runs have to begin. A row in one of the spans stands alone, so the next one begins a
    run too; and no run reaches over a span in which it has no row.
    """
    alone, begun = among_spans(group, names, values, explode)
    return alone | _after(alone) | starts(begun)


def _after(flags: Flags) -> Flags:
    """For each row the flag of the row before."""
    found = np.zeros(len(flags), np.bool_)
    found[1:] = flags[:-1]
    return found


def _ends(begins: Flags, order: Numbers) -> tuple[Numbers, Numbers]:
    """The rows with which runs begin and end."""
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(begins)) - 1 if len(first) else first
    return order[first], order[last]


def _counts(begins: Flags) -> Numbers:
    first = np.flatnonzero(begins)
    return np.diff(np.append(first, len(begins)))


def _places(rows: pa.Table, at: Numbers) -> dict[str, pa.Array]:
    """The place, the id and the times of the rows with which runs begin."""
    wanted = ["log", "epoch", "offset", "id", "recorded_at"]
    wanted += [name for name in ("created_at",) if name in rows.column_names]
    return {name: whole(rows[name]).take(pa.array(at)) for name in wanted}


# --- what is done with runs ----------------------------------------------------------------------


def contested(
    group: Numbers,
    names: Sequence[tuple[Any, ...]],
    first: Numbers,
    last: Numbers,
    rows: Numbers,
) -> Spans:
    """Where runs overlap and are not single rows already, by group. The runs are sorted by group
    and by `first`.
    """
    before = reach(group, last)
    of_runs = reach(group, np.where(rows > 1, last, NONE))
    over = (first <= of_runs) | ((rows > 1) & (first <= before))
    spans: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    highs = np.minimum(last, before)
    for at in np.flatnonzero(over).tolist():
        spans.setdefault(names[group[at]], []).append((int(first[at]), int(highs[at])))
    return {name: _few(joined_spans(found)) for name, found in spans.items()}


def _few(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most so many spans that have all values of these; more rows are sent one by one then."""
    if len(spans) <= AUDIT_SPANS_MAX:
        return spans
    size = -(-len(spans) // AUDIT_SPANS_MAX)
    parts = [spans[at : at + size] for at in range(0, len(spans), size)]
    return [(part[0][0], part[-1][1]) for part in parts]
