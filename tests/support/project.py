"""The project's own files, as the tidy tests read them.

No git is asked: the tests also run from an unpacked archive. What .gitignore names is left out,
which is easy because that file holds nothing but plain names.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "holdfast"
TESTS = ROOT / "tests"


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is, or would be, under version control."""
    return tuple(_walk())


def _walk() -> Iterator[Path]:
    patterns = _ignored_names()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(
            name for name in folders if name != ".git" and not _matches(f"{name}/", patterns)
        )
        for name in sorted(files):
            # In a linked work tree .git is a file that holds a path of this machine.
            if name != ".git" and not _matches(name, patterns):
                yield Path(folder) / name


def python_files(folder: Path) -> list[Path]:
    found = [
        path for path in project_files() if path.suffix == ".py" and path.is_relative_to(folder)
    ]
    assert found, f"no Python file under {folder}: the check would prove nothing"
    return found


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(text_of(path), filename=str(path))


def where(path: Path, node: ast.AST | None = None) -> str:
    """`src/holdfast/x.py:12`, as editors and people read it."""
    place = path.relative_to(ROOT).as_posix()
    line = getattr(node, "lineno", None)
    return place if line is None else f"{place}:{line}"


def expect_none(found: Iterable[str], advice: str) -> None:
    """Fail with what to do and every place to do it; pytest alone would show a few."""
    places = list(found)
    assert not places, "\n  ".join([advice, *places])


def dotted(node: ast.AST) -> str:
    """`os.path.join` for the expression that says so, and nothing for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def uses(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Every name that a file imports or mentions, in full.

    `from time import sleep as nap` and then `nap(1)` give `time.sleep` twice, so that a ban cannot
    be walked around by renaming.
    """
    tree = parse(path)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}", node
    for node in ast.walk(tree):
        first, dot, rest = dotted(node).partition(".")
        if first in known:
            yield f"{known[first]}{dot}{rest}", node


def _ignored_names() -> tuple[str, ...]:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    patterns = tuple(line for line in lines if line and not line.startswith("#"))
    for pattern in patterns:
        assert not set("!/") & set(pattern.removesuffix("/")), f"too clever: {pattern}"
    return patterns


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
