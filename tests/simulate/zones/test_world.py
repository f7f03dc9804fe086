"""Days of faults for worlds of zones, linked in every way; what links promise is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.core.engine import NodeEngine
from holdfast.node.links import receive
from holdfast.protocol.log_wire import Batch
from holdfast.rules.filters import CLASSES, Filter
from holdfast.simulate.nodes.link import SimulatedLink
from holdfast.simulate.world.log_history import LogHistory, Seen
from holdfast.simulate.world.seeds import PromiseBroken
from holdfast.simulate.zones.entitlement import Entitlement, entitles
from holdfast.simulate.zones.topologies import KINDS
from holdfast.simulate.zones.zones import ZoneWorld, tell
from support.seeds import rotating

pytestmark = pytest.mark.sim

WORLDS = 28
KNOWN = 1000
"""So many seeds are known to pass. Each day some of them are told again."""

# What must have happened to the links of all these worlds together.
EXPECTED = {
    *("pause", "stay away", "remove a link", "backup", "restored", "skipped", "snapshot"),
    *("late", "read ahead", "object begun", "object resumed", "Truncated", "EpochChanged"),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_Z7_zones_keep_every_promise_through_a_day_of_faults(kind: str) -> None:
    worlds = events = 0
    for seed in rotating(WORLDS, KNOWN):
        if KINDS[seed % len(KINDS)] == kind:
            world = tell(seed)
            worlds += 1
            events += world.events
    print(f"{worlds} worlds of {kind}, {events} events")
    assert worlds > 0


def test_Z7_the_worlds_show_what_links_meet_with() -> None:
    happened: Counter[str] = Counter()
    for seed in range(KNOWN):
        happened += tell(seed).happened
        if happened.keys() >= EXPECTED:
            print(f"all of it in {seed + 1} worlds")
            return
        assert seed < WORLDS, f"the worlds no longer show {sorted(EXPECTED - happened.keys())}"


def test_R1_the_same_seed_tells_the_same_story_of_zones() -> None:
    first = [tell(seed).digest for seed in (3, 5)]
    assert first == [tell(seed).digest for seed in (3, 5)]
    assert len(set(first)) == 2


def test_R1_a_seed_tells_the_same_story_of_zones_in_another_process() -> None:
    """Where sets and dictionaries of text go round in another order."""
    told = [
        subprocess.run(
            [sys.executable, "-m", "holdfast.simulate", "zones", "4"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert tell(4).digest in told[0]


def test_R1_a_broken_promise_of_a_link_names_the_command_that_plays_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(engine: NodeEngine, link: str, batch: Batch) -> receive.BatchReceived:
        row = engine.read("link.get", lambda tx: tx.link_get(link))
        assert row is not None
        return receive.BatchReceived(row)

    monkeypatch.setattr(receive, "receive_batch", forget)
    with pytest.raises(PromiseBroken, match=r"seed 3: .* does not get on") as caught:
        tell(3)
    assert caught.value.__notes__ == ["play it again with: python -m holdfast.simulate zones 3"]


# --- the rules that the worlds are held to -------------------------------------------------------

ENTITIES = st.sampled_from(["a", "ab", "b", "data/one", "notes.txt", "Ä"])
PEERS = st.sampled_from(["ana", "bob", "cai"])
OPS = st.sampled_from(sorted(op for ops in CLASSES.values() for op in ops))
MESHES = st.sampled_from(["team", "lab"])

SEEN = st.builds(
    Seen,
    id=st.just(bytes(16)),
    mesh=MESHES,
    op=OPS,
    entity=ENTITIES,
    origin=PEERS,
    epoch=st.just(1),
    seq=st.just(1),
    via=st.one_of(st.just(""), PEERS),
)
FILTERS = st.builds(
    Filter,
    meshes=st.lists(MESHES, min_size=1, unique=True).map(tuple),
    subjects=st.lists(ENTITIES, max_size=2).map(tuple),
    classes=st.lists(st.sampled_from(sorted(CLASSES)), max_size=2).map(tuple),
    origins=st.lists(PEERS, max_size=2).map(tuple),
)


@given(SEEN, FILTERS)
def test_Z6_a_filter_lets_pass_what_its_link_entitles_to(seen: Seen, filter: Filter) -> None:
    relation = SimulatedLink("l1", "bob", "ana", filter)
    sent = Filter(
        meshes=filter.meshes,
        subjects=filter.subjects,
        classes=filter.classes,
        origins=filter.origins,
        beyond="bob",
    )
    assert entitles(relation, seen) == sent.passes(
        seen.mesh, seen.op, seen.entity, seen.origin, seen.via
    )


def test_Z7_order_is_asked_for_only_where_there_is_one_way() -> None:
    logs = {peer: LogHistory(peer) for peer in ("ana", "bob", "cai")}
    everything = Filter(meshes=("team",))
    line = [
        SimulatedLink("l1", "bob", "ana", everything),
        SimulatedLink("l1", "cai", "bob", everything),
    ]
    rules = Entitlement(logs, list(line))
    for number in (2, 1):
        id = bytes([number]) * 16
        logs["cai"].entries.append(Seen(id, "team", "fact.append", "a", "ana", 1, number, "bob"))
    assert rules.order() == ["cai has number 1 of ana after 2"]
    rules.ever.append(SimulatedLink("l2", "cai", "ana", everything))
    assert rules.order() == []


def test_Z7_what_links_bring_spreads_as_far_as_they_carry_it() -> None:
    logs = {peer: LogHistory(peer) for peer in ("ana", "bob", "cai")}
    logs["ana"].entries = [
        Seen(bytes([n]) * 16, "team", "fact.append", subject, "ana", 1, n, "")
        for n, subject in enumerate("ab", 1)
    ]
    everything, part = Filter(meshes=("team",)), Filter(meshes=("team",), subjects=("a",))
    own = Filter(meshes=("team",), origins=("bob",))
    first = SimulatedLink("l1", "bob", "ana", part)
    for second, expected in ((everything, {bytes([1]) * 16}), (own, set())):
        links = [first, SimulatedLink("l1", "cai", "bob", second)]
        assert Entitlement(logs, links).closure(links)["cai"] == expected


def test_R1_every_kind_of_topology_is_drawn() -> None:
    drawn = {ZoneWorld(seed).traits.kind for seed in range(len(KINDS))}
    assert drawn == set(KINDS)
