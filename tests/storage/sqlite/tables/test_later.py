"""The tables that a store loads when the first of them is asked for."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import apsw
from holdfast.storage.sqlite.store import SqliteReader, SqliteTransaction

reader, tx = (kind(apsw.Connection(":memory:")) for kind in (SqliteReader, SqliteTransaction))
assert "holdfast.storage.sqlite.tasks" not in sys.modules
try:
    tx.none_such
except AttributeError as error:
    print(error)
assert callable(reader.task_get) and callable(tx.task_put)
from holdfast.storage.sqlite.tables.others import OtherReads, OtherWrites
assert isinstance(reader, OtherReads) and isinstance(tx, OtherWrites)
"""


def test_S2_the_other_tables_come_when_one_is_asked_for() -> None:
    """In a process that has used no store before."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "'SqliteTransaction' object has no attribute 'none_such'\n"
