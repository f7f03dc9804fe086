"""Reading a database that others open, read and close at the same moment."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from holdfast.storage.sqlite.snapshot_copy import open_read_only
from support.interrupts import Meddler, bytecodes
from support.keeping import make_home, team


def test_P1_a_reader_of_a_closed_home_may_leave_at_any_step_of_another_ones_opening(
    tmp_path: Path,
) -> None:
    """The last reader that closes removes the WAL that the first one made."""
    with make_home(tmp_path / "home") as node:
        team(node).state.set("k", 1)
        head = node.log.head().offset
    database = tmp_path / "home" / "data.db"

    def read() -> None:
        with open_read_only(database) as reader:
            assert reader.log_bounds() == (1, head)

    steps = bytecodes(read)
    assert steps > 100, "the whole call is looked at"
    for step in range(1, steps + 1):
        with ExitStack() as other:
            other.enter_context(open_read_only(database))
            assert database.with_name("data.db-wal").exists(), "what the other one removes"
            meddler = Meddler(step, other.close)
            assert meddler.run(read) is None, meddler.where
    assert not database.with_name("data.db-wal").exists(), "and nobody leaves anything"
