"""The notebooks are run: their cells in order, in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.notebooks import NOTEBOOKS, run_notebook

ON_SPARK = "lake"
"""`tests/pipeline/test_notebook.py` runs it, on the Spark that is there."""


def test_U1_the_notebooks_are_there() -> None:
    assert {book.stem for book in NOTEBOOKS} >= {"tour", "vectors", ON_SPARK}


@pytest.mark.parametrize(
    "book", [book for book in NOTEBOOKS if book.stem != ON_SPARK], ids=lambda book: book.stem
)
def test_U1_every_notebook_runs_from_its_first_cell_to_its_last(book: Path) -> None:
    assert run_notebook(book) > 1


@pytest.mark.parametrize("book", NOTEBOOKS, ids=lambda book: book.stem)
def test_U1_notebooks_are_kept_without_what_they_put_out(book: Path) -> None:
    for cell in json.loads(book.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs"), "clear all outputs before you commit it"
        assert cell.get("execution_count") is None
