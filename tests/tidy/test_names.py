"""Tests say what they prove, and packages say what lives in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.project import SOURCE, TESTS, expect_none, parse, python_files, where

# The part of the contract and its item: `pytest -k S4_` runs the proofs of S4.
PROOF = re.compile(r"test_[SDBQZPUR]\d+_[a-zA-Z0-9_]+")

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
