"""Histories of clients on a group of voters, under faults: quick ones, many of them.

The real driver and the real Raft machine run on Raft logs in memory, in a world of a few seconds
whose time is a heap of events. A voter that dies loses what its disk had not acknowledged; one that
stands still finds its messages waiting. Clients read, write and compare through any voter. What
they asked and heard is a history that `linearizability` judges, twice.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

import msgspec

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.log_disk import entry_of, past_of, row_of
from holdfast.node.quorum.embedded.open_proposals import AppliedProposal, ProposalAnswer
from holdfast.node.quorum.embedded.ports import Folded, GroupHooks, Wrote
from holdfast.rules.errors import HoldfastError
from holdfast.rules.quorum.raft.config import GroupMember, encode_config, first_config
from holdfast.rules.quorum.raft.effects import ChangeOutcome, RaftWrite
from holdfast.rules.quorum.raft.events import ChangeMembers, DiskChanged, NodeStalled
from holdfast.rules.quorum.raft.messages import Message, Proposal, RaftEntry
from holdfast.rules.quorum.raft.state import GroupTiming, restarted
from holdfast.simulate.quorum.registers import RegisterCommand, Registers, encode_command
from holdfast.storage.memory.quorum_log import MemoryQuorumLog
from support.linearizability import Call

SCOPE: Final = "team"
TAG: Final = b"group of history"
NAMES: Final = ("ana", "bob", "cai")
NEW: Final = "dee"
"""Who is added where members change."""
WAYS: Final = tuple((one, other) for one in NAMES for other in NAMES if one != other)
"""The six directed ways between three voters: 64 sets of them can be cut."""
TICK_MS: Final = 100
START_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
PATIENCE_TICKS: Final = 12
KEYS: Final = ("x", "y", "z", "u", "v")
THINK_MS_MAX: Final = 500
DISK_MS_MAX: Final = 20
CLIENTS: Final = 20
"""On five keys: about four at a time on a key, never more than the search can decide."""


class Voter:
    """One voter: its Raft log survives, its process may not."""

    def __init__(self, world: HistoryWorld, name: str, number: int) -> None:
        self.world, self.name, self.number = world, name, number
        self.log = MemoryQuorumLog()
        self.driver: GroupDriver | None = None
        self.registers = Registers()
        self.life = 0
        self.paused: list[Callable[[], None]] | None = None
        self.disk_ms, self.clock_ms = DISK_MS_MAX, 0
        self._last_write_at = 0.0

    def start(self) -> None:
        if self.driver is not None:
            return
        self.life += 1
        head, group = self.log.head(SCOPE), self.log.group(SCOPE)
        state = restarted(
            past_of(self.log, SCOPE, 0),
            me=group.voter,
            group=group.tag,
            incarnation=group.incarnation,
            timing=GroupTiming(sleep=0),
            next_write=head.written + 1,
        )
        self.registers = Registers()
        world = self.world
        hooks = GroupHooks(
            now_ms=lambda: START_MS + int(world.now) + self.clock_ms,
            post=lambda call: self.soon(0, call),
        )
        self.driver = GroupDriver(self.name, state, self, self, self, hooks)
        self.soon(world.chance.uniform(1, TICK_MS), self._tick)

    def crash(self) -> None:
        self.driver, self.paused = None, None

    def pause(self) -> None:
        if self.driver is not None and self.paused is None:
            self.paused = []

    def resume(self) -> None:
        waiting, self.paused = self.paused or [], None
        for call in waiting:
            self._act(self.life, call)
        if waiting and self.driver is not None:
            self._act(self.life, partial(self.driver.handle, NodeStalled()))

    def soon(self, delay: float, call: Callable[[], None]) -> None:
        self.world.at(delay, partial(self._act, self.life, call))

    def _act(self, life: int, call: Callable[[], None]) -> None:
        if life != self.life or self.driver is None:
            return
        if self.paused is not None:
            self.paused.append(call)
        else:
            call()

    def _tick(self) -> None:
        assert self.driver is not None
        self.soon(TICK_MS, self._tick)
        self.driver.tick(self.world.chance.randrange(1 << 16))

    def arrive(self, source: str, message: Message) -> None:
        contact = GroupMember(message.sender, source, b"", "learner")
        self._act(self.life, lambda: self.driver.receive(message, contact) if self.driver else None)

    # --- VoterNet ------------------------------------------------------------------------------

    def send(self, to: GroupMember, message: Message) -> None:
        self.world.carry(self.name, to.peer, message)

    def has_room(self, to: GroupMember) -> bool:
        return True

    # --- GroupDisk -----------------------------------------------------------------------------

    def write(self, write: RaftWrite, commit: int, done: Wrote) -> None:
        world = self.world
        at = max(self._last_write_at, world.now + world.chance.uniform(0, self.disk_ms))
        self._last_write_at = at
        assert self.driver is not None
        voter = self.driver.state.me

        def save() -> None:
            try:
                self.log.save(row_of(write, SCOPE, voter, commit))
            except HoldfastError as error:  # pragma: no cover
                world.problems.append(f"{self.name}: {error.message}")
                return
            done(None)

        self.soon(at - world.now, save)

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        return [entry_of(row) for row in self.log.entries(SCOPE, first, last + 1, bytes_max)]

    # --- CommitFold ----------------------------------------------------------------------------

    @property
    def applied(self) -> int:
        return self.registers.applied

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        def apply() -> None:
            folded = self.registers.fold(entries, upto)
            self.world.applied(self.name, entries)
            done(folded)

        self.soon(self.world.chance.uniform(0, 2), apply)


class HistoryWorld:
    """Three voters, their clients, and one storm. `history` and `order` are what came of it."""

    def __init__(self, seed: int, calls: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.problems: list[str] = []
        self.history: list[Call] = []
        self.order: dict[int, CommittedEntry] = {}
        self.handed: list[Any] = []
        """What became of transfers that `hand_over` asked for."""
        self.cut: set[tuple[str, str]] = set()
        self.delay_ms, self.loss = 4.0, 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)
        self._calls_left, self._open = calls, 0
        self.voters = {name: Voter(self, name, number) for number, name in enumerate(NAMES, 1)}
        config = first_config(tuple((name, name.encode() * 8) for name in NAMES))
        for voter in self.voters.values():
            voter.log.init(SCOPE, tag=TAG, voter=voter.number, config=encode_config(config))
            voter.start()
        for client in range(CLIENTS):
            self.at(self.chance.uniform(0, 50), partial(self._ask, KEYS[client % len(KEYS)]))

    def at(self, delay: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), call))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, call = heapq.heappop(self._events)
            call()
            if self.problems:
                return
        self.now = until

    @property
    def is_done(self) -> bool:
        return self._calls_left <= 0 and not self._open

    def carry(self, source: str, target: str, message: Message) -> None:
        if (source, target) in self.cut or self.chance.random() < self.loss:
            return
        if target not in self.voters:
            return  # it was added a moment ago, and does not know of it yet
        delay = self.chance.uniform(0.2, self.delay_ms)
        self.at(delay, lambda: self.voters[target].arrive(source, message))

    def applied(self, name: str, entries: Sequence[CommittedEntry]) -> None:
        for entry in entries:
            known = self.order.setdefault(entry.index, entry)
            if known != entry:
                self.problems.append(f"{name} has another entry at {entry.index}")

    # --- clients -------------------------------------------------------------------------------

    def _ask(self, key: str) -> None:
        """A client asks some voter; whether it hears an answer or not, it goes on."""
        if self._calls_left <= 0:
            return
        up = [voter for voter in self.voters.values() if voter.driver and voter.paused is None]
        if not up:
            self.at(TICK_MS, partial(self._ask, key))
            return
        self._calls_left -= 1
        self._open += 1
        voter, number, began = self.chance.choice(up), next(self._numbers), self.now
        driver, life = voter.driver, voter.life
        assert driver is not None
        asked: tuple[object, ...] = ("read",)
        heard: list[bool] = []

        def ended(is_answer: bool, answer: object, index: int | None) -> None:
            if heard:
                return
            heard.append(True)
            self._open -= 1
            call = Call(number, key, began, self.now if is_answer else None, asked, answer, index)
            self.history.append(call)
            self.at(self.chance.uniform(0, THINK_MS_MAX), partial(self._ask, key))

        # A voter that dies or stands still answers nobody: the client gives up after a while.
        limit = (PATIENCE_TICKS + 2) * TICK_MS
        self.at(limit, lambda: ended(False, None, None))
        if self.chance.random() < 0.4:

            def read(index: int | None) -> None:
                if voter.life == life:
                    value = voter.registers.values.get(key, 0) or None
                    ended(index is not None, value, None if index is None else voter.applied)

            driver.read(PATIENCE_TICKS, read)
            return
        value = number
        seen = self._last_seen(key) if self.chance.random() < 0.5 else None
        asked = ("write", value) if seen is None else ("cas", seen or None, value)
        command = RegisterCommand(number.to_bytes(16, "big"), key, value, seen)

        def proposed(end: ProposalAnswer) -> None:
            if isinstance(end, AppliedProposal):
                answer = None if asked[0] == "write" else bool(end.result)
                ended(True, answer, end.index)
            else:
                ended(False, None, None)

        driver.propose(Proposal(command.id, encode_command(command)), PATIENCE_TICKS, proposed)

    def _last_seen(self, key: str) -> int:
        for call in reversed(self.history):
            if call.key == key and call.ended is not None and call.asked[0] != "cas":
                return (call.answer if call.asked[0] == "read" else call.asked[1]) or 0
        return 0

    # --- what is wrong -------------------------------------------------------------------------

    def commits(self, key: str) -> list[tuple[int, int]]:
        """(index, id) of the writes of a key, each where it was applied first."""
        found: dict[int, int] = {}
        for index in sorted(self.order):
            command = _decode(self.order[index].raw)
            if command.key == key:
                found.setdefault(int.from_bytes(command.id, "big"), index)
        return [(index, id) for id, index in found.items()]


def _decode(raw: bytes) -> RegisterCommand:
    return msgspec.msgpack.decode(raw, type=RegisterCommand)


# --- storms --------------------------------------------------------------------------------------


STRIKES: Final = (
    *("kill", "power", "pause", "slow", "full", "clock", "transfer", "step", "loss"),
    *("isolate", "isolate", "isolate"),
)


def storm(world: HistoryWorld, ways: Sequence[tuple[str, str]]) -> None:
    """Cuts these ways for a while, and lets other things happen besides."""
    chance, at = world.chance, world.at
    voters = list(world.voters.values())
    begun = chance.uniform(1500, 2500)  # somebody leads by then
    at(begun, lambda: world.cut.update(ways))
    at(begun + chance.uniform(1000, 4000), world.cut.clear)
    for _ in range(chance.randrange(1, 4)):
        voter, when = chance.choice(voters), chance.uniform(1500, 6000)
        at(when, partial(_strike, world, voter, chance.choice(STRIKES)))


def _strike(world: HistoryWorld, voter: Voter, what: str) -> None:
    later = world.chance.uniform(200, 3000)
    if what == "kill":
        voter.crash()
        world.at(later, voter.start)
    elif what == "power":
        cut_power(world, later)
    elif what == "pause":
        voter.pause()
        world.at(later, voter.resume)
    elif what == "isolate":
        _isolate(world, _leader(world) or voter, max(later, 1500))
    elif what == "slow":
        voter.disk_ms = 300
        world.at(later, partial(setattr, voter, "disk_ms", DISK_MS_MAX))
    elif what == "clock":
        voter.clock_ms = world.chance.choice((-HOUR_MS, HOUR_MS))
    elif what == "loss":
        world.loss, world.delay_ms = 0.1, 60.0
        world.at(later, partial(setattr, world, "loss", 0.0))
    elif voter.driver is None or voter.paused is not None:
        return
    elif what == "full":
        voter.driver.handle(DiskChanged("full"))
        voter.soon(
            later, lambda: voter.driver.handle(DiskChanged("fine")) if voter.driver else None
        )
    elif what == "transfer":
        voter.driver.transfer(0, PATIENCE_TICKS, lambda handed: None)
    else:
        voter.driver.step_down()


def cut_power(world: HistoryWorld, for_ms_max: float = 500) -> None:
    """All of them are gone at once, with what their disks had not acknowledged."""
    for one in world.voters.values():
        one.crash()
        world.at(world.chance.uniform(0, for_ms_max), one.start)


def _isolate(world: HistoryWorld, voter: Voter, for_ms: float) -> None:
    """Whoever leads still believes it for a while, and others are elected meanwhile."""
    world.cut.update(way for way in WAYS if voter.name in way)
    world.at(for_ms, world.cut.clear)
    if world.chance.random() < 0.5:  # its clock says that no time has passed
        voter.clock_ms -= HOUR_MS


def hand_over(world: HistoryWorld) -> None:
    """Whoever leads hands over to another voter."""
    leader = _leader(world)
    if leader is not None and leader.driver is not None:
        leader.driver.transfer(0, PATIENCE_TICKS, world.handed.append)


def depose(world: HistoryWorld) -> None:
    """Whoever leads is cut off, and its clock says that no time has passed."""
    leader = _leader(world)
    if leader is not None:
        leader.clock_ms -= HOUR_MS
        _isolate(world, leader, 2_500)


def change_members(world: HistoryWorld) -> None:
    """Takes the vote from one of the others, through whoever leads, and gives it to a new node."""
    AskMembers(world).ask()


class AskMembers:
    """One change after the other, each until a leader has carried it out."""

    def __init__(self, world: HistoryWorld) -> None:
        self._world = world
        self._steps = [self._remove, self._add, self._promote]
        self._new = 0

    def ask(self) -> None:
        self._world.at(self._world.chance.uniform(1500, 3000), self._step)

    def _step(self) -> None:
        leader = _leader(self._world)
        if leader is None or leader.driver is None or leader.paused is not None:
            self._world.at(TICK_MS, self._step)
            return
        leader.driver.change(self._steps[0](leader.driver), PATIENCE_TICKS, self._changed)

    def _remove(self, driver: GroupDriver) -> ChangeMembers:
        members = driver.state.log.config.members
        others = [one.id for one in members if one.id != driver.state.me]
        return ChangeMembers("remove", self._world.chance.choice(others))

    def _add(self, driver: GroupDriver) -> ChangeMembers:
        return ChangeMembers("add", peer=NEW, key=NEW.encode() * 8)

    def _promote(self, driver: GroupDriver) -> ChangeMembers:
        return ChangeMembers("promote", self._new)

    def _changed(self, outcome: ChangeOutcome | None) -> None:
        world = self._world
        if outcome is None or not outcome.index:
            self._find()
            world.at(TICK_MS, self._step)
            return
        done = self._steps.pop(0)
        if done == self._add:
            self._begin(outcome.id)
        if self._steps:
            world.at(TICK_MS, self._step)

    def _find(self) -> None:
        """A change without an answer may have happened all the same."""
        leader = _leader(self._world)
        members = leader.driver.state.log.config.members if leader and leader.driver else ()
        new = [one for one in members if one.peer == NEW]
        if self._steps[0] == self._remove and members and len(members) < len(NAMES):
            self._steps.pop(0)
        elif self._steps[0] == self._add and new:
            self._steps.pop(0)
            self._begin(new[0].id)

    def _begin(self, id: int) -> None:
        self._new = id
        if NEW not in self._world.voters:
            voter = self._world.voters[NEW] = Voter(self._world, NEW, id)
            voter.log.join(SCOPE, incarnation=1, tag=TAG, voter=id)
            voter.start()


def _leader(world: HistoryWorld) -> Voter | None:
    leading = [v for v in world.voters.values() if v.driver and v.driver.state.role == "leader"]
    return max(leading, key=lambda v: v.driver.state.term if v.driver else 0, default=None)


def tell(
    seed: int,
    ways: Sequence[tuple[str, str]],
    *,
    calls: int,
    members: bool = False,
    again: Callable[[HistoryWorld], None] | None = None,
) -> HistoryWorld:
    """One history of so many calls. `again` is one thing that happens again and again instead of a
    storm, for bugs that show themselves at no other time.
    """
    world = HistoryWorld(seed, calls)
    if again is None:
        storm(world, ways)
    else:
        for at in range(2_000, 20_000, 4_000):
            world.at(at, partial(again, world))
    if members:
        change_members(world)
    while not world.is_done and world.now < 60_000 and not world.problems:
        world.run(world.now + 500)
    world.cut.clear()
    for voter in world.voters.values():
        voter.resume()
        voter.start()
    until = world.now + 30_000
    while world.now < until and not world.problems and not _is_settled(world):
        world.run(world.now + TICK_MS)
    return world


def _is_settled(world: HistoryWorld) -> bool:
    """Whether somebody leads, and a majority has applied all that is committed."""
    leader = _leader(world)
    if leader is None or leader.driver is None or not leader.driver.state.leads_settled:
        return False
    commit = leader.driver.state.commit
    return sum(voter.applied >= commit for voter in world.voters.values()) * 2 > len(NAMES)
