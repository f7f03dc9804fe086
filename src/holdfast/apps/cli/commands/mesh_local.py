"""`holdfast mesh create`, `list`, `info`, `clock`: the verbs that need no broker."""

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
        document = documents.in_mesh(mesh.clock(), mesh.slug)
        session.show(document, fields="mesh lamport sync_state last_sync_at")
