"""The code and what is written about it do not drift apart."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys

from holdfast.rules import errors, limits
from support.project import ROOT, SOURCE, expect_none, parse, python_files
from tools.reference import read_limits

# The first part of a path that is meant to be one of the project's own.
KNOWN_TOPS = {path.name for base in (ROOT, SOURCE) for path in base.iterdir()}

# Limits that a later part of the contract will use. Each entry: the name, and what waits for it.
RESERVED: dict[str, str] = {}


def test_every_error_has_its_place_in_the_printed_tree() -> None:
    assert errors.__doc__ is not None
    tree = set(re.findall(r"\w+", errors.__doc__))
    missing = [name for name, _ in _error_classes() if name not in tree]
    expect_none(missing, "add it to the tree at the top of rules/errors.py")


def test_the_printed_tree_names_no_error_that_is_gone() -> None:
    assert errors.__doc__ is not None
    drawing = errors.__doc__.partition("HoldfastError")[2].partition("\n\n")[0]
    named = set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", drawing))
    assert named <= {name for name, _ in _error_classes()}


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for _, kind in _error_classes()]
    assert sorted(codes) == sorted(set(codes))


def test_every_error_and_every_limit_has_a_sentence() -> None:
    silent = [name for name, kind in _error_classes() if not _is_sentence(kind.__dict__["__doc__"])]
    silent += [limit.name for limit in read_limits() if not _is_sentence(limit.note)]
    expect_none(silent, "say in its docstring what it is about, and whose")


def _is_sentence(text: str | None) -> bool:
    return text is not None and text[:1].isupper() and text.rstrip().endswith(".")


def test_the_reference_pages_say_what_the_code_says() -> None:
    check = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run: make docs"


def test_the_pages_name_files_that_exist() -> None:
    """A path in backticks is below the sources, or below the root of the project."""
    path = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|sql|md|toml)|(?:[\w-]+/)+)`")
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    lost = [
        f"{page.relative_to(ROOT)}: {named}"
        for page in pages
        if page.parent.name != "reference"
        for named in path.findall(page.read_text(encoding="utf-8"))
        if "/" in named
        and not any((base / named).exists() for base in (ROOT, SOURCE, ROOT / "docs"))
        and named.split("/")[0] in KNOWN_TOPS
    ]
    expect_none(sorted(set(lost)), "the file has moved: name it where it is now")


def test_every_limit_is_used() -> None:
    names = {name for name in vars(limits) if name.isupper()}
    used = _names_used() & names
    expect_none(sorted(names - used - RESERVED.keys()), "remove it, or reserve it with a reason")
    expect_none(sorted(RESERVED.keys() & used), "it is in use now: no need to reserve it")
    expect_none(sorted(RESERVED.keys() - names), "there is no such limit to reserve")


def _error_classes() -> list[tuple[str, type[errors.HoldfastError]]]:
    return [
        (name, kind)
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.HoldfastError)
    ]


def _names_used() -> set[str]:
    """Names read in the sources; an import alone is no use, nor is a limit's own definition."""
    used = set()
    for path in python_files(SOURCE):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
    return used
