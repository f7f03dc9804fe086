"""What other people do to the tables of a lake: restore, copy, clone, clean up, lose files.

By `deltalake` and by hand; Holdfast takes no part in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deltalake import DeltaTable, write_deltalake

from holdfast.pipeline.lake.delta import Table

Harm = Callable[[Table, Path], None]
"""Is called with a table and with a copy of its folder as it was some commits before."""


def restored(table: Table, older: Path) -> None:
    """RESTORE: a new commit with the files of an old one. What was noted in between stays noted."""
    delta, version = DeltaTable(table.root), DeltaTable(str(older)).version()
    if version < delta.version():
        delta.restore(version)


def put_back(table: Table, older: Path) -> None:
    """The folder comes from a backup."""
    shutil.rmtree(table.root)
    shutil.copytree(older, table.root)


def cloned(table: Table, older: Path) -> None:
    """A new table with the rows of an old one: its log begins again, and nothing is noted in it."""
    rows = DeltaTable(str(older)).to_pyarrow_table()
    by = DeltaTable(table.root).metadata().partition_columns
    shutil.rmtree(table.root)
    write_deltalake(table.root, rows, partition_by=by or None)


def vacuumed(table: Table, older: Path) -> None:
    """RESTORE back and forth with a vacuum in between: the table names files that are gone."""
    last = DeltaTable(table.root).version()
    restored(table, older)
    DeltaTable(table.root).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    DeltaTable(table.root).restore(last, ignore_missing_files=True)


def lost_file(table: Table, older: Path) -> None:
    """The newest file is gone, and no commit says so."""
    known = set(DeltaTable(str(older)).get_add_actions(flatten=True)["path"].to_pylist())
    new = [file for file in table.fresh().files() if file.path not in known]
    (Path(table.root) / new[-1].path).unlink()


def cleaned(table: Table, older: Path) -> None:
    """A checkpoint, and no JSON commits before it."""
    delta = DeltaTable(table.root)
    delta.create_checkpoint()
    for path in Path(table.root, "_delta_log").glob("*.json"):
        if path.stem.isdigit() and int(path.stem) < delta.version():
            path.unlink()


def optimized(table: Table, older: Path) -> None:
    """Another engine puts the files together."""
    DeltaTable(table.root).optimize.compact()


def removed(table: Table, older: Path) -> None:
    """The folder of the table is gone."""
    shutil.rmtree(table.root)


def without_last_commit(table: Table, older: Path) -> None:
    """Clean-up has left only the checkpoint of the last commit."""
    cleaned(table, older)
    for commit in (Path(table.root) / "_delta_log").glob("*.json"):
        commit.unlink()


HARMS: Final[tuple[Harm, ...]] = (restored, put_back, cloned, vacuumed)
"""After these a table shows less than it has shown."""
CARE: Final[tuple[Harm, ...]] = (cleaned, without_last_commit, optimized)
"""After these it shows the same."""
