"""An exhaustive search with single messages, by the product's own step.

Every message is delivered by an action of its own, in any order, some twice, and need not be
delivered at all; every write reaches the disk by an action of its own, and that it did may be told
later still. That is too fine to go far from the beginning, so searches also begin where a story has
led to. Messages that can have no effect any more are dropped: older than their recipient's term, or
answers to somebody who has stopped asking. Heartbeats are left out: what is committed travels with
entries too.

Checked in every state: as in `raft_rounds`, and that what a machine takes for durable is on its
disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.rules.quorum.raft.config import first_config
from holdfast.rules.quorum.raft.effects import SendAppend, SendSnapshot, filled
from holdfast.rules.quorum.raft.events import DiskWrote, Propose, RaftEvent, Receive
from holdfast.rules.quorum.raft.machine import step
from holdfast.rules.quorum.raft.messages import (
    AppendAnswer,
    AppendEntries,
    AskVote,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Proposal,
    TimeoutNow,
    VoteAnswer,
)
from holdfast.rules.quorum.raft.state import GroupState
from support.raft_nodes import GROUP, ModelNode, empty_past, entries_of, on_disk, started
from support.raft_rounds import Led, Violation, with_leader

PROPOSAL = Proposal(bytes(16), b"")
Wire = tuple[Message, ...]


class FineBounds(NamedTuple):
    """How far a search goes, and the story that it begins with."""

    story: tuple[str, ...] = ()
    voters: int = 3
    terms: int = 1
    last: int = 1
    campaigns: int = 1
    late: int = 0
    """Writes of which the disk tells later than it has them."""
    doubles: int = 0
    crashes: int = 0
    states_max: int = 1_000_000


class FineNode(NamedTuple):
    node: ModelNode
    late: tuple[DiskWrote, ...] = ()


class FineState(NamedTuple):
    nodes: tuple[int, ...]
    wire: frozenset[Message]
    elected: tuple[Led, ...]
    committed: tuple[int, ...]
    left: tuple[int, int, int, int]
    """Campaigns, late acknowledgements, doubled messages and crashes that may still happen."""


class MessageSearch:
    """A search through all states within bounds, from the end of a story on."""

    def __init__(self, bounds: FineBounds) -> None:
        self.bounds = bounds
        self._nodes: list[FineNode] = []
        self._numbers: dict[FineNode, int] = {}
        self._steps: dict[tuple[int, object], tuple[int, Wire]] = {}
        self.transitions = 0
        self.states = 0
        config = first_config(tuple((str(n), b"") for n in range(1, bounds.voters + 1)))
        past = empty_past(config)
        nodes = tuple(self._number(FineNode(started(id, past))) for id in config.ids)
        left = (99, 99, 99, 99)
        state = FineState(nodes, frozenset(), (), (), left)
        for line in bounds.story:
            state = self._tell(state, line)
        left = (bounds.campaigns, bounds.late, bounds.doubles, bounds.crashes)
        self.first = state._replace(left=left)

    def run(self) -> int:
        """How many states there are; raises Violation with the way to a state that must not be."""
        seen = {hash(self.first)}
        way: list[tuple[int, str]] = [(-1, "")]
        waiting: deque[tuple[int, FineState]] = deque([(0, self.first)])
        while waiting and len(seen) < self.bounds.states_max:
            at, state = waiting.popleft()
            try:
                for name, reached in self._following(state):
                    self.transitions += 1
                    key = hash(reached)
                    if key not in seen:
                        seen.add(key)
                        way.append((at, name))
                        waiting.append((len(way) - 1, reached))
            except AssertionError as error:
                told = " -> ".join((*self.bounds.story, *_way(way, at)))
                raise Violation(f"{error}: after {told}") from None
        self.states = len(seen)
        return self.states

    def _following(self, state: FineState) -> Iterator[tuple[str, FineState]]:
        campaigns, late, doubles, crashes = state.left
        for at, number in enumerate(state.nodes):
            fine = self._nodes[number]
            own = fine.node.state
            may = own.term < self.bounds.terms and own.role != "leader" and own.may_lead
            if campaigns and may:
                left = (campaigns - 1, late, doubles, crashes)
                yield f"campaign {own.me}", self._after(state, at, "campaign", left)
            if own.role == "leader" and own.log.last < self.bounds.last:
                yield f"propose {own.me}", self._after(state, at, "propose")
            if fine.node.queue:
                yield f"sync {own.me}", self._after(state, at, "sync")
                if late:
                    left = (campaigns, late - 1, doubles, crashes)
                    yield f"write {own.me}", self._after(state, at, "write", left)
            if fine.late:
                yield f"tell {own.me}", self._after(state, at, "tell")
            if crashes:
                left = (campaigns, late, doubles, crashes - 1)
                yield f"crash {own.me}", self._after(state, at, "crash", left)
        for message in state.wire:
            at = message.to - 1
            name = f"{type(message).__name__} {message.sender}>{message.to}"
            gone = state._replace(wire=state.wire - {message})
            yield name, self._after(gone, at, message)
            if doubles:
                left = (campaigns, late, doubles - 1, crashes)
                yield f"{name} (kept)", self._after(state, at, message, left)

    def _tell(self, state: FineState, line: str) -> FineState:
        """One line of a story: `1 campaign`, `1 sync`, `1>2` (all messages that way arrive), `1!2`
        (they are lost), `settle`.
        """
        if line == "settle":
            for _ in range(1000):
                busy = next(
                    (i for i, it in enumerate(state.nodes) if self._nodes[it].node.queue), None
                )
                if busy is not None:
                    state = self._after(state, busy, "sync")
                elif state.wire:
                    state = self._tell(state, _way_of(_first(state.wire)))
                else:
                    return state
            raise AssertionError("a story that does not end")
        if "!" in line:
            lost = line.replace("!", ">")
            return state._replace(wire=frozenset([it for it in state.wire if _way_of(it) != lost]))
        if ">" in line:
            for message in sorted((it for it in state.wire if _way_of(it) == line), key=repr):
                state = state._replace(wire=state.wire - {message})
                state = self._after(state, message.to - 1, message)
            return state
        id, action = line.split()
        return self._after(state, int(id) - 1, action)

    def _after(
        self,
        state: FineState,
        at: int,
        what: str | Message,
        left: tuple[int, int, int, int] | None = None,
    ) -> FineState:
        number, sent = self._step(state.nodes[at], what)
        nodes = (*state.nodes[:at], number, *state.nodes[at + 1 :])
        states = [self._nodes[it].node.state for it in nodes]
        wire = frozenset([it for it in (*state.wire, *sent) if _alive(it, states[it.to - 1])])
        elected, committed = self._judged(number, state.elected, state.committed)
        return FineState(nodes, wire, elected, committed, left or state.left)

    def _step(self, number: int, what: str | Message) -> tuple[int, Wire]:
        key = (number, what)
        if key not in self._steps:
            fine, sent = self._done(self._nodes[number], what)
            self._steps[key] = self._number(fine), tuple(map(_plain, sent))
        return self._steps[key]

    def _done(self, fine: FineNode, what: str | Message) -> tuple[FineNode, list[Message]]:
        node, late = fine
        if not isinstance(what, str):
            return _moved(fine, Receive(what))
        if what == "campaign":
            me = node.state.me
            now = TimeoutNow(GROUP, 2 if me == 1 else 1, me, node.state.term)
            return _moved(fine, Receive(now))
        if what == "propose":
            return _moved(fine, Propose((PROPOSAL,)))
        if what == "crash":
            return FineNode(started(node.state.me, node.disk)), []
        if what == "tell":
            return _acknowledged(FineNode(node, late[1:]), late[0])
        write = node.queue[0]
        disk = on_disk(node.disk, write, node.state)
        node = ModelNode(node.state, disk, node.queue[1:], node.waiting)
        wrote = DiskWrote(write.number, write.term, write.last)
        if what == "write":
            return FineNode(node, (*late, wrote)), []
        return _acknowledged(FineNode(node, late), wrote)

    def _number(self, fine: FineNode) -> int:
        fine = _normal(fine)
        number = self._numbers.get(fine)
        if number is None:
            number = self._numbers[fine] = len(self._nodes)
            self._nodes.append(fine)
        return number

    def _judged(
        self, number: int, elected: tuple[Led, ...], committed: tuple[int, ...]
    ) -> tuple[tuple[Led, ...], tuple[int, ...]]:
        node = self._nodes[number].node
        state, log = node.state, node.state.log
        terms = tuple(log.term_at(index) for index in range(1, log.last + 1))
        if state.role == "leader" and (state.term, state.me) not in elected:
            elected = with_leader(elected, (state.term, state.me))
            # One that is elected late, after a later term has decided, need not have that.
            complete = elected[-1][0] > state.term or terms[: len(committed)] == committed
            assert complete, f"leader completeness: {state.me}"
        known = min(state.commit, len(committed))
        assert terms[:known] == committed[:known], f"state-machine safety: {terms}"
        disk = node.disk.log
        assert state.durable <= disk.last, f"{state.durable} is not on the disk"
        on_it = state.durable == 0 or disk.term_at(state.durable) == log.term_at(state.durable)
        assert on_it, f"{state.durable} is another on the disk"
        return elected, terms[: state.commit] if state.commit > known else committed


def _moved(fine: FineNode, event: RaftEvent) -> tuple[FineNode, list[Message]]:
    node = fine.node
    state, effects = step(node.state, event)
    sent: list[Message] = []
    for out in effects.send:
        if isinstance(out, SendAppend):
            sent += filled(out, entries_of(state.log, out.first, out.last))
        elif not isinstance(out, Heartbeat | HeartbeatAnswer):
            assert not isinstance(out, SendSnapshot), "no snapshots in a model"
            sent.append(out)
    queue = (*node.queue, effects.write) if effects.write else node.queue
    waiting = (*node.waiting, *effects.send_after)
    return FineNode(ModelNode(state, node.disk, queue, waiting), fine.late), sent


def _acknowledged(fine: FineNode, wrote: DiskWrote) -> tuple[FineNode, list[Message]]:
    node = fine.node
    ready = [message for after, message in node.waiting if after <= wrote.number]
    waiting = tuple(pair for pair in node.waiting if pair[0] > wrote.number)
    node = ModelNode(node.state, node.disk, node.queue, waiting)
    fine, sent = _moved(FineNode(node, fine.late), wrote)
    return fine, [*ready, *sent]


def _normal(fine: FineNode) -> FineNode:
    """The same node with its counters put back."""
    node, late = fine
    state = node.state
    shift = (state.unsynced[0].number if state.unsynced else state.next_write) - 1
    peers = tuple([replace(peer, active=False, echoed=0, match_round=0) for peer in state.peers])
    state = replace(
        state,
        peers=peers,
        unsynced=tuple([replace(it, number=it.number - shift, age=0) for it in state.unsynced]),
        next_write=state.next_write - shift,
        vote_write=max(0, state.vote_write - shift),
        elapsed=0,
        quiet=0,
        timeout=0,
        round=0,
        told=0,
    )
    queue = tuple([replace(it, number=it.number - shift) for it in node.queue])
    waiting = tuple([(after - shift, message) for after, message in node.waiting])
    waiting = tuple([(after, _plain(message)) for after, message in waiting])
    told = tuple([replace(it, number=it.number - shift) for it in late if it.number - shift > 0])
    return FineNode(ModelNode(state, node.disk, queue, waiting), told)


def _plain(message: Message) -> Message:
    """The message without its round, which only reads need."""
    if isinstance(message, AppendEntries | AppendAnswer):
        return replace(message, round=0)
    return message


def _alive(message: Message, to: GroupState) -> bool:
    """Whether a message can still have an effect on its recipient."""
    if message.term < to.term or isinstance(message, Heartbeat | HeartbeatAnswer):
        return False
    if message.term > to.term:
        return True
    if isinstance(message, VoteAnswer):
        return to.role == "candidate" and message.granted
    if isinstance(message, AppendAnswer):
        return to.role == "leader"
    if isinstance(message, AskVote):
        return to.vote in (0, message.sender)
    return True


def _first(wire: frozenset[Message]) -> Message:
    return min(wire, key=repr)


def _way_of(message: Message) -> str:
    return f"{message.sender}>{message.to}"


def _way(way: list[tuple[int, str]], at: int) -> list[str]:
    names: list[str] = []
    while at > 0:
        at, name = way[at]
        names.append(name)
    return names[::-1]
