"""The lake in the console, read without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.pipeline.lake.lake import Lake
from support.console import console_up
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


def test_U5_without_a_lake_the_page_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_LAKE", raising=False)
    with console_up(make_home(tmp_path / "home")) as console:
        assert "No lake is named" in console.browser().get("/lake").text
