"""`holdfast paths`: where everything of a home lies."""

from __future__ import annotations

from holdfast.apps.cli import documents
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.storage.files.home import HomePaths


@command_of("paths")
def paths_(session: CommandSession) -> None:
    """Say where everything of the home lies, or would."""
    paths = HomePaths(session.check_home())
    places = {
        "home": paths.root,
        "database": paths.database,
        "blobs": paths.blobs,
        "identity": paths.identity,
        "quorum": paths.quorum,
        "metrics": paths.metrics,
        "processes": paths.processes,
    }
    session.show(
        {name: documents.path(path) for name, path in places.items()},
        "".join(f"{name:<10} {path}\n" for name, path in places.items()),
    )
