"""Nothing is removed before a person has said yes, in both protocols and with clients that cannot
ask.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

import holdfast
from holdfast.apps.mcp import asking
from support.agents import BOTH, Agent, Says, drive, in_process
from support.daemon import make_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = make_home(tmp_path / "home")
    with holdfast.open(home) as node:
        node.mesh("team").state.set("k", 1)
    return home


def value(home: Path) -> Any:
    with holdfast.open(home) as node:
        return node.mesh("team").state.get("k")


@pytest.mark.parametrize("mode", BOTH)
def test_U3_a_deletion_happens_after_a_yes(home: Path, mode: str) -> None:
    async def story(agent: Agent) -> None:
        await agent.call("state_delete", key="k", mesh="team")
        assert agent.questions == ["Delete the key 'k' of mesh 'team', for every member?"]

    drive(in_process(home), story, mode)
    assert value(home) is None


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("says", ["decline", "cancel"])
def test_U3_a_declined_deletion_deletes_nothing_whatever_the_agent_claims(
    home: Path, mode: str, says: Says
) -> None:
    async def story(agent: Agent) -> None:
        for confirm in (False, True):
            error = await agent.fails("state_delete", key="k", confirm=confirm)
            assert error["code"] == "not_confirmed"
        assert len(agent.questions) == 2, "the user is asked although the agent says confirm"

    drive(in_process(home), story, mode, says=says)
    assert value(home) == 1


@pytest.mark.parametrize("mode", BOTH)
def test_U3_where_nobody_can_be_asked_the_agent_has_to_say_that_it_has(
    home: Path, mode: str
) -> None:
    async def story(agent: Agent) -> None:
        error = await agent.fails("state_delete", key="k")
        assert error["code"] == "not_confirmed"
        assert "confirm=true" in error["hint"]
        assert value(home) == 1
        await agent.call("state_delete", key="k", confirm=True)

    drive(in_process(home), story, mode, says=None)
    assert value(home) is None


def test_U3_a_yes_to_one_thing_is_none_to_another(home: Path) -> None:
    async def story(agent: Agent) -> None:
        session = agent.client.session
        first = await session.call_tool("state_delete", {"key": "other"}, allow_input_required=True)
        assert isinstance(first, types.InputRequiredResult)
        (name,) = first.input_requests or {}
        answers: types.InputResponses = {name: types.ElicitResult(action="accept")}
        again = await session.call_tool(
            "state_delete", {"key": "k"}, input_responses=answers, allow_input_required=True
        )
        assert isinstance(again, types.InputRequiredResult), "it is another question"

    drive(in_process(home), story)
    assert value(home) == 1


def test_U3_a_person_who_never_answers_is_not_waited_for_for_ever(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MCP_ASKING_MS_MAX", 50)

    async def story(agent: Agent) -> None:
        error = await agent.fails("state_delete", key="k")
        assert error["code"] == "not_confirmed"

    drive(in_process(home), story, "legacy", says="never")
    assert value(home) == 1


@pytest.mark.parametrize("says", ["error", "nonsense"])
def test_U3_what_is_no_answer_is_no_yes_and_no_fault_of_ours(home: Path, says: Says) -> None:
    async def story(agent: Agent) -> None:
        error = await agent.fails("state_delete", key="k", confirm=True)
        assert error["code"] == "not_confirmed"

    drive(in_process(home), story, "legacy", says=says)
    assert value(home) == 1
