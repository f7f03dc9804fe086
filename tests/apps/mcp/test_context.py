"""`holdfast mcp --context`: the server works on the home of a daemon that it only knows by a
connection, and outlives that daemon.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.apps.cli.commands import mcp as command
from holdfast.node.home.opening import open_home
from support.agents import BOTH, Agent, drive, over_stdio
from support.cli import Cli
from support.daemon import make_home, running


@pytest.mark.parametrize("mode", BOTH)
def test_U3_a_context_names_a_daemon_that_comes_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    home = make_home(tmp_path / "home")
    monkeypatch.setenv("HOLDFAST_CONTEXTS", str(tmp_path / "contexts"))
    tasks = "holdfast://team/tasks"

    async def story(agent: Agent) -> None:
        with running(home):
            assert (await agent.call("info"))["peer"] == "ana"
            await agent.call("state_set", key="k", value=1, id="one")
            await agent.follow(mode, tasks)
            await agent.call("task", action="create", title="dig")
            assert await agent.told.get() == tasks
        gone = await agent.fails("state_get", key="k")
        assert gone["code"] in ("unreachable", "no_daemon")
        with holdfast.open(home) as node:
            node.mesh("team").tasks.create("what nobody was told of")
        with running(home):
            again = await agent.call("state_set", key="k", value=1, id="one")
            assert again["duplicate"]
            assert await agent.told.get() == tasks, "what came meanwhile is told afterwards"
        open_home(home, new_epoch=True).close()  # as after a restore
        with running(home):
            assert await agent.told.get() == tasks, "nobody knows what changed, so all of it may"
            await agent.call("task", action="create", title="paint")
            assert await agent.told.get() == tasks

    with running(home) as up:
        address = up.unix
    Cli(home)("context", "add", "plant", "--daemon", address)
    line = [sys.executable, "-m", "holdfast", "mcp", "--context", "plant", "--mesh", "team"]
    environ = {"HOLDFAST_CONTEXTS": str(tmp_path / "contexts")}
    drive(over_stdio(line, environ), story, mode)


def test_U3_an_entry_for_a_client_names_the_context(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CONTEXTS", str(tmp_path / "contexts"))
    monkeypatch.setenv("HOME", str(tmp_path))
    cli("context", "add", "plant", "--daemon", "https://plant.example:7420")
    shown = cli("mcp", "install", "cursor", "--context", "plant", "--json")
    entry = json.loads(json.loads(shown.out)["entry"])
    assert entry["mcpServers"]["holdfast"]["args"] == ["mcp", "--context", "plant"]


def test_U3_the_command_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert "holdfast[mcp]" in cli("mcp", code=1).err
