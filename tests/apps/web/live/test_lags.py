"""How far readers lagged lately, for a plot."""

from __future__ import annotations

from pathlib import Path

from holdfast.apps.web.live.lags import LagLook, LagRecord
from holdfast.rules.limits import CONSOLE_LAG_LOOKS_MAX, CONSOLE_LAG_READERS_MAX
from support.console import console_up
from support.daemon import make_home


def test_U5_there_is_a_line_from_the_second_look_on() -> None:
    record = LagRecord()
    record.add(LagLook(1_000, {"lake": 3}))
    assert record.plot(["lake"]) is None
    record.add(LagLook(11_000, {"lake": 1, "later": 2}))
    assert record.plot(["lake", "later"]) == {
        "at": [1, 11],
        "lines": [
            {"name": "lake", "values": [3, 1]},
            {"name": "later", "values": [None, 2]},
        ],
    }
    assert record.plot([]) == {"at": [1, 11], "lines": []}, "another caller sees less"


def test_U5_an_hour_is_kept_and_those_shown_that_lag_most() -> None:
    record = LagRecord()
    names = [f"reader-{number}" for number in range(CONSOLE_LAG_READERS_MAX + 1)]
    for second in range(CONSOLE_LAG_LOOKS_MAX + 5):
        record.add(LagLook(second * 1_000, {name: at for at, name in enumerate(names)}))
    plot = record.plot(names)
    assert plot is not None
    assert plot["at"] == list(range(5, CONSOLE_LAG_LOOKS_MAX + 5))
    assert [line["name"] for line in plot["lines"]] == list(reversed(names[1:]))


def test_U5_a_daemon_with_a_console_looks_at_its_readers(tmp_path: Path) -> None:
    with console_up(make_home(tmp_path / "home")) as console:
        console.up.daemon.api.node.log.add_consumer("lake")
        browser = console.browser()
        assert "The first line comes" in browser.get("/consumers").text
