"""`holdfast audit`: streams of events that are only added, and whether their chains hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import click
import msgspec

from holdfast.apps.cli import documents, inputs
from holdfast.apps.cli.commands.state import JSON_VALUE
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.lists.watching import watch_verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.log.audit_trail import AuditVerdict
from holdfast.rules.audit_chain import AuditChainRow
from holdfast.rules.errors import AuditForked, AuditGap

audit_ = noun("audit", "Streams of events that are only added, chained for each origin.")

watch_verb(
    audit_,
    lambda mesh, prefix, **terms: mesh.audit.watch(prefix, **terms),
    "Show events of streams whose name begins with PREFIX, as they come.",
)


@verb(audit_, "append", writes=True)
@click.argument("stream")
@click.argument("payload")
@JSON_VALUE
def append(session: CommandSession, stream: str, payload: str, json_value: bool) -> None:
    """Append an event to STREAM. A PAYLOAD of - reads stdin; with --json-value it is JSON."""
    with session.mesh() as mesh:
        done = mesh.audit.append(stream, inputs.value_of(payload, json_value), id=session.id)
        session.receipt(mesh, done, "audit.append", f"appended to {stream!r} in", stream=stream)


@verb(audit_, "list", lists="at")
@click.argument("stream")
@click.option("--origin", metavar="PEER", help="Only events of this origin.")
@click.option("--after", default="", metavar="PLACE", help="Only events behind EPOCH.SEQ.ORIGIN.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many.")
def list_(
    session: CommandSession, stream: str, origin: str | None, after: str, limit: int | None
) -> None:
    """List the events of STREAM, those of each origin in its order."""
    with session.mesh() as mesh:
        found = islice(mesh.audit.list(stream, origin=origin, after=after), limit)
        session.rows(
            (documents.in_mesh(one, mesh.slug) for one in found),
            "origin seq payload at hash",
            empty=f"nothing is in {stream!r} of {mesh.slug} here",
        )


@verb(audit_, "streams", lists="")
def streams(session: CommandSession) -> None:
    """List the streams, and how much of each origin's chain is here."""
    with session.mesh() as mesh:
        session.rows(
            map(_chain, mesh.audit.streams()),
            "stream origin epoch last events gap",
            empty=f"{mesh.slug} has no audit streams here",
        )


@verb(audit_, "verify")
@click.argument("stream", required=False)
def verify(session: CommandSession, stream: str | None) -> None:
    """Read every event again: is each chain whole? Exit code 5 if one has a gap or a fork."""
    with session.mesh() as mesh:
        found = mesh.audit.verify(stream)
        session.rows(
            _shown(found, mesh.slug),
            "stream origin epoch last events verdict",
            empty=f"{mesh.slug} has no audit streams here",
        )
        _judge(found)


def _chain(row: AuditChainRow) -> documents.Document:
    return {**msgspec.structs.asdict(row), "gap": row.events < row.last}


def _run(first: int, last: int) -> str:
    return f"{first}-{last}" if first < last else f"{first}"


def _shown(found: Iterable[AuditVerdict], mesh: str) -> Iterator[documents.Document]:
    for one in found:
        if one.broken:
            verdict = f"broken: {one.broken}"
        elif one.forks:
            verdict = f"{len(one.forks)} forks were refused"
        elif one.missing:
            verdict = f"missing: {', '.join(_run(*run) for run in one.missing)}"
        else:
            verdict = "whole"
        yield {"mesh": mesh, **msgspec.to_builtins(one), "verdict": verdict}


def _judge(found: list[AuditVerdict]) -> None:
    for one in found:
        about = f"the chain of {one.origin!r} in {one.stream!r}, epoch {one.epoch}"
        if one.broken:
            raise AuditForked(f"{about}: {one.broken}", hint="compare with another node's")
        if one.forks:
            fork = one.forks[0]
            raise AuditForked(
                f"{about}: {fork.evidence}", hint=f"see: holdfast link quarantine {fork.by}"
            )
        if one.missing:
            raise AuditGap(f"{about} lacks {one.last - one.events} events")
