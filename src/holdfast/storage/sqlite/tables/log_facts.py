"""Facts that were read in columns, on their way into the log."""

from __future__ import annotations

from typing import Final

import apsw

from holdfast.rules.fact_columns import (
    SIZE_BITS,
    SIZE_MASK,
    STAMP_DIGITS,
    SUBJECT_BITS,
    SUBJECT_MASK,
    FactColumns,
)
from holdfast.rules.fact_decoder import FACT

__all__ = ["FactColumns", "insert_facts"]

_BEGIN: Final = f"(value >> {SIZE_BITS + SUBJECT_BITS})"
_ABOUT: Final = f"(value & {SUBJECT_MASK})"
# An array holds the spans of a run. Its rows are numbered from 1 on, as are the bytes of what is
# joined; ?2 is where the run begins in the columns. Before a subject stands its length, in one byte
# or more.
_INSERT_FACTS: Final = (
    "INSERT INTO log (id, mesh, op, entity, origin, lamport, raw, recorded_at, via, leaf) "
    f"SELECT substr(?3, (?2 + rowid) * 16 - 15, 16), ?4, '{FACT}', "
    f"CAST(substr(?5, {_BEGIN} + ?6 + ({_ABOUT} > 31) + ({_ABOUT} > 255), {_ABOUT}) AS TEXT), ?7, "
    f"CAST(substr(?8, (?2 + rowid) * {STAMP_DIGITS} - {STAMP_DIGITS - 1}, {STAMP_DIGITS}) "
    "AS INTEGER), "
    f"substr(?5, {_BEGIN} + 1, value >> {SUBJECT_BITS} & {SIZE_MASK}), ?9, ?10, "
    "substr(?11, (?2 + rowid) * 32 - 31, 32) "
    "FROM carray(?1) WHERE true ON CONFLICT (id) DO NOTHING"
)


def insert_facts(
    connection: apsw.Connection, facts: FactColumns, via: int, recorded_at: int
) -> None:
    """Appends facts in their order, but for those whose id the log has: one statement for each
    run of alike ones. It runs from its first row to its last without coming back to Python, so
    that other threads do their work meanwhile.
    """
    begin = 0
    for run in facts.runs:
        end = begin + run.length
        spans = apsw.carray(facts.spans, start=begin, stop=end, flags=apsw.SQLITE_CARRAY_INT64)
        connection.execute(
            _INSERT_FACTS,
            (
                *(spans, begin, facts.ids, run.mesh, facts.payload, run.subject_at + 1),
                *(run.origin, facts.digits, recorded_at, via, facts.leaves),
            ),
        )
        begin = end
