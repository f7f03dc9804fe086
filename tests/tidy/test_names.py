"""Tests say what they prove, and packages say what lives in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.project import ROOT, SOURCE, TESTS, expect_none, parse, python_files, where

# The part of the contract and its item: `pytest -k S4_` runs the proofs of S4.
PROOF = re.compile(r"test_[SDBQZPUR]\d+_[a-zA-Z0-9_]+")

# A row of the table "part by part" in docs/promises.md.
PROVED = re.compile(r"^\| ([A-Z]\d+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")

# Tests of the tests themselves. Each entry: the name, and why no promise to users stands behind it.
META: dict[str, str] = {}


def test_every_test_names_the_promise_it_proves() -> None:
    nameless = [
        f"{where(path, node)}: {name}"
        for path in python_files(TESTS)
        if path.name.startswith("test_") and not path.is_relative_to(TESTS / "tidy")
        for name, node in _tests(path)
        if not PROOF.fullmatch(name) and name not in META
    ]
    expect_none(
        nameless,
        "start the name with the id of what it proves, as in test_S9_deleting_twice_counts_once; "
        "run a state machine by run_state_machine_as_test inside such a function",
    )


def test_the_table_of_proofs_names_code_and_tests_that_are_there() -> None:
    rows = PROVED.findall((ROOT / "docs" / "promises.md").read_text(encoding="utf-8"))
    assert len(rows) > 30, "the table has another form, and nothing was looked at"
    wrong = [
        f"{item}: {name}"
        for item, code, tests in rows
        for folder, names in ((SOURCE, code), (ROOT, tests))
        for name in QUOTED.findall(names)
        if not (folder / name).exists()
        or (folder == ROOT and not _proves((folder / name).read_text(encoding="utf-8"), item))
    ]
    expect_none(wrong, "name files that are there, and tests that bear the id of their row")


def _proves(text: str, item: str) -> bool:
    return re.search(rf"def test_([A-Z]+\d+_)*{item}_", text) is not None


def test_every_package_says_what_lives_in_it() -> None:
    silent = [
        where(path)
        for path in python_files(SOURCE)
        if path.name == "__init__.py" and not ast.get_docstring(parse(path))
    ]
    expect_none(silent, "say in the docstring what belongs here and what does not")


def test_every_module_opens_with_its_idea() -> None:
    silent = [where(path) for path in python_files(SOURCE) if not ast.get_docstring(parse(path))]
    expect_none(silent, "say in the docstring what the module is for")


def _tests(path: Path) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test"):
                yield node.name, node
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "TestCase"
        ):
            yield ast.unparse(node.targets[0]), node
