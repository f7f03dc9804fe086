"""A small world for groups: nodes with the product's machine, disks that lag, and a network.

Every node is driven as the package tells its callers to: a write goes to the disk, messages that
rest on it wait for it, committed entries are applied. What happens is chosen from outside: a
scenario names every step, a walk draws them from a seed. After every step the world checks what
Raft promises (`RaftLaws`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.rules.quorum.raft.config import (
    UNKNOWN_CONFIG,
    GroupConfig,
    decode_config,
    first_config,
)
from holdfast.rules.quorum.raft.effects import (
    Alarm,
    Outgoing,
    ProposalsHeld,
    ProposalsRefused,
    ProposalsTaken,
    RaftEffects,
    RaftWrite,
    ReadFailed,
    ReadReady,
    SendAppend,
    SendSnapshot,
    filled,
)
from holdfast.rules.quorum.raft.events import (
    AskRead,
    DiskWrote,
    LogCompacted,
    Propose,
    RaftEvent,
    Receive,
    SnapshotFinished,
    Tick,
)
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.machine import RaftMachine
from holdfast.rules.quorum.raft.messages import (
    Message,
    Proposal,
    RaftEntry,
    SnapshotOffer,
    decode_message,
    encode_message,
)
from holdfast.rules.quorum.raft.state import DurablePast, GroupState, GroupTiming, restarted

GROUP = b"group of a world"
INCARNATION = 7
TIMING = GroupTiming(heartbeat=1, election=5, sleep=0)


@dataclass(slots=True)
class DiskOf:
    """What survives a crash of one node."""

    term: int = 0
    vote: int = 0
    boundary: int = 0
    boundary_term: int = 0
    base: tuple[int, GroupConfig] = (0, UNKNOWN_CONFIG)
    entries: list[RaftEntry] = field(default_factory=list)
    applied: list[RaftEntry] = field(default_factory=list)
    """The fold: all applied entries in their order, or those that came with a snapshot."""

    def copy(self) -> DiskOf:
        return DiskOf(
            self.term,
            self.vote,
            self.boundary,
            self.boundary_term,
            self.base,
            list(self.entries),
            list(self.applied),
        )

    def past(self) -> DurablePast:
        log = RaftLog(self.boundary, self.boundary_term, self.boundary, (), (self.base,))
        for entry in self.entries:
            log = log.appended(entry.term, 1)
            if entry.kind == "config":
                log = log.with_config(log.last, decode_config(entry.payload))
        return DurablePast(self.term, self.vote, log, len(self.applied))

    def take(self, write: RaftWrite, snapshot: list[RaftEntry]) -> None:
        assert write.term >= self.term, "a term was lowered on a disk"
        self.term, self.vote = write.term, write.vote
        if write.snapshot is not None:
            it = write.snapshot
            self.boundary, self.boundary_term = it.index, it.term
            self.base = (it.config_index, it.config)
            self.entries, self.applied = [], list(snapshot)
        if write.cut_from:
            del self.entries[write.cut_from - self.boundary - 1 :]
        if write.entries:
            # The driver may have dropped a prefix since the write was made: indexes stay.
            assert write.first == self.boundary + len(self.entries) + 1, "a gap in a log"
            self.entries += write.entries


@dataclass(slots=True)
class Envelope:
    """A message under way, with the snapshot that goes with it."""

    message: Message
    snapshot: list[RaftEntry]


class NodeOf:
    """One node: its machine, its disk, and what waits for the disk."""

    def __init__(self, world: RaftWorld, id: int, disk: DiskOf) -> None:
        self.world, self.id, self.disk = world, id, disk
        self.alive = False
        self.barred = False
        self.machine: RaftMachine
        self.start()

    @property
    def state(self) -> GroupState:
        return self.machine.state

    def start(self) -> None:
        """Starts from what the disk has, and nothing else."""
        past = self.disk.past()
        self.machine = RaftMachine(
            restarted(
                past,
                me=self.id,
                group=GROUP,
                incarnation=INCARNATION,
                timing=self.world.timing,
                barred=self.barred,
            )
        )
        self.alive = True
        self.entries = list(self.disk.entries)
        self.boundary = self.disk.boundary
        self.queue: list[tuple[RaftWrite, list[RaftEntry]]] = []
        self.waiting: list[tuple[int, Message]] = []
        self.held: list[RaftEvent] = []
        self.late: list[DiskWrote] = []

    def crash(self) -> None:
        self.alive = False
        self.queue, self.waiting, self.held, self.late = [], [], [], []

    def step(self, event: RaftEvent, snapshot: Iterable[RaftEntry] = ()) -> RaftEffects:
        before = self.state
        effects = self.machine.step(event)
        self.world.note(self, event, effects)
        self._carry_out(event, effects, list(snapshot))
        self.world.laws.look(self, before)
        return effects

    def sync(self, count: int | None = None) -> None:
        """The disk takes the writes that wait; all, or so many of them."""
        for _ in range(len(self.queue) if count is None else count):
            write, snapshot = self.queue.pop(0)
            self.disk.take(write, snapshot)
            self._release(write.number)
            self.step(DiskWrote(write.number, write.term, write.last))

    def write_quietly(self) -> None:
        """The disk takes one write; that it has it is told later."""
        write, snapshot = self.queue.pop(0)
        self.disk.take(write, snapshot)
        self.late.append(DiskWrote(write.number, write.term, write.last))

    def tell_late(self) -> None:
        wrote = self.late.pop(0)
        self._release(wrote.number)
        self.step(wrote)

    def compact(self, index: int) -> None:
        """Stores a snapshot at this index, which was applied, and drops the log up to it."""
        if index <= self.disk.boundary or self.queue or index > len(self.disk.applied):
            return
        base = self.state.log.config_at(index)
        term = self.state.log.term_at(index)
        del self.disk.entries[: index - self.disk.boundary]
        self.disk.boundary, self.disk.boundary_term, self.disk.base = index, term, base
        del self.entries[: index - self.boundary]
        self.boundary = index
        self.step(LogCompacted(index))

    def _release(self, number: int) -> None:
        ready = [message for after, message in self.waiting if after <= number]
        self.waiting = [pair for pair in self.waiting if pair[0] > number]
        for message in ready:
            self.world.post(message)

    def _carry_out(self, event: RaftEvent, effects: RaftEffects, snapshot: list[RaftEntry]) -> None:
        if effects.write is not None:
            self._keep(effects.write)
            self.queue.append((effects.write, snapshot))
        for out in effects.send:
            self._send(out)
        self.waiting += effects.send_after
        if effects.apply is not None:
            first, last = effects.apply
            assert first == len(self.disk.applied) + 1, "entries are applied once, in order"
            self.disk.applied += self.entries[first - 1 - self.boundary : last - self.boundary]
        if any(isinstance(it, ProposalsHeld) for it in effects.proposals):
            self.held.append(event)
        if effects.retry_held:
            held, self.held = self.held, []
            for again in held:
                self.step(again)

    def _keep(self, write: RaftWrite) -> None:
        if write.snapshot is not None:
            self.entries, self.boundary = [], write.snapshot.index
        if write.cut_from:
            del self.entries[write.cut_from - self.boundary - 1 :]
        self.entries += write.entries

    def _send(self, out: Outgoing) -> None:
        if isinstance(out, SendAppend):
            part = self.entries[out.first - self.boundary - 1 : out.last - self.boundary]
            for message in filled(out, part):
                self.world.post(message)
        elif isinstance(out, SendSnapshot):
            index = self.state.log.boundary
            assert index >= out.at_least
            at, config = self.state.log.config_at(index)
            offer = SnapshotOffer(
                GROUP,
                self.id,
                out.to,
                out.term,
                index,
                self.state.log.boundary_term,
                at,
                config,
                self.state.round,
            )
            self.world.post(offer, self.disk.applied[:index])
        else:
            self.world.post(out)


class RaftLaws:
    """What must hold in every state: Raft's five promises, by what the nodes did."""

    def __init__(self, world: RaftWorld) -> None:
        self.world = world
        self.leaders: dict[int, int] = {}
        self.committed: list[RaftEntry] = []
        self.known: dict[tuple[int, int], tuple[RaftEntry, int]] = {}
        """Every entry that ever stood in a log, by index and term, with the term before it."""
        self.reads: dict[tuple[int, int], int] = {}
        """What was committed when a read began, by node and number."""
        self.served = 0

    def look(self, node: NodeOf, before: GroupState) -> None:
        state = node.state
        if state.log is not before.log:
            self._log_matching(node, before)
        if state.role == "leader" and (before.role != "leader" or before.term != state.term):
            self._elected(node)
        if state.commit > before.commit:
            self._committed(node, before.commit)
        self._durable(node)

    def _durable(self, node: NodeOf) -> None:
        """What a machine takes for durable is on its disk."""
        disk, upto = node.disk, node.state.durable
        if upto > max(disk.boundary, node.state.log.boundary):
            assert upto <= disk.boundary + len(disk.entries), f"{upto} is not on the disk"
            written = disk.entries[upto - disk.boundary - 1].term
            assert written == node.state.log.term_at(upto), f"{upto} is another on the disk"

    def read_begins(self, node: int, number: int) -> None:
        self.reads[node, number] = len(self.committed)

    def read_served(self, node: int, number: int, index: int) -> None:
        floor = self.reads.pop((node, number), 0)
        assert index >= floor, f"stale read: {index} is served, {floor} was committed before"
        self.served += 1

    def _elected(self, node: NodeOf) -> None:
        state = node.state
        leader = self.leaders.setdefault(state.term, node.id)
        assert leader == node.id, f"election safety: {leader} and {node.id} in term {state.term}"
        if state.term < max(self.leaders):
            return  # Elected late: a later term may have decided already.
        for index, entry in enumerate(self.committed, 1):
            has = state.log.term_at(index)
            assert index <= state.log.boundary or has == entry.term, (
                f"leader completeness: {node.id} lacks {index} of term {entry.term}"
            )

    def _committed(self, node: NodeOf, before: int) -> None:
        state = node.state
        assert state.commit <= state.log.last
        for index in range(max(before, state.log.boundary) + 1, state.commit + 1):
            entry = node.entries[index - node.boundary - 1]
            if index > len(self.committed):
                assert index == len(self.committed) + 1, "a gap in what is committed"
                assert not self.committed or self.committed[-1].term <= entry.term, "fences fall"
                self.committed.append(entry)
            assert self.committed[index - 1] == entry, (
                f"state-machine safety: {index} is {entry} on {node.id}, "
                f"{self.committed[index - 1]} elsewhere"
            )

    def _log_matching(self, node: NodeOf, before: GroupState) -> None:
        log = node.state.log
        start = max(log.boundary, min(before.log.last, log.last) - 3, 0)
        for index in range(start + 1, log.last + 1):
            entry = node.entries[index - node.boundary - 1]
            assert entry.term == log.term_at(index)
            this = (entry, log.term_at(index - 1))
            known = self.known.setdefault((index, entry.term), this)
            assert known == this, f"log matching: {index} of term {entry.term}"


class RaftWorld:
    """Nodes and the messages between them."""

    def __init__(self, voters: int = 3, timing: GroupTiming = TIMING) -> None:
        self.timing = timing
        self.config = first_config(tuple((f"node{n}", bytes(32)) for n in range(1, voters + 1)))
        self.laws = RaftLaws(self)
        self.wire: list[Envelope] = []
        self.cut: set[tuple[int, int]] = set()
        self.nodes: dict[int, NodeOf] = {}
        self.alarms: list[tuple[int, Alarm]] = []
        self.taken: dict[bytes, int] = {}
        self.refused: list[tuple[int, ProposalsRefused]] = []
        self.failed_reads: list[tuple[int, int]] = []
        self.proposed = 0
        self.asked = 0
        self.tell: Callable[[str], None] = lambda line: None
        for id in self.config.ids:
            self.nodes[id] = NodeOf(self, id, DiskOf(base=(0, self.config)))

    def join(self, id: int) -> NodeOf:
        """A node that begins with nothing but its id."""
        self.nodes[id] = NodeOf(self, id, DiskOf())
        return self.nodes[id]

    @property
    def alive(self) -> list[NodeOf]:
        return [node for node in self.nodes.values() if node.alive]

    def leader(self) -> NodeOf | None:
        """The leader of the latest term."""
        leading = [node for node in self.alive if node.state.role == "leader"]
        return max(leading, key=lambda node: node.state.term, default=None)

    def propose(self, node: NodeOf, count: int = 1) -> list[bytes]:
        ids = [self._next_id() for _ in range(count)]
        node.step(Propose(tuple(Proposal(id, b"p" + id[-4:]) for id in ids)))
        return ids

    def read(self, node: NodeOf) -> int:
        self.asked += 1
        self.laws.read_begins(node.id, self.asked)
        node.step(AskRead(self.asked))
        return self.asked

    def note(self, node: NodeOf, event: RaftEvent, effects: RaftEffects) -> None:
        self.alarms += [(node.id, alarm) for alarm in effects.alarms]
        for outcome in effects.proposals:
            if isinstance(outcome, ProposalsTaken):
                self.taken |= {id: outcome.first + n for n, id in enumerate(outcome.ids)}
            elif isinstance(outcome, ProposalsRefused):
                self.refused.append((node.id, outcome))
        for read in effects.reads:
            if isinstance(read, ReadReady):
                self.laws.read_served(node.id, read.number, read.index)
            elif isinstance(read, ReadFailed):
                self.failed_reads.append((node.id, read.number))

    def post(self, message: Message, snapshot: Iterable[RaftEntry] = ()) -> None:
        """Puts a message on the wire; it goes through its bytes, as on a link."""
        again = decode_message(encode_message(message))
        assert again == message
        self.wire.append(Envelope(again, list(snapshot)))

    def passes(self, message: Message) -> bool:
        there = self.nodes.get(message.to)
        return (message.sender, message.to) not in self.cut and there is not None and there.alive

    def deliver(self, envelope: Envelope) -> None:
        """Hands a message over, if its way is open."""
        message = envelope.message
        if self.passes(message):
            self.nodes[message.to].step(Receive(message), envelope.snapshot)
        if isinstance(message, SnapshotOffer) and self.nodes[message.sender].alive:
            self.nodes[message.sender].step(SnapshotFinished(message.to))

    def settle(self, *, sync: bool = True, limit: int = 5000) -> None:
        """Delivers everything, and lets the disks catch up, until nothing is under way."""
        for _ in range(limit):
            if self.wire:
                self.deliver(self.wire.pop(0))
            elif sync and (node := next((it for it in self.alive if it.queue), None)):
                node.sync()
            else:
                return
        raise AssertionError("the world does not come to rest")

    def tick(self, draw: Callable[[int], int] = lambda id: id * 7) -> None:
        """One tick for every node, then everything is delivered."""
        for node in self.alive:
            node.step(Tick(draw(node.id)))
        self.settle()

    def elect(self, draw: Callable[[int], int] = lambda id: id * 7) -> NodeOf:
        for _ in range(self.timing.election * 8):
            self.tick(draw)
            leader = self.leader()
            if leader is not None and leader.state.leads_settled:
                return leader
        raise AssertionError("nobody was elected")

    def _next_id(self) -> bytes:
        self.proposed += 1
        return self.proposed.to_bytes(16, "big")
