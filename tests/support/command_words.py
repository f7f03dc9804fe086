"""Words of our command that stand in files for others: understood by the command that they name."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.apps.cli.app import root


def parses(words: Sequence[str]) -> click.Context:
    """Reads the words after `holdfast` as the command does, and runs nothing; a usage error of
    click if it would not take them.
    """
    command: click.Command = root
    context, rest = click.Context(root, obj={}), list(words)
    while isinstance(command, click.Group):
        found = command.get_command(context, rest.pop(0))
        assert found is not None, words
        command = found
    return command.make_context("holdfast", rest, parent=context)
