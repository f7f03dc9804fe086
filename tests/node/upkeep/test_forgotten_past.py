"""What the log has let go of: swept together with what it marked, and never told as if it were
known."""

from __future__ import annotations

import pytest

from holdfast.node.library.node import Node
from holdfast.node.log.history import REPAIR_JOB
from holdfast.rules.errors import Truncated
from holdfast.rules.rows import JobRow
from support.nodes import store_of, team
from support.source import HandClock

DAY_MS = 24 * 3600 * 1000


def test_S17_one_sweep_takes_old_entries_and_the_tombstones_they_left(
    node: Node, clock: HandClock
) -> None:
    state = team(node).state
    state.set("k", 1)
    state.delete("k")
    clock.advance(91 * DAY_MS)
    state.set("young", 1)
    swept = node.sweep()
    assert (swept.log_entries, swept.tombstones) == (2, 1)


def test_S19_a_repaired_log_with_holes_does_not_tell_the_past(node: Node) -> None:
    team(node).state.set("k", 1)
    hole = JobRow(name=REPAIR_JOB, cursor={"head": 1, "lost": 3}, updated_at=1)
    store_of(node).write(lambda tx: tx.job_put(hole))
    with pytest.raises(Truncated, match="the past has holes"):
        team(node).state.as_of("k", offset=1)
    assert team(node).state.get("k") == 1
