"""The lake: how far each log was read, what its tables hold, and what the audits found.

A node does not know who reads its log into which lake. So the page is there for the daemon that is
started with `HOLDFAST_LAKE`, and reads what stands in the commits of the lake's tables: Spark is
not started for a page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.apps.web.page import ConsolePage
from holdfast.apps.web.view import PageView
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import CONSOLE_RUNS, CONSOLE_RUNS_LISTED, SECOND_MS

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.recent import LakeRun, RecentAudits
    from holdfast.pipeline.jobs.status import LakeStatus, TableStatus

_LAYERS: Final = {
    "bronze": "Every entry once, as it came",
    "silver": "What the meshes hold",
    "gold": "What audits and measures found",
    "": "What the runs remember",
}
_FOUND: Final = "gold/findings"
_OF_RUN: Final = {"new": "new", "again": "seen again", "quarantined": "quarantined"}
_OF_AUDIT: Final = {"findings": "findings", "notices": "notices"}
"""The lines of plots, by field."""


async def lake(view: PageView) -> Mapping[str, Any]:
    if not view.may_write:
        return {"place": None, "trouble": None, "mine": False}
    if view.lake is None:
        return {"place": None, "trouble": None, "mine": True}
    head = (await view.get("/v1/log"))["head"]
    try:
        found, runs, audits = await asyncio.to_thread(_looked_at, view.lake)
    except HoldfastError as error:
        return {"place": view.lake, "trouble": error, "mine": True}
    tables = {table.table: table for table in found.tables}
    changed = [table.changed_at for table in found.tables if table.changed_at is not None]
    return {
        "place": view.lake,
        "trouble": None,
        "mine": True,
        "lake": found,
        "runs": runs[:CONSOLE_RUNS_LISTED],
        "runs_plot": _plot([(run.at_ms, run) for run in runs], _OF_RUN),
        "audits": audits,
        "audits_plot": _plot([(run.at_ms, run) for run in audits.runs], _OF_AUDIT),
        "layers": [_layer(name, told, found) for name, told in _LAYERS.items()],
        "findings": tables[_FOUND].rows if _FOUND in tables else None,
        "audited_at": tables[_FOUND].changed_at if _FOUND in tables else None,
        "changed_at": max(changed, default=None),
        "head": head,
    }


def _looked_at(place: str) -> tuple[LakeStatus, Sequence[LakeRun], RecentAudits]:
    """Raises NoPackage where those of the pipeline are not installed, and what a lake refuses."""
    from holdfast import pipeline

    lake = pipeline.Lake.open(place)
    status = pipeline.status(lake, ask=False)
    from holdfast.pipeline.jobs.recent import last_audits, last_runs

    return status, last_runs(lake, CONSOLE_RUNS), last_audits(lake, CONSOLE_RUNS)


def _plot(rows: Sequence[tuple[int, object]], lines: Mapping[str, str]) -> dict[str, Any] | None:
    """What a plot shows of rows that come with the newest first; None until there is a line."""
    oldest_first = list(reversed(rows))
    if len(oldest_first) < 2:
        return None
    return {
        "at": [at_ms / SECOND_MS for at_ms, _ in oldest_first],
        "lines": [
            {"name": name, "values": [getattr(row, field) for _, row in oldest_first]}
            for field, name in lines.items()
        ],
    }


def _layer(name: str, told: str, found: LakeStatus) -> dict[str, Any]:
    rows = [table for table in found.tables if _layer_of(table) == name]
    return {"told": told, "tables": rows, "bytes": sum(table.bytes for table in rows)}


def _layer_of(table: TableStatus) -> str:
    first = table.table.partition("/")[0]
    return "silver" if first == "increments" else first if first in _LAYERS else ""


PAGES: Final = (
    ConsolePage(path="/lake", title="Lake", template="lake.html", load=lake, nav="Lake", key="k"),
)
