"""The last runs of a lake and what its audits found, for people who look at it.

Nothing here starts Spark: runs stand in `reads`, results of audits in the small table `checks`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.audits.gold import checks_table, rows_of
from holdfast.pipeline.lake.lake import Lake
from holdfast.rules.limits import SECOND_MS

_SUMS: Final = ("rows", "new", "again", "quarantined")


class LakeRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch brought."""

    batch: int
    at_ms: int
    logs: int
    """How many logs gave it something."""
    rows: int
    new: int
    again: int
    quarantined: int


class AuditCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How one audit ended, when it ran last."""

    name: str
    at_ms: int
    findings: int
    notices: int
    level: str
    passed: bool


class AuditRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of audits."""

    at_ms: int
    audits: int
    findings: int
    notices: int
    passed: bool


class RecentAudits(msgspec.Struct, frozen=True, kw_only=True):
    checks: tuple[AuditCheck, ...]
    """The last one of every audit, by name."""
    runs: tuple[AuditRun, ...]
    """The newest first."""


def last_runs(lake: Lake, most: int) -> tuple[LakeRun, ...]:
    """The last batches that were read, the newest first."""
    claims = lake.claims
    if not claims.num_rows or "read_at" not in claims.column_names:
        return ()
    of_batch = claims.group_by("batch").aggregate(
        [("read_at", "max"), ("log", "count_distinct"), *((name, "sum") for name in _SUMS)]
    )
    newest = _first(of_batch, "batch", most)
    return tuple(
        LakeRun(
            batch=row["batch"],
            at_ms=_ms(row["read_at_max"]),
            logs=row["log_count_distinct"],
            **{name: row[f"{name}_sum"] or 0 for name in _SUMS},
        )
        for row in newest
        if row["read_at_max"] is not None
    )


def last_audits(lake: Lake, most: int) -> RecentAudits:
    """What the last runs of audits found; empty if there was none."""
    table = checks_table(lake)
    rows = rows_of(table) if table.exists else None
    if rows is None or not rows.num_rows:
        return RecentAudits(checks=(), runs=())
    runs = rows.group_by("checked_at").aggregate(
        [("name", "count"), ("findings", "sum"), ("notices", "sum"), ("passed", "all")]
    )
    # Of one name the last row counts: rows are in the order in which they were written.
    last = {row["name"]: row for row in rows.to_pylist()}
    return RecentAudits(
        checks=tuple(
            AuditCheck(
                name=name,
                at_ms=_ms(row["checked_at"]),
                findings=row["findings"],
                notices=row["notices"],
                level=row["level"],
                passed=row["passed"],
            )
            for name, row in sorted(last.items())
        ),
        runs=tuple(
            AuditRun(
                at_ms=_ms(row["checked_at"]),
                audits=row["name_count"],
                findings=row["findings_sum"],
                notices=row["notices_sum"],
                passed=row["passed_all"],
            )
            for row in _first(runs, "checked_at", most)
        ),
    )


def _first(rows: pa.Table, column: str, most: int) -> list[dict[str, Any]]:
    """The rows with the greatest values, the greatest first."""
    places = pc.sort_indices(rows, sort_keys=[(column, "descending")])
    found: list[dict[str, Any]] = rows.take(places[:most]).to_pylist()
    return found


def _ms(at: datetime) -> int:
    return round(at.timestamp() * SECOND_MS)
