"""The log in the console: filters, pages, and entries that mean harm or are very large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.apps.web.pages import log
from holdfast.rules import limits
from support.console import ConsoleInThread, console_up
from support.daemon import make_home

HARM = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    with console_up(make_home(tmp_path_factory.mktemp("log") / "home")) as found:
        mesh = found.up.daemon.api.node.mesh("team")
        mesh.state.set(HARM, HARM)
        mesh.memory.set("\u202egnp.exe", {HARM: [HARM]})
        mesh.tasks.create(HARM)
        mesh.files.share("notes-2.txt", b"content")
        mesh.state.set("large", "x" * 1_000_000)
        for number in range(limits.CONSOLE_ROWS):
            mesh.state.set(f"many/{number}", number)
        yield found


def test_U5_nothing_that_others_wrote_runs(console: ConsoleInThread) -> None:
    browser = console.browser()
    pages = ["/", "/log?before=6", *(f"/log/{offset}" for offset in range(1, 6))]
    for path in pages:
        text = browser.get(path).text
        assert "<script>alert" not in text, path
        assert "<img" not in text, path
        assert "\u202e" not in text, path
    assert "\\u202e" in browser.get("/log?before=6").text
    assert "&lt;script&gt;alert" in browser.get("/log/1").text
    reflected = browser.get(f"/log?subject={'%3Cscript%3Ealert(1)'}&op=%22%3E%3Cscript%3E").text
    assert "<script>alert" not in reflected
    assert '"><script>' not in reflected


def test_U5_a_large_value_is_cut_with_a_link_to_all_of_it(console: ConsoleInThread) -> None:
    browser = console.browser()
    cut = browser.get("/log/5").text
    assert len(cut) < 20_000
    assert "Show all of it" in cut
    assert len(browser.get("/log/5?whole=yes").text) > 1_000_000
    assert len(browser.get("/log?before=6").text) < 20_000


def test_U5_the_log_is_shown_by_pages_the_newest_first(console: ConsoleInThread) -> None:
    browser = console.browser()
    first = browser.get("/log").text
    assert "many/99" in first
    assert "many/0<" in first
    assert 'href="/log?before=6"' in first
    assert "task.create" in browser.get("/log?before=6").text


def test_U5_a_filter_looks_back_a_bounded_way(
    console: ConsoleInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = console.browser()
    assert "file.share" in browser.get("/log?op=file").text
    found = browser.get("/log?subject=many/1").text
    assert "many/19" in found
    assert "many/2<" not in found
    monkeypatch.setattr(log, "CONSOLE_LOOK_BACK", 20)
    monkeypatch.setattr(log, "CONSOLE_LOOK_STEP", 7)
    assert limits.CONSOLE_LOOK_BACK > 20
    none = browser.get("/log?op=file").text
    assert "No entry is like that." in none
    assert "Looked back as far as offset" in none
    assert "/log?before=" in none


@pytest.mark.parametrize("offset", ["0", "99999999", "-1", "x", "1e3", "9" * 30])
def test_U5_an_entry_that_is_not_there_is_said_to_be(console: ConsoleInThread, offset: str) -> None:
    assert console.browser().get(f"/log/{offset}").status in (404, 409)


def test_U5_a_line_says_what_people_look_for() -> None:
    def said(op: str, **row: Any) -> str:
        return log.said_by({"op": op, **row})

    assert said("state.set", body={"value": "green"}) == "green"
    assert said("task.create", body={"title": "paint", "description": "the fence"}) == "paint"
    assert said("fact.append", predicate="pressure", object={"bar": 4}) == 'pressure {"bar":4}'
    assert said("file.share", body={"sha256": "ab", "size": 2048}) == "2.0 KiB"
    assert said("message.send", body={"content": "aGVsbG8=", "content_type": "text/plain"}) == (
        "hello"
    )
    assert said("message.send", body={"content": "/w==", "content_type": "image/png"}) == (
        "1 B of image/png"
    )
    assert said("state.delete", body={}) == said("entity.change") == ""


def test_U5_a_fact_is_shown_whole(tmp_path: Path) -> None:
    with console_up(make_home(tmp_path / "home")) as found:
        found.up.daemon.api.node.mesh("team").facts.append("pump", "pressure", {"bar": 4.5})
        browser = found.browser()
        assert "pressure" in browser.get("/log").text
        entry = browser.get("/log/1").text
        assert "&#34;bar&#34;: 4.5" in entry
        assert "does not know such an op" not in entry
