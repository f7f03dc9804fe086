"""Audits and measures of the lake: one small file each, or one for those that share a look.

All are pure functions of tables (`shape`), set operations without loops over rows, so that they can
be tried on tables made by hand and run together as one job. `gold` runs them and keeps what they
give.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame

from holdfast.pipeline.audits.claims import CLAIMS
from holdfast.pipeline.audits.conflicts import CONFLICTS, HOT_SPOTS
from holdfast.pipeline.audits.delays import LAG, STALENESS
from holdfast.pipeline.audits.fences import FENCES
from holdfast.pipeline.audits.frontiers import FRONTIERS
from holdfast.pipeline.audits.growth import GROWTH
from holdfast.pipeline.audits.origins import GAPS, REPEATS, STAMPS
from holdfast.pipeline.audits.places import OFFSETS, ORPHANS
from holdfast.pipeline.audits.refusals import REFUSED, SIGNATURES
from holdfast.pipeline.audits.shape import FINDINGS, Audit, AuditTables, Measure
from holdfast.rules.errors import UnknownKey

AUDITS: Final[dict[str, Audit]] = {
    audit.name: audit
    for audit in (
        ORPHANS,
        OFFSETS,
        GAPS,
        REPEATS,
        STAMPS,
        FENCES,
        FRONTIERS,
        CLAIMS,
        SIGNATURES,
        REFUSED,
        HOT_SPOTS,
    )
}
MEASURES: Final[dict[str, Measure]] = {
    measure.name: measure for measure in (LAG, STALENESS, CONFLICTS, GROWTH)
}


def chosen(names: Iterable[str] | None) -> tuple[list[Audit], list[Measure]]:
    """The audits and measures of these names, all without names."""
    if names is None:
        return list(AUDITS.values()), list(MEASURES.values())
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in AUDITS and name not in MEASURES:
            known = ", ".join((*AUDITS, *MEASURES))
            raise UnknownKey(f"there is no audit {name!r}", hint=f"use: {known}")
    return (
        [AUDITS[name] for name in wanted if name in AUDITS],
        [MEASURES[name] for name in wanted if name in MEASURES],
    )


def findings(tables: AuditTables, audits: Iterable[Audit]) -> DataFrame:
    """What all of them find, as one table that is made in one job."""
    found = [audit.find(tables).select(*FINDINGS.names) for audit in audits]
    return reduce(DataFrame.unionByName, found)
