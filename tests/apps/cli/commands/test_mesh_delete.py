"""`holdfast mesh delete`: what goes is said, twice asked, and never by a slip."""

from __future__ import annotations

import os
import pty
import select
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.cli import Cli


@pytest.fixture
def scratch(cli: Cli) -> Cli:
    cli("mesh", "create", "scratch")
    cli("state", "set", "k", "v", "--mesh", "scratch")
    return cli


def meshes(cli: Cli) -> list[str]:
    return [row["mesh"] for row in cli("mesh", "list", "--json").json]


def test_S20_a_script_says_yes_and_a_dry_run_only_tells(scratch: Cli) -> None:
    told = scratch("mesh", "delete", "scratch", "--dry-run", "--json").json
    assert (told["mesh"], told["rows"]["state"], told["entries"], told["owed"]) == (
        *("scratch", 1, 1),
        [],
    )
    assert "scratch" in meshes(scratch)
    refused = scratch("mesh", "delete", "scratch", "--json", code=2).error
    assert refused["hint"] == "say yes to it: holdfast mesh delete scratch --yes"
    assert "scratch" in meshes(scratch), "nobody was there to answer"
    done = scratch("mesh", "delete", "scratch", "--yes")
    assert done.out == "scratch\n"
    assert meshes(scratch) == ["team"]
    again = scratch("mesh", "delete", "scratch", "--yes", "--json", code=4).error
    assert again["code"] == "mesh_deleted"


def test_S20_what_it_owes_is_said_and_the_hint_gives_it_up(scratch: Cli) -> None:
    scratch("consumer", "add", "lake")
    refused = scratch("mesh", "delete", "scratch", "--yes", "--json", code=5).error
    assert refused["code"] == "mesh_owes"
    assert "not confirmed by lake" in refused["message"]
    assert "scratch" in meshes(scratch)
    command = refused["hint"].partition("to give it up: holdfast ")[2].split()
    scratch(*command, "--yes")
    assert "scratch" not in meshes(scratch)


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        (b"n\n", ["scratch", "team"]),
        (b"y\nscrtch\n", ["scratch", "team"]),
        (b"y\nscratch\n", ["team"]),
    ],
)
def test_S20_on_a_terminal_it_is_asked_twice(scratch: Cli, typed: bytes, left: list[str]) -> None:
    with terminal() as (ours, theirs):
        running = scratch.start("mesh", "delete", "scratch", stdin=theirs, stderr=theirs)
        os.write(ours, typed)
        running.communicate(timeout=60)
        shown = ""
        while select.select([ours], [], [], 0)[0]:  # the echo may come by itself
            shown += os.read(ours, 4096).decode()
    assert "Delete the mesh scratch here? This cannot be undone." in shown
    assert "scratch holds 1 state" in shown
    assert meshes(scratch) == left
    assert running.returncode == (0 if left == ["team"] else 1)
