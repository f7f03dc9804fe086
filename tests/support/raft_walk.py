"""Random walks of a group, from a seed: everything that can go wrong, in any order.

Messages are lost, doubled and overtaken; links are cut one way; nodes crash and come back with what
their disks have; disks lag, and tell late what they have written; members come and go; leadership
is handed over. In the end all is healed, and the group must decide again.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from holdfast.rules.quorum.raft.events import (
    ChangeMembers,
    NodeStalled,
    PairFound,
    PairLost,
    Receive,
    StepDown,
    Tick,
    TransferLeadership,
)
from holdfast.rules.quorum.raft.messages import TimeoutNow
from holdfast.rules.quorum.raft.state import GroupTiming
from support.raft_world import GROUP, DiskOf, NodeOf, RaftWorld

STEPS = 400
NODES_MAX = 6
TIMINGS = (
    GroupTiming(heartbeat=1, election=3, sleep=0),
    GroupTiming(heartbeat=1, election=4, sleep=6),
    GroupTiming(heartbeat=2, election=6, sleep=0),
)


class RaftWalk:
    """One walk: what a seed is about is drawn first, then its steps."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        voters = self.random.choice((1, 2, 3, 3, 3, 3, 4, 5))
        self.world = RaftWorld(voters, self.random.choice(TIMINGS))
        self.loss = self.random.choice((0, 0.05, 0.2))
        self.doubling = self.random.choice((0, 0.1, 0.3))
        self.backup: tuple[int, DiskOf] | None = None
        self.restored = False
        self.done: dict[str, int] = {}
        self.actions = self._drawn()

    def _drawn(self) -> list[tuple[float, Callable[[], None]]]:
        """How often each thing happens in this walk."""
        pick = self.random.choice
        crashes = pick((0.5, 2, 6))
        return [
            (60, self.deliver),
            (pick((6, 20, 40)), self.sync),
            (pick((0, 4, 12)), self.write_quietly),
            (4, self.tell_late),
            (pick((6, 24, 60)), self.tick),
            (pick((0, 2, 6)), self.campaign),
            (pick((3, 8)), self.propose),
            (pick((1, 6)), self.read),
            (crashes, self.crash),
            (crashes * 2, self.restart),
            (pick((0, 1, 3)), self.cut),
            (pick((0, 1, 3)), self.isolate),
            (pick((0.6, 2)), self.heal),
            (pick((0, 1)), self.compact),
            (pick((0, 1, 4)), self.transfer),
            (0.3, self.step_down),
            (0.3, self.stall),
            (0.3, self.lose_pair),
            (pick((0, 0, 2, 6)), self.change),
            (pick((0, 0, 3)) if self.world.config.next_id > 3 else 0, self.restore),
        ]

    def run(self, steps: int = STEPS) -> RaftWalk:
        weights = [weight for weight, _ in self.actions]
        acts = [act for _, act in self.actions]
        for act in self.random.choices(acts, weights, k=steps):
            act()
        self.calm()
        return self

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    # What happens

    def deliver(self) -> None:
        wire = self.world.wire
        if not wire:
            return
        # Mostly in order, sometimes not.
        at = 0 if self.random.random() < 0.6 else self.random.randrange(len(wire))
        envelope = wire[at]
        if self.random.random() >= self.doubling:
            del wire[at]
        if self.random.random() >= self.loss:
            self.world.deliver(envelope)
        if len(wire) > 400:
            del wire[:200]

    def sync(self) -> None:
        if node := self._one(lambda node: bool(node.queue)):
            node.sync(self.random.randint(1, len(node.queue)))

    def write_quietly(self) -> None:
        if node := self._one(lambda node: bool(node.queue)):
            node.write_quietly()

    def tell_late(self) -> None:
        if node := self._one(lambda node: bool(node.late)):
            node.tell_late()

    def tick(self) -> None:
        if node := self._one():
            node.step(Tick(self.random.getrandbits(16)))

    def campaign(self, but: NodeOf | None = None) -> None:
        """A node stands for election for no good reason: safety may not rest on timers."""
        if node := self._one(lambda node: node is not but and bool(node.state.log.config.members)):
            other = self.random.choice([id for id in self.world.nodes if id != node.id] or [0])
            node.step(Receive(TimeoutNow(GROUP, other, node.id, node.state.term)))

    def propose(self) -> None:
        if node := self._one():
            self.world.propose(node, self.random.randint(1, 3))

    def read(self) -> None:
        """Half of the reads go to a node that believes that it leads."""
        leading = self._one(lambda node: node.state.role == "leader")
        if node := (leading if leading and self.random.random() < 0.5 else self._one()):
            self.world.read(node)

    def crash(self) -> None:
        if node := self._one():
            node.crash()
            self.count("crash")

    def restart(self) -> None:
        down = [node for node in self.world.nodes.values() if not node.alive]
        if down:
            self.random.choice(down).start()

    def cut(self) -> None:
        ids = list(self.world.nodes)
        one, other = self.random.choice(ids), self.random.choice(ids)
        self.world.cut.add((one, other))
        if self.random.random() < 0.5:
            self.world.cut.add((other, one))

    def isolate(self) -> None:
        """A leader is cut off from all others, and another node stands against it."""
        if leader := self._one(lambda node: node.state.leads_settled):
            for other in self.world.nodes:
                self.world.cut |= {(leader.id, other), (other, leader.id)}
            self.count("isolate")
            self.campaign(but=leader)

    def heal(self) -> None:
        if self.world.cut and self.random.random() < 0.7:
            self.world.cut.discard(self.random.choice(sorted(self.world.cut)))
        else:
            self.world.cut.clear()

    def compact(self) -> None:
        node = self._one(lambda node: len(node.disk.applied) > node.disk.boundary)
        if node and not node.late:
            node.compact(self.random.randint(node.disk.boundary + 1, len(node.disk.applied)))
            self.count("compact")

    def transfer(self) -> None:
        if node := self._one(lambda node: node.state.role == "leader"):
            node.step(TransferLeadership(self.random.choice((0, *self.world.nodes))))
            self.count("transfer")

    def step_down(self) -> None:
        if node := self._one():
            node.step(StepDown())

    def stall(self) -> None:
        if node := self._one():
            node.step(NodeStalled())

    def lose_pair(self) -> None:
        if node := self._one():
            other = self.random.choice(list(self.world.nodes))
            node.step(PairLost(other) if self.random.random() < 0.5 else PairFound(other))

    def change(self) -> None:
        node = self._one(lambda node: node.state.role == "leader")
        if node is None:
            return
        config = node.state.log.config
        change = self.random.choice(("add", "promote", "promote", "remove"))
        if change == "add":
            if len(self.world.nodes) >= NODES_MAX:
                return
            asked = ChangeMembers("add", peer=f"node{config.next_id}", key=bytes(32))
        else:
            learners = [it.id for it in config.members if it.place == "learner"]
            among = learners if change == "promote" and learners else list(config.ids)
            asked = ChangeMembers(
                "promote" if change == "promote" else "remove", self.random.choice(among)
            )
        outcome = node.step(asked).change
        assert outcome is not None
        if outcome.index:
            self.count(change)
            if change == "add" and outcome.id not in self.world.nodes:
                self.world.join(outcome.id)

    def restore(self) -> None:
        """A node's home is put back to an older copy: its driver notices and starts it barred."""
        if self.restored:
            return
        if self.backup is None:
            if node := self._one(lambda node: not node.late):
                self.backup = (node.id, node.disk.copy())
            return
        id, disk = self.backup
        node = self.world.nodes[id]
        node.crash()
        node.disk, node.barred, self.restored = disk, True, True
        node.start()
        self.count("restore")

    # The end

    def calm(self) -> None:
        """All is healed: the group elects, commits, and all its members have the same."""
        world = self.world
        world.cut.clear()
        for node in world.nodes.values():
            if node.barred:
                node.crash()
            if not node.alive:
                node.start()
            for other in world.nodes:
                node.step(PairFound(other))
        if not self.can_decide():
            self.count("undecided")
            return
        ids: list[bytes] = []
        for turn in range(200):
            for node in world.alive:
                while node.late:
                    node.tell_late()
            world.tick(lambda id: self.random.getrandbits(16))
            leader = world.leader()
            if leader and leader.state.leads_settled and turn % 20 == 0:
                ids += world.propose(leader)
                world.read(leader)
            if ids and self._agreed():
                return
        raise AssertionError(f"the group does not decide: {self._describe()}")

    def can_decide(self) -> bool:
        """Whether enough voters are left that may vote, in every config that may be in force."""
        for node in self.world.nodes.values():
            for _, config in node.state.log.configs:
                voters = [self.world.nodes[id] for id in config.voters]
                able = [voter for voter in voters if not voter.barred]
                if voters and len(able) <= len(voters) // 2:
                    return False
        return True

    def _agreed(self) -> bool:
        leader = self.world.leader()
        if leader is None or leader.state.commit != leader.state.log.last:
            return False
        members = [self.world.nodes[id] for id in leader.state.log.config.ids]
        fine = [node for node in members if not node.barred]
        return all(node.disk.applied == leader.disk.applied for node in fine)

    def _describe(self) -> str:
        return "; ".join(
            f"{node.id}: {node.state.role} term {node.state.term} log {node.state.log.last} "
            f"commit {node.state.commit} voters {node.state.log.config.voters} "
            f"{'removed' if node.state.removed else ''}{'barred' if node.barred else ''}"
            for node in self.world.alive
        )

    def _one(self, fit: Callable[[NodeOf], bool] = lambda node: True) -> NodeOf | None:
        fitting = [node for node in self.world.alive if fit(node)]
        return self.random.choice(fitting) if fitting else None


class ReadWalk(RaftWalk):
    """A walk about reads: leaders that were cut off are asked while others take over."""

    def _drawn(self) -> list[tuple[float, Callable[[], None]]]:
        return [
            (60, self.deliver),
            (40, self.sync),
            (4, self.tick),
            (10, self.propose),
            (15, self.read),
            (0.7, self.isolate),
            (0.7, self.heal),
        ]
