"""`holdfast init`: make a home."""

from __future__ import annotations

import click

from holdfast.apps.cli import documents
from holdfast.apps.cli.commands.status import next_step
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.names import check_mesh
from holdfast.storage.files.home import HomePaths


@command_of("init")
@click.option("--peer", required=True, metavar="NAME", help="This node's name, fixed for good.")
@click.option("--mesh", "slug", metavar="NAME", help="Also make this mesh.")
def init_(session: CommandSession, peer: str, slug: str | None) -> None:
    """Make a home for a peer, and with --mesh a first mesh in it."""
    root = session.check_home()
    if slug is not None:
        check_mesh(slug)  # before anything is made: a home keeps its peer for good
    new = not HomePaths(root).database.exists()
    with session.node(peer=peer, create=True) as node:
        mesh_is_new = slug is not None and slug not in {row.slug for row in node.meshes()}
        if slug is not None:
            node.mesh(slug, create=True)
        document = {
            "home": documents.path(node.home),
            "peer": node.peer,
            "created": new,
            "mesh": slug,
        }
        session.talk(f"{'made a home' if new else 'the home was there'} for {node.peer}")
        if slug is not None:
            session.talk(f"{'made the mesh' if mesh_is_new else 'the mesh was there:'} {slug}")
        session.show(document, f"{documents.path(node.home)}\n")
        session.talk(f"next: {next_step(node)}")
