"""Every tool with every action, every resource and every prompt, by a real client: over stdio and
over HTTP, in both protocols, through a daemon that is killed in between.

What there is is asked of the server: a tool, an action, a resource or a prompt that nobody drives
here fails the test.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

import holdfast
from holdfast.node.core.intake import Intake
from holdfast.node.library.node import open_node
from holdfast.node.trust.trust import Trust
from holdfast.storage.files.home import HomePaths
from support import envelopes as e
from support.agents import BOTH, Agent, agent, over_http, over_stdio
from support.daemon import make_home, process
from support.nodes import share, store_of
from support.stores import known_member
from support.waiting import PATIENCE_S

Step = tuple[str, dict[str, Any]]
MODEL = {"provider": "p", "name": "m"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Its mesh is shared, a message has come, and a merge has discarded three values."""
    home = make_home(tmp_path / "home")
    with holdfast.open(home) as node:
        share(node)
        known = [known_member("b", name="bob")]
        store_of(node).write(lambda tx: tx.known_members_put("team", known))
        raw = e.message_send("topic", "news", b"we open at nine", lamport=3)
        store_of(node).write(Intake(node._engine.ctx, [raw], delivered={raw: b"B" * 16}))
        for key in "abc":
            node.mesh("team").state.set(key, "ours")
        for lamport, key in enumerate("abc", 9):
            node.apply([e.state_set(key, "theirs", lamport=lamport, origin="bob")])
    return home


def steps(known: dict[str, Any]) -> list[Step]:
    """One call after the other. Those that write bear ids: made again, they write nothing."""
    one, two = known["tasks"]
    message, (first, second, *_) = known["message"], known["conflicts"]
    task = [("claim", one), ("release", one), ("claim", one), ("complete", one), ("cancel", two)]
    return [
        ("info", {}),
        ("remember", {"key": "tea", "value": "no milk", "tags": ["taste"], "id": "r"}),
        ("recall", {"scope": "all"}),
        ("state_set", {"key": "k", "value": {"n": 1}, "id": "s"}),
        ("state_get", {"key": "k"}),
        ("state_get", {"prefix": "k", "as_of": {"offset": 1}}),
        ("vector_store", {"key": "v", "embedding": [1.0, 0.0], "model": MODEL, "id": "v"}),
        ("vector_search", {"embedding": [1.0, 0.0], "model": MODEL}),
        ("file", {"action": "share", "path": "f", "content": "text", "id": "f"}),
        ("file", {"action": "read", "path": "f"}),
        ("file", {"action": "list"}),
        ("task", {"action": "list"}),
        *(
            ("task", {"action": action, "task": id, "id": f"t{number}"})
            for number, (action, id) in enumerate(task)
        ),
        ("send", {"topic": "news", "content": "hello", "id": "m"}),
        ("inbox", {"action": "list", "unread": False}),
        ("inbox", {"action": "read", "message": message}),
        ("inbox", {"action": "reply", "message": message, "content": "thanks", "id": "a"}),
        ("conflict", {"action": "list", "open_only": False}),
        ("conflict", {"action": "restore", "number": first, "id": "c"}),
        ("conflict", {"action": "dismiss", "number": second}),
        ("forget", {"key": "tea", "id": "g"}),
        ("state_delete", {"key": "k", "id": "d"}),
    ]


CREATES: list[Step] = [
    ("task", {"action": "create", "title": "dig", "id": "make one"}),
    ("task", {"action": "create", "title": "sow", "id": "make two"}),
]


async def learn(one: Agent) -> dict[str, Any]:
    """What later calls name; the tasks are made here."""
    made = [(await one.call(tool, **asked))["tasks"][0]["task"] for tool, asked in CREATES]
    listed = await one.call("inbox", action="list", unread=False)
    rows = (await one.call("conflict", open_only=False))["conflicts"]
    return {
        "tasks": made,
        "message": listed["messages"][0]["id"],
        "conflicts": [row["number"] for row in rows],
    }


async def check_whole(one: Agent, known: dict[str, Any]) -> None:
    """That there is no tool and no action besides."""
    driven = {(tool, str(asked.get("action", ""))) for tool, asked in (*CREATES, *steps(known))}
    there = {
        (tool.name, action)
        for tool in (await one.client.list_tools()).tools
        for action in actions_of(tool.input_schema)
    }
    assert driven == there


def actions_of(schema: dict[str, Any]) -> list[str]:
    found = schema["properties"].get("action", {"enum": [""]})
    if "$ref" in found:
        found = schema["$defs"][found["$ref"].rpartition("/")[2]]
    choices = found.get("enum") or [one["const"] for one in found["anyOf"]]
    return [str(one) for one in choices]


async def use_tools(one: Agent, known: dict[str, Any], *, again: bool) -> None:
    for tool, asked in steps(known):
        answer = await one.call(tool, **asked)
        told = [answer, *([answer["sent"]] if answer.get("sent") else [])]
        for part in told:
            if "duplicate" in part and "id" in asked:
                assert part["duplicate"] is again, (tool, asked)


async def read_everything(one: Agent, known: dict[str, Any]) -> None:
    client = one.client
    listed = (await client.list_resources()).resources
    assert len(listed) >= 5
    templates = (await client.list_resource_templates()).resource_templates
    named = {"mesh": "team", "key": "a", "path": "f", "task": known["tasks"][0]}
    made = [one.uri_template for one in templates]
    for name, value in named.items():
        made = [uri.replace(f"{{{name}}}", value) for uri in made]
    assert not [uri for uri in made if "{" in uri], "say what stands in the template"
    for uri in (*(found.uri for found in listed), *made):
        contents = (await client.read_resource(uri)).contents
        assert contents, uri
    for template in templates:
        ref = types.ResourceTemplateReference(uri=template.uri_template)
        found = await client.complete(ref, {"name": "mesh", "value": "t"})
        assert found.completion.values == ["team"], template.uri_template
    given = {"mesh": "team", "to": "bob"}
    prompts = (await client.list_prompts()).prompts
    assert prompts
    for prompt in prompts:
        wanted = {one.name: given[one.name] for one in prompt.arguments or ()}
        assert (await client.get_prompt(prompt.name, wanted)).messages


@pytest.mark.parametrize("mode", BOTH)
def test_U3_everything_works_on_stdio_through_a_killed_daemon(home: Path, mode: str) -> None:
    command = [sys.executable, "-m", "holdfast", "mcp", "--home", str(home)]

    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S), agent(over_stdio(command), mode) as one:
            with process(home) as up:
                known = await learn(one)
                await check_whole(one, known)
                await use_tools(one, known, again=False)
                up.kill()
            await use_tools(one, known, again=True)
            await read_everything(one, known)
            with process(home):
                await read_everything(one, known)

    asyncio.run(story())


@pytest.mark.parametrize("mode", BOTH)
def test_U3_everything_works_over_http_through_a_killed_daemon(home: Path, mode: str) -> None:
    with open_node(home) as node:
        token = Trust(node._engine, HomePaths(home)).add_token("ops")
    with socket.create_server(("127.0.0.1", 0)) as found:
        place = f"127.0.0.1:{found.getsockname()[1]}"

    async def story() -> None:
        with process(home, "--tcp", place) as up:
            async with asyncio.timeout(PATIENCE_S), agent(over_http(up.tcp, token), mode) as one:
                known = await learn(one)
                await check_whole(one, known)
                await use_tools(one, known, again=False)
                await read_everything(one, known)
            up.kill()
        with process(home, "--tcp", place) as up:
            async with asyncio.timeout(PATIENCE_S), agent(over_http(up.tcp, token), mode) as one:
                await use_tools(one, known, again=True)
                await read_everything(one, known)

    asyncio.run(story())
