"""`holdfast mesh create`, `list`, `info`, `clock`, `restamp`, `pause`, `resume`: what needs no
broker.
"""

from __future__ import annotations

import click
import msgspec

from holdfast.apps.cli import documents, own_daemon
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.library.node import Mesh
from holdfast.rules.broker_sync import SyncState

mesh_ = noun("mesh", "Circles of peers that share state, each with its clock.")


@verb(mesh_, "create", mesh=False)
@click.argument("name")
@click.option("--title", metavar="TEXT", help="A name for people; else NAME itself.")
def create(session: CommandSession, name: str, title: str | None) -> None:
    """Create the mesh NAME: lower-case letters, digits and . _ -"""
    with session.node() as node:
        mesh = node.create_mesh(name, name=title)
        session.talk(f"created the mesh {name}")
        session.show(documents.mesh(mesh.info()), f"{name}\n")


@verb(mesh_, "list", mesh=False, lists="created_at")
def list_(session: CommandSession) -> None:
    """List the meshes of this home."""
    with session.node() as node:
        session.rows(
            map(documents.mesh, node.meshes()),
            "mesh name kind lamport created_at",
            empty="no mesh yet; create one with: holdfast mesh create NAME",
        )


@verb(mesh_, "info")
@click.argument("name", required=False)
def info(session: CommandSession, name: str | None) -> None:
    """Show one mesh: its kind, its clock, how much it holds."""
    with session.mesh(name) as mesh:
        row = mesh.info()
        fields = "mesh name kind lamport seq created_at last_sync_at sync_paused rows"
        if row.shared:
            fields += " broker_url broker_card broker_epoch broker_seq"
        session.show({**documents.mesh(row), "rows": mesh.counts()}, fields=fields)


@verb(mesh_, "clock")
@click.argument("name", required=False)
def clock(session: CommandSession, name: str | None) -> None:
    """Show a mesh's Lamport clock, and whether this node has heard of other peers lately."""
    with session.mesh(name) as mesh:
        document = {**documents.in_mesh(mesh.clock(), mesh.slug), **_word(session, mesh)}
        session.show(document, fields="mesh lamport sync_state last_sync_at")


def _word(session: CommandSession, mesh: Mesh) -> documents.Document:
    """How the mesh stands with its broker, as the daemon knows and `status` says."""
    if not mesh.info().shared:
        return {}
    from holdfast.apps.cli.commands.status import brokers_of

    for broker in brokers_of(session, session.opened):
        for one in broker["meshes"]:
            if one["mesh"] == mesh.slug:
                # Where no sync runs, nobody is there, whatever the store tells of the last minute.
                stopped = one["state"] == SyncState.STOPPED
                return {"sync_state": "offline" if stopped else one["state"]}
    return {}


@verb(mesh_, "restamp")
@click.argument("name", required=False)
@click.option(
    "--past", required=True, type=int, metavar="STAMP", help="The stamp that the refusal names."
)
def restamp(session: CommandSession, name: str | None, past: int) -> None:
    """Write again what is this node's own, with new stamps.

    For a node that is only read, and whose writes a reader refuses as too_old.
    """
    with session.mesh(name) as mesh:
        report = mesh.restamp(past)
        own_daemon.refresh(session.opened.home)
        session.talk(
            f"written again in {mesh.slug}: {report.state} state, {report.memory} memory, "
            f"{report.files} files, {report.vectors} vectors; its clock stands at {report.lamport}"
        )
        session.show(documents.plain(report), f"{report.lamport}\n")


@verb(mesh_, "pause")
@click.argument("name", required=False)
def pause(session: CommandSession, name: str | None) -> None:
    """Send nothing of a shared mesh until it is resumed; what others send still comes."""
    from holdfast.node.sync.pause import pause

    with session.mesh(name) as mesh:
        row = pause(session.opened._engine, mesh.slug)
        own_daemon.refresh(session.opened.home)
        session.talk(f"nothing of {row.slug} is sent now; go on with: holdfast mesh resume")
        session.show({"mesh": row.slug, "sync_paused": row.sync_paused}, f"{row.slug}\n")


@verb(mesh_, "resume")
@click.argument("name", required=False)
def resume(session: CommandSession, name: str | None) -> None:
    """Let a shared mesh go on, and try again what the broker refused."""
    from holdfast.node.sync.pause import resume

    with session.mesh(name) as mesh:
        resumed = resume(session.opened._engine, mesh.slug)
        runs = own_daemon.refresh(session.opened.home)
        if resumed.retried:
            session.talk(f"{resumed.retried} that were refused wait to be sent again")
        if not runs:
            session.talk("no daemon runs here: it begins with: holdfast up")
        session.show(msgspec.structs.asdict(resumed), f"{resumed.mesh}\n")
