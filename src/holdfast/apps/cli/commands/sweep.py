"""`holdfast sweep`: forget what is old enough and past every reader of the log."""

from __future__ import annotations

import os

import click
import msgspec
from msgspec.structs import replace

from holdfast.apps.cli import documents
from holdfast.apps.cli.declare import DRY, command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.node.settings import load
from holdfast.node.upkeep.foresee import foresee
from holdfast.node.upkeep.sweep import SweepReport, Ttl
from holdfast.rules import limits
from holdfast.rules.keeping import Retention

_FIELDS = (
    "consumers log_entries tombstones tasks dedupe_rows outbox_rows inbox_rows "
    "broker_position_rows blobs orphans models"
)
_DAYS = click.IntRange(min=0)


@command_of("sweep", removes=DRY)
@click.option(
    "--log-days",
    type=_DAYS,
    help="Keep log entries for so long at least, in all meshes; facts as the settings say. Without "
    "this, the settings count.",
)
@click.option(
    "--tombstone-days",
    type=_DAYS,
    help="Keep the marks of deletions, and tasks that have ended, for so long at least, in all "
    "meshes.",
)
def sweep_(session: CommandSession, log_days: int | None, tombstone_days: int | None) -> None:
    """Forget what is old enough and past every consumer of the log.

    Removes old log entries, the marks of old deletions, tasks that have ended, ids that need no
    longer be known, and the content of files that nothing names. A consumer that has not
    confirmed keeps everything. How old that is, the table [retention] in the file that
    $HOLDFAST_CONFIG names says; without it, 90 days.
    """
    ttl = _ttl(load(os.environ, {}).retention, log_days, tombstone_days)
    with session.node() as node:
        if session.dry_run:
            _show_foreseen(session, *foresee(node._engine, ttl))
            return
        swept = node.sweep(ttl)
    session.show(
        documents.plain(swept) if session.as_json else msgspec.structs.asdict(swept),
        fields=_FIELDS,
    )


def _ttl(retention: Retention, log_days: int | None, tombstone_days: int | None) -> Ttl:
    """What the settings say, and the flags instead of it. Facts that the settings keep for longer
    than other entries stay so: nothing else has them.
    """
    ttl = Ttl.of_settings(retention)
    meshes = dict(ttl.meshes)
    if log_days is not None:
        log_ms = log_days * limits.DAY_MS
        own = {mesh: retention.own_facts_ms(mesh) for mesh in meshes}
        meshes = {
            mesh: replace(kept, log_ms=log_ms, fact_ms=max(log_ms, own[mesh]))
            for mesh, kept in meshes.items()
        }
        ttl = replace(ttl, log_ms=log_ms, fact_ms=max(log_ms, retention.own_facts_ms("")))
    if tombstone_days is not None:
        dead_ms = tombstone_days * limits.DAY_MS
        meshes = {mesh: replace(kept, dead_ms=dead_ms) for mesh, kept in meshes.items()}
        ttl = replace(ttl, tombstone_ms=dead_ms, task_ms=dead_ms)
    return replace(ttl, meshes=meshes)


def _show_foreseen(session: CommandSession, report: SweepReport, at_least: tuple[str, ...]) -> None:
    if session.as_json:
        session.show({**documents.plain(report), "at_least": at_least, "dry_run": True})
        return
    counts = msgspec.structs.asdict(report)
    shown = {name: f"{counts[name]} or more" for name in at_least}
    session.show({**counts, **shown}, fields=_FIELDS.removesuffix(" models"))
    session.talk("this is what a sweep would remove; nothing was changed")
