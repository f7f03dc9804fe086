"""What a sweep would remove, found by its own steps and without removing anything.

Each step is run on one chunk and undone before it is committed, so what is said follows from the
very code that forgets. A step that fills its chunk would remove that much or more. Files are only
looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from holdfast.node.core.engine import NodeEngine
from holdfast.node.upkeep import sweep
from holdfast.node.upkeep.sweep import DEFAULT_TTL, SweepReport, Ttl
from holdfast.rules import limits
from holdfast.rules.retention import oldest_kept_ms
from holdfast.storage.files.blobs import BlobFile
from holdfast.storage.ports import Reader, Transaction

Steps = dict[str, Callable[[Transaction], int]]


class Foreseen(NamedTuple):
    """What a sweep would remove now."""

    report: SweepReport
    at_least: tuple[str, ...]
    """The fields of the report of which it may be more."""


class _Undone(Exception):
    """Carries what a step found out of a transaction that is taken back."""

    def __init__(self, found: dict[str, int]) -> None:
        self.found = found


def foresee(engine: NodeEngine, ttl: Ttl = DEFAULT_TTL) -> Foreseen:
    """What `sweep` with this ttl would remove, if nothing changed until then."""
    now = engine.ctx.now_ms()
    retired = engine.read("sweep.foresee", partial(_retired, now_ms=now))
    found: dict[str, int] = dict.fromkeys(SweepReport.__struct_fields__[1:], 0)
    for mesh in [row.slug for row in engine.read("sweep.foresee", lambda tx: tx.mesh_list())]:
        steps_of_mesh: Steps = {
            "tombstones": partial(sweep.tombstones_of, engine=engine, ttl=ttl, mesh=mesh),
            "tasks": partial(sweep.tasks_of, engine=engine, ttl=ttl, mesh=mesh),
        }
        _add(found, _tried(engine, retired, steps_of_mesh))
    ended = oldest_kept_ms(now_ms=now, ttl_ms=ttl.outbox_ms)
    before = oldest_kept_ms(now_ms=now, ttl_ms=ttl.dedupe_ms)
    most = limits.CHUNK_ROWS
    steps: Steps = {
        "outbox_rows": lambda tx: tx.outbox_sweep(ended, now, most),
        "log_entries": partial(sweep.truncate, engine=engine, ttl=ttl),
        # They follow the log.
        "inbox_rows": lambda tx: tx.inbox_sweep(tx.log_bounds()[0], most),
        "broker_position_rows": lambda tx: tx.broker_positions_sweep(tx.log_bounds()[0], most),
        "dedupe_rows": lambda tx: tx.forgotten_sweep(before, most),
        "telemetry_rows": lambda tx: tx.telemetry_expire(now, most),
        "bus_ids": lambda tx: tx.bus_sweep(now, most),
    }
    _add(found, _tried(engine, retired, steps))
    found["blobs"] = engine.read(
        "sweep.foresee", lambda tx: len(sweep.released_blobs(tx, engine, ttl))
    )
    found["orphans"] = _orphans(engine, now - ttl.orphan_ms)
    full = tuple(name for name, count in found.items() if count >= most)
    return Foreseen(SweepReport(consumers=retired, **found), full)


def _retired(tx: Reader, now_ms: int) -> tuple[str, ...]:
    head = tx.log_bounds()[1]
    rows = tx.consumer_list()
    return tuple(row.name for row in rows if sweep.given_up(tx, row, now_ms, head))


def _tried(engine: NodeEngine, retired: tuple[str, ...], steps: Steps) -> dict[str, int]:
    """What each step does to a chunk once the readers are gone that a sweep retires first."""

    def work(tx: Transaction) -> None:
        for name in retired:
            tx.consumer_drop(name)
        raise _Undone({name: step(tx) for name, step in steps.items()})

    try:
        engine.write("sweep.foresee", work)
    except _Undone as undone:
        return undone.found
    raise AssertionError("the transaction is taken back")


def _add(found: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        found[name] += count


def _orphans(engine: NodeEngine, oldest_ms: int) -> int:
    """Old files that no row names; a sweep may find fewer, if somebody holds one."""
    stale = [item for item in engine.blobs.scan() if sweep.is_stale(item, oldest_ms)]

    def count(tx: Reader) -> int:
        return sum(
            not isinstance(item, BlobFile)
            or (tx.blob_get(item.sha) is None and not engine.is_kept(item.sha))
            for item in stale
        )

    return engine.read("sweep.foresee", count)
