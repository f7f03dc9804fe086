"""What each tool does, in both protocols. The SDK's client compares each answer with its schema."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

import holdfast
from holdfast.apps.mcp.tools.all import ALL, BY_NAME
from holdfast.node.core.intake import Intake
from holdfast.rules.limits import MCP_ANSWER_BYTES_MAX, MCP_FILE_BYTES_MAX, MCP_ROWS_MAX
from support import envelopes as e
from support.agents import BOTH, Agent, drive, in_process
from support.daemon import make_home
from support.nodes import share, store_of
from support.stores import known_member


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


@pytest.mark.parametrize("mode", BOTH)
def test_U3_tools_say_what_they_do_and_what_they_take(home: Path, mode: str) -> None:
    async def story(agent: Agent) -> None:
        tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
        assert list(tools) == [tool.name for tool in ALL]
        for name, tool in tools.items():
            hints = tool.annotations
            assert hints is not None
            assert tool.description
            assert tool.output_schema is not None
            assert "warnings" in tool.output_schema["properties"]
            kind = BY_NAME[name].kind
            assert hints.read_only_hint == (kind == "reads")
            assert hints.destructive_hint == (kind == "removes")
            if kind != "reads":
                assert "id" in tool.input_schema["properties"], f"{name} is written once by an id"
            assert hints.idempotent_hint
        assert {name for name, one in BY_NAME.items() if one.kind == "removes"} == {
            *("state_delete", "forget"),
        }
        said = agent.client.instructions or ""
        assert "Call `info` first" in said

    drive(in_process(home), story, mode)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_state_is_written_read_and_deleted(home: Path, mode: str) -> None:
    async def story(agent: Agent) -> None:
        first = await agent.call("state_set", key="build/main", value={"ok": True})
        assert (first["stamp"], first["outcome"], first["mesh"]) == ("1@ana", "applied", "team")
        await agent.call("state_set", key="build/dev", value=None, expect="absent")
        found = await agent.call("state_get", prefix="build/", limit=1)
        assert ([one["key"] for one in found["items"]], found["next"]) == (
            *(["build/dev"], "build/dev"),
        )
        rest = await agent.call("state_get", prefix="build/", after=found["next"])
        assert ([one["value"] for one in rest["items"]], rest["next"]) == ([{"ok": True}], None)
        moved = await agent.fails("state_set", key="build/main", value=2, expect="9@bob")
        assert moved["code"] == "stamp_moved"
        await agent.call("state_set", key="build/main", value=2, expect=first["stamp"])
        gone = await agent.call("state_delete", key="build/main")
        assert gone["stamp"] == "4@ana"
        assert (await agent.call("state_get", key="build/main"))["items"] == []
        past = await agent.call("state_get", key="build/main", as_of={"offset": 3})
        assert [one["value"] for one in past["items"]] == [2]
        early = await agent.call("state_get", prefix="build/", as_of={"at": "2001-01-01T00:00Z"})
        assert early["items"] == []

    drive(in_process(home), story, mode)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_what_is_remembered_is_recalled_and_forgotten(home: Path, mode: str) -> None:
    async def story(agent: Agent) -> None:
        await agent.call("remember", key="tea", value="no milk", tags=["taste"])
        await agent.call("remember", key="town", value="Oslo")
        assert [one["key"] for one in (await agent.call("recall"))["items"]] == ["tea", "town"]
        tagged = await agent.call("recall", tag="taste", scope="all")
        assert [(one["peer"], one["value"]) for one in tagged["items"]] == [("ana", "no milk")]
        page = await agent.call("recall", limit=1)
        rest = await agent.call("recall", after=page["next"])
        assert [one["key"] for one in rest["items"]] == ["town"]
        await agent.call("forget", key="tea")
        assert (await agent.call("recall", key="tea"))["items"] == []
        assert (await agent.fails("recall", scope="everybody"))["code"] == "bad_input"
        assert (await agent.fails("recall", after="no place"))["code"] == "bad_input"

    drive(in_process(home), story, mode)


def test_U3_vectors_are_found_by_an_embedding_and_its_model(home: Path) -> None:
    model = {"provider": "p", "name": "m"}

    async def story(agent: Agent) -> None:
        for key, numbers in (("boat", [1.0, 0.0]), ("tree", [0.0, 1.0])):
            await agent.call(
                *("vector_store",), key=key, embedding=numbers, model=model, text=f"a {key}"
            )
        found = await agent.call("vector_search", embedding=[0.9, 0.1], model=model, limit=1)
        assert [(one["key"], one["text"]) for one in found["items"]] == [("boat", "a boat")]
        for odd in (
            {},
            {"embedding": [1.0]},
            {"text": "a boat", "model": model},
            {"embedding": [1.0], "model": {**model, "dim": 2}},
        ):
            error = await agent.fails("vector_search", **odd)
            assert error["code"] in ("bad_input", "bad_vector"), odd

    drive(in_process(home), story)


def test_U3_a_text_is_found_by_its_meaning(home: Path) -> None:
    async def story(agent: Agent) -> None:
        for key, text in (("a", "the ship left the harbour"), ("b", "bread with butter")):
            await agent.call("vector_store", key=key, text=text, metadata={"n": key})
        found = await agent.call("vector_search", text="a small boat at sea", limit=1)
        assert [(one["key"], one["metadata"]) for one in found["items"]] == [("a", {"n": "a"})]

    drive(in_process(home), story)


def test_U3_files_are_shared_and_read_piece_by_piece(home: Path) -> None:
    # A letter of two bytes stands where the first piece ends.
    long = "x" * (MCP_FILE_BYTES_MAX - 1) + "é" + "end"

    async def story(agent: Agent) -> None:
        done = await agent.call("file", action="share", path="a/b.txt", content=long)
        assert done["duplicate"] is False
        first = await agent.call("file", action="read", path="a/b.txt")
        assert first["next_byte"] == MCP_FILE_BYTES_MAX - 1
        rest = await agent.call("file", action="read", path="a/b.txt", from_byte=first["next_byte"])
        assert (first["text"] + rest["text"], rest["next_byte"]) == (long, None)
        raw = b"\0\xff" * 3
        await agent.call(
            *("file",), action="share", path="raw", content_base64=b64encode(raw).decode()
        )
        found = await agent.call("file", action="read", path="raw")
        assert (found["text"], found["base64"]) == (None, b64encode(raw).decode())
        listed = await agent.call("file", action="list", limit=1)
        assert [one["path"] for one in listed["files"]] == ["a/b.txt"]
        rest = await agent.call("file", action="list", after=listed["next"])
        assert [one["path"] for one in rest["files"]] == ["raw"]
        for odd in (
            {"action": "read"},
            {"action": "share", "path": "x"},
            {"action": "share", "path": "x", "content": "a", "content_base64": "YQ=="},
            {"action": "share", "path": "x", "content_base64": "§"},
            {"action": "share", "path": "../x", "content": "a"},
            {"action": "list", "after": "no place"},
        ):
            assert (await agent.fails("file", **odd))["code"] in ("bad_input", "bad_path"), odd
        assert (await agent.fails("file", action="read", path="no"))["code"] == "unknown_file"

    drive(in_process(home), story)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_a_task_is_created_claimed_and_completed(home: Path, mode: str) -> None:
    async def story(agent: Agent) -> None:
        made = await agent.call("task", action="create", title="paint", id="paint the fence")
        (task,) = made["tasks"]
        again = await agent.call("task", action="create", title="paint", id="paint the fence")
        assert again["tasks"][0]["task"] == task["task"], "the same id is one task"
        for action, status in (
            ("claim", "claimed"),
            ("release", "open"),
            ("claim", "claimed"),
            ("complete", "completed"),
        ):
            found = await agent.call("task", action=action, task=task["task"])
            assert found["tasks"][0]["status"] == status
        ended = await agent.fails("task", action="cancel", task=task["task"])
        assert ended["code"] == "task_ended"
        assert (await agent.call("task", action="list", status="open"))["tasks"] == []
        one = await agent.call("task", action="list", task=task["task"])
        assert [row["title"] for row in one["tasks"]] == ["paint"]
        other = await agent.call("task", action="create", title="dig")
        page = await agent.call("task", action="list", limit=1)
        rest = await agent.call("task", action="list", after=page["next"])
        listed = {row["task"] for row in (*page["tasks"], *rest["tasks"])}
        assert listed == {task["task"], other["tasks"][0]["task"]}
        assert (await agent.fails("task", action="claim"))["code"] == "bad_input"
        assert (await agent.fails("task", action="create"))["code"] == "bad_input"

    drive(in_process(home), story, mode)


def test_U3_messages_are_sent_read_and_answered(home: Path) -> None:
    with holdfast.open(home) as node:
        share(node)
        known = [known_member("b", name="bob")]
        store_of(node).write(lambda tx: tx.known_members_put("team", known))
        raw = e.message_send("topic", "news", b"we open at nine", lamport=3)
        work = Intake(node._engine.ctx, [raw], delivered={raw: b"B" * 16})
        store_of(node).write(work)

    async def story(agent: Agent) -> None:
        sent = await agent.call("send", topic="news", content="hello", id="greeting")
        assert (sent["to"], sent["state"], sent["duplicate"]) == ("topic:news", "pending", False)
        again = await agent.call("send", topic="news", content="hello", id="greeting")
        assert (again["id"], again["duplicate"]) == (sent["id"], True)
        assert (await agent.call("info"))["unread"] == 1
        (listed,) = (await agent.call("inbox"))["messages"]
        assert (listed["sender"], listed["read"]) == ("bob", False)
        found = await agent.call("inbox", action="read", message=listed["id"])
        assert found["messages"][0]["text"] == "we open at nine"
        assert (await agent.call("inbox"))["messages"] == []
        done = await agent.call("inbox", action="reply", message=listed["id"], content="thanks")
        assert done["sent"]["to"].startswith("dm:")
        assert (await agent.fails("send", content="to nobody"))["code"] == "bad_input"
        assert (await agent.fails("inbox", action="read"))["code"] == "bad_input"
        assert (await agent.fails("inbox", action="reply", message=listed["id"]))["code"] == (
            "bad_input"
        )

    drive(in_process(home), story)


@pytest.mark.parametrize("mode", BOTH)
def test_U3_a_conflict_is_shown_with_both_sides_and_settled(home: Path, mode: str) -> None:
    with holdfast.open(home) as node:
        for key in ("a", "b"):
            node.mesh("team").state.set(key, "ours")
        for lamport, key in enumerate(("a", "b"), 9):
            node.apply([e.state_set(key, "theirs", lamport=lamport, origin="bob")])

    async def story(agent: Agent) -> None:
        rows = (await agent.call("conflict"))["conflicts"]
        assert [(row["key"], row["lost"]["value"], row["now"]) for row in rows] == [
            ("a", "ours", "theirs"),
            ("b", "ours", "theirs"),
        ]
        page = await agent.call("conflict", limit=1)
        assert page["next"] == rows[0]["number"]
        done = await agent.call("conflict", action="restore", number=rows[0]["number"])
        assert "was restored" in done["done"]
        await agent.call("conflict", action="dismiss", number=rows[1]["number"])
        assert (await agent.call("conflict"))["conflicts"] == []
        assert (await agent.call("state_get", key="a"))["items"][0]["value"] == "ours"
        settled = await agent.call("conflict", open_only=False)
        assert len(settled["conflicts"]) == 2
        assert (await agent.fails("conflict", action="dismiss"))["code"] == "bad_input"
        assert (await agent.fails("conflict", action="restore", number=99))["code"] == (
            "unknown_conflict"
        )

    drive(in_process(home), story, mode)


def test_U3_a_claim_that_lost_is_told_once_as_a_warning(home: Path) -> None:
    with holdfast.open(home) as node:
        team = node.mesh("team")
        task = team.tasks.create("paint").task
        team.tasks.claim(task)
        node.apply([e.task_claim(task, lamport=1, origin="bob")])

    async def story(agent: Agent) -> None:
        warnings = (await agent.call("info"))["warnings"]
        assert [one["type"] for one in warnings] == ["task_claim_superseded"]
        assert "lost against that of bob" in warnings[0]["message"]
        assert (await agent.call("info"))["warnings"] == []

    drive(in_process(home), story)


def test_U3_a_list_is_cut_where_an_answer_is_full_and_goes_on_there(home: Path) -> None:
    value = "x" * (MCP_ANSWER_BYTES_MAX // 3)
    with holdfast.open(home) as node:
        for number in range(4):
            node.mesh("team").state.set(f"k{number}", value)
        node.mesh("team").state.set("whole", "x" * (MCP_ANSWER_BYTES_MAX + 1))

    async def story(agent: Agent) -> None:
        found = await agent.call("state_get", prefix="k")
        assert [one["key"] for one in found["items"]] == ["k0", "k1"]
        rest = await agent.call("state_get", prefix="k", after=found["next"])
        assert [one["key"] for one in rest["items"]] == ["k2", "k3"]
        assert (await agent.fails("state_get", key="whole"))["code"] == "over_limit"
        many = await agent.fails("state_get", limit=MCP_ROWS_MAX + 1)
        assert many["code"] == "bad_input"
        assert str(MCP_ROWS_MAX) in many["message"]

    drive(in_process(home), story)
