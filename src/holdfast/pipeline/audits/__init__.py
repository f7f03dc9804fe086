"""Audits, which look for what must never happen, and measures, which count what does.

`job.py` runs all that look at bronze as one job: tasks take ranges of ids (`ranges.py`), read each
row once (`scan.py`), and send on what concerns more than one range (`runs.py`, `parcels.py`). What
is wrong is decided by pure functions of Arrow tables; each of the modules that are named after it
has one audit, or a few that share their work, and they compare whole columns (`arrays.py`).
`shape.py` says what an audit is, `gold.py` keeps the results, `live_facts.py` asks nodes what only
they know, `plots.py` draws the measures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.pipeline.audits.chains import CHAINS
from holdfast.pipeline.audits.claims import CLAIMS
from holdfast.pipeline.audits.conflicts import CONFLICTS, HOT_SPOTS
from holdfast.pipeline.audits.delays import LAG, STALENESS
from holdfast.pipeline.audits.fences import FENCES
from holdfast.pipeline.audits.frontiers import FRONTIERS
from holdfast.pipeline.audits.growth import GROWTH
from holdfast.pipeline.audits.origins import GAPS, REPEATS, STAMPS
from holdfast.pipeline.audits.places import OFFSETS, ORPHANS
from holdfast.pipeline.audits.refusals import REFUSED, SIGNATURES
from holdfast.pipeline.audits.shape import Audit, Measure
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
        CHAINS,
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
