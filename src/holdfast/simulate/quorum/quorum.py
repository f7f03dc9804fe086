"""A world of voters: three or five machines that decide among themselves, and clients.

Each machine runs the real Raft machine, the real driver and the real Raft log in a database of its
own, on a disk that fails. Messages between them are late, lost, doubled and out of order, ways are
cut in one direction or both, processes die in the middle of a write or stand still for seconds.
Members come and go, logs are shortened, and whoever lacks what is gone gets a snapshot. Clients set
and compare registers through any machine, and read them.

What must hold all the time is stated in `books`; and what a snapshot makes is what the order makes.
In the end, when nothing fails any more: one machine leads and goes on leading, whoever was removed
and does not know it, every client is answered, all members have applied the same, and every command
that was ever acknowledged is among it.

    python -m holdfast.simulate quorum 42
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from types import TracebackType
from typing import Final, Self

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.open_proposals import (
    AppliedProposal,
    ProposalAnswer,
    ProposalEnd,
)
from holdfast.rules.quorum.raft.config import first_config
from holdfast.rules.quorum.raft.messages import Message, Proposal, decode_message, encode_message
from holdfast.simulate.disk.disk import seed_sqlite
from holdfast.simulate.disk.workload import scratch
from holdfast.simulate.quorum.books import QuorumBooks
from holdfast.simulate.quorum.machine import VoterMachine
from holdfast.simulate.quorum.operator import GroupOperator
from holdfast.simulate.quorum.registers import RegisterCommand, Registers, encode_command
from holdfast.simulate.quorum.storm import QuorumStorm
from holdfast.simulate.world.faults import Faults
from holdfast.simulate.world.network import LineQuality, Network
from holdfast.simulate.world.seeds import PromiseBroken, replayable
from holdfast.simulate.world.world import World

NAMES: Final = ("ana", "bob", "cai", "dee", "eli", "fay")
KEYS: Final = ("x", "y", "z")
STORM_MS: Final = 60_000
CALM_MS_MAX: Final = 60_000
LOOK_MS: Final = 1_000
ASK_EVERY_MS_MAX: Final = 120
PATIENCE_TICKS: Final = 40
RESTART_MS_MAX: Final = 4_000
STEADY_MS: Final = 8_000


class QuorumWorld(World):
    """Machines, the network between them, clients and the books."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.happened: Counter[str] = Counter()
        self.network = Network(
            self, lambda what, about: self.happened.update([what]), LineQuality(delay_ms_max=20)
        )
        self.books = QuorumBooks(self.broken)
        self.machines: dict[str, VoterMachine] = {}
        self._chance = self.fork("clients")
        self._problems: list[str] = []
        self._faults = Faults()
        self._stack = ExitStack()
        self._truth = Registers()
        self._history: dict[str, list[tuple[int, int]]] = {key: [(0, 0)] for key in KEYS}
        """The values that each register had, and from which index on."""
        self._open: dict[str, dict[bytes, None]] = {}
        """Calls that clients wait for, by the machine that they asked."""
        self._restarting: dict[str, None] = {}
        self._asking = True
        self.operator = GroupOperator(self)

    # --- beginning and end ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _begin(self) -> None:
        seed_sqlite(self.seed)
        logging.getLogger("holdfast").addHandler(self._faults)
        self._stack.callback(logging.getLogger("holdfast").removeHandler, self._faults)
        folder = self._stack.enter_context(scratch())
        founders = self._chance.choice((3, 3, 4))
        for name in NAMES[: founders + self._chance.choice((1, 2))]:
            machine = self.machines[name] = VoterMachine(self, name, folder)
            self._open[name] = {}
            self._stack.callback(machine.close)
        first = list(self.machines.values())[:founders]
        config = first_config(tuple((machine.name, machine.key) for machine in first))
        self.books.configs[0] = config
        tag = sha256(f"group of {self.seed}".encode()).digest()[:16]
        for number, machine in enumerate(first, 1):
            machine.found(tag, number, config)
        for machine in first:
            machine.start()
        self._ask_soon()
        self.operator.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def broken(self, text: str) -> None:
        """A promise is broken; whoever runs the world hears of it after the event."""
        self.note(f"BROKEN: {text}")
        self._problems.append(text)

    def step(self) -> bool:
        happened = super().step()
        if self._faults.heard:
            self.broken(f"a fault of the driver: {self._faults.heard.pop()}")
        if self._problems:
            raise PromiseBroken(f"seed {self.seed}: {'; '.join(self._problems[:3])}")
        return happened

    def storm(self) -> None:
        storm = QuorumStorm(self)
        storm.begin()
        self.run(until=self.ticks + STORM_MS)
        storm.end()

    def calm(self) -> None:
        """Nothing fails any more: everything that was promised comes about."""
        self.network.heal()
        self.network.line = LineQuality(delay_ms_max=20)
        self.operator.mends_only = True
        for machine in self.machines.values():
            machine.weather.clear()
            machine.slow_disk_ms = 0
        until = self.ticks + CALM_MS_MAX
        self.at(CALM_MS_MAX // 2, self._stop_asking, name="clients stop")
        left = ["nothing was looked at"]
        while left and self.ticks < until:
            self.run(until=self.ticks + LOOK_MS)
            left = self._left()
        if left:
            raise PromiseBroken(f"seed {self.seed}: in the end {'; '.join(left[:3])}")
        members = self.members()
        for id, index in self.books.acknowledged.items():
            places = [machine.registers.done.get(id) for machine in members]
            if any(place is None or place[0] != index for place in places):
                raise PromiseBroken(f"seed {self.seed}: what was acknowledged at {index} is gone")
        self._stay()

    def _stay(self) -> None:
        """Whoever leads goes on leading: nobody is disturbed, whoever else still runs."""
        leader = self.leader()
        assert leader is not None, "it was looked for"
        assert leader.driver is not None
        term = leader.driver.state.term
        self.run(until=self.ticks + STEADY_MS)
        for machine in self.members():
            if machine.driver is None or machine.driver.state.term != term:
                raise PromiseBroken(
                    f"seed {self.seed}: {machine.name} left term {term} in quiet times"
                )

    def _stop_asking(self) -> None:
        self._asking = False

    def _left(self) -> list[str]:
        """What is still to come, as sentences."""
        members = self.members()
        left = [f"{machine.name} is down" for machine in members if not machine.up]
        left += [
            f"{machine.name} is down"
            for machine in self.machines.values()
            if machine.takes_part and not machine.up
        ]
        if self._asking:
            left.append("clients ask")
        if not members:
            left.append("nobody leads")
        left += [f"{name} owes {len(owed)} answers" for name, owed in self._open.items() if owed]
        heads = {machine.registers.applied for machine in members}
        if len(heads) > 1:
            left.append(f"machines have applied up to {sorted(heads)}")
        return left

    def members(self) -> list[VoterMachine]:
        """The machines that belong to the group, as its leader knows; none while nobody leads."""
        leader = self.leader()
        if leader is None or leader.driver is None:
            return []
        return [self.machines[member.peer] for member in leader.driver.state.log.config.members]

    # --- machines -------------------------------------------------------------------------------

    def leader(self) -> VoterMachine | None:
        """The machine that leads the latest term."""
        leading = [
            machine
            for machine in self.machines.values()
            if machine.driver is not None and machine.driver.state.role == "leader"
        ]
        return max(leading, key=lambda it: it.driver.state.term if it.driver else 0, default=None)

    def start_soon(self, machine: VoterMachine) -> None:
        delay = self._chance.randrange(RESTART_MS_MAX)

        def start() -> None:
            if machine.takes_part and not machine.up:
                machine.start()

        self.at(delay, start, name="start")

    def restart_soon(self, machine: VoterMachine) -> None:
        """Its disk has failed: only a new process comes back from that."""
        if machine.name in self._restarting:
            return
        self._restarting[machine.name] = None
        life = machine.life

        def restart() -> None:
            self._restarting.pop(machine.name, None)
            if machine.up and machine.life == life:
                machine.crash("kill")
                machine.start()

        self.at(self._chance.randrange(RESTART_MS_MAX), restart, name=f"restart {machine.name}")

    def process_gone(self, name: str) -> None:
        """Clients of a process that died hear nothing any more."""
        self._open[name].clear()

    def carry(self, source: str, target: str, message: Message) -> None:
        """As bytes, as over a link."""
        raw = encode_message(message)
        self.network.send(
            source,
            target,
            type(message).__name__,
            lambda: self.machines[target].arrive(decode_message(raw), self.machines[source]),
        )

    def learned(self, entries: Sequence[CommittedEntry], upto: int) -> None:
        """Some machine has applied these: the first to do so moves the truth on."""
        for entry in entries:
            if entry.index > self._truth.applied:
                before = dict(self._truth.values)
                self._truth.apply(entry)
                for key, value in self._truth.values.items():
                    if before.get(key, 0) != value:
                        self._history[key].append((entry.index, value))
        self._truth.applied = max(self._truth.applied, upto)

    def compare(self, machine: VoterMachine, index: int) -> None:
        """What a snapshot made is what the order makes, up to its index."""
        found = machine.registers
        values = {key: self._value_at(key, index) for key in KEYS}
        done = {id: place for id, place in self._truth.done.items() if place[0] <= index}
        if found.applied != index or index > self._truth.applied:
            self.broken(f"{machine.name} is at {found.applied} after a snapshot at {index}")
        elif {key: found.values.get(key, 0) for key in KEYS} != values or found.done != done:
            self.broken(f"{machine.name} has other registers after a snapshot at {index}")

    def check_config(self, machine: VoterMachine) -> None:
        """The config that is committed on a machine is the one that stands there in the order."""
        assert machine.driver is not None
        state = machine.driver.state
        index, config = state.log.config_at(state.commit)
        if index > state.log.boundary:
            self.books.committed_config(machine.name, index, config)
        if state.commit and config != self.books.config_at(state.commit):
            self.broken(f"{machine.name} has forgotten the config at {state.commit}")

    def _value_at(self, key: str, index: int) -> int:
        return next(value for since, value in reversed(self._history[key]) if since <= index)

    # --- clients --------------------------------------------------------------------------------

    def _ask_soon(self) -> None:
        self.at(self._chance.randrange(1, ASK_EVERY_MS_MAX), self._ask, name="client")

    def _ask(self) -> None:
        if not self._asking:
            return
        self._ask_soon()
        machine = self._chance.choice(list(self.machines.values()))
        if machine.driver is None or machine.is_paused:
            return
        if self._chance.random() < 0.4:
            self._read(machine)
        else:
            self._set(machine)

    def _set(self, machine: VoterMachine) -> None:
        assert machine.driver is not None
        key = self._chance.choice(KEYS)
        seen = self._truth.values.get(key, 0) if self._chance.random() < 0.5 else None
        command = RegisterCommand(self.new_id(), key, self._chance.randrange(1, 1 << 30), seen)
        asked = self.books.begin(command.id, self.ticks, f"set {key} through {machine.name}")
        self._open[machine.name][command.id] = None

        def answered(answer: ProposalAnswer) -> None:
            self._open[machine.name].pop(command.id, None)
            if isinstance(answer, AppliedProposal):
                self.happened["acknowledged"] += 1
                self.books.acknowledge(asked, answer.index)
            elif answer is ProposalEnd.NOT_PROPOSED:
                self.happened["denied"] += 1
                self.books.deny(asked)
            else:
                self.happened["unknown"] += 1

        machine.driver.propose(
            Proposal(command.id, encode_command(command)), PATIENCE_TICKS, answered
        )

    def _read(self, machine: VoterMachine) -> None:
        assert machine.driver is not None
        key, id = self._chance.choice(KEYS), self.new_id()
        asked = self.books.begin(id, self.ticks, f"read {key} from {machine.name}")
        self._open[machine.name][id] = None

        def answered(index: int | None) -> None:
            self._open[machine.name].pop(id, None)
            if index is None:
                self.happened["read unanswered"] += 1
                return
            self.happened["read"] += 1
            value = machine.registers.values.get(key, 0)
            self.books.read(asked, index, value, self._value_at(key, index))

        machine.driver.read(PATIENCE_TICKS, answered)


def tell(seed: int) -> QuorumWorld:
    """A storm and the calm after it; returns the world, closed."""
    quiet = logging.getLogger("holdfast")
    before = quiet.level
    quiet.setLevel(logging.CRITICAL)
    try:
        with replayable("quorum", seed), QuorumWorld(seed) as world:
            world.storm()
            world.calm()
    finally:
        quiet.setLevel(before)
    return world
