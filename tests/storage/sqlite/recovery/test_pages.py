"""Rows are read from the pages of a damaged file as SQLite would read them, and only those."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.recovery.pages import _Pages, scan_pages
from holdfast.storage.sqlite.recovery.salvage import Salvage
from support.keeping import garbage, overwrite


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a log of some hundred pages, some entries longer than a page."""
    path = tmp_path_factory.mktemp("large") / "data.db"
    with closing(connect(path)) as raw:
        rng = random.Random(1)

        def add(numbers: range, *more: int | bytes) -> None:
            marks = ", ?" * len(more)
            raw.execute("BEGIN")
            raw.executemany(
                f"INSERT INTO log VALUES (?, ?, 'team', 'op', 'entity', 'ana', ?, ?, ?{marks})",
                (
                    (n, n.to_bytes(16, "big"), n * n, -n, rng.randbytes(size), *more)
                    for n, size in ((n, rng.choice([9, 300, 9000])) for n in numbers)
                ),
            )
            raw.execute("COMMIT")

        # Rows from before a column was added stay as they were written.
        migrations.migrate(raw, migrations.load()[:5])
        add(range(1, 401))
        migrations.migrate(raw, migrations.load()[:7])
        add(range(401, 601), 0)
        migrations.migrate(raw)
        add(range(601, 801), 300, bytes(32))
    return path


def log_rows(path: Path) -> dict[int, Any]:
    with closing(connect(path, read_only=True)) as raw:
        return {row[0]: row for row in raw.execute("SELECT * FROM log")}


def carved_rows(path: Path) -> dict[int, Any]:
    return {
        number: (number, *values[1:], *(0, None)[len(values) - 9 :])
        for number, values in scan_pages(path, (9, 10, 11))
        if isinstance(values[8], bytes)
    }


def leaves_of(path: Path) -> list[int]:
    with closing(connect(path, read_only=True)) as raw:
        rows: list[Any] = raw.execute(
            "SELECT pageno FROM dbstat WHERE name = 'log' AND pagetype = 'leaf'"
        ).fetchall()
    return [number for (number,) in rows]


def test_S12_rows_are_read_from_their_pages_as_sqlite_reads_them(large: Path) -> None:
    assert carved_rows(large) == log_rows(large)


def test_S17_what_was_deleted_is_not_read_from_its_pages(large: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    shutil.copy(large, path)
    with closing(connect(path)) as raw:
        raw.execute("DELETE FROM log WHERE offset < 500 OR offset % 7 = 0")
    kept = log_rows(path)
    assert carved_rows(path) == kept
    assert 100 < len(kept) < 300


@pytest.mark.parametrize("seed", range(10))
def test_S12_only_the_rows_of_damaged_pages_are_lost(
    large: Path, tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "data.db"
    shutil.copy(large, path)
    rng = random.Random(seed)
    harmed = rng.sample(leaves_of(path), rng.choice([1, 3, 8]))
    whole = log_rows(path)
    lost = set()
    with open(path, "rb") as file:
        pages = _Pages(file)
        for number in harmed:
            lost |= {rowid for rowid, _ in pages.rows(number, (9, 10, 11))}
    for number in harmed:
        overwrite(path, number, garbage(seed))
    with closing(connect(path, read_only=True)) as raw:
        salvage = Salvage(raw, "log")
        found = list(salvage)
    assert salvage.damaged
    assert {row[0]: row for row in found} == {n: row for n, row in whole.items() if n not in lost}
    assert len(found) == len(whole) - len(lost), "each once"
