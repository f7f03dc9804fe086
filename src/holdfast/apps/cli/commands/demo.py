"""`holdfast demo`: plays a story with real homes, and prints it as it happens."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.apps.cli import documents
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession


@command_of("demo")
@click.argument("folder", required=False)
def demo_(session: CommandSession, folder: str | None) -> None:
    """Watch two peers part, meet, die and come back, and Spark read their logs.

    In FOLDER, or a temporary one. Without the extra `spark` that last part is left out.
    """
    from holdfast.apps.demo import demo

    done = demo.run(None if folder is None else Path(folder), session.talk)
    session.show({"folder": documents.path(done)}, f"{documents.path(done)}\n")
