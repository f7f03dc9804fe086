"""Say how many branches of bus, rules and storage the tests took; fail if they are too few.

    python tools/branch_coverage.py .venv/coverage.json

`make test` writes that file when it runs the tests of those rooms. Coverage of lines would hide
what matters here: the other way of an `if` is where bad input goes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

FLOOR_PERCENT: Final = 75
ROOMS: Final = (
    "src/holdfast/bus/",
    "src/holdfast/rules/bus/",
    "src/holdfast/rules/",
    "src/holdfast/storage/",
)


def branches_of(report: dict[str, Any], room: str) -> tuple[int, int]:
    """How many branches of a room were taken, and how many there are."""
    found = [
        file["summary"]
        for path, file in report["files"].items()
        if room in Path(path).as_posix() + "/"
    ]
    taken = sum(summary["covered_branches"] for summary in found)
    return taken, sum(summary["num_branches"] for summary in found)


def main(path: str) -> int:
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    low = 0
    for room in ROOMS:
        taken, there = branches_of(report, room)
        percent = 100 * taken / there if there else 0.0
        enough = percent >= FLOOR_PERCENT
        low += not enough
        print(
            f"{room}: {taken} of {there} branches taken, {percent:.1f} %"
            + ("" if enough else f"; at least {FLOOR_PERCENT} % are wanted")
        )
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
