"""Conflicts in the console: both sides, one or many at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import envelopes as e
from support.console import ConsoleInThread, console_up
from support.daemon import make_home


@pytest.fixture
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    """Three keys that bob wrote at the same time, with later stamps."""
    with console_up(make_home(tmp_path_factory.mktemp("conflicts") / "home")) as found:
        node = found.up.daemon.api.node
        for number in range(3):
            node.mesh("team").state.set(f"k{number}", f"<i>ours {number}")
        theirs = [
            e.state_set(f"k{number}", f"theirs {number}", lamport=50 + number, seq=1 + number)
            for number in range(3)
        ]
        node.apply(theirs)
        yield found


def numbers(console: ConsoleInThread) -> list[str]:
    return [str(row.number) for row in console.up.daemon.api.node.conflicts()]


def value(console: ConsoleInThread, key: str) -> object:
    return console.up.daemon.api.node.mesh("team").state.get(key)


def test_U5_both_sides_are_shown_and_one_is_chosen(console: ConsoleInThread) -> None:
    browser = console.browser()
    page = browser.get("/conflicts").text
    assert "theirs 0" in page
    assert "&lt;i&gt;ours 0" in page
    first, second, _ = numbers(console)
    restored = browser.done("conflict.restore", at="/conflicts", number=first)
    assert f"holdfast conflict restore {first}" in restored.text
    assert value(console, "k0") == "<i>ours 0"
    asked = browser.done("conflict.dismiss", at="/conflicts", number=second)
    assert "The other version is offered no more." in asked.text
    assert len(numbers(console)) == 2
    browser.done("conflict.dismiss", at="/conflicts", number=second, sure="yes")
    assert value(console, "k1") == "theirs 1"
    assert len(numbers(console)) == 1
    assert "ours 1" in browser.get("/conflicts?settled=yes").text


def test_U5_many_are_settled_at_once_and_what_is_refused_is_told(console: ConsoleInThread) -> None:
    browser = console.browser()
    asked = numbers(console)
    assert browser.do("conflict.dismiss_many", at="/conflicts", number="").status == 400
    chosen = ",".join([*asked, "999"])
    sure = browser.done("conflict.dismiss_many", at="/conflicts", number=chosen)
    assert f'name="number" value="{chosen}"' in sure.text
    assert numbers(console) == asked
    told = browser.done("conflict.dismiss_many", at="/conflicts", number=chosen, sure="yes")
    assert "3 stay as they are" in told.text
    assert "999" in told.text
    assert numbers(console) == []
    all_refused = browser.do("conflict.dismiss_many", at="/conflicts", number="999,998", sure="yes")
    assert all_refused.status == 404


def test_U5_marks_of_a_form_come_together(console: ConsoleInThread) -> None:
    """As a browser sends them: one name several times."""
    browser = console.browser()
    marks = "&".join(f"number={number}" for number in numbers(console))
    body = f"form_token={browser.token()}&at=/conflicts&sure=yes&{marks}".encode()
    kind = {"content-type": "application/x-www-form-urlencoded", "origin": browser.address}
    answer = browser.ask("POST", "/do/conflict.dismiss_many", body=body, headers=kind)
    assert (answer.status, answer.leads_to) == (303, "/conflicts")
    assert numbers(console) == []
