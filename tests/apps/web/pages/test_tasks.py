"""The board of tasks in the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.console import ConsoleInThread, console_up
from support.daemon import make_home


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    with console_up(make_home(tmp_path_factory.mktemp("tasks") / "home")) as found:
        yield found


def test_U5_a_task_goes_over_the_board(console: ConsoleInThread) -> None:
    browser, board = console.browser(), "/meshes/team/tasks"
    made = browser.done("task.create", at=board, mesh="team", title="<u>paint")
    assert "&lt;u&gt;paint" in made.text
    (task,) = console.up.daemon.api.node.mesh("team").tasks.list()
    turn = {"at": board, "mesh": "team", "task": task.task}
    assert 'data-to="claimed"' in made.text
    claimed = browser.done("task.claim", **turn)
    assert f"holdfast task claim {task.task} --mesh team" in claimed.text
    assert 'data-to="completed"' in claimed.text
    assert 'data-to="claimed"' not in claimed.text
    assert "Others can claim it" in browser.done("task.release", **turn).text
    sure = browser.done("task.cancel", **turn)
    assert "cannot be opened again" in sure.text
    ended = browser.done("task.cancel", **turn, sure="yes")
    assert "data-to=" not in ended.text, "nothing more can be done with it"
    assert browser.done("task.claim", **turn).status == 409, "it says so, and stays"
    one = browser.get(f"{board}/{task.task}").text
    assert "cancelled" in one
    assert one.count("<tr>") == 5, "the head and four turns"


def test_U5_an_empty_title_is_asked_for_again(console: ConsoleInThread) -> None:
    browser = console.browser()
    refused = browser.done("task.create", at="/meshes/team/tasks", mesh="team", title="")
    assert refused.status == 400
    assert "title is missing" in refused.text
