"""The floor under the coverage of bus, rules and storage holds: too few branches fail, no report
too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.project import ROOT
from tools.branch_coverage import FLOOR_PERCENT, ROOMS, branches_of, main


def _file(taken: int, there: int) -> dict[str, Any]:
    return {"summary": {"covered_branches": taken, "num_branches": there}}


def _report(path: Path, bus: int, rules: int, storage: int = 75) -> str:
    files = {
        "src/holdfast/bus/a.py": _file(bus, 50),
        "src/holdfast/bus/inner/b.py": _file(bus, 50),
        "src/holdfast/rules/bus/c.py": _file(rules, 200),
        "src/holdfast/rules/keys.py": _file(750, 800),
        "src/holdfast/storage/ports.py": _file(storage, 100),
        "src/holdfast/node/settings.py": _file(0, 1000),
    }
    path.write_text(json.dumps({"files": files}), encoding="utf-8")
    return str(path)


def test_each_room_of_the_bus_must_reach_the_floor_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "coverage.json"
    assert FLOOR_PERCENT == 75
    assert main(_report(path, 38, 150)) == 0
    assert main(_report(path, 37, 200)) == 1
    assert "at least 75 % are wanted" in capsys.readouterr().out
    assert main(_report(path, 50, 149)) == 1
    assert main(_report(path, 38, 150, 74)) == 1
    path.write_text('{"files": {}}', encoding="utf-8")
    assert main(str(path)) == 1


def test_rooms_are_counted_with_all_that_is_in_them_and_nothing_else(tmp_path: Path) -> None:
    report = json.loads(Path(_report(tmp_path / "c.json", 38, 150)).read_text(encoding="utf-8"))
    assert [branches_of(report, room) for room in ROOMS] == [
        *((76, 100), (150, 200), (900, 1000), (75, 100))
    ]
    assert all((ROOT / room).is_dir() for room in ROOMS)
