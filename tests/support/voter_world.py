"""A group of voters and its clients, in a world of a few seconds whose time is a heap of events.

The real driver and the real Raft machine run on Raft logs in memory. A voter that dies loses what
its disk had not acknowledged; one that stands still finds its messages waiting. What clients asked
(`voter_calls`) and heard is `history`, and what the voters applied is `order`.
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
from holdfast.node.quorum.embedded.ports import Folded, GroupHooks, Wrote
from holdfast.rules.errors import HoldfastError
from holdfast.rules.quorum.raft.config import GroupMember, encode_config, first_config
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.events import DiskChanged, NodeStalled
from holdfast.rules.quorum.raft.messages import Message, RaftEntry
from holdfast.rules.quorum.raft.state import GroupTiming, restarted
from holdfast.simulate.quorum.registers import RegisterCommand, Registers
from holdfast.storage.memory.quorum_log import MemoryQuorumLog
from support.linearizability import Call
from support.voter_calls import OpenCall

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
KEYS: Final = ("x", "y", "z", "u", "v")
THINK_MS_MAX: Final = 500
DISK_MS_MAX: Final = 20
DELAY_MS_MAX: Final = 4.0
TRIES: Final = 2
"""A client that hears nothing asks so often."""
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
        self.is_full, self.is_restored = False, False
        self._held: list[Callable[[], None]] = []
        """Writes that a full disk has refused: they are tried again as they were."""
        self._last_write_at = 0.0

    def start(self) -> None:
        if self.driver is not None:
            return
        self.life += 1
        head, group = self.log.head(SCOPE), self.log.group(SCOPE)
        if self.registers.applied > head.last:
            self.registers = Registers()  # its disk has lied: clients are the ones to see that
        state = restarted(
            past_of(self.log, SCOPE, self.registers.applied),
            me=group.voter,
            group=group.tag,
            incarnation=group.incarnation,
            timing=GroupTiming(sleep=0),
            next_write=head.written + 1,
            barred=self.is_restored,
        )
        world = self.world
        hooks = GroupHooks(
            now_ms=lambda: START_MS + int(world.now) + self.clock_ms,
            post=lambda call: self.soon(0, call),
        )
        self.driver = GroupDriver(self.name, state, self, self, self, hooks)
        self.soon(world.chance.uniform(1, TICK_MS), self._tick)
        if self.is_full:
            self.soon(0, partial(self.driver.handle, DiskChanged("full")))

    def crash(self) -> None:
        self.driver, self.paused = None, None
        self._held.clear()

    def restore(self) -> None:
        """Its home becomes the one of the first day, as it is after a restore from a backup."""
        self.crash()
        self.log, self.registers, self.is_restored = MemoryQuorumLog(), Registers(), True
        self.found()
        self.start()

    def found(self) -> None:
        config = first_config(tuple((name, name.encode() * 8) for name in NAMES))
        self.log.init(SCOPE, tag=TAG, voter=self.number, config=encode_config(config))

    def fill(self, for_ms: float) -> None:
        """Its disk is full for a while; what was being written waits."""
        self.is_full = True
        if self.driver is not None:
            self._act(self.life, partial(self.driver.handle, DiskChanged("full")))
        self.world.at(for_ms, self._empty)

    def _empty(self) -> None:
        self.is_full = False
        held, self._held = self._held, []
        for save in held:
            self._act(self.life, save)
        if self.driver is not None:
            self._act(self.life, partial(self.driver.handle, DiskChanged("fine")))

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
            if self.is_full:
                self._held.append(save)
                return
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
    """Three voters and their clients."""

    def __init__(self, seed: int, calls: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.problems: list[str] = []
        self.history: list[Call] = []
        self.order: dict[int, CommittedEntry] = {}
        self.handed: list[Any] = []
        """What became of transfers that `hand_over` asked for."""
        self.cut: set[tuple[str, str]] = set()
        self.delay_ms, self.loss = DELAY_MS_MAX, 0.0
        self.slow: dict[tuple[str, str], float] = {}
        """By how many milliseconds a way is slower than others."""
        self.after_write: Callable[[], None] | None = None
        """Happens once, in the moment in which the next client hears that it has written."""
        self.tries = TRIES
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)
        self._calls_left, self._open = calls, 0
        self.voters = {name: Voter(self, name, number) for number, name in enumerate(NAMES, 1)}
        for voter in self.voters.values():
            voter.found()
            voter.start()
        for client in range(CLIENTS):
            self.at(self.chance.uniform(0, 50), partial(self.ask, KEYS[client % len(KEYS)]))

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
        delay = self.chance.uniform(0.2, self.delay_ms) + self.slow.get((source, target), 0)
        self.at(delay, lambda: self.voters[target].arrive(source, message))

    def applied(self, name: str, entries: Sequence[CommittedEntry]) -> None:
        for entry in entries:
            known = self.order.setdefault(entry.index, entry)
            if known != entry:
                self.problems.append(f"{name} has another entry at {entry.index}")

    # --- clients -------------------------------------------------------------------------------

    def ask(self, key: str) -> None:
        """A client asks some voter; whether it hears an answer or not, it goes on."""
        if self._calls_left <= 0:
            return
        if self.any_up() is None:
            self.at(TICK_MS, partial(self.ask, key))
            return
        self._calls_left -= 1
        self._open += 1
        OpenCall(self, next(self._numbers), key).begin()

    def ended(self, call: Call) -> None:
        self._open -= 1
        self.history.append(call)
        self.at(self.chance.uniform(0, THINK_MS_MAX), partial(self.ask, call.key))
        if call.ended is not None and call.asked[0] != "read" and self.after_write is not None:
            happens, self.after_write = self.after_write, None
            happens()

    def any_up(self) -> Voter | None:
        """Some voter that runs. Whether it stands still nobody can see from outside."""
        up = [voter for voter in self.voters.values() if voter.driver is not None]
        return self.chance.choice(up) if up else None

    def last_seen(self, key: str) -> int:
        for call in reversed(self.history):
            if call.key == key and call.ended is not None and call.asked[0] != "cas":
                return (call.answer if call.asked[0] == "read" else call.asked[1]) or 0
        return 0

    def leader(self) -> Voter | None:
        """Whoever leads in the newest term."""
        leading = [v for v in self.voters.values() if v.driver and v.driver.state.role == "leader"]
        return max(leading, key=lambda v: v.driver.state.term if v.driver else 0, default=None)

    def commits(self, key: str) -> list[tuple[int, int]]:
        """(index, id) of the writes of a key, each where it was applied first."""
        found: dict[int, int] = {}
        for index in sorted(self.order):
            command = _decoder.decode(self.order[index].raw)
            if command.key == key:
                found.setdefault(int.from_bytes(command.id, "big"), index)
        return [(index, id) for id, index in found.items()]


_decoder: Final = msgspec.msgpack.Decoder(RegisterCommand)
