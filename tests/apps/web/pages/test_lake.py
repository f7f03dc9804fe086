"""The lake in the console, read without Spark."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from holdfast.pipeline.audits import AUDITS
from holdfast.pipeline.audits.gold import run_audits
from holdfast.pipeline.lake.lake import Lake
from support.console import Browser, console_up
from support.daemon import make_home
from support.filled_lake import pour


def test_U5_the_lake_shows_its_logs_and_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = make_home(tmp_path / "home"), tmp_path / "a lake"
    monkeypatch.setenv("HOLDFAST_LAKE", str(folder))
    with console_up(home) as console:
        browser = console.browser()
        assert "cannot be read" in browser.get("/lake").text
        console.up.daemon.api.node.mesh("team").state.set("a", 1)
        pour(Lake.open(folder, create=True), home)
        page = browser.get("/lake").text
        assert f"holdfast pipeline audit --lake &#39;{folder}&#39;" in page
        assert "never audited" in page
        assert "bronze" in page


def test_U5_the_lake_shows_and_draws_its_last_runs_and_audits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = make_home(tmp_path / "home"), tmp_path / "lake"
    monkeypatch.setenv("HOLDFAST_LAKE", str(folder))
    lake = Lake.open(folder, create=True)
    with console_up(home) as console:
        node, browser = console.up.daemon.api.node, console.browser()
        assert plots(browser) == []
        for number in range(3):
            for key in range(number + 1):
                node.mesh("team").state.set(f"{number}/{key}", 1)
            pour(lake, home)
        run_audits(None, lake.fresh())
        (runs,) = plots(browser)
        assert [line["name"] for line in runs["lines"]] == ["new", "seen again", "quarantined"]
        assert [line["values"] for line in runs["lines"]] == [[1, 2, 3], [0, 0, 0], [0, 0, 0]]
        assert runs["at"] == sorted(runs["at"])
        page = browser.get("/lake").text
        assert "did not pass" not in page
        assert page.count(">passed") == len(AUDITS)
        run_audits(None, lake.fresh(), ["offsets"])
        assert [len(drawn["at"]) for drawn in plots(browser)] == [3, 2]


def plots(browser: Browser) -> list[Any]:
    found = re.findall(r'data-plot="([^"]*)"', browser.get("/lake").text)
    return [json.loads(unescape(one)) for one in found]


def test_U5_without_a_lake_the_page_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_LAKE", raising=False)
    with console_up(make_home(tmp_path / "home")) as console:
        assert "No lake is named" in console.browser().get("/lake").text
