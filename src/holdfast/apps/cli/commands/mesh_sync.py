"""`holdfast mesh pause` and `resume`: whether this node sends its changes of a shared mesh."""

from __future__ import annotations

import click
import msgspec

from holdfast.apps.cli import own_daemon
from holdfast.apps.cli.commands.mesh_local import mesh_
from holdfast.apps.cli.declare import verb
from holdfast.apps.cli.session import CommandSession


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
            session.talk(f"{resumed.retried} that were refused are tried again")
        if not runs:
            session.talk("no daemon runs here: it begins with: holdfast up")
        session.show(msgspec.structs.asdict(resumed), f"{resumed.mesh}\n")
