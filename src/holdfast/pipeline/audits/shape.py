"""What every audit is, and what it gives: counts, and the worst of the rows that it found.

An audit finds rows that are wrong. A **finding** is something that the rules of Holdfast exclude:
if the lake saw it, something is broken or a peer has cheated. A **notice** is something that may
rightly happen and that a person may want to know.

Each audit says by which measure one row is worse than another (`Audit.weight`). The lake keeps the
worst rows of each audit, at most `AUDIT_ROWS_MAX` of each severity, and how many there were. Nobody
reads a hundred thousand rows of one kind, and the count tells what they would tell.

A measure gives a table of figures over time, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from holdfast.pipeline.audits.arrays import NONE, Numbers
from holdfast.pipeline.lake import schema as schemas
from holdfast.pipeline.lake.schema import described
from holdfast.rules.limits import AUDIT_ROWS_MAX

FINDING: Final = "finding"
NOTICE: Final = "notice"
PLACE: Final = tuple(schemas.PLACE.names)

FINDINGS: Final = described(
    """
    audit string: the audit that found it
    severity string: `finding` for what the rules exclude, `notice` for what may be
    mesh string: the mesh that it is about
    log string: the log in which it was seen
    epoch bigint: the epoch of that log
    offset bigint: the place in that epoch of the log
    origin string: the peer that wrote what it is about
    entity string: the key, path or task that it is about
    id string: the envelope that it is about
    detail string: what is wrong, in a sentence
    at timestamp: when it was recorded, by the clock of the node that recorded it
    weight bigint: how bad it is, by the measure of the audit
    rank bigint: its place among the rows of its audit and severity; 1 is the worst
    total bigint: how many rows of its audit and severity were found; the worst are kept
    """
)
"""What is wrong, where it was seen, and when; columns that do not apply are null."""

_ORDER: Final = ("mesh", "log", "epoch", "offset", "origin", "entity", "id", "detail")


@dataclass(frozen=True)
class Audit:
    """One audit."""

    name: str
    about: str
    weight: str
    """The measure by which rows are ranked."""


@dataclass(frozen=True)
class Measure:
    """One measure, and the columns of its table."""

    name: str
    about: str
    schema: StructType


class FoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row that an audit found; see `FINDINGS`."""

    weight: int
    detail: str
    mesh: str | None = None
    log: str | None = None
    epoch: int | None = None
    offset: int | None = None
    origin: str | None = None
    entity: str | None = None
    id: str | None = None
    at: int | None = None
    """Milliseconds."""


class Found(msgspec.Struct, frozen=True):
    """What one audit found in a part of the lake, of one severity."""

    audit: str
    severity: str
    total: int
    rows: tuple[FoundRow, ...]
    """The worst of them."""


def found(
    audit: str,
    severity: str,
    weights: Numbers,
    times: Numbers | None,
    make: Callable[[Sequence[int]], Iterable[FoundRow]],
) -> list[Found]:
    """What was found, given the weight and the time of each row. `make` is called with the places
    of the worst rows only; it makes them into sentences.
    """
    if not len(weights):
        return []
    newest = np.zeros(len(weights), np.int64) if times is None else times
    worst = np.lexsort((-np.maximum(newest, NONE + 1), -weights))[:AUDIT_ROWS_MAX]
    return [Found(audit, severity, len(weights), tuple(make(worst.tolist())))]


def found_rows(audit: str, severity: str, rows: Sequence[FoundRow]) -> list[Found]:
    """The same for a few rows that are there already."""
    ranked = tuple(sorted(rows, key=_badness)[:AUDIT_ROWS_MAX])
    return [Found(audit, severity, len(rows), ranked)] if rows else []


def together(parts: Iterable[Found]) -> list[Found]:
    """What was found in all parts of the lake, by audit and severity."""
    by_kind: dict[tuple[str, str], list[Found]] = {}
    for part in parts:
        by_kind.setdefault((part.audit, part.severity), []).append(part)
    merged: list[Found] = []
    for (audit, severity), same in by_kind.items():
        rows = sorted((row for part in same for row in part.rows), key=_badness)
        total = sum(part.total for part in same)
        merged.append(Found(audit, severity, total, tuple(rows[:AUDIT_ROWS_MAX])))
    return merged


def findings_rows(parts: Iterable[Found]) -> list[dict[str, Any]]:
    """The rows of the table `findings`."""
    return [
        {
            **{name: getattr(row, name) for name in (*_ORDER, "weight")},
            **{"audit": part.audit, "severity": part.severity, "total": part.total, "rank": rank},
            "at": None if row.at is None else row.at * 1000,
        }
        for part in parts
        for rank, row in enumerate(part.rows, 1)
    ]


def _badness(row: FoundRow) -> tuple[Any, ...]:
    """Sorts the worst first: by weight, then the newest, then by place."""
    where = (getattr(row, name) for name in _ORDER)
    return (-row.weight, -(row.at or 0), *((value is not None, value) for value in where))


def arrow_rows(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table; times are given as microseconds."""
    arrays = []
    for field in schema:
        values = [row[field.name] for row in rows]
        if pa.types.is_timestamp(field.type):
            arrays.append(pa.array(values, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
