"""A program that has a node open loads nothing of it in the middle of a call: it may fork then."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.project import SOURCE, expect_none, parse, where

ROOMS = (
    *(
        "rules",
        "storage",
        "node/core",
        "node/home",
        "node/library/families",
        "node/library/node.py",
    ),
    *("node/library/verbs.py", "node/log", "node/messages", "node/upkeep"),
)
OPEN = """
import sys, holdfast
with holdfast.open(sys.argv[1], peer="ana", create=True):
    print(*(name for name in sys.modules if name.startswith("holdfast.")))
"""

# What calls may load all the same. Each entry: how its name begins, and why.
APART = {
    "holdfast.node.bus": "a conversation with others, which has a thread and a loop of its own",
    "holdfast.node.library.aio_": "coroutines, for those who use them and for a quorum",
    "holdfast.node.library.bus": "the bus",
    "holdfast.node.library.entities": "asks a quorum, over the bus",
    "holdfast.node.library.lease": "asks a quorum, over the bus",
    "holdfast.node.library.strong_tasks": "asks a quorum, over the bus",
    "holdfast.node.library.waiting_writes": "asks a quorum, over the bus",
    "holdfast.node.recovery": "commands that mend a home, in a process of their own",
    "holdfast.node.sharing": "a conversation with a broker",
    "holdfast.node.trust": "keys, for a conversation with others",
    "holdfast.storage.broker": "the store of a broker",
    "holdfast.storage.sqlite.integrity": "while a home is opened that was not closed",
    "holdfast.storage.sqlite.recovery": "while a home is opened that was not closed",
}


def test_a_node_is_loaded_at_once(tmp_path: Path) -> None:
    asked = [sys.executable, "-W", "ignore", "-c", OPEN, str(tmp_path / "home")]
    loaded = set(subprocess.run(asked, capture_output=True, check=True, text=True).stdout.split())
    later = [
        f"{where(path, node)}: {name}"
        for room in ROOMS
        for path in _files(SOURCE / room)
        for name, node in _imports_in_functions(path)
        if name not in loaded and not name.startswith(tuple(APART))
    ]
    expect_none(
        sorted(set(later)),
        "load it in holdfast/node/library/whole.py: a child that is forked while another thread "
        "loads it would wait for it for ever",
    )


def _files(room: Path) -> Iterator[Path]:
    yield from [room] if room.is_file() else sorted(room.rglob("*.py"))


def _imports_in_functions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    for function in ast.walk(parse(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                if module is not None and module.startswith("holdfast."):
                    yield module, node
