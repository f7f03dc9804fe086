"""The first page says how the node is, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.apps.web.pages import health
from support.console import ConsoleInThread, console_up
from support.daemon import make_home


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    with console_up(make_home(tmp_path_factory.mktemp("overview") / "home")) as found:
        yield found


def known(**changed: Any) -> dict[str, Any]:
    """A node that is well, but for what is given."""
    log = {"head": 3, "first": 1, "epoch": 1}
    nothing = dict.fromkeys(("status", "links", "brokers", "consumers", "conflicts"))
    return {**nothing, "log": log, "meshes": [{"slug": "team"}], **changed}


def test_U5_the_first_page_names_the_next_command(console: ConsoleInThread) -> None:
    assert "holdfast state set KEY VALUE" in console.browser().get("/").text
    console.up.daemon.api.node.mesh("team").state.set("<b>key</b>", 1)
    text = console.browser().get("/").text
    assert "ana is well" in text
    assert "&lt;b&gt;key&lt;/b&gt;" in text
    assert "<b>key" not in text


def test_U5_what_is_wrong_is_said_first_with_what_helps() -> None:
    problem = {"code": "unreachable", "message": "nobody answers", "hint": "look", "at": 1}
    mesh = {"mesh": "team", "trouble": None, "dead": 2, "state": "active"}
    broker = {
        **{"broker": "hub", "state": "reconnecting", "attempts": 3, "last_error": problem},
        "meshes": [mesh],
    }
    disk = {"level": "full", "fill": 1.0, "room": 0}
    status = {"disk": disk, "outbox": [], "unread": 1}
    found = health.findings(known(status=status, brokers={"brokers": [broker]}))
    assert [one.tone for one in found] == ["bad", "warn", "warn", "calm"]
    assert "disk is full" in found[0].text
    assert "nobody answers" in found[1].text
    assert found[2].command == "holdfast outbox list --failed"
    assert health.verdict(found, "ana") == ("bad", "ana needs you")


def test_U5_what_a_caller_may_not_see_is_no_trouble() -> None:
    assert health.findings(known()) == []
    assert health.verdict([], "ana")[0] == "good"
