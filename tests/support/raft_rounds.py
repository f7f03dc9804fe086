"""An exhaustive search with atomic rounds, by the product's own step.

One action is a whole round: a node asks any set of voters for their votes, or a leader brings one
member up to date (with all entries or only the next one; the answer may be lost, or the member may
crash before its disk has anything). Between rounds nothing is under way but the leader's own disk.
Nodes crash, are put back to an empty disk, and members are changed. So few steps lead far: four
terms are within reach, which the classic mistakes need.

Checked in every state: election safety, leader completeness, log matching, state-machine safety,
and that a fence names one entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, combinations
from typing import NamedTuple

from holdfast.rules.quorum.raft.config import GroupConfig, GroupMember
from holdfast.rules.quorum.raft.events import (
    ChangeMembers,
    Propose,
    RaftEvent,
    Receive,
    StepDown,
    Tick,
)
from holdfast.rules.quorum.raft.messages import Message, Proposal, TimeoutNow, VoteAnswer
from support.raft_nodes import (
    GROUP,
    ModelNode,
    Sent,
    advanced,
    empty_past,
    normal,
    started,
    synced,
)

_NEW = 99
"""An id that no config names yet."""
PROPOSAL = Proposal(bytes(16), b"")


class Bounds(NamedTuple):
    """How far a search goes."""

    voters: int = 3
    learners: int = 0
    terms: int = 3
    last: int = 2
    """The highest index of a log."""
    crashes: int = 0
    restores: int = 0
    changes: int = 0
    lazy: bool = False
    """A leader's own disk lags until an action of its own."""
    prefixes: bool = True
    """A leader may send only the next entry."""
    losses: bool = True
    """An answer may be lost."""
    proposals: bool = True
    """Leaders append entries other than the first one of their term and configs."""
    least: bool = False
    """A candidate asks just as many voters as it needs, not more and not fewer."""
    fresh: bool = False
    """A candidate has heard of the latest term there is before it stands."""
    states_max: int = 1_000_000


class Violation(AssertionError):
    """A state that must not be, with the way to it."""


Led = tuple[int, int]
"""A leader: term and id."""
Name = tuple[object, ...]


class RoundState(NamedTuple):
    nodes: tuple[int, ...]
    elected: tuple[Led, ...]
    """Every leader there ever was."""
    committed: tuple[int, ...]
    """The terms of all entries that were ever committed, from index 1 on."""
    crashes: int
    restores: int
    changes: int


class RoundSearch:
    """A search through all states within bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._nodes: list[ModelNode] = []
        self._facts: list[tuple[Led | None, tuple[int, ...], int]] = []
        """Of each node: what it leads, the terms of its log, how much of it is committed."""
        self._numbers: dict[ModelNode, int] = {}
        self._pairs: dict[tuple[int, int, str], tuple[int, int]] = {}
        self._alone: dict[tuple[int, object], int] = {}
        self._campaigns: dict[tuple[int, int], tuple[ModelNode, dict[int, Message]]] = {}
        self._votes: dict[tuple[int, Message], tuple[int, Sent]] = {}
        self._counts: dict[tuple[int, int, tuple[Sent, ...]], int] = {}
        self._electable: dict[int, tuple[int, ...] | None] = {}
        self._crash_after_early = bounds.crashes > 0
        self._steps: dict[tuple[ModelNode, RaftEvent, int], tuple[ModelNode, Sent]] = {}
        self._syncs: dict[ModelNode, tuple[ModelNode, Sent]] = {}
        self._matching: set[tuple[int, int]] = set()
        count = bounds.voters + bounds.learners
        self.ids = tuple(range(1, count + 1))
        config = GroupConfig(
            tuple(
                GroupMember(id, str(id), b"", "voter" if id <= bounds.voters else "learner")
                for id in self.ids
            ),
            count + 1,
        )
        self.config = config
        nodes = tuple(self._number(started(id, empty_past(config))) for id in self.ids)
        self.first = RoundState(nodes, (), (), bounds.crashes, bounds.restores, bounds.changes)
        self.states = 0
        self.transitions = 0

    def run(self) -> int:
        """How many states there are; raises Violation with the way to a state that must not be."""
        # Hashes stand for states: 64 bits of a tuple of small numbers.
        seen = {hash(self.first)}
        way: list[tuple[int, Name]] = [(-1, ())]
        waiting: deque[tuple[int, RoundState]] = deque([(0, self.first)])
        while waiting and len(seen) < self.bounds.states_max:
            at, state = waiting.popleft()
            for name, following in self.actions(state):
                self.transitions += 1
                try:
                    reached = self._judged(state, following)
                except AssertionError as error:
                    told = " -> ".join((*_way(way, at), _told(name)))
                    raise Violation(f"{error}: after {told}") from None
                key = hash(reached)
                if key not in seen:
                    seen.add(key)
                    way.append((at, name))
                    waiting.append((len(way) - 1, reached))
        self.states = len(seen)
        return self.states

    def actions(self, state: RoundState) -> Iterator[tuple[Name, RoundState]]:
        bounds = self.bounds
        for at, number in enumerate(state.nodes):
            node = self._nodes[number]
            others = self._asks(number)
            if others is not None and not (
                bounds.fresh and self._latest(state.nodes) >= bounds.terms
            ):
                yield from self._asked(state, at, others)
            if node.state.role == "leader":
                yield from self._led(state, at, node)
            if node.queue:
                yield ("sync", at + 1), self._with(state, at, self._do(number, "sync"))
            if state.crashes and (node.queue or node.state.role == "leader" or node.state.commit):
                crashed = self._with(state, at, self._do(number, "crash"))
                yield ("crash", at + 1), crashed._replace(crashes=state.crashes - 1)
            if state.restores:
                restored = self._with(state, at, self._do(number, "restore"))
                yield ("restore", at + 1), restored._replace(restores=state.restores - 1)

    def _latest(self, nodes: tuple[int, ...]) -> int:
        return max(self._nodes[it].state.term for it in nodes)

    def _asks(self, number: int) -> tuple[int, ...] | None:
        """Places of the voters that a node asks, if it may stand for election."""
        if number not in self._electable:
            state = self._nodes[number].state
            may = state.term < self.bounds.terms and state.may_lead
            others = tuple(id - 1 for id in state.log.config.voters if id != state.me)
            self._electable[number] = others if may else None
        return self._electable[number]

    def _asked(
        self, state: RoundState, at: int, others: tuple[int, ...]
    ) -> Iterator[tuple[Name, RoundState]]:
        needed = (len(others) + 1) // 2
        for size in (needed,) if self.bounds.least else range(len(others) + 1):
            for asked in combinations(others, size):
                after = self._election(state.nodes, at, asked)
                if after != state.nodes:
                    yield (
                        ("elect", at + 1, "by", *(it + 1 for it in asked)),
                        RoundState(after, *state[1:]),
                    )

    def _led(
        self, state: RoundState, at: int, node: ModelNode
    ) -> Iterator[tuple[Name, RoundState]]:
        number = state.nodes[at]
        if node.state.log.last < self.bounds.last:
            if self.bounds.proposals:
                yield ("propose", at + 1), self._with(state, at, self._do(number, "propose"))
            if state.changes:
                for change in self._changes(node):
                    after = self._do(number, change)
                    if after != number:
                        changed = self._with(state, at, after)
                        name = (change.change, change.id, "by", at + 1)
                        yield name, changed._replace(changes=state.changes - 1)
        kinds = ["all", *(("lost",) if self.bounds.losses else ())]
        kinds += [
            *(("crash",) if state.crashes else ()),
            *(("one",) if self.bounds.prefixes else ()),
        ]
        for peer in node.state.peers:
            to = peer.id - 1
            for kind in kinds:
                pair = self._round(number, state.nodes[to], kind)
                if pair == (number, state.nodes[to]):
                    continue
                told = self._with(self._with(state, at, pair[0]), to, pair[1])
                if kind == "crash":
                    told = told._replace(crashes=state.crashes - 1)
                yield (at + 1, "tells", peer.id, kind), told

    def _changes(self, node: ModelNode) -> Iterator[ChangeMembers]:
        for member in node.state.log.config.members:
            yield ChangeMembers("remove", member.id)
            if member.place == "learner":
                yield ChangeMembers("promote", member.id)

    # Local steps, each done once

    def _do(self, number: int, what: str | ChangeMembers) -> int:
        key = (number, what)
        if key not in self._alone:
            self._alone[key] = self._number(self._done(self._nodes[number], what))
        return self._alone[key]

    def _done(self, node: ModelNode, what: str | ChangeMembers) -> ModelNode:
        if isinstance(what, ChangeMembers):
            node, _ = advanced(node, what)
        elif what == "propose":
            node, _ = advanced(node, Propose((PROPOSAL,)))
        elif what == "crash":
            return started(node.state.me, node.disk, barred=node.state.barred)
        elif what == "restore":
            return started(node.state.me, empty_past(self.config), barred=True)
        if what == "sync" or not self.bounds.lazy:
            node, _ = synced(node)
        return node

    def _round(self, leader: int, member: int, kind: str) -> tuple[int, int]:
        """The leader brings one member up to date."""
        key = (leader, member, kind)
        if key not in self._pairs:
            self._pairs[key] = self._told(self._nodes[leader], self._nodes[member], kind)
        return self._pairs[key]

    def _told(self, leader: ModelNode, member: ModelNode, kind: str) -> tuple[int, int]:
        id = member.state.me
        before = self._number(leader), self._number(member)
        leader, sent = self._advanced(leader, Tick())
        wire = [it for it in sent if it.to == id]
        while wire:
            message = wire.pop(0)
            if message.to == id:
                member, sent = self._advanced(member, Receive(message))
                if kind != "crash":
                    member, more = self._synced(member)
                    sent += more
                taken = member.state.log != self._nodes[before[1]].state.log
                if kind == "lost" and taken:
                    sent = ()
            else:
                taken = member.state.log != self._nodes[before[1]].state.log
                limit = 1 if kind == "one" else 0
                leader, sent = self._advanced(leader, Receive(message), entries_max=limit)
                if kind == "one" and taken:
                    sent = ()
            wire += [it for it in sent if {it.to, it.sender} == {id, leader.state.me}]
        if kind == "crash":
            member = started(id, member.disk, barred=member.state.barred)
        return self._number(leader), self._number(member)

    def _advanced(
        self, node: ModelNode, event: RaftEvent, entries_max: int = 0
    ) -> tuple[ModelNode, Sent]:
        key = (node, event, entries_max)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = advanced(node, event, entries_max=entries_max)
        return found

    def _synced(self, node: ModelNode) -> tuple[ModelNode, Sent]:
        if not node.queue:
            return node, ()
        found = self._syncs.get(node)
        if found is None:
            found = self._syncs[node] = synced(node)
        return found

    def _election(self, nodes: tuple[int, ...], at: int, asked: tuple[int, ...]) -> tuple[int, ...]:
        """The candidate asks, those asked answer, and their answers come back."""
        latest = self._latest(nodes) if self.bounds.fresh else 0
        _, asks = self._campaign(nodes[at], latest)
        after, answers = list(nodes), []
        for place in asked:
            after[place], answer = self._vote(nodes[place], asks[place + 1])
            answers.append(answer)
        after[at] = self._counted(nodes[at], latest, tuple(answers))
        return tuple(after)

    def _campaign(self, number: int, latest: int) -> tuple[ModelNode, dict[int, Message]]:
        key = (number, latest)
        if key not in self._campaigns:
            node, _ = advanced(self._nodes[number], StepDown())
            me = node.state.me
            other = next(id for id in (*node.state.log.config.ids, _NEW) if id != me)
            if latest > node.state.term:
                heard = VoteAnswer(GROUP, other, me, latest, True, False)
                node, _ = advanced(node, Receive(heard))
            node, _ = synced(node)
            now = TimeoutNow(GROUP, other, me, node.state.term)
            node, _ = advanced(node, Receive(now))
            node, sent = synced(node)
            self._campaigns[key] = node, {ask.to: ask for ask in sent}
        return self._campaigns[key]

    def _vote(self, number: int, ask: Message) -> tuple[int, Sent]:
        key = (number, ask)
        if key not in self._votes:
            node, early = advanced(self._nodes[number], Receive(ask))
            if early and self._crash_after_early:
                # A vote that leaves before the disk has it: the voter crashes then.
                node = started(node.state.me, node.disk, barred=node.state.barred)
            node, late = synced(node)
            self._votes[key] = self._number(node), (*early, *late)
        return self._votes[key]

    def _counted(self, number: int, latest: int, answers: tuple[Sent, ...]) -> int:
        key = (number, latest, answers)
        if key not in self._counts:
            node, _ = self._campaign(number, latest)
            for answer in chain.from_iterable(answers):
                if answer.to == node.state.me:
                    # Everything comes twice: a network may do that.
                    node, _ = advanced(node, Receive(answer))
                    node, _ = advanced(node, Receive(answer))
            if not self.bounds.lazy:
                node, _ = synced(node)
            self._counts[key] = self._number(node)
        return self._counts[key]

    def _number(self, node: ModelNode) -> int:
        node = normal(node)
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
            state = node.state
            led = (state.term, state.me) if state.role == "leader" else None
            terms = tuple(state.log.term_at(index) for index in range(1, state.log.last + 1))
            self._facts.append((led, terms, state.commit))
        return number

    def _with(self, state: RoundState, at: int, number: int) -> RoundState:
        nodes = (*state.nodes[:at], number, *state.nodes[at + 1 :])
        return RoundState(nodes, *state[1:])

    # What must hold

    def _judged(self, before: RoundState, state: RoundState) -> RoundState:
        elected, committed = state.elected, state.committed
        for number, old in zip(state.nodes, before.nodes, strict=True):
            if number == old:
                continue
            led, terms, commit = self._facts[number]
            if led and led not in elected:
                elected = with_leader(elected, led)
                complete = elected[-1] > led or terms[: len(committed)] == committed
                assert complete, f"leader completeness: {led}"
            known = min(commit, len(committed))
            assert terms[:known] == committed[:known], f"state-machine safety: {terms}"
            if commit > known:
                committed = terms[:commit]
            for other in state.nodes:
                if (number, other) not in self._matching:
                    self._match(number, other)
        if elected is state.elected and committed is state.committed:
            return state
        return RoundState(state.nodes, elected, committed, *state[3:])

    def _match(self, one: int, other: int) -> None:
        agree = True
        for mine, its in zip(self._facts[one][1], self._facts[other][1], strict=False):
            assert agree or mine != its, "log matching"
            agree = agree and mine == its
        self._matching.add((one, other))


def with_leader(elected: tuple[Led, ...], led: Led) -> tuple[Led, ...]:
    others = [id for term, id in elected if term == led[0]]
    assert not others, f"election safety: {others[0]} and {led[1]} in term {led[0]}"
    return tuple(sorted((*elected, led)))


def _way(way: list[tuple[int, Name]], at: int) -> list[str]:
    names = []
    while at > 0:
        at, name = way[at]
        names.append(_told(name))
    return names[::-1]


def _told(name: Name) -> str:
    return " ".join(map(str, name))
