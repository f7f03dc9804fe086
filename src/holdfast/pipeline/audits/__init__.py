"""Audits, which look for what must never happen, and measures, which count what does.

All of them are pure functions of tables, made of set operations without loops over rows, so that
tests can run them on small tables and `gold.py` can run them together as one job. `shape.py` says
what an audit is, `live_facts.py` asks nodes what only they know, `plots.py` draws the measures.
Each other module has one audit, or a few that share their work.
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
    """The audits and measures with these names; all of them without names."""
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
    """The findings of all these audits as one frame, which is computed in one job."""
    found = [audit.find(tables).select(*FINDINGS.names) for audit in audits]
    return reduce(DataFrame.unionByName, found)
