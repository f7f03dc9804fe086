"""`holdfast mesh`: who shares what with whom; what needs no broker."""

from __future__ import annotations

import click

from holdfast.apps.cli import documents
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession

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


@verb(mesh_, "list", mesh=False)
def list_(session: CommandSession) -> None:
    """List the meshes of this home."""
    with session.node() as node:
        session.rows(
            (documents.mesh(row) for row in node.meshes()),
            "mesh name kind lamport created_at",
            empty="no mesh yet; create one with: holdfast mesh create NAME",
        )


@verb(mesh_, "info")
@click.argument("name", required=False)
def info(session: CommandSession, name: str | None) -> None:
    """Show one mesh: its kind, its clock, how much it holds."""
    session.named_mesh = name or session.named_mesh
    with session.mesh() as mesh:
        row = mesh.info()
        fields = "mesh name kind lamport seq created_at last_sync_at sync_paused rows"
        if row.shared:
            fields += " broker_url broker_card broker_epoch broker_seq"
        session.show({**documents.mesh(row), "rows": mesh.counts()}, fields=fields)


@verb(mesh_, "clock")
@click.argument("name", required=False)
def clock(session: CommandSession, name: str | None) -> None:
    """Show a mesh's Lamport clock and whether others have been heard of."""
    session.named_mesh = name or session.named_mesh
    with session.mesh() as mesh:
        found = mesh.clock()
        document = {
            "mesh": mesh.slug,
            "lamport": found.lamport,
            "sync_state": found.sync_state,
            "last_sync_at": found.last_sync_at,
        }
        session.show(document, fields="mesh lamport sync_state last_sync_at")
