"""Resources, their updates, completion and prompts."""

from __future__ import annotations

from pathlib import Path

import mcp_types as types
import pytest
from mcp import MCPError

import holdfast
from holdfast.apps.mcp import feed
from holdfast.apps.mcp.places import ResourcePlace, place_at
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import MCP_COMPLETIONS_MAX
from support import envelopes as e
from support.agents import BOTH, Agent, drive, in_process
from support.daemon import make_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


def test_U3_a_place_has_one_name_and_is_found_by_each_way_to_write_it() -> None:
    place = ResourcePlace("team", "state", "a b/ä%")
    assert place.uri == "holdfast://team/state/a%20b%2F%C3%A4%25"
    assert place_at(place.uri) == place_at("holdfast://team/state/a%20b/ä%25") == place
    assert place_at("holdfast://team/tasks") == ResourcePlace("team", "tasks")
    for odd in (
        "https://team/state/k",
        "holdfast://team",
        "holdfast://team/secrets",
        "holdfast://team/inbox/1",
        "holdfast://te am/state/k",
        "holdfast://team/state/%ff",
        "",
    ):
        with pytest.raises(BadInput):
            place_at(odd)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_resources_are_listed_and_read(home: Path, mode: str) -> None:
    with holdfast.open(home) as node:
        team = node.mesh("team")
        team.state.set("a/ä", {"n": 1})
        task = team.tasks.create("paint").task
        team.files.share("t.txt", b"text")
        team.files.share("raw", b"\xff")

    async def story(agent: Agent) -> None:
        client = agent.client
        listed = (await client.list_resources()).resources
        assert {one.uri.rpartition("/")[2] for one in listed} == {
            *("state", "tasks", "conflicts", "inbox", "files"),
        }
        for one in listed:
            (found,) = (await client.read_resource(one.uri)).contents
            assert isinstance(found, types.TextResourceContents)
        templates = (await client.list_resource_templates()).resource_templates
        assert "holdfast://{mesh}/state/{key}" in [one.uri_template for one in templates]

        async def text(uri: str) -> str:
            (found,) = (await client.read_resource(uri)).contents
            assert isinstance(found, types.TextResourceContents)
            return found.text

        assert '"value":{"n":1}' in await text("holdfast://team/state/a%2F%C3%A4")
        assert "paint" in await text(f"holdfast://team/tasks/{task}")
        assert await text("holdfast://team/files/t.txt") == "text"
        (raw,) = (await client.read_resource("holdfast://team/files/raw")).contents
        assert isinstance(raw, types.BlobResourceContents)
        assert raw.blob == "/w=="
        for uri, code in (
            ("holdfast://team/state/no", "unknown_key"),
            ("holdfast://none/tasks", "unknown_mesh"),
            ("holdfast://team/files/no", "unknown_file"),
            ("file:///etc/passwd", "bad_input"),
        ):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(uri)
            assert caught.value.error.data["error"]["code"] == code

    drive(in_process(home), story, mode)


def test_U3_many_meshes_are_listed_page_by_page(tmp_path: Path) -> None:
    slugs = [f"m{number:02}" for number in range(60)]
    home = make_home(tmp_path / "home", "ana", *slugs)

    async def story(agent: Agent) -> None:
        first = await agent.client.list_resources()
        rest = await agent.client.list_resources(cursor=first.next_cursor)
        named = {one.name.partition("/")[0] for one in (*first.resources, *rest.resources)}
        assert (sorted(named), rest.next_cursor) == (slugs, None)
        error = await agent.fails("state_get")
        assert "several meshes" in error["message"]

    drive(in_process(home), story)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_agents_are_told_of_what_changes_by_any_process(home: Path, mode: str) -> None:
    key, tasks = "holdfast://team/state/a/b", "holdfast://team/tasks"
    conflicts = "holdfast://team/conflicts"

    async def story(agent: Agent) -> None:
        with holdfast.open(home) as node:
            team = node.mesh("team")
            await agent.follow(mode, key, tasks, conflicts)
            team.state.set("other", 1)
            team.state.set("a/b", 1)
            assert await agent.told.get() == key
            team.tasks.create("paint")
            assert await agent.told.get() == tasks
            node.apply([e.state_set("a/b", "theirs", lamport=50, origin="bob")])
            assert {await agent.told.get(), await agent.told.get()} == {key, conflicts}
            (row,) = node.conflicts()
            await agent.call("conflict", action="dismiss", number=row.number)
            assert await agent.told.get() == conflicts
            if mode == "legacy":
                await agent.unfollow(key)
                team.state.set("a/b", 3)
                team.tasks.create("dig")
                heard = [await agent.told.get()]
                if heard == [conflicts]:  # the dismissed one, when the feed looks again
                    heard = [await agent.told.get()]
                assert heard == [tasks], "it does not hear of the key any more"
            assert agent.told.empty()

    drive(in_process(home), story, mode)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_what_cannot_be_followed_is_refused(
    home: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MCP_SUBSCRIPTIONS_MAX", 2)

    async def story(agent: Agent) -> None:
        for uri, code in (("holdfast://none/tasks", "unknown_mesh"), ("x", "bad_input")):
            with pytest.raises(MCPError) as caught:
                await agent.follow(mode, uri)
            assert caught.value.error.data["error"]["code"] == code
        with pytest.raises(MCPError) as caught:
            await agent.follow(mode, *(f"holdfast://team/state/{n}" for n in range(3)))
        assert caught.value.error.data["error"]["code"] == "too_many"

    drive(in_process(home), story, mode)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_arguments_are_completed_from_what_is_there(home: Path, mode: str) -> None:
    with holdfast.open(home) as node:
        team = node.mesh("team")
        for number in range(MCP_COMPLETIONS_MAX + 1):
            team.state.set(f"k/{number:03}", 1)
        team.state.set("other", 1)
        team.files.share("a.txt", b"a")
        node.apply([e.state_set("x", 1, lamport=500, origin="bob")])

    async def story(agent: Agent) -> None:
        state = types.ResourceTemplateReference(uri="holdfast://{mesh}/state/{key}")
        hand_over = types.PromptReference(name="hand_over")

        async def complete(ref: object, name: str, begun: str) -> types.Completion:
            found = await agent.client.complete(
                ref,  # type: ignore[arg-type]
                {"name": name, "value": begun},
                context_arguments={"mesh": "team"},
            )
            return found.completion

        assert (await complete(state, "mesh", "t")).values == ["team"]
        many = await complete(state, "key", "k/")
        assert (len(many.values), many.has_more) == (MCP_COMPLETIONS_MAX, True)
        assert (await complete(state, "key", "o")).values == ["other"]
        assert (await complete(state, "path", "a")).values == ["a.txt"]
        assert (await complete(state, "nothing", "")).values == []
        assert (await complete(hand_over, "to", "")).values == ["bob"]

    drive(in_process(home), story, mode)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_prompts_bring_what_is_known(home: Path, mode: str) -> None:
    with holdfast.open(home) as node:
        team = node.mesh("team")
        team.tasks.claim(team.tasks.create("paint the fence").task)
        team.state.set("k", "ours")
        node.apply([e.state_set("k", "theirs", lamport=9, origin="bob")])

    async def story(agent: Agent) -> None:
        client = agent.client
        names = [one.name for one in (await client.list_prompts()).prompts]
        assert names == ["standup", "resolve_conflicts", "hand_over"]

        async def text(name: str, **arguments: str) -> str:
            (message,) = (await client.get_prompt(name, arguments)).messages
            assert isinstance(message.content, types.TextContent)
            return message.content.text

        assert "paint the fence" in await text("standup")
        assert '"value": "ours"' in await text("resolve_conflicts", mesh="team")
        handed = await text("hand_over", to="bob")
        assert "tell bob" in handed
        assert "paint the fence" in handed
        for name, arguments in (("no", {}), ("standup", {"odd": "1"}), ("standup", {"mesh": "x"})):
            with pytest.raises(MCPError) as caught:
                await client.get_prompt(name, arguments)
            assert caught.value.error.data["error"]["hint"]

    drive(in_process(home), story, mode)
