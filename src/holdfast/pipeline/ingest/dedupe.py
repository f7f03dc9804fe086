"""Which rows of a portion are new, which were seen before, and which cannot be kept in bronze.

An envelope is known by its id. Its first row goes to bronze; later rows with the same bytes go to
sightings; the same id with other bytes is a conflict, and both are kept: the first in bronze, the
other in quarantine. First is the row that bronze has; within a batch it is the row that was
recorded first, then the one with the smaller place. So the order in which tasks run does not
matter.

A portion is what a task holds of a batch at once. Of rows with the same id and the same bytes it
keeps the first whole, and only the places of the others: they share its fate, whatever other
portions have. Everything works on whole columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake import schema
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.id_bits import Bits, days, id_bits
from holdfast.pipeline.lake.schema import UNKNOWN_OP
from holdfast.rules.bodies import OPS
from holdfast.rules.quorum.intents import QUORUM_OPS

PLACE: Final = tuple(schema.PLACE.names)

NEW: Final = "new"
AGAIN: Final = "again"
CONFLICT: Final = "id_conflict"
STORED: Final = "stored"
"""This very place is in bronze already: the row is neither new nor a sighting."""

BRONZE: Final = schema.arrow_schema(schema.BRONZE)
SIGHTINGS: Final = schema.arrow_schema(schema.SIGHTINGS)
QUARANTINE: Final = schema.arrow_schema(schema.QUARANTINE)
NO_PLACES: Final = schema.arrow_schema(schema.PLACE).empty_table()
KNOWN_OPS: Final = OPS | QUORUM_OPS
"""The ops that this version knows: those that nodes fold themselves, and those that quorums decide.
"""
_PROBLEM: Final = r"(?s)^(?P<reason>[a-z_]+): (?P<detail>.*)$"

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
FindKnown = Callable[[pa.Array, Bits], pa.Table | None]
"""Gives the rows of bronze, with id, place and bytes, that have one of these sorted ids."""
Counts = Mapping[tuple[Key, str], int]
"""Rows by log and verdict. The verdict of a row that could not be read is the code of its problem.
A row with an unknown op counts as new and once more as `UNKNOWN_OP`.
"""


class JudgedPortion(NamedTuple):
    """A portion as the rows of the three tables."""

    bronze: pa.Table
    """Rows that are new if no other portion has their ids. They are sorted by id; of rows with one
    id the first comes first.
    """
    sightings: pa.Table
    quarantine: pa.Table
    stored: pa.Table
    """The places of rows that bronze has already."""
    rivals: bool
    """Whether bronze's part has an id twice, with other bytes."""


def judge(rows: pa.Table, find_known: FindKnown, batch: int) -> JudgedPortion:
    """Judges the rows of a portion, which have the columns of `schema.ENVELOPE`."""
    rows, unread = _readable(rows.combine_chunks())
    first, last = id_bits(rows.column("id"))
    order = in_turn(rows, first, last)
    rows, first, last = rows.take(pa.array(order)).combine_chunks(), first[order], last[order]
    repeats = same_as_before(first, last)
    fresh = _fresh(rows, repeats)
    again, conflict, stored = _compared(rows, find_known(_flat(rows, "id"), first))
    fresh &= ~(again | conflict | stored)
    again |= ~(fresh | conflict | stored)
    bronze = as_bronze(_some(rows, fresh), first[fresh], batch)
    return JudgedPortion(
        bronze=bronze,
        sightings=as_sightings(_some(rows, again), batch),
        quarantine=pa.concat_tables(
            [
                _as_unread(unread, batch),
                as_conflicts(_some(rows, conflict), batch),
                unknown_ops(_some(rows, fresh & ~repeats), batch),
            ]
        ),
        stored=_some(rows, stored).select(PLACE),
        rivals=bool((fresh & repeats).any()),
    )


def _readable(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows whose envelopes can be kept, and the others with their problem."""
    problem = rows.column("problem")
    fine = pc.is_null(problem)
    bad = rows.filter(pc.invert(fine)) if problem.null_count < len(problem) else rows.slice(0, 0)
    return rows.filter(fine) if bad.num_rows else rows, bad


def in_turn(rows: pa.Table, first: Bits, last: Bits) -> Numbers:
    """The order by id, then by the time of recording, then by place."""
    order: Numbers = np.argsort(first, kind="stable")
    sorted_first = first[order]
    if not (sorted_first[1:] == sorted_first[:-1]).any():
        return order  # no id is there twice
    times = _flat(rows, "recorded_at").cast(pa.int64())
    offset, epoch = _flat(rows, "offset").to_numpy(), _flat(rows, "epoch").to_numpy()
    # Null times would not be numbers; nobody makes them, and they come first here as in Spark.
    recorded = pc.fill_null(times, np.iinfo(np.int64).min).to_numpy()
    return np.lexsort((offset, epoch, _ranks(_flat(rows, "log")), recorded, last, first))


def _ranks(names: pa.Array) -> Numbers:
    """Each name as its place among the different ones."""
    coded = names.dictionary_encode()
    rank = np.empty(len(coded.dictionary), np.int64)
    rank[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(len(rank))
    ranks: Numbers = rank[coded.indices.to_numpy()]
    return ranks


def same_as_before(first: Bits, last: Bits) -> Flags:
    """Of sorted ids: whether the one before is the same."""
    same = np.zeros(len(first), bool)
    same[1:] = (first[1:] == first[:-1]) & (last[1:] == last[:-1])
    return same


def alike_to_first(raw: pa.Array, repeats: Flags) -> Flags:
    """Of rows that are sorted by id: whether the bytes are those of the first row of the id."""
    alike = np.ones(len(repeats), bool)
    at = np.flatnonzero(repeats)
    if len(at):
        begin = np.maximum.accumulate(np.where(repeats, 0, np.arange(len(repeats))))[at]
        alike[at] = pc.equal(raw.take(pa.array(at)), raw.take(pa.array(begin))).to_numpy(False)
    return alike


def _fresh(rows: pa.Table, repeats: Flags) -> Flags:
    """Whether a row is the first of its id, or has other bytes than the first."""
    return ~repeats | ~alike_to_first(_flat(rows, "raw"), repeats)


def _compared(rows: pa.Table, known: pa.Table | None) -> tuple[Flags, Flags, Flags]:
    """Of rows whose ids bronze has: seen again, in conflict, or stored from this very place."""
    again, conflict, stored = (np.zeros(rows.num_rows, bool) for _ in range(3))
    if known is None or not known.num_rows:
        return again, conflict, stored
    which = pc.index_in(_flat(rows, "id"), value_set=_flat(known, "id"))
    at = np.flatnonzero(which.is_valid().to_numpy(False))
    ours, theirs = rows.take(pa.array(at)), known.take(which.take(pa.array(at)))
    same = {
        name: pc.equal(ours.column(name), theirs.column(name)).to_numpy()
        for name in (*PLACE, "raw")
    }
    here = same["log"] & same["epoch"] & same["offset"]
    stored[at] = same["raw"] & here
    again[at] = same["raw"] & ~here
    conflict[at] = ~same["raw"]
    return again, conflict, stored


# --- the rows of each of the three tables --------------------------------------------------------


def as_bronze(rows: pa.Table, first: Bits, batch: int) -> pa.Table:
    """Rows with the columns of bronze; `first` are the first halves of their ids."""
    ops = _flat(rows, "op").dictionary_encode()
    families = [str(op).partition(".")[0] for op in ops.dictionary.to_pylist()]
    family = pa.array(families, pa.string()).take(ops.indices)
    more = {"family": family, "batch": _numbered(rows, batch), "day": days(first)}
    return _with(rows, more, BRONZE)


def as_sightings(rows: pa.Table, batch: int) -> pa.Table:
    return _with(rows, {"batch": _numbered(rows, batch)}, SIGHTINGS)


def as_conflicts(rows: pa.Table, batch: int) -> pa.Table:
    """Rows with an id under which something else is first."""
    return _as_quarantine(rows, CONFLICT, "another envelope with this id was first", batch)


def unknown_ops(rows: pa.Table, batch: int) -> pa.Table:
    """Notes about rows of bronze whose op this version does not know."""
    ops = _flat(rows, "op").dictionary_encode()
    strange = pa.array([op not in KNOWN_OPS for op in ops.dictionary.to_pylist()], pa.bool_())
    rows = rows.filter(strange.take(ops.indices)) if pc.any(strange).as_py() else rows.slice(0, 0)
    detail = pc.binary_join_element_wise(
        "op", _flat(rows, "op"), "is not known to this version", " "
    )
    return _as_quarantine(rows, UNKNOWN_OP, detail, batch)


def _as_unread(rows: pa.Table, batch: int) -> pa.Table:
    problem = _flat(rows, "problem")
    parts = pc.extract_regex(problem, _PROBLEM)
    reason, detail = parts.field("reason"), parts.field("detail")
    said = parts.is_valid()
    return _as_quarantine(
        rows, pc.if_else(said, reason, "unread"), pc.if_else(said, detail, problem), batch
    )


def _as_quarantine(
    rows: pa.Table, reason: pa.Array | str, detail: pa.Array | str, batch: int
) -> pa.Table:
    reason, detail = (
        pa.repeat(pa.scalar(text), rows.num_rows) if isinstance(text, str) else text
        for text in (reason, detail)
    )
    more = {"reason": reason, "detail": detail, "batch": _numbered(rows, batch)}
    return _with(rows, more, QUARANTINE)


def _with(rows: pa.Table, more: Mapping[str, pa.Array], wanted: pa.Schema) -> pa.Table:
    columns = [more[name] if name in more else rows.column(name) for name in wanted.names]
    return pa.Table.from_arrays(columns, schema=wanted)


def _numbered(rows: pa.Table, batch: int) -> pa.Array:
    return pa.repeat(pa.scalar(batch, pa.int64()), rows.num_rows)


def _some(rows: pa.Table, which: Flags) -> pa.Table:
    return rows if which.all() else rows.filter(pa.array(which))


def _flat(rows: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    return rows.column(name).combine_chunks()


# --- how many there are of each ------------------------------------------------------------------


def counts_of(judged: JudgedPortion) -> Counter[tuple[Key, str]]:
    """Rows by log and verdict."""
    found: Counter[tuple[Key, str]] = Counter()
    for table, what in (
        (judged.bronze, NEW),
        (judged.sightings, AGAIN),
        (judged.stored, STORED),
    ):
        found.update(_counted(table.select(["log", "epoch"]), what))
    found.update(_counted(judged.quarantine.select(["log", "epoch", "reason"]), ""))
    return found


def _counted(rows: pa.Table, what: str) -> dict[tuple[Key, str], int]:
    grouped = rows.group_by(rows.column_names, use_threads=False).aggregate([([], "count_all")])
    return {
        ((row["log"], row["epoch"]), row.get("reason", what)): row["count_all"]
        for row in grouped.to_pylist()
    }
