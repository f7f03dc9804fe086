"""Files and functions stay small enough to be read in one go."""

from __future__ import annotations

import ast

from support.project import SOURCE, expect_none, parse, python_files, where

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

# Lists with a few lines for each entry: a reader searches them for a name, and one place for all of
# them is what they are for.
LISTS = ("src/holdfast/rules/errors.py", "src/holdfast/rules/limits.py")


def test_no_file_is_too_long_to_read() -> None:
    sizes = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(SOURCE)
    }
    too_long = [
        f"{where(path)}: {size} lines"
        for path, size in sizes.items()
        if size > FILE_LINES_MAX and where(path) not in LISTS
    ]
    expect_none(too_long, "give each of the file's jobs a file of its own")


def test_no_function_is_longer_than_a_screen() -> None:
    too_long = [
        f"{where(path, node)}: {node.name} has {_lines(node)} lines"
        for path in python_files(SOURCE)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _lines(node) > FUNCTION_LINES_MAX
    ]
    expect_none(too_long, "keep the decisions here and move the steps into functions with names")


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1
