"""The state of a mesh in the console: lists of any length, values of any kind, and writing."""

from __future__ import annotations

import html
from collections.abc import Iterator

import pytest

from holdfast.rules.limits import CONSOLE_ROWS, CONSOLE_TREE_DEPTH, CONSOLE_TREE_NODES
from support.console import ConsoleInThread, console_up
from support.daemon import make_home

SCRIPT = "<script>alert(1)</script>"
VALUE = "/meshes/team/value?key="


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    home = make_home(tmp_path_factory.mktemp("state") / "home", "ana", "team", "board")
    with console_up(home) as found:
        yield found


def test_U5_keys_are_listed_a_page_at_a_time_and_found_by_their_beginning(
    console: ConsoleInThread,
) -> None:
    state, browser = console.up.daemon.api.node.mesh("board").state, console.browser()
    assert "Nothing is in the state of this mesh yet" in browser.get("/meshes/board/state").text
    for number in range(CONSOLE_ROWS + 1):
        state.set(f"k/{number:04}", number)
    state.set(f"x{SCRIPT}", SCRIPT)
    first = browser.get("/meshes/board/state").text
    assert "k/0000" in first
    assert f"k/{CONSOLE_ROWS:04}" not in first
    more = html.unescape(first.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0])
    second = browser.get(more).text
    assert f"k/{CONSOLE_ROWS:04}" in second
    assert "k/0000" not in second
    assert "&lt;script&gt;" in second
    assert SCRIPT not in second
    found = browser.get("/meshes/board/state?prefix=x").text
    assert "k/0100" not in found
    assert "No key is like that" in browser.get("/meshes/board/state?prefix=nothing").text


def test_U5_large_values_do_not_keep_a_list_from_being_shown(console: ConsoleInThread) -> None:
    state, browser = console.up.daemon.api.node.mesh("team").state, console.browser()
    for number in range(34):
        state.set(f"large/{number}", "x" * 1_000_000)
    page = browser.get("/meshes/team/state?prefix=large/")
    assert page.status == 200
    assert "More rows" in page.text
    assert len(page.text) < 100_000
    head = console.up.daemon.api.node.log.head().offset
    past = browser.get(f"/meshes/team/past?at=offset:{head}&prefix=large/&show=all")
    assert past.status == 200
    assert "no such past" not in past.text
    assert '"mark same"' in past.text
    assert '"mark removed"' not in past.text
    one = browser.get(f"{VALUE}large/1")
    assert "Show all of it" in one.text
    for number in range(34):
        state.delete(f"large/{number}")


def test_U5_a_value_is_changed_only_while_it_is_what_was_seen(console: ConsoleInThread) -> None:
    state, browser = console.up.daemon.api.node.mesh("team").state, console.browser()
    key = "a/../b c?#%2F"
    at = f"{VALUE}a/../b%20c%3F%23%252F"
    assert "never written, or is deleted" in browser.get(at).text
    form = {"mesh": "team", "key": key}
    made = browser.done("state.set_text", at=at, **form, value="one\r\ntwo", expect="absent")
    assert made.status == 200, made.text
    assert "is written" in made.text
    seen = state.entry(key)
    assert seen is not None
    assert seen.value == "one\ntwo"
    assert "holdfast state set" in made.text
    again = browser.done("state.set_text", at=at, **form, value="mine", expect="absent")
    assert again.status == 409
    assert "mine</textarea>" in again.text, "what was written is not lost"
    assert state.get(key) == "one\ntwo"
    bad = browser.done("state.set", at=at, **form, value="{no", expect=str(seen.stamp))
    assert bad.status == 400
    tree = '{"name": "<b>", "list": [1, {"deep": null}]}'
    changed = browser.done("state.set", at=at, **form, value=tree, expect=str(seen.stamp))
    assert '<details class="branch" open>' in changed.text
    assert "<b>name</b>" in changed.text
    assert "&lt;b&gt;" in changed.text
    stamp = html.escape(str(state.entry(key).stamp))  # type: ignore[union-attr]
    assert changed.text.count(f'name="expect" value="{stamp}"') == 2, "to write and to delete"
    sure = browser.done("state.delete", at=at, **form, expect=str(state.entry(key).stamp))  # type: ignore[union-attr]
    assert "for every member of team?" in sure.text
    assert state.entry(key) is not None
    moved = browser.done("state.delete", at=at, **form, expect="1@ana", sure="yes")
    assert moved.status == 409
    gone = browser.done(
        "state.delete",
        at=at,
        **form,
        expect=str(state.entry(key).stamp),  # type: ignore[union-attr]
        sure="yes",
    )
    assert "brings it back" in gone.text
    assert gone.text.count("/meshes/team/past/key?key=a%2F..%2Fb") == 3, "each of its versions"
    assert state.entry(key) is None


@pytest.mark.parametrize("what", ["broad", "deep"])
def test_U5_a_value_of_too_many_parts_is_shown_as_text(console: ConsoleInThread, what: str) -> None:
    value: object = list(range(CONSOLE_TREE_NODES))
    if what == "deep":
        value = 1
        for _ in range(CONSOLE_TREE_DEPTH):
            value = [value]
    console.up.daemon.api.node.mesh("team").state.set(what, value)
    page = console.browser().get(f"{VALUE}{what}").text
    assert "branch" not in page
    assert "<pre" in page


def test_U5_a_token_that_reads_sees_state_and_no_button(console: ConsoleInThread) -> None:
    console.up.daemon.api.node.mesh("team").state.set("seen", 1)
    browser = console.browser(console.up.daemon.api.trust.add_token("eyes", reads=["*"]))
    assert "seen" in browser.get("/meshes/team/state").text
    page = browser.get(f"{VALUE}seen").text
    assert "/do/state" not in page
    token = browser.get("/").text.partition('name="form_token" value="')[2].partition('"')[0]
    told = {"form_token": token, "mesh": "team", "key": "seen", "value": "2"}
    assert browser.post("/do/state.set", told).status == 403
