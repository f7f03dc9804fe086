"""The limits of the server for agents that no other test here reaches."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.apps.mcp.tools import files
from holdfast.apps.mcp.tools.all import BY_NAME
from holdfast.rules.limits import MCP_CALLS_AT_ONCE_MAX, MCP_ROWS_DEFAULT
from support.agents import Agent, drive, in_process
from support.daemon import make_home
from support.waiting import PATIENCE_S, until


def test_U3_more_calls_than_are_worked_on_at_once_wait_for_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path / "home")
    lock, go = threading.Lock(), threading.Event()
    at_work = most = 0
    tool = BY_NAME["recall"]
    run = tool.run

    def slow(call: object, asked: object) -> object:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        assert go.wait(PATIENCE_S)
        try:
            return run(call, asked)  # type: ignore[arg-type]
        finally:
            with lock:
                at_work -= 1

    monkeypatch.setitem(vars(tool), "run", slow)

    async def story(agent: Agent) -> None:
        calls = [
            asyncio.create_task(agent.call("recall")) for _ in range(2 * MCP_CALLS_AT_ONCE_MAX)
        ]
        await agent.client.list_tools()  # after them: all were taken
        await asyncio.to_thread(until, lambda: at_work >= MCP_CALLS_AT_ONCE_MAX)
        await agent.client.list_tools()
        go.set()
        assert len(await asyncio.gather(*calls)) == len(calls)

    drive(in_process(home), story)
    assert most == MCP_CALLS_AT_ONCE_MAX


def test_U3_a_list_has_so_many_rows_unless_an_agent_says_how_many(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with holdfast.open(home) as node:
        for number in range(MCP_ROWS_DEFAULT + 1):
            node.mesh("team").state.set(f"k{number:03}", number)

    async def story(agent: Agent) -> None:
        found = await agent.call("state_get")
        assert len(found["items"]) == MCP_ROWS_DEFAULT
        rest = await agent.call("state_get", after=found["next"])
        assert (len(rest["items"]), rest["next"]) == (1, None)

    drive(in_process(home), story)


def test_U3_a_file_that_is_too_large_for_agents_is_left_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MCP_FILE_READ_BYTES_MAX", 3)
    home = make_home(tmp_path / "home")

    async def story(agent: Agent) -> None:
        await agent.call("file", action="share", path="f", content="four")
        error = await agent.fails("file", action="read", path="f")
        assert error["code"] == "over_limit"
        assert "holdfast file read f" in error["hint"]

    drive(in_process(home), story)
