"""The notebooks of the examples: their cells are run in order, in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.project import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def run_notebook(book: Path) -> int:
    """How many cells with code it has."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(book.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        exec(compile(cell, f"{book.name}, code cell {number}", "exec"), names)
    return len(code)
