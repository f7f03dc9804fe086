"""Scenarios of a group in text: a person reads them, this replays them on the product's machine.

A line is an action, or an action `->` what must hold then; what must hold is a list divided by
commas. `#` begins a comment. Messages stay on the wire until they are delivered, and writes stay
before the disk until it is synced; `settle` does both until nothing is under way.

    voters 3 · join 4 · timeout 1 · elect 1 · settle [without 3] · tick 1 [2] · stall 1
    deliver 1>2 [Kind] · drop 1>2 [Kind] · drop all · repeat 1>2 Kind · keep 1>2 Kind · again
    cut 1>2 · heal
    sync 1 · write 1 (the disk has it) · tell 1 (and says so late) · disk 1 full
    propose 1 [3] · read 1 · transfer 1 to 2 · step-down 1 · change 1 add|promote|remove [4]
    crash 1 · start 1 · backup 1 · put-back 1 [noticed] · compact 1 3 · lost 1 2 · found 1 2

    1 leads term 2 · 1 follows 2 · 1 asks · 1 term 3 · 1 log 1 1 2 · 1 commit 3 · 1 applied 3
    1 durable 2 · 1 voters 1 2 3 · 1 asleep · 1 awake · 1 removed · alarm 1 name · reads 1
    wire 1>2 Kind · no wire 1>2 [Kind] · held 1 2 · refused 1 reason · change refused reason
    change taken · 1 disk 3
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from holdfast.rules.quorum.raft.effects import ChangeOutcome
from holdfast.rules.quorum.raft.events import (
    ChangeMembers,
    DiskChanged,
    NodeStalled,
    PairFound,
    PairLost,
    RaftEvent,
    StepDown,
    Tick,
    TransferLeadership,
)
from holdfast.rules.quorum.raft.messages import AskVote
from holdfast.rules.quorum.raft.state import GroupTiming
from support.raft_world import DiskOf, Envelope, NodeOf, RaftWorld

TIMING = GroupTiming(heartbeat=1, election=5, sleep=8)
LAZY = 4
"""The draw of a tick: it makes for the longest election timeout, 9 ticks."""


def replay(path: Path) -> int:
    """Replays a scenario; how many facts it checked."""
    scenario = RaftScenario()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            scenario.line(line)
        except AssertionError as error:
            raise AssertionError(f"{path.name}:{number}: {line.strip()}: {error}") from error
    return scenario.checked


class RaftScenario:
    """The world of one scenario, and the words by which it is moved."""

    def __init__(self) -> None:
        self.world = RaftWorld(3, TIMING)
        self.backups: dict[int, DiskOf] = {}
        self.changed: ChangeOutcome | None = None
        self.kept: list[Envelope] = []
        self.checked = 0

    def line(self, text: str) -> None:
        action, _, facts = text.partition("#")[0].partition("->")
        if action.strip():
            word, *rest = action.split()
            act: Callable[..., None] | None = getattr(self, f"do_{word.replace('-', '_')}", None)
            assert act is not None, f"no action {word!r}"
            self.world.alarms.clear()
            self.world.refused.clear()
            act(*rest)
        for fact in filter(None, map(str.strip, facts.split(","))):
            self._check(fact)
            self.checked += 1

    # What is done

    def do_voters(self, count: str) -> None:
        self.world = RaftWorld(int(count), TIMING)

    def do_join(self, id: str) -> None:
        self.world.join(int(id))

    def do_timeout(self, id: str) -> None:
        node = self._node(id)
        for _ in range(2 * self.world.timing.election):
            effects = node.step(Tick())
            if any(isinstance(it, AskVote) for it in effects.send) or effects.write:
                return
        raise AssertionError("it does not ask for votes")

    def do_elect(self, id: str) -> None:
        for node in self.world.alive:
            for _ in range(self.world.timing.election):
                if node.id != int(id) and self._hears_leader(node):
                    node.step(Tick(LAZY))
        self.do_timeout(id)
        self.world.settle()
        assert self._node(id).state.role == "leader", "it is not elected"

    def _hears_leader(self, node: NodeOf) -> bool:
        """Whether a follower has heard of a leader too lately to vote for another."""
        state = node.state
        return state.role == "follower" and state.elapsed < state.timing.election

    def do_settle(self, *rest: str) -> None:
        apart = {int(id) for id in rest[1:]}
        cut = {
            (one, other)
            for one in self.world.nodes
            for other in self.world.nodes
            if one in apart or other in apart
        }
        before, self.world.cut = self.world.cut, self.world.cut | cut
        self.world.settle()
        self.world.cut = before

    def do_tick(self, id: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self._node(id).step(Tick(LAZY))

    def do_deliver(self, way: str, kind: str = "") -> None:
        for envelope in self._taken(way, kind):
            self.world.deliver(envelope)

    def do_drop(self, way: str, kind: str = "") -> None:
        if way == "all":
            self.world.wire.clear()
        else:
            self._taken(way, kind)

    def do_repeat(self, way: str, kind: str) -> None:
        """Delivers, and leaves a copy on the wire."""
        found = self._taken(way, kind)
        self.world.wire[:0] = found
        for envelope in found:
            self.world.deliver(envelope)

    def do_keep(self, way: str, kind: str) -> None:
        """Delivers, and keeps a copy aside."""
        self.kept += self._taken(way, kind)
        for envelope in self.kept:
            self.world.deliver(envelope)

    def do_again(self) -> None:
        """What was kept aside is on the wire again."""
        self.world.wire += self.kept
        self.kept = []

    def do_cut(self, way: str) -> None:
        self.world.cut.add(_ends(way))

    def do_heal(self) -> None:
        self.world.cut.clear()

    def do_sync(self, id: str) -> None:
        self._node(id).sync()

    def do_write(self, id: str) -> None:
        self._node(id).write_quietly()

    def do_tell(self, id: str) -> None:
        self._node(id).tell_late()

    def do_propose(self, id: str, count: str = "1") -> None:
        self.world.propose(self._node(id), int(count))

    def do_read(self, id: str) -> None:
        self.world.read(self._node(id))

    def do_crash(self, id: str) -> None:
        self._node(id).crash()

    def do_start(self, id: str) -> None:
        self._node(id).start()

    def do_backup(self, id: str) -> None:
        self.backups[int(id)] = self._node(id).disk.copy()

    def do_put_back(self, id: str, noticed: str = "") -> None:
        node = self._node(id)
        node.crash()
        node.disk, node.barred = self.backups[int(id)].copy(), bool(noticed)
        node.start()

    def do_compact(self, id: str, index: str) -> None:
        self._node(id).compact(int(index))

    def do_transfer(self, id: str, _: str, to: str) -> None:
        self._node(id).step(TransferLeadership(int(to)))

    def do_step_down(self, id: str) -> None:
        self._node(id).step(StepDown())

    def do_stall(self, id: str) -> None:
        self._node(id).step(NodeStalled())

    def do_disk(self, id: str, health: str) -> None:
        event: RaftEvent = DiskChanged(health)  # type: ignore[arg-type]
        self._node(id).step(event)

    def do_lost(self, id: str, other: str) -> None:
        self._node(id).step(PairLost(int(other)))

    def do_found(self, id: str, other: str) -> None:
        self._node(id).step(PairFound(int(other)))

    def do_change(self, id: str, change: str, member: str = "0") -> None:
        peer = f"node{member}" if change == "add" else ""
        asked = ChangeMembers(change, 0 if peer else int(member), peer)  # type: ignore[arg-type]
        self.changed = self._node(id).step(asked).change

    # What must hold

    def _check(self, fact: str) -> None:
        for pattern, check in FACTS:
            if found := re.fullmatch(pattern, fact):
                seen = check(self, *found.groups())
                assert seen is True, f"{fact!r} does not hold: {seen}"
                return
        raise AssertionError(f"no fact {fact!r}")

    def _node(self, id: str) -> NodeOf:
        return self.world.nodes[int(id)]

    def on_wire(self, way: str, kind: str = "") -> list[Envelope]:
        return [
            it
            for it in self.world.wire
            if (it.message.sender, it.message.to) == _ends(way)
            and kind in ("", type(it.message).__name__)
        ]

    def _taken(self, way: str, kind: str) -> list[Envelope]:
        found = self.on_wire(way, kind)
        assert found, f"no such message; on the wire: {self._wire()}"
        self.world.wire = [it for it in self.world.wire if it not in found]
        return found

    def _wire(self) -> list[str]:
        return [
            f"{it.message.sender}>{it.message.to} {type(it.message).__name__}"
            for it in self.world.wire
        ]

    # Facts

    def leads(self, id: str, term: str) -> object:
        state = self._node(id).state
        return (state.role, state.term) == ("leader", int(term)) or (state.role, state.term)

    def follows(self, id: str, leader: str) -> object:
        state = self._node(id).state
        return (state.role, state.leader) == ("follower", int(leader)) or (
            state.role,
            state.leader,
        )

    def asks(self, id: str) -> object:
        role = self._node(id).state.role
        return role in ("candidate", "precandidate") or role

    def number(self, id: str, what: str, value: str) -> object:
        node = self._node(id)
        seen = {
            "term": node.state.term,
            "commit": node.state.commit,
            "durable": node.state.durable,
            "applied": len(node.disk.applied),
            "disk": node.disk.boundary + len(node.disk.entries),
        }[what]
        return seen == int(value) or seen

    def log(self, id: str, terms: str) -> object:
        log = self._node(id).state.log
        seen = [log.term_at(index) for index in range(max(1, log.boundary), log.last + 1)]
        return seen == [int(term) for term in terms.split()] or seen

    def voters(self, id: str, ids: str) -> object:
        seen = self._node(id).state.log.config.voters
        return seen == tuple(map(int, ids.split())) or seen

    def flag(self, id: str, what: str) -> object:
        state = self._node(id).state
        return {"asleep": state.asleep, "awake": not state.asleep, "removed": state.removed}[what]

    def alarm(self, id: str, name: str) -> object:
        seen = [(at, it.name) for at, it in self.world.alarms]
        return (int(id), name) in seen or seen

    def reads(self, count: str) -> object:
        return self.world.laws.served == int(count) or self.world.laws.served

    def held(self, id: str, count: str) -> object:
        return len(self._node(id).held) == int(count) or len(self._node(id).held)

    def refused(self, id: str, reason: str) -> object:
        seen = [(at, it.reason) for at, it in self.world.refused]
        return (int(id), reason) in seen or seen

    def change_refused(self, reason: str) -> object:
        assert self.changed is not None
        return self.changed.reason == reason or self.changed

    def change_taken(self) -> object:
        assert self.changed is not None
        return self.changed.index > 0 or self.changed

    def wire(self, no: str | None, way: str, kind: str | None) -> object:
        there = bool(self.on_wire(way, kind or ""))
        return there is (no is None) or self._wire()


def _ends(way: str) -> tuple[int, int]:
    sender, to = way.split(">")
    return int(sender), int(to)


FACTS: tuple[tuple[str, Callable[..., object]], ...] = (
    (r"(\d) leads term (\d+)", RaftScenario.leads),
    (r"(\d) follows (\d)", RaftScenario.follows),
    (r"(\d) asks", RaftScenario.asks),
    (r"(\d) (term|commit|durable|applied|disk) (\d+)", RaftScenario.number),
    (r"(\d) log([ \d]*)", RaftScenario.log),
    (r"(\d) voters ([ \d]+)", RaftScenario.voters),
    (r"(\d) (asleep|awake|removed)", RaftScenario.flag),
    (r"alarm (\d) (\w+)", RaftScenario.alarm),
    (r"reads (\d+)", RaftScenario.reads),
    (r"held (\d) (\d+)", RaftScenario.held),
    (r"refused (\d) (\w+)", RaftScenario.refused),
    (r"change refused (\w+)", RaftScenario.change_refused),
    (r"change taken", RaftScenario.change_taken),
    (r"(no )?wire (\d>\d) ?(\w+)?", RaftScenario.wire),
)
