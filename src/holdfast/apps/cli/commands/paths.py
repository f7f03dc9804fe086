"""`holdfast paths`: where everything of a home lies."""

from __future__ import annotations

import click

from holdfast.apps.cli import documents, output
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.storage.files.home import HomePaths, socket_path

_NAMES = ("home", "database", "blobs", "identity", "quorum", "metrics", "processes", "socket")


@command_of("paths")
@click.argument("name", required=False, type=click.Choice(_NAMES), metavar="[NAME]")
def paths_(session: CommandSession, name: str | None) -> None:
    """Say where everything of the home lies, or would.

    With a NAME from the list, say only where that one lies: socket=$(holdfast paths socket).
    """
    paths = HomePaths(session.check_home())
    found = (
        *(paths.root, paths.database, paths.blobs, paths.identity, paths.quorum),
        *(paths.metrics, paths.processes, socket_path(paths)),
    )
    places = dict(zip(_NAMES, found, strict=True))
    if name is None:
        text = "".join(f"{name:<10} {path}\n" for name, path in places.items())
    else:
        places, text = {name: places[name]}, output.value_line(str(places[name]))
    session.show({name: documents.path(path) for name, path in places.items()}, text)
