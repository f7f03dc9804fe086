"""The broker's side of a world of delivery: whatever reaches the broker goes through here, and what
it did is looked at before anything else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.rules.errors import DiskFull, HoldfastError, StoreFailed, Unknown, Unreachable
from holdfast.rules.limits import SECOND_MS
from holdfast.simulate.delivery.books import Books
from holdfast.simulate.delivery.broker_machine import HUB, BrokerMachine
from holdfast.simulate.delivery.node_end import NodeEnd
from holdfast.simulate.delivery.queues import QueueTakers
from holdfast.simulate.delivery.wires import Wire
from holdfast.simulate.nodes.nodes import RESTART_MS_MAX, NodeWorld
from holdfast.simulate.world.faults import Faults
from holdfast.simulate.world.machine import Died, Machine
from holdfast.storage.broker.sqlite import SqliteBrokerStore

T = TypeVar("T")
StoreCall = Callable[[SqliteBrokerStore], Coroutine[Any, Any, T]]


class BrokerWorld(NodeWorld):
    """Nodes, and a broker that lives and dies."""

    broker_machine: BrokerMachine
    books: Books
    queues: QueueTakers
    ends: dict[str, NodeEnd]

    def begin_broker(self) -> None:
        """What is known of the broker before it first starts."""
        self._faults = Faults()
        self._wires = 0
        self._restarting = False
        self._sweeping = self._swept_early = False

    def is_apart(self, peer: str) -> bool:
        return (peer, HUB) in self.links.cut or (HUB, peer) in self.links.cut

    def new_wire(self, end: NodeEnd) -> Wire:
        self._wires += 1
        return Wire(self, self._wires, end)

    def broker_opens(self, wire: Wire) -> None:
        self._on_broker("connect", lambda: self.broker_machine.open_wire(wire))

    def broker_receives(self, wire: Wire, raw: bytes) -> None:
        if self.broker_machine.is_poison(raw):
            self.happened["poison"] += 1
        self._on_broker("frame", lambda: self.broker_machine.hear(wire, raw))

    def broker_loses(self, wire: Wire) -> None:
        self._on_broker("hang up", lambda: self.broker_machine.hung_up(wire))

    def broker_ticks(self) -> None:
        self._on_broker("tick", self.broker_machine.tick)

    def broker_sweeps(self, *, asked: bool = False) -> None:
        """The broker sweeps by itself, or because an operator asked (`asked`)."""
        if self.broker_machine.is_well:
            self.queues.look()
            self._sweeping = True
            self._swept_early = self._swept_early or self.broker_machine.is_far_ahead
            self._on_broker(
                "sweep", self.broker_machine.sweep_asked if asked else self.broker_machine.sweep
            )
        self.note_swept()

    def note_swept(self) -> None:
        """Notes what is gone since a sweep began, also if the broker died in the middle of it."""
        if self._sweeping and self.broker_machine.is_well:
            early, self._sweeping, self._swept_early = self._swept_early, False, False
            self.expect(self.books.swept(self.broker_machine, early=early))

    def broker_does(
        self, what: str, work: Callable[[SqliteBrokerStore], Coroutine[Any, Any, T]]
    ) -> T:
        """One call of the store; raises what that raises, `Died`, or Unreachable if it is down."""
        if not self.broker_machine.up:
            raise Unreachable("the broker is down")
        try:
            found = self.broker_machine.work(work)
        except Died:
            self.mark_death(self.broker_machine, what)
            raise
        except HoldfastError as error:
            self._broker_trouble(what, error)
            self.after_broker()
            raise
        self.after_broker()
        return found

    def _on_broker(self, what: str, act: Callable[[], None]) -> None:
        if not self.broker_machine.up:
            return
        self.broker_machine.since_start.add(what)
        try:
            act()
        except Died:
            self.mark_death(self.broker_machine, what)
            return
        except HoldfastError as error:
            self._broker_trouble(what, error)
        self.after_broker()

    def _broker_trouble(self, what: str, error: HoldfastError) -> None:
        # Whether it has to start again is for the store to say.
        self.note(f"the broker has trouble with {what}: {type(error).__name__}")

    def after_broker(self) -> None:
        """Sends what the broker said, and checks what it did against the books."""
        broker_machine = self.broker_machine
        if self._faults.heard:
            self.break_off(f"a fault of the broker: {self._faults.heard[0]}")
        if not broker_machine.up:
            return
        assert broker_machine.store is not None
        if broker_machine.store.failed is None:
            self.expect(self.books.look(broker_machine))
        elif not self._restarting:
            self._restarting = True
            self.at(SECOND_MS, self.reopen, broker_machine, name="the broker starts again")
        # Connections are woken in an order that differs from run to run.
        leaving, broker_machine.leaving = (
            sorted(broker_machine.leaving, key=lambda one: one[0].number),
            [],
        )
        for wire, said in leaving:
            if isinstance(said, bytes):
                wire.down(said)
            else:
                wire.broker_hangs_up(said)

    def reopen(self, machine: Machine) -> None:
        if machine is self.broker_machine:
            self._restarting = False
            self.hang_up_all()
        super().reopen(machine)

    def mark_death(self, machine: Machine, op: str) -> None:
        if machine is self.broker_machine:
            self._faults.heard.clear()  # whatever it said while it died
            self._restarting = False
            self.hang_up_all()
        super().mark_death(machine, op)

    def hang_up_all(self) -> None:
        """The broker's process is gone: nodes notice it, sooner or later."""
        for end in self.ends.values():
            if end.wire is not None:
                end.wire.broker_hangs_up(1006)

    def start(self, machine: Machine) -> bool:
        if machine is not self.broker_machine:
            started = super().start(machine)
            end = self.ends.get(machine.peer)
            if started and end is not None:
                self.at(SECOND_MS, end.connect, name=f"{machine.peer} connects")
            return started
        try:
            machine.start()
        except Died:
            self.mark_death(machine, "open")
            return False
        except (DiskFull, StoreFailed, Unknown) as error:
            self.note(f"the broker does not start: {type(error).__name__}")
            wait = self.rng.randrange(1, RESTART_MS_MAX)
            self.at(wait, self._start_if_down, machine, name="start")
            return False
        self.after_broker()
        self.note_swept()
        self.look_into_broker()
        return True

    def look_into_broker(self) -> None:
        if self.broker_machine.is_well:
            self.expect([*self.books.audit(self.broker_machine), *self.queues.lost()])

    def expect(self, problems: Sequence[str]) -> None:
        if problems:
            self.break_off("; ".join(problems[:5]))
