"""`holdfast mcp` as clients start it: a process on pipes, with and without a daemon."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from support.agents import BOTH, Agent, drive, over_stdio
from support.cli import Cli
from support.daemon import PATIENCE_S, make_home, process
from support.waiting import until


def command(home: Path) -> list[str]:
    return [sys.executable, "-m", "holdfast", "mcp", "--home", str(home)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


def written(home: Path, key: str) -> list[Any]:
    """What was ever written under a key, in order."""
    with holdfast.open(home) as node, node.log.watch(since="start", ops=["state.set"]) as watch:
        return [change.value for change in watch.present() if change.key == key]


@pytest.mark.parametrize("mode", BOTH)
def test_U3_a_client_starts_the_server_and_it_works_on_the_home(home: Path, mode: str) -> None:
    key = "holdfast://team/state/k"

    async def story(agent: Agent) -> None:
        assert (await agent.call("info"))["peer"] == "ana"
        await agent.follow(mode, key)
        with holdfast.open(home) as node:
            node.mesh("team").state.set("k", 1)
        assert await agent.told.get() == key
        assert (await agent.call("state_get", key="k"))["items"][0]["value"] == 1
        await agent.call("state_delete", key="k")
        assert agent.questions

    drive(over_stdio(command(home)), story, mode)


def test_U3_a_killed_daemon_costs_no_call_and_nothing_is_written_twice(home: Path) -> None:
    """The first write meets a daemon that hangs and is then killed, in the middle of the call."""

    async def story(agent: Agent) -> None:
        with process(home) as up:
            before = await agent.call("state_set", key="k", value="through", id="one")
            os.kill(up.pid, signal.SIGSTOP)
            asked = asyncio.create_task(
                agent.call("state_set", key="k", value="in the middle", id="two")
            )
            reading = asyncio.create_task(agent.call("state_get", key="k"))
            # Both wait for the daemon by the time that it is gone: the SDK writes in order.
            await agent.client.list_tools()
            up.kill()
            done = await asked
            await reading
        again = await agent.call("state_set", key="k", value="in the middle", id="two")
        assert (again["id"], again["duplicate"]) == (done["id"], True)
        first = await agent.call("state_set", key="k", value="through", id="one")
        assert (first["id"], first["duplicate"]) == (before["id"], True)
        with process(home):
            # A new daemon is found, and asked.
            await agent.call("state_set", key="k", value="at last", id="three")

    drive(over_stdio(command(home)), story)
    assert written(home, "k") == ["through", "in the middle", "at last"]


class Raw:
    """A client without manners: lines in, lines out."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def ask(self, number: int, method: str, **params: Any) -> None:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        body = {"jsonrpc": "2.0", "id": number, "method": method}
        self.send(json.dumps({**body, "params": {**params, "_meta": meta}}).encode())

    def answer(self, number: int) -> dict[str, Any]:
        """The answer to this request; everything before it has to be of the protocol too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            assert said["jsonrpc"] == "2.0"
            if said.get("id") == number:
                return said
        raise AssertionError("it ended without an answer")


@contextmanager
def raw_client(home: Path) -> Iterator[Raw]:
    with subprocess.Popen(
        command(home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as started:
        alarm = threading.Timer(PATIENCE_S, started.kill)
        alarm.start()
        try:
            yield Raw(started)
        finally:
            alarm.cancel()
            started.kill()


def test_U3_garbage_is_answered_or_dropped_and_the_next_call_works(home: Path) -> None:
    with raw_client(home) as client:
        for line in (b"", b"{", b"\xff\xfe", b"[]", b'"text"', b"null", b"{}", b"x" * 100_000):
            client.send(line)
        client.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":7}')
        client.ask(2, "no/such/method")
        assert client.answer(2)["error"]["code"] == -32601
        for number, (name, arguments) in enumerate(
            (
                ("nothing", {}),
                ("state_get", {"key": 7}),
                ("state_get", {"odd": 1}),
                ("state_set", {"key": "", "value": 1}),
                ("state_set", {"key": "k"}),
                ("state_get", {"mesh": "no such"}),
                ("state_get", {"mesh": "none"}),
                ("state_set", {"key": "k", "value": 1, "id": " "}),
                ("state_get", {"as_of": {"at": "yesterday"}}),
                ("vector_search", {"embedding": [1e999], "model": {"provider": "p", "name": "m"}}),
            ),
            3,
        ):
            client.ask(number, "tools/call", name=name, arguments=arguments)
            said = client.answer(number)
            failed = "error" in said or said["result"]["isError"]
            assert failed, (name, arguments, said)
        client.ask(99, "tools/call", name="state_set", arguments={"key": "k", "value": 1})
        assert client.answer(99)["result"]["structuredContent"]["outcome"] == "applied"
        # A client that goes away ends the server.
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert client.process.wait(PATIENCE_S) == 0
        assert client.process.stderr is not None
        assert b"Traceback" not in client.process.stderr.read()


@pytest.mark.parametrize("when", ["at once", "after the write"])
def test_U3_a_server_that_is_killed_in_a_call_has_written_once_when_asked_again(
    home: Path, when: str
) -> None:
    asked = {"name": "state_set", "arguments": {"key": "k", "value": 1, "id": "the write"}}
    with raw_client(home) as client:
        client.ask(1, "tools/list")
        client.answer(1)
        client.ask(2, "tools/call", **asked)
        if when == "after the write":
            until(lambda: written(home, "k") == [1])
        client.process.kill()  # else before, in, or after the write: nobody knows
        client.process.wait(PATIENCE_S)
    with raw_client(home) as client:
        client.ask(1, "tools/call", **asked)
        assert not client.answer(1)["result"]["isError"]
    assert written(home, "k") == [1]


def test_U3_a_call_that_is_cancelled_leaves_the_server_working(home: Path) -> None:
    async def story(agent: Agent) -> None:
        with process(home) as up:
            await agent.call("info")
            os.kill(up.pid, signal.SIGSTOP)
            asked = asyncio.create_task(agent.call("state_set", key="k", value=1, id="one"))
            await agent.client.list_tools()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            os.kill(up.pid, signal.SIGCONT)
            await agent.call("state_set", key="k", value=1, id="one")

    drive(over_stdio(command(home)), story)
    assert written(home, "k") == [1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_U3_a_signal_ends_the_server_though_its_client_says_nothing(
    home: Path, number: signal.Signals
) -> None:
    with raw_client(home) as client:
        client.ask(1, "tools/call", name="info", arguments={})
        client.answer(1)
        client.process.send_signal(number)
        assert client.process.wait(PATIENCE_S) == 128 + number
        assert client.process.stderr is not None
        assert client.process.stderr.read() == b""


def test_U3_a_client_that_no_longer_reads_is_no_fault_of_ours(home: Path) -> None:
    with raw_client(home) as client:
        client.ask(1, "tools/call", name="info", arguments={})
        client.answer(1)
        assert client.process.stdout is not None
        client.process.stdout.close()

        def has_ended() -> bool:
            with suppress(BrokenPipeError):
                client.ask(2, "tools/list")
            return client.process.poll() is not None

        until(has_ended)
        assert client.process.stdin is not None
        with suppress(BrokenPipeError):
            client.process.stdin.close()
        assert client.process.returncode == 141
        assert client.process.stderr is not None
        assert b"Traceback" not in client.process.stderr.read()


def test_U3_a_home_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    assert "holdfast init" in Cli(tmp_path / "none")("mcp", code=4).err


def test_U3_a_person_who_starts_it_at_a_terminal_is_told_what_it_is_for(home: Path) -> None:
    shown = Cli(home).on_a_terminal("mcp", typed="\x04")
    assert "holdfast mcp install" in shown.out
