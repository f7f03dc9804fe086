"""The order of a mesh with voters, and its entities, in the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from support.console import ConsoleInThread, console_up
from support.daemon import UnixConnection, make_home


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    """The only voter of its mesh."""
    home = make_home(tmp_path_factory.mktemp("order") / "home", "ana", "team", "plain")
    with console_up(home) as found:
        line = UnixConnection(found.up.unix.removeprefix("unix:"))
        line.request("POST", "/v1/meshes/team/quorum/init", body=b"{}")
        assert line.getresponse().status == 201
        line.close()
        yield found


def test_U5_a_mesh_without_voters_says_so(console: ConsoleInThread) -> None:
    text = console.browser().get("/meshes/plain/order").text
    assert "No voters decide here" in text
    assert "holdfast quorum init plain" in text


def test_U5_who_decides_what_stands_and_who_holds_what_is_shown(console: ConsoleInThread) -> None:
    browser = console.browser()
    with holdfast.connect(console.up.unix) as node:
        team = node.mesh("team")
        team.entities.put("mission", "<i>one", {"title": "<script>"})
        team.entities.put("mission", "<i>one", {"title": "again"})
    page = browser.get("/meshes/team/order").text
    assert "This node is" in page
    assert "coordinator" in page
    assert "Nobody holds a lease" in page
    assert "every strong write of this node is decided" in page
    listed = browser.get("/meshes/team/entities?type=mission").text
    assert "&lt;i&gt;one" in listed
    assert "<i>one" not in listed
    one = browser.get("/meshes/team/entities/mission/%3Ci%3Eone").text
    assert "again" in one
    assert one.count("<tr>") == 3, "the head and two revisions"
    assert browser.get("/meshes/team/entities?type=nothing").status == 422


def test_U5_waiting_writes_rest_and_go_on_by_a_button(console: ConsoleInThread) -> None:
    browser = console.browser()
    paused = browser.done("quorum.pause", at="/meshes/team/order", mesh="team")
    assert "Go on with waiting writes" in paused.text
    assert "holdfast quorum pause team" in paused.text
    resumed = browser.done("quorum.resume", at="/meshes/team/order", mesh="team")
    assert "Let waiting writes rest" in resumed.text
