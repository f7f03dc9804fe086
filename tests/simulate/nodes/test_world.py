"""Days of faults for worlds of real nodes; every promise is kept, and all of them converge."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections import Counter

import pytest

from holdfast.node.core.engine import NodeEngine
from holdfast.node.links import receive
from holdfast.protocol.log_wire import Batch
from holdfast.simulate.nodes import nodes
from holdfast.simulate.nodes.nodes import Marks, NodeWorld, tell
from holdfast.simulate.nodes.storm import FAULTS
from holdfast.simulate.world.seeds import PromiseBroken
from holdfast.simulate.world.workload import OPS
from support.seeds import rotating, seeds

pytestmark = pytest.mark.sim

WORLDS, KNOWN = 10, 150
"""Each day some of so many are told."""
TELLING = (25, 0, 37, 42, 18, 46, 3, 5, 11, 29)
"""Worlds that show all of `EXPECTED` together, told every day; if they no longer do, others may."""
CHORES_ONLY = ("conflict.restore", "fact.object")
ENVELOPES = tuple(op for op in OPS if "." in op and op not in CHORES_ONLY)

# What must have happened at least once in the worlds of a day: every fault to every operation,
# but for those that cannot meet. A full disk hurts no reader; a failed checkpoint is nobody's
# concern; only envelopes travel; a peer has seldom something to be told, and reads seldom miss the
# cache.
IMPOSSIBLE = {("disk full", "read"), ("disk full", "checkpoint"), ("io error", "checkpoint")}
SELDOM = {("disk full", "warnings"), ("io error", "warnings"), ("io error", "read")}
MACHINE_FAULTS = ("kill", "power", "restart", "disk full", "io error", "clock jump", "clock freeze")
LINK_FAULTS = ("loss", "duplicate", "reorder", "partition")
EXPECTED = (
    {(fault, op) for fault in MACHINE_FAULTS for op in OPS}
    | {(fault, op) for fault in LINK_FAULTS for op in ENVELOPES}
    | {(death, what) for death in ("kill", "power") for what in ("apply", "answer", "open")}
    | {("disk full", "apply"), ("io error", "apply"), ("io error", "open")}
) - (IMPOSSIBLE | SELDOM)


@pytest.mark.timeout(600)
def test_R1_nodes_keep_every_promise_through_a_day_of_faults() -> None:
    marks: Marks = Counter()
    worlds = dict.fromkeys((*rotating(WORLDS, KNOWN), *TELLING))
    for seed in worlds:
        marks += tell(seed).marks
    more = (seed for seed in range(KNOWN) if seed not in worlds)
    while missing := EXPECTED - marks.keys():
        another = next(more, None)
        assert another is not None, f"the worlds no longer show {sorted(missing)}\n{_table(marks)}"
        marks += tell(another).marks


def _table(marks: Marks) -> str:
    faults = sorted({fault for fault, _ in marks})
    ops = sorted({op for _, op in marks})
    width = max(map(len, ops))
    lines = [f"{'':{width}} " + " ".join(f"{fault[:10]:>10}" for fault in faults)]
    for op in ops:
        counts = " ".join(f"{marks[fault, op] or '-':>10}" for fault in faults)
        lines.append(f"{op:{width}} {counts}")
    return "\n".join(lines)


def test_R1_the_same_seed_tells_the_same_story_of_nodes() -> None:
    first = [tell(seed).digest for seed in (2, 3, 9)]
    assert first == [tell(seed).digest for seed in (2, 3, 9)]
    assert len(set(first)) == 3


def test_R1_a_seed_tells_the_same_story_in_another_process() -> None:
    """Where sets and dictionaries of text go round in another order."""
    told = [
        subprocess.run(
            [sys.executable, "-m", "holdfast.simulate", "nodes", "4"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert tell(4).digest in told[0]


def test_R1_the_example_in_the_documentation_runs() -> None:
    failed, tried = doctest.testmod(nodes)
    assert tried >= 4
    assert failed == 0


def test_R1_a_storm_brings_every_kind_of_fault() -> None:
    story = "\n".join(line for seed in range(6) for line in tell(seed).log)
    for fault in FAULTS:
        assert f"fault: {fault} for" in story


def test_S2_the_world_finds_that_normal_sync_loses_acknowledged_writes() -> None:
    """The control: a world that cannot see a loss proves nothing."""

    def careless_days() -> None:
        for seed in seeds(12):
            with NodeWorld(seed, peers=("ana", "bob"), sync="normal") as world:
                world.storm()
                world.calm()

    with pytest.raises(PromiseBroken, match=r"is lost|has stamp|has number|its log|end up apart"):
        careless_days()


def test_R1_a_broken_promise_names_the_command_that_plays_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(engine: NodeEngine, link: str, batch: Batch) -> receive.BatchReceived:
        row = engine.read("link.get", lambda tx: tx.link_get(link))
        assert row is not None
        return receive.BatchReceived(row)

    monkeypatch.setattr(receive, "receive_batch", forget)
    with pytest.raises(PromiseBroken, match=r"seed 3: .* does not get on") as caught:
        tell(3)
    assert caught.value.__notes__ == ["play it again with: python -m holdfast.simulate nodes 3"]
