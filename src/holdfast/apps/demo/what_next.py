"""What somebody may do who has seen the demo: commands that can be pasted as they are."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import join
from shutil import which

from holdfast.apps.demo.stage import DemoStage


def say(stage: DemoStage) -> None:
    screen, home = stage.screen, str(stage.home("ana"))
    screen.blank()
    screen.said("Look around in what it left:")
    if stage.home("ana").exists():
        screen.command(join([program(), "status", "--home", home]))
        screen.command(join([program(), "log", "tail", "--home", home]))
    if stage.lake is not None:
        query = [program(), "pipeline", "query", "SHOW VIEWS"]
        screen.command(join([*query, "--lake", str(stage.lake)]))
    screen.command(f"{join(['rm', '-r', str(stage.folder)])}    # when you have seen enough")
    screen.blank()
    screen.said("See it in a browser, with a story to follow:")
    screen.command(join([program(), "demo", "--console"]))
    screen.blank()
    screen.said("Begin on your own, and go on with docs/tour.md:")
    screen.command(join([program(), "init", "--mesh", "team"]))
    screen.command(join([program(), "state", "set", "hello", "world"]))
    screen.command(join([program(), "up", "--tcp", "127.0.0.1:0", "--detach"]))
    screen.command(join([program(), "console"]))


def command_line(*words: str) -> str:
    """What to paste for a command."""
    return join([program(), *words])


def program() -> str:
    """What to type for the command: its name, where a shell finds it by that."""
    typed = sys.argv[0]
    found = which("holdfast")
    if found is not None and Path(found).resolve() == Path(typed).resolve():
        return "holdfast"
    return typed if Path(typed).name == "holdfast" else "holdfast"
