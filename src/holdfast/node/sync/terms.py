"""What a broker offers, as it said last, and why this node does not work with it.

A node that cannot work with its broker stops, and that must be seen by whoever looks: the daemon at
its start, the doctor, a check, a command. So the terms of each broker, and the error that they end
in, are kept in the store (a row of jobs for each broker).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import (
    FeatureParamBelowFloor,
    FeatureParamInvalid,
    FeatureUnavailable,
    HoldfastError,
    OutboxAgeAboveWindow,
)
from holdfast.rules.features import Terms
from holdfast.rules.retention import outbox_max_age_hours
from holdfast.rules.rows import JobRow
from holdfast.service.problem import Problem
from holdfast.storage.ports import Reader

STOPS: Final = (
    FeatureUnavailable,
    FeatureParamInvalid,
    FeatureParamBelowFloor,
    OutboxAgeAboveWindow,
)
"""Errors after which nothing is exchanged with a broker until a person changes something."""
STOP_CODES: Final = frozenset(error.code for error in STOPS)
_JOB: Final = "terms:"


def note_terms(
    engine: NodeEngine, url: str, terms: Terms | None, error: HoldfastError | None
) -> None:
    """Keeps what a broker offers, None if that could not be read, and why this node does not work
    with it. Written only where it differs from what is kept.
    """
    found: dict[str, Any] = {}
    if terms is not None:
        found = {"mode": terms.mode, "days": terms.retention_days}
    if error is not None:
        found |= {"code": error.code, "message": error.message, "hint": error.hint}
    name, now = _JOB + url, engine.ctx.now_ms()
    kept = engine.read("sync.terms", lambda tx: tx.job_get(name))
    if kept is None or kept.cursor != found:
        row = JobRow(name=name, cursor=found, updated_at=now)
        engine.write("sync.terms", lambda tx: tx.job_put(row))


def require_age(reader: Reader, max_age_hours: int | None) -> None:
    """Raises if the outbox would keep messages for longer than a broker remembers their ids, as far
    as this node knows what its brokers offer.
    """
    for _, job in _kept(reader):
        if "mode" in job.cursor:
            outbox_max_age_hours(job.cursor["mode"], job.cursor["days"], max_age_hours)


def stops(reader: Reader) -> list[tuple[str, Problem]]:
    """The brokers that this node does not work with, by address, and why."""
    return [
        (url, msgspec.convert({**job.cursor, "at": job.updated_at}, Problem, strict=False))
        for url, job in _kept(reader)
        if "code" in job.cursor
    ]


def _kept(reader: Reader) -> list[tuple[str, JobRow]]:
    urls = {row.broker_url for row in reader.mesh_list() if row.shared and row.broker_url}
    found = [(url, reader.job_get(_JOB + url)) for url in sorted(urls)]
    return [(url, job) for url, job in found if job is not None]
