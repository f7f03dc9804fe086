"""A small database whose WAL a test fills as it likes, and checkpoints made step by step."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.wal import checkpoints
from holdfast.storage.sqlite.wal.checkpoints import Checkpoints

ROUND, REST, BEYOND = 10, 30, 20
"""Limits as small as tests need them."""


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes checkpoints begin with a WAL of few pages."""
    monkeypatch.setattr(checkpoints, "WAL_CHECKPOINT_PAGES", ROUND)
    monkeypatch.setattr(checkpoints, "WAL_REST_PAGES", REST)
    monkeypatch.setattr(checkpoints, "WAL_ROUND_PAGES_MAX", BEYOND)


class Stepped(Checkpoints):
    """Without a thread: the rounds are made by the test, when it likes."""

    rung = 0

    def _ring(self) -> None:
        self.rung += 1


class Rows:
    """One connection that writes rows of about two pages each, through the gate."""

    def __init__(self, made: Checkpoints, path: Path, sync: str = "full", vfs: str | None = None):
        self.made = made
        self.connection = connect(path, sync=sync, vfs=vfs)
        self.connection.execute("CREATE TABLE IF NOT EXISTS row (number INTEGER PRIMARY KEY, x)")
        made.take_over(self.connection)
        self.longest = 0

    def begin(self, number: int) -> None:
        self.made.pass_gate()
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute("INSERT INTO row VALUES (?, zeroblob(5000))", (number,))

    def commit(self) -> None:
        self.connection.execute("COMMIT")
        self.longest = max(self.longest, self.made._pages)

    def add(self, number: int) -> None:
        self.begin(number)
        self.commit()


def numbers(path: Path) -> set[int]:
    """What is in the database, which must be whole."""
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    found = {number for (number,) in connection.execute("SELECT number FROM row")}
    connection.close()
    return found
