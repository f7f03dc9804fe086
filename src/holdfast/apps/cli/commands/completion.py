"""`holdfast completion`: the scripts by which shells complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from holdfast.apps.cli import output
from holdfast.apps.cli.app import COMPLETE, PROGRAM
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession


@command_of("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_(ctx: click.Context, session: CommandSession, shell: str) -> None:
    """Print the completion script of a shell.

    For example, in ~/.bashrc: eval "$(holdfast completion bash)"
    """
    root = ctx.find_root()
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells"
    complete = kind(root.command, {}, PROGRAM, COMPLETE)
    # The plain `source`: that of click's class for bash starts a bash to ask for its version.
    script = ShellComplete.source(complete)
    session.show({"shell": shell, "script": script}, output.value_line(script))
