"""Keeps in mind what the log has forgotten for good: see `rules/log_gone.py`.

It stands in the table of jobs: one row says since where that is known, one for each mesh what is
gone. What a version before this one truncated is not known, and counts as gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.rules.log_gone import LogGone
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Reader, Transaction

_KNOWN: Final = "log-gone"


def gone_job(mesh: str) -> str:
    return f"{_KNOWN}:{mesh}"


def begin_to_know(tx: Transaction, now_ms: int) -> None:
    """Called before anything is forgotten."""
    if tx.job_get(_KNOWN) is None:
        cursor = {"first": tx.log_bounds()[0]}
        tx.job_put(JobRow(name=_KNOWN, cursor=cursor, updated_at=now_ms))


def facts_gone(tx: Transaction, offsets: Mapping[str, int], now_ms: int) -> None:
    """By mesh: the last fact that was truncated."""
    for mesh, offset in offsets.items():
        _note(tx, mesh, _stored(tx, mesh).and_facts(offset), now_ms)


def deletions_gone(tx: Transaction, mesh: str, offset: int, now_ms: int) -> None:
    """Tombstones of deletions up to this offset were removed."""
    _note(tx, mesh, _stored(tx, mesh).and_deletions(offset), now_ms)


def gone_of(tx: Reader, mesh: str) -> LogGone:
    """What the log has forgotten of a mesh for good."""
    known = tx.job_get(_KNOWN)
    since = tx.log_bounds()[0] if known is None else int(known.cursor["first"])
    found = _stored(tx, mesh).and_facts(since - 1)
    row = tx.mesh_get(mesh)
    if row is not None and row.forgotten_lamport:
        found = found.and_deletions(since - 1)
    return found


def _stored(tx: Reader, mesh: str) -> LogGone:
    job = tx.job_get(gone_job(mesh))
    return LogGone() if job is None else msgspec.convert(job.cursor, LogGone)


def _note(tx: Transaction, mesh: str, found: LogGone, now_ms: int) -> None:
    cursor = msgspec.to_builtins(found)
    tx.job_put(JobRow(name=gone_job(mesh), cursor=cursor, updated_at=now_ms))
