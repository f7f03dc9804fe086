"""Time travel in the console: any moment against any other, and bringing a value back."""

from __future__ import annotations

import html
import time
from collections.abc import Iterator

import pytest

from holdfast.rules.limits import (
    BATCH_CHANGES_MAX,
    CONSOLE_DIFF_LINES,
    CONSOLE_LOOK_STEP,
    CONSOLE_ROWS,
)
from support.console import Browser, ConsoleInThread, console_up
from support.daemon import make_home
from support.waiting import until

PAST = "/meshes/team/past"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    home = make_home(tmp_path_factory.mktemp("past") / "home", "ana", "team", "wide")
    with console_up(home) as found:
        state = found.up.daemon.api.node.mesh("team").state
        state.set("plan", {"status": "green", "by": "ana"})
        state.set("gone", "was here")
        state.set("calm", 1)
        yield found


def head(console: ConsoleInThread) -> int:
    return console.up.daemon.api.node.log.head().offset


def marks(page: str) -> dict[str, str]:
    """What the page says became of each key."""
    found = {}
    for row in page.split("<tr>")[2:]:
        key = row.partition("</a>")[0].rpartition(">")[2]
        found[html.unescape(key)] = row.partition('class="mark ')[2].partition('"')[0]
    return found


@pytest.fixture(scope="module")
def then(console: ConsoleInThread) -> dict[str, str]:
    """A moment, in all three ways, after which something changed."""
    node = console.up.daemon.api.node
    state, offset = node.mesh("team").state, head(console)
    at_ms = console.up.daemon.api.engine.ctx.now_ms() + 1
    lamport = node.mesh("team").clock().lamport
    until(lambda: console.up.daemon.api.engine.ctx.now_ms() > at_ms)
    state.set("plan", {"status": "red", "by": "ana"})
    state.delete("gone")
    state.set("new<script>", "<script>")
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_ms / 1000)) + f".{at_ms % 1000:03}Z"
    return {"offset": f"offset:{offset}", "stamp": f"lamport:{lamport}", "time": iso}


@pytest.mark.parametrize("by", ["offset", "stamp", "time"])
def test_U5_what_is_other_since_a_moment_is_shown(
    console: ConsoleInThread, then: dict[str, str], by: str
) -> None:
    browser = console.browser()
    page = browser.get(f"{PAST}?at={then[by]}").text
    assert marks(page) == {"gone": "removed", "new<script>": "added", "plan": "changed"}
    assert "<script>" not in page.partition("<main")[2]
    every = browser.get(f"{PAST}?at={then[by]}&show=all").text
    assert marks(every)["calm"] == "same"
    assert "Nothing is other" in browser.get(f"{PAST}?at={then[by]}&than={then[by]}").text
    found = marks(browser.get(f"{PAST}?at={then[by]}&prefix=plan").text)
    assert found == {"plan": "changed"}


@pytest.mark.parametrize("by", ["offset", "stamp", "time"])
def test_U5_the_slider_says_the_same_as_the_text(
    console: ConsoleInThread, then: dict[str, str], by: str
) -> None:
    browser, page = console.browser(), ""
    page = browser.get(f"{PAST}?by={by}").text
    end = page.partition('name="end" value="')[2].partition('"')[0]
    first = page.partition('name="slide_at" min="')[2].partition('"')[0]
    assert 0 < int(first) <= int(end)
    number = then[by].partition(":")[2]
    if by != "time":
        slid = f"{PAST}?by={by}&end={end}&slide_at={number}&slide_than={end}"
        assert marks(browser.get(slid).text) == marks(browser.get(f"{PAST}?at={then[by]}").text)
    at_end = browser.get(f"{PAST}?by={by}&end={end}&slide_at={end}&slide_than={end}").text
    assert "Nothing is other" in at_end


def test_U5_a_value_comes_back_as_a_new_write(
    console: ConsoleInThread, then: dict[str, str]
) -> None:
    state, browser = console.up.daemon.api.node.mesh("team").state, console.browser()
    at = f"{PAST}/key?key=plan&at={then['offset']}"
    page = browser.get(at).text
    assert "&#34;status&#34;: &#34;green&#34;" in page
    assert 'class="line gone"' in page
    assert "holdfast state get plan --as-of" in page
    form = hidden(page, "state.restore")
    assert form["value"] == '{"status":"green","by":"ana"}'
    moved = browser.done("state.restore", at=at, **{**form, "expect": "1@ana"})
    assert moved.status == 409
    assert state.get("plan") == {"status": "red", "by": "ana"}
    done = browser.done("state.restore", at=at, **form)
    assert done.status == 200, done.text
    assert state.get("plan") == {"status": "green", "by": "ana"}
    assert "The key is now as it was then" in done.text
    assert marks(browser.get(f"{PAST}?at={then['offset']}").text)["plan"] == "rewritten"
    back = hidden(browser.get(f"{PAST}/key?key=gone&at={then['offset']}").text, "state.restore")
    assert back["expect"] == "absent"
    assert browser.done("state.restore", at=at, **back).status == 200
    assert state.get("gone") == "was here"
    fresh = browser.get(f"{PAST}/key?key=new%3Cscript%3E&at={then['offset']}").text
    assert "it is deleted" in fresh
    assert "/do/state.delete" in fresh


def hidden(page: str, action: str) -> dict[str, str]:
    """The hidden fields of a form."""
    form = page.partition(f'action="/do/{action}"')[2].partition("</form>")[0]
    found = {}
    for part in form.split('<input type="hidden" name="')[1:]:
        name, _, rest = part.partition('" value="')
        found[name] = html.unescape(rest.partition('"')[0])
    del found["form_token"], found["at"]
    return found


def test_U5_many_keys_are_compared_a_page_at_a_time(console: ConsoleInThread) -> None:
    mesh, browser = console.up.daemon.api.node.mesh("wide"), console.browser()
    total = CONSOLE_LOOK_STEP + 400
    for begin in range(0, total, BATCH_CHANGES_MAX):
        with mesh.batch() as batch:
            for number in range(begin, min(total, begin + BATCH_CHANGES_MAX)):
                batch.state.set(f"k/{number:05}", number)
    before = head(console)
    with mesh.batch() as batch:
        for number in (*range(CONSOLE_ROWS + 3), total - 1):
            batch.state.set(f"k/{number:05}", "new")
    for begin in range(0, 600, 200):  # now fewer of the old keys stand on a page than then
        with mesh.batch() as batch:
            for number in range(begin, begin + 200):
                batch.state.set(f"k/{number:05}+", "added")
    seen: dict[str, str] = {}
    at, pages = f"/meshes/wide/past?at=offset:{before}", 0
    while at:
        page = browser.get(at).text
        found = marks(page)
        assert not seen.keys() & found.keys()
        seen |= found
        pages += 1
        link = page.partition('rel="next"')
        at = html.unescape(link[0].rpartition('href="')[2].partition('"')[0]) if link[1] else ""
    changed = {key for key, mark in seen.items() if mark == "changed"}
    assert len(changed) == CONSOLE_ROWS + 4
    assert len(seen) == len(changed) + 600
    assert set(seen.values()) == {"changed", "added"}
    assert 7 < pages < 12


def test_U5_long_values_are_not_compared_line_by_line(console: ConsoleInThread) -> None:
    state = console.up.daemon.api.node.mesh("team").state
    state.set("long", "a\n" * CONSOLE_DIFF_LINES)
    before = head(console)
    state.set("long", "a\n" * CONSOLE_DIFF_LINES + "b")
    page = console.browser().get(f"{PAST}/key?key=long&at=offset:{before}").text
    assert "What is other" not in page
    assert page.count("<pre") == 2


@pytest.mark.parametrize(
    "at", ["offset:x", "lamport:-1", "1969-01-01", "yesterday", "offset:" + "9" * 40]
)
def test_U5_what_is_no_moment_is_refused_with_a_hint(console: ConsoleInThread, at: str) -> None:
    browser: Browser = console.browser()
    page = browser.get(f"{PAST}?at={at}")
    assert page.status == 400
    assert "no moment" in page.text
    assert browser.get(f"{PAST}?by=moon").status == 400
