"""The plainest thing that must survive a disk: pairs of rows, each pair written in one transaction.

It stands in for the store where the simulator itself is on trial: whatever goes wrong here is the
simulator's fault, or SQLite's.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import apsw

from holdfast.simulate.disk.workload import Acknowledge, Workload

OFF, NORMAL, FULL, EXTRA = range(4)
PADDING = "x" * 700


def connect(
    path: Path, vfs: str | None = None, *, sync: int = FULL, journal: str = "wal"
) -> apsw.Connection:
    """Opens (and creates) the table; a checkpoint is due every few commits."""
    connection = apsw.Connection(str(path), vfs=vfs)
    connection.set_busy_timeout(30_000)
    try:
        assert connection.pragma("journal_mode", journal) == journal
        connection.pragma("synchronous", sync)
        assert connection.pragma("synchronous") == sync
        connection.pragma("wal_autocheckpoint", 12)
        connection.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, padding TEXT)")
    except BaseException:
        connection.close()
        raise
    return connection


def add(connection: apsw.Connection, number: int) -> None:
    """Both rows of a pair, or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for row in (2 * number, 2 * number + 1):
            connection.execute("INSERT OR IGNORE INTO rows VALUES (?, ?)", (row, PADDING))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def writing(
    pairs: int, *, sync: int = FULL, journal: str = "wal", too_early: bool = False
) -> Workload:
    """A workload that acknowledges each pair after its commit, or too early: the planted bug."""

    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        with closing(connect(directory / "rows.db", vfs, sync=sync, journal=journal)) as connection:
            for number in range(pairs):
                if too_early:
                    acknowledge(number)
                add(connection, number)
                if not too_early:
                    acknowledge(number)

    return workload


def pairs_in(path: Path, vfs: str | None = None) -> set[int]:
    """What a healthy reader finds; raises if the file is damaged or half of a pair is missing."""
    with closing(apsw.Connection(str(path), vfs=vfs)) as connection:
        assert connection.pragma("integrity_check") == "ok"
        if not connection.table_exists("main", "rows"):
            return set()
        rows = {row for (row,) in connection.execute("SELECT n FROM rows")}
    halves = {row // 2 for row in rows if row ^ 1 not in rows}
    assert not halves, f"half of {sorted(halves)}"
    return {row // 2 for row in rows}


def expect(directory: Path, acknowledged: Iterable[object], vfs: str | None = None) -> None:
    lost = set(acknowledged) - pairs_in(directory / "rows.db", vfs)
    assert not lost, f"lost {sorted(map(str, lost))}"
