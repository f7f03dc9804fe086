"""What a sweep keeps in mind of what it has forgotten for good."""

from __future__ import annotations

from typing import Any

from holdfast.node.core.forgetting.log_gone import gone_job
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.limits import DAY_MS
from support.envelopes import MESH
from support.nodes import Nodes, team


def test_S17_a_sweep_keeps_in_mind_what_nothing_shows_any_more(nodes: Nodes) -> None:
    ana = nodes.open("ana")
    mesh = team(ana)

    def gone() -> Any:
        job = ana._engine.read("test", lambda tx: tx.job_get(gone_job(MESH)))
        return None if job is None else (job.cursor["facts"], job.cursor["deletions"])

    mesh.state.set("k", 1)
    mesh.state.set("k", 2)
    nodes.clock.advance(10)
    ana.sweep(Ttl(log_ms=0))
    assert gone() is None
    mesh.facts.append("s", "p", 1)
    mesh.state.delete("k")
    nodes.clock.advance(10)
    ana.sweep(Ttl(log_ms=0))
    assert gone() == (3, 0)
    mesh.state.set("x", 1)
    nodes.clock.advance(DAY_MS)
    ana.sweep(Ttl(log_ms=0, tombstone_ms=10))
    found = gone()
    assert found[0] == 3
    assert found[1] >= 4
