"""The first page says how the node is, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.apps.web import words
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
    assert [one.link for one in found[1:]] == [
        "/topology",
        "/outbox?state=dead",
        "/inbox?unread=yes",
    ]
    assert health.verdict(found, "ana") == ("bad", "ana needs you")


def test_U5_conflicts_are_counted_as_people_do() -> None:
    for items, more, said in (
        ([1], None, "1 conflict is open."),
        ([1], "x", "1 or more conflicts are open."),
        ([1, 2], None, "2 conflicts are open."),
    ):
        (one,) = health.findings(known(conflicts={"items": items, "next": more}))
        assert (one.text, one.link) == (said, "/conflicts")


def test_U5_the_latest_changes_say_what_they_say(console: ConsoleInThread) -> None:
    mesh = console.up.daemon.api.node.mesh("team")
    task = mesh.tasks.create("Paint the <i>fence")
    mesh.state.set("colour", {"is": "blue"})
    mesh.facts.append("pump", "pressure", 4.5)
    text = console.browser().get("/").text
    latest = text.partition("Latest changes")[2]
    for said in ("Paint the &lt;i&gt;fence", "&#34;blue&#34;", "pressure 4.5"):
        assert said in latest, said
    assert task.task not in latest, "a task is known by its title"


def test_U5_next_to_no_time_is_not_said_to_be_none() -> None:
    assert [words.took(ms) for ms in (0.0, 0.049, 0.05, 12.34)] == [
        *("under 0.1 ms", "under 0.1 ms", "0.1 ms", "12.3 ms"),
    ]


def test_U5_what_a_caller_may_not_see_is_no_trouble() -> None:
    assert health.findings(known()) == []
    assert health.verdict([], "ana")[0] == "good"
