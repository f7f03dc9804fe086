"""`/mcp` of a daemon: tokens, other web pages, limits, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import MCPError

import holdfast
from holdfast.apps.mcp import mounted
from holdfast.apps.mcp.mounted import agents
from holdfast.node.settings import Settings
from holdfast.rules.limits import MCP_BODY_BYTES_MAX
from support.agents import BOTH, Agent, agent, drive, over_http
from support.daemon import UpInThread, ask, make_home, process, running
from support.waiting import PATIENCE_S

TCP = Settings(tcp="127.0.0.1:0")
BOTH_KINDS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpInThread]:
    home = make_home(tmp_path_factory.mktemp("agents") / "home", "ana", "team", "board")
    with running(home, TCP, parts=lambda api, app: (agents(api, app),)) as started:
        yield started


@pytest.fixture(scope="module")
def tokens(up: UpInThread) -> dict[str, str]:
    trust = up.daemon.api.trust
    return {
        "all": trust.add_token("ops"),
        "read": trust.add_token("reader", reads=["team"]),
        "gone": trust.add_token("gone", reads=["team"]),
    }


@pytest.mark.parametrize("mode", BOTH)
def test_U3_a_token_of_the_user_does_everything(
    up: UpInThread, tokens: dict[str, str], mode: str
) -> None:
    key = "holdfast://team/state/k"

    async def story(agent: Agent) -> None:
        assert {one["mesh"] for one in (await agent.call("info"))["meshes"]} == {"team", "board"}
        await agent.follow(mode, key)
        done = await agent.call("state_set", mesh="team", key="k", value=[1, "ä"], id=f"{mode} 1")
        assert await agent.told.get() == key
        again = await agent.call("state_set", mesh="team", key="k", value=[1, "ä"], id=f"{mode} 1")
        assert (again["id"], again["duplicate"]) == (done["id"], True)
        found = await agent.call("state_get", mesh="team", prefix="k")
        assert found["items"][0]["value"] == [1, "ä"]
        past = await agent.call("state_get", mesh="team", key="k", as_of={"at": "2001-01-01T00Z"})
        assert past["items"] == []
        await agent.call("file", mesh="team", action="share", path="f", content="x" * 100_000)
        read = await agent.call("file", mesh="team", action="read", path="f")
        assert len(read["text"]) == 100_000
        made = await agent.call("task", mesh="team", action="create", title="dig", id=f"{mode} 2")
        await agent.call("task", mesh="team", action="claim", task=made["tasks"][0]["task"])
        await agent.call("remember", mesh="team", key="a", value=1)
        await agent.call("state_delete", mesh="team", key="k")
        assert agent.questions
        assert (await agent.fails("send", mesh="team", topic="t", content="x"))["code"] == (
            "not_shared"
        )
        listed = (await agent.client.list_resources()).resources
        assert "holdfast://board/tasks" in [one.uri for one in listed]
        await agent.client.get_prompt("standup", {"mesh": "team"})

    drive(over_http(up.tcp, tokens["all"]), story, mode)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_a_token_that_reads_one_mesh_reads_it_and_writes_nothing(
    up: UpInThread, tokens: dict[str, str], mode: str
) -> None:
    with holdfast.open(up.home) as node:
        node.mesh("team").state.set("kept", 1)
        head = node.log.head().offset

    async def story(agent: Agent) -> None:
        found = await agent.call("info")
        assert [one["mesh"] for one in found["meshes"]] == ["team"]
        assert (await agent.call("state_get", key="kept"))["items"][0]["value"] == 1
        for tool, arguments in (
            ("state_set", {"key": "k", "value": 1}),
            ("state_delete", {"key": "kept"}),
            ("remember", {"key": "k", "value": 1}),
            ("file", {"action": "share", "path": "f", "content": "x"}),
            ("task", {"action": "create", "title": "x"}),
            ("send", {"topic": "t", "content": "x"}),
            ("state_get", {"mesh": "board"}),
        ):
            error = await agent.fails(tool, **arguments)
            assert error["code"] in ("not_granted", "unknown_mesh"), (tool, error)
        with pytest.raises(Exception, match="not_granted"):
            await agent.follow(mode, "holdfast://board/tasks")

    drive(over_http(up.tcp, tokens["read"]), story, mode)
    with holdfast.open(up.home) as node:
        assert node.log.head().offset == head


def post(up: UpInThread, document: Any, token: str | None, **headers: str) -> Any:
    return ask(
        up.tcp,
        "POST",
        "/mcp",
        json.dumps(document).encode(),
        token=token,
        headers={**BOTH_KINDS, **headers},
    )


def test_U3_strangers_and_pages_of_others_are_refused(
    up: UpInThread, tokens: dict[str, str]
) -> None:
    assert post(up, OPENING, None).code == "bad_token"
    assert post(up, OPENING, "hf_wrong").code == "bad_token"
    assert post(up, OPENING, tokens["all"], host="evil.example").code == "host_not_allowed"
    odd = post(up, OPENING, tokens["all"], origin="https://evil.example")
    assert odd.code == "origin_not_allowed"
    assert ask(up.tcp, "POST", f"/mcp?token={tokens['all']}", b"{}").code == "bad_token"
    assert ask(up.tcp, "GET", "/mcp/deeper", token=tokens["all"]).code == "no_route"
    assert ask(up.tcp, "PUT", "/mcp", b"", token=tokens["all"]).status == 405


def test_U3_what_is_no_request_is_refused(up: UpInThread, tokens: dict[str, str]) -> None:
    for body in (b"", b"{", b"[]", b"\xff", b"null", b'{"jsonrpc":"2.0"}', b"[" * 100_000):
        for version in ({}, {"mcp-protocol-version": "2026-07-28"}):
            found = ask(
                up.tcp,
                "POST",
                "/mcp",
                body,
                token=tokens["all"],
                headers={**BOTH_KINDS, **version},
            )
            assert found.status == 400, (body[:9], version, found)
    large = post(up, {**OPENING, "x": "x" * MCP_BODY_BYTES_MAX}, tokens["all"])
    assert large.status == 413


def test_U3_a_session_belongs_to_the_token_that_opened_it(
    up: UpInThread, tokens: dict[str, str]
) -> None:
    opened = post(up, OPENING, tokens["all"])
    session = {"mcp-session-id": opened.headers["mcp-session-id"]}
    listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    assert post(up, listed, tokens["all"], **session).status == 200
    assert post(up, listed, tokens["read"], **session).status == 404
    assert ask(up.tcp, "DELETE", "/mcp", token=tokens["all"], headers=session).status == 200
    assert post(up, listed, tokens["all"], **session).status == 404


def test_U3_a_token_that_is_taken_back_reads_nothing_more_and_hears_of_nothing(
    up: UpInThread, tokens: dict[str, str]
) -> None:
    kept, told = "holdfast://team/state/a", "holdfast://team/state/b"

    async def run() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            agent(over_http(up.tcp, tokens["gone"]), "auto") as one,
            agent(over_http(up.tcp, tokens["read"]), "auto") as other,
        ):
            await one.follow("auto", kept, told)
            await other.follow("auto", told)
            await asyncio.to_thread(up.daemon.api.trust.revoke_token, "gone")
            with holdfast.open(up.home) as node:
                node.mesh("team").state.set("a", 1)
                node.mesh("team").state.set("b", 1)
            assert await other.told.get() == told
            assert one.told.empty()
            with pytest.raises(MCPError, match="error response"):
                await one.call("info")

    asyncio.run(run())


def test_U3_sessions_and_streams_are_limited_and_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounted, "MCP_SESSIONS_MAX", 2)
    monkeypatch.setattr(mounted, "MCP_STREAMS_MAX", 0)
    monkeypatch.setattr(mounted, "MCP_SESSION_IDLE_MS", 1)
    home = make_home(tmp_path / "home")
    with running(home, TCP, parts=lambda api, app: (agents(api, app),)) as up:
        token = up.daemon.api.trust.add_token("ops")
        stream = ask(up.tcp, "GET", "/mcp", token=token, headers=BOTH_KINDS)
        assert stream.code == "too_many"
        for _ in range(5):  # a session that nobody uses makes room by itself
            opened = post(up, OPENING, token)
            assert opened.status in (200, 503)
    monkeypatch.setattr(mounted, "MCP_SESSION_IDLE_MS", 60_000)
    with running(home, TCP, parts=lambda api, app: (agents(api, app),)) as up:
        assert [post(up, OPENING, token).status for _ in range(3)] == [200, 200, 503]


def test_U3_a_daemon_ends_at_once_although_agents_listen(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")

    async def run(up: UpInThread, token: str) -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            agent(over_http(up.tcp, token), "legacy") as before,
            agent(over_http(up.tcp, token), "auto") as today,
        ):
            await before.follow("legacy", "holdfast://team/tasks")
            async with today.client.listen(
                resource_subscriptions=["holdfast://team/tasks"]
            ) as stream:
                stopping = asyncio.create_task(asyncio.to_thread(up.stop))
                async for _ in stream:
                    raise AssertionError("nothing has changed")
                ended.append("the stream was ended, and not cut")
            await stopping

    ended: list[str] = []
    with running(home, TCP, parts=lambda api, app: (agents(api, app),)) as up:
        token = up.daemon.api.trust.add_token("ops")
        with suppress(MCPError, httpx2.HTTPError, ExceptionGroup):
            asyncio.run(run(up, token))  # a client that has lost its server may say so
        assert ended
        assert not up.overtime.is_set()


def test_U3_a_daemon_without_the_package_says_what_to_install(
    up: UpInThread, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounted, "find_spec", lambda name: None)
    found = post(up, OPENING, tokens["all"])
    assert found.code == "no_package"
    assert "holdfast[mcp]" in found.json["error"]["hint"]


def test_U3_a_daemon_that_is_killed_in_a_call_has_written_once_when_asked_again(
    tmp_path: Path,
) -> None:
    home = make_home(tmp_path / "home")
    with socket.create_server(("127.0.0.1", 0)) as found:
        place = f"127.0.0.1:{found.getsockname()[1]}"
    asked = {"key": "k", "value": 1, "id": "the write"}
    answers: list[object] = []

    async def story(token: str) -> None:
        # The client loses its server in the middle of a call, and falls over.
        with process(home, "--tcp", place) as up, suppress(ExceptionGroup):
            async with agent(over_http(up.tcp, token), "auto") as one:
                await one.call("info")
                os.kill(up.pid, signal.SIGSTOP)
                call = asyncio.create_task(one.client.call_tool("state_set", asked))
                await asyncio.sleep(0)
                up.kill()
                with suppress(MCPError):
                    answers.append(await call)
        assert not answers, "nobody could answer"
        with process(home, "--tcp", place) as up:
            async with agent(over_http(up.tcp, token), "auto") as one:
                await one.call("state_set", **asked)
                again = await one.call("state_set", **asked)
                assert again["duplicate"]

    from holdfast.node.library.node import open_node
    from holdfast.node.trust.trust import Trust
    from holdfast.storage.files.home import HomePaths

    with open_node(home) as node:
        token = Trust(node._engine, HomePaths(home)).add_token("ops")

    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story(token)

    asyncio.run(limited())
    with holdfast.open(home) as node, node.log.watch(since="start") as watch:
        assert [change.value for change in watch.present() if change.key == "k"] == [1]


_LOADING = """
import gc, sys
from holdfast.apps.mcp import mounted

assert "mcp" not in sys.modules
kept = [object() for _ in range(1000)]
gc.set_threshold(100, 1, 1)
looked = []
gc.callbacks.append(lambda phase, info: looked.append(info["generation"]))
mounted._loaded()
during = list(looked)
assert "mcp" in sys.modules
assert gc.isenabled()
gc.collect()
assert len(looked) > len(during), "it is looked for again"
print(len(during))
"""


def test_U3_nobody_waits_for_the_collector_of_garbage_while_the_sdk_is_loaded() -> None:
    """It would go over all that is being loaded, again and again, and hold up every call."""
    words = [sys.executable, "-c", _LOADING]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 0
