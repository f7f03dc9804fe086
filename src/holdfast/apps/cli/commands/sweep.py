"""`holdfast sweep`: forget what is old enough and past every reader of the log."""

from __future__ import annotations

import click
import msgspec

from holdfast.apps.cli import documents
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules import limits

_DAYS = click.IntRange(min=0)


@command_of("sweep")
@click.option(
    "--log-days",
    type=_DAYS,
    default=limits.LOG_TTL_MS // limits.DAY_MS,
    show_default=True,
    help="Keep log entries for so long at least.",
)
@click.option(
    "--tombstone-days",
    type=_DAYS,
    default=limits.TOMBSTONE_TTL_MS // limits.DAY_MS,
    show_default=True,
    help="Keep the marks of deletions for so long at least.",
)
def sweep_(session: CommandSession, log_days: int, tombstone_days: int) -> None:
    """Forget what is old enough and past every consumer of the log.

    Removes old log entries, the marks of old deletions, ids that need no longer be known, and the
    content of files that nothing names. A consumer that has not confirmed keeps everything.
    """
    ttl = Ttl(log_ms=log_days * limits.DAY_MS, tombstone_ms=tombstone_days * limits.DAY_MS)
    with session.node() as node:
        swept = node.sweep(ttl)
    session.show(
        documents.plain(swept) if session.as_json else msgspec.structs.asdict(swept),
        fields="consumers log_entries tombstones dedupe_rows outbox_rows inbox_rows "
        "broker_position_rows blobs orphans models",
    )
