"""Some things may stand in one place only, or nowhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from support.project import (
    SOURCE,
    TESTS,
    dotted,
    expect_none,
    parse,
    python_files,
    text_of,
    uses,
    where,
)

RULES = SOURCE / "rules"
STORAGE = SOURCE / "storage"
DURABLE = STORAGE / "files" / "durable.py"

CLOCKS = (
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
)
CHANCE = (
    "random",
    "secrets",
    "os.urandom",
    "uuid.uuid1",
    "uuid.uuid4",
    "uuid.uuid7",
    "uuid_utils.uuid4",
    "uuid_utils.uuid7",
)
RENAMES = ("os.rename", "os.renames", "os.replace", "shutil.move")

# Each entry would be a file and the reason why waiting for an event is not possible there.
MAY_SLEEP = {"tests/bus/links/test_held_up.py": "a process that stands still is what it is about"}

# Files that write SQL for engines of others; no database of ours is asked.
FOR_OTHERS = {
    "src/holdfast/pipeline/frames/catalog.py": "views of a Spark catalog",
    "src/holdfast/pipeline/frames/catalog_sql.py": "views for Databricks, Trino and DuckDB",
}

# Upper case as our statements are written, or the shape of a whole statement in lower case. Prose
# such as "select a home" has neither.
SQL = re.compile(
    r"\bSELECT\s|\bINSERT\s+(OR\s+\w+\s+)?INTO\b|\bUPDATE\s[^.]*?\sSET\b|\bDELETE\s+FROM\b"
    r"|\bCREATE\s+(\w+\s+)?(TABLE|INDEX|TRIGGER|VIEW)\b|\bPRAGMA\s"
    r"|(?i:^\s*(select\s.+\sfrom\s|insert\s+into\s|update\s+\w+\s+set\s|delete\s+from\s|create\s+(virtual\s+)?table\s"
    r"|pragma\s+\w+|begin\s+immediate))",
    re.DOTALL,
)


def test_rules_ask_no_clock_and_draw_no_lots() -> None:
    found = _mentions(python_files(RULES), (*CLOCKS, *CHANCE))
    expect_none(found, "rules get time and chance as values: hand them in")


def test_the_second_sqlite_library_is_imported_nowhere() -> None:
    found = _mentions([*python_files(SOURCE), *python_files(TESTS)], ("sqlite3", "aiosqlite"))
    # The model reads homes that nobody has open, with another library on purpose.
    found = [place for place in found if not place.startswith("tests/model/reading.py")]
    expect_none(found, "closing a file in one SQLite library drops the other's locks: use apsw")


def test_nobody_sleeps() -> None:
    found = _mentions([*python_files(SOURCE), *python_files(TESTS)], ("time.sleep",))
    awake = [place for place in found if place.partition(":")[0] not in MAY_SLEEP]
    expect_none(awake, "wait for the event itself (threading.Event, a pipe, a process's end)")


def test_sql_stands_only_in_storage() -> None:
    found = [
        f"{where(path, node)}: {text.strip()[:60]!r}"
        for path in python_files(SOURCE)
        if not path.is_relative_to(STORAGE) and where(path) not in FOR_OTHERS
        for node, text in _literals(parse(path))
        if SQL.search(text)
    ]
    expect_none(found, "give storage a function with a name from the domain and call that")


def test_files_are_renamed_only_where_it_is_made_durable() -> None:
    files = [path for path in python_files(SOURCE) if path != DURABLE]
    found = _mentions(files, RENAMES) + [
        # Path.rename and Path.replace have no module to be found by; str.replace has two arguments.
        f"{where(path, node)}: .{node.func.attr}(…)"
        for path in files
        if ".rename(" in text_of(path) or ".replace(" in text_of(path)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and dotted(node.func) not in RENAMES
        and (
            (node.func.attr == "rename")
            or (node.func.attr == "replace" and len(node.args) == 1 and not node.keywords)
        )
    ]
    expect_none(found, f"a rename is lost unless its folder is synced: use {where(DURABLE)}")


@pytest.mark.parametrize(
    ("text", "is_sql"),
    [
        ("SELECT 1", True),
        ("  select key from state where mesh = ?", True),
        ("INSERT OR IGNORE INTO log VALUES (?)", True),
        ("UPDATE meshes\n   SET lamport = lamport + 1", True),
        ("CREATE VIRTUAL TABLE v USING vec0(x)", True),
        ("select a home with --home, or create one", False),
        ("update the older node and set its peer", False),
        ("deleted from the mesh", False),
    ],
)
def test_the_search_for_sql_tells_statements_from_prose(text: str, is_sql: bool) -> None:
    assert bool(SQL.search(text)) is is_sql


def _mentions(files: Iterable[Path], banned: tuple[str, ...]) -> list[str]:
    # Most files do not even have the last word of the name, and need not be understood.
    words = {bad.rpartition(".")[2] for bad in banned}
    return [
        f"{where(path, node)}: {name}"
        for path in files
        if any(word in text_of(path) for word in words)
        for name, node in uses(path)
        if any(name == bad or name.startswith(f"{bad}.") for bad in banned)
    ]


def _literals(tree: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    """String literals, docstrings left out: those may talk about SQL as much as they like."""
    # A string that stands alone does nothing: it is a docstring or a note on the line above.
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node, node.value
