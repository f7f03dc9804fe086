"""`holdfast telemetry`: what is true on this node only, and never leaves it."""

from __future__ import annotations

import click

from holdfast.apps.cli import documents, inputs
from holdfast.apps.cli.commands.state import JSON_VALUE, value_text
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.core.telemetry import unknown_telemetry
from holdfast.rules.limits import SECOND_MS, TELEMETRY_TTL_MS, TELEMETRY_TTL_MS_MAX

telemetry_ = noun("telemetry", "What is true on this node only: kept for a while, given to nobody.")


@verb(telemetry_, "set")
@click.argument("kind")
@click.argument("key")
@click.argument("value")
@JSON_VALUE
@click.option(
    "--ttl",
    metavar="SECONDS",
    type=click.IntRange(1, TELEMETRY_TTL_MS_MAX // SECOND_MS),
    default=TELEMETRY_TTL_MS // SECOND_MS,
    show_default=True,
    help="How long it is kept.",
)
def set_(
    session: CommandSession, kind: str, key: str, value: str, json_value: bool, ttl: int
) -> None:
    """Keep VALUE under KIND and KEY on this node. A VALUE of - reads stdin."""
    with session.mesh() as mesh:
        given = inputs.value_of(value, json_value)
        done = mesh.telemetry.set(kind, key, given, ttl_ms=ttl * SECOND_MS)
        session.show(documents.in_mesh(done, mesh.slug), "")
        session.talk(f"set {kind} {key!r} of {mesh.slug}, on this node only")


@verb(telemetry_, "get")
@click.argument("kind")
@click.argument("key")
def get(session: CommandSession, kind: str, key: str) -> None:
    """Print what stands under KIND and KEY: text as it is, anything else as JSON."""
    with session.mesh() as mesh:
        entry = mesh.telemetry.entry(kind, key)
        if entry is None:
            raise unknown_telemetry(mesh.slug, kind, key)
        session.show(documents.in_mesh(entry, mesh.slug), value_text(entry.value))


@verb(telemetry_, "list", lists="updated_at")
@click.argument("kind", required=False)
def list_(session: CommandSession, kind: str | None) -> None:
    """List the values of KIND, or all."""
    with session.mesh() as mesh:
        session.rows(
            (documents.in_mesh(entry, mesh.slug) for entry in mesh.telemetry.list(kind)),
            "kind key value updated_at expires_at",
            empty=f"{mesh.slug} has no telemetry here",
        )


@verb(telemetry_, "delete", removes=DRY)
@click.argument("kind")
@click.argument("key")
def delete(session: CommandSession, kind: str, key: str) -> None:
    """Delete what stands under KIND and KEY."""
    with session.mesh() as mesh:
        what = f"delete {kind} {key!r} of {mesh.slug}"
        known = mesh.telemetry.entry(kind, key) is not None if session.dry_run else True
        if known and not session.goes_on(what, asks=False, mesh=mesh.slug, kind=kind, key=key):
            return
        mesh.telemetry.delete(kind, key)
        session.show({"mesh": mesh.slug, "kind": kind, "key": key, "deleted": True}, "")
        session.talk(f"deleted {kind} {key!r} of {mesh.slug}")
