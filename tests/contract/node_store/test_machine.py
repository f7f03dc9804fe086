"""The smallest story that goes wrong: hypothesis looks for it, step by step, with three peers.

The long random stories find rare things; this finds their shortest form.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from holdfast.node.library.node import Node
from holdfast.node.log.history import replay
from holdfast.rules.errors import Conflict, NotFound
from support.envelopes import MODEL
from support.nodes import Nodes, store_of, team
from support.snapshot import differences, snapshot
from support.source import HandClock

NAMES = ("ana", "\uff5aoe", "\U0001f98a")
PEERS = st.sampled_from(NAMES)
KEYS = st.sampled_from(["a", "b"])
TURNS = st.sampled_from(["claim", "release", "complete", "cancel"])


class ThreePeers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        nodes = Nodes("memory", Path(), HandClock())
        self.nodes: dict[str, Node] = {peer: nodes.open(peer) for peer in NAMES}
        self.tasks: list[str] = []
        self.stamps = dict.fromkeys(self.nodes, 0)

    @rule(peer=PEERS, key=KEYS, value=st.integers(0, 2))
    def set_state(self, peer: str, key: str, value: int) -> None:
        team(self.nodes[peer]).state.set(key, value)

    @rule(peer=PEERS, key=KEYS)
    def delete_state(self, peer: str, key: str) -> None:
        try:
            team(self.nodes[peer]).state.delete(key)
        except NotFound:
            assert team(self.nodes[peer]).state.entry(key) is None

    @rule(peer=PEERS, key=KEYS, at=st.integers(0, 2))
    def store_vector(self, peer: str, key: str, at: int) -> None:
        team(self.nodes[peer]).vectors.store(key, [at, 0], model=MODEL)

    @rule(peer=PEERS)
    def create_task(self, peer: str) -> None:
        if len(self.tasks) < 2:
            self.tasks.append(team(self.nodes[peer]).tasks.create("t").task)

    @rule(peer=PEERS, turn=TURNS, which=st.integers(0, 1))
    def turn(self, peer: str, turn: str, which: int) -> None:
        if which < len(self.tasks):
            with suppress(Conflict, NotFound):
                getattr(team(self.nodes[peer]).tasks, turn)(self.tasks[which])

    @rule(source=PEERS, goal=PEERS, data=st.data())
    def deliver_some(self, source: str, goal: str, data: st.DataObject) -> None:
        """Any of a log's entries, in any order, again and again."""
        entries = list(self.nodes[source].log.range())
        if entries and source != goal:
            some = data.draw(st.lists(st.sampled_from(entries), max_size=4))
            for result in self.nodes[goal].apply(entry.raw for entry in some):
                assert result.error is None

    @invariant()
    def stamps_only_grow(self) -> None:
        for peer, node in self.nodes.items():
            now = team(node).clock().lamport
            assert now >= self.stamps[peer]
            self.stamps[peer] = now

    def teardown(self) -> None:
        raws = [entry.raw for node in self.nodes.values() for entry in node.log.range()]
        ends = []
        for n, node in enumerate(self.nodes.values()):
            for result in node.apply(raws[n:] + raws[:n]):
                assert result.error is None
            folded = replay(node.log.range(), node.meshes(), node.peer)
            ends += [snapshot(store_of(node)), snapshot(folded)]
        for end in ends[1:]:
            assert differences(ends[0], end) == []


def test_S6_no_short_story_makes_peers_differ() -> None:
    run_state_machine_as_test(
        ThreePeers,
        settings=settings(
            settings.get_profile(settings.get_current_profile_name()),
            max_examples=60,
            stateful_step_count=25,
        ),
    )
