"""`holdfast completion`: the scripts by which shells complete our commands."""

from __future__ import annotations

import click

from holdfast.apps.cli.completion.shells import SCRIPTS
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession


@command_of("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_(session: CommandSession, shell: str) -> None:
    """Print the completion script of a shell.

    For example, in ~/.bashrc: eval "$(holdfast completion bash)"
    """
    script = SCRIPTS[shell]
    session.show({"shell": shell, "script": script}, script)
