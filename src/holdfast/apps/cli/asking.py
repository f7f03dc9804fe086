"""Asking a person before something that cannot be undone.

On a terminal the command says what goes and waits for an answer; scripts say `--yes`. Without a
terminal and without `--yes` nothing happens, and the hint is the command that would do it.
"""

from __future__ import annotations

import sys

import click

from holdfast.apps.cli import output
from holdfast.rules.errors import BadInput


def at_terminal() -> bool:
    """Whether a person can read a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agree(question: str, *, yes: bool, paste: str, name: str = "") -> None:
    """Returns if a person agrees. `paste` is the command for scripts. With a `name` it is asked
    twice: the second answer is that name, typed.
    """
    if yes:
        return
    if not at_terminal():
        raise BadInput(f"nobody is here to answer: {question}", hint=f"say yes to it: {paste}")
    try:
        agreed = click.confirm(question, default=False, err=True)
        if agreed and name:
            agreed = click.prompt(f"Type {name} to go on", default="", err=True) == name
    except click.Abort:
        raise KeyboardInterrupt from None
    if not agreed:
        output.talk("nothing was done")
        raise click.exceptions.Exit(1)
