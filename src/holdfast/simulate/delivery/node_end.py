"""A node's end of the line to its broker, through all its lives and connections.

What is said on a connection is for the daemon's own `Conversation` to decide and for `node_port` to
carry out. Whatever ends a connection, another is begun after a while, as in life.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from holdfast.node.library.node import Node
from holdfast.node.sync.effects import Close
from holdfast.node.sync.session import BrokerAddress, SyncSession
from holdfast.node.trust.trust import Trust
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.errors import Unreachable
from holdfast.simulate.delivery.broker_machine import CARD, URL
from holdfast.simulate.delivery.node_port import NodePort
from holdfast.simulate.delivery.wires import Wire
from holdfast.simulate.world.machine import Machine
from holdfast.simulate.world.world import ScheduledEvent
from holdfast.storage.files.home import HomePaths

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld


class NodeEnd:
    """One node, as its sync goes through its lives."""

    def __init__(self, world: DeliveryWorld, machine: Machine, key: bytes) -> None:
        self._world, self.machine = world, machine
        self.peer, self.key = machine.peer, key
        self.attempts = 0
        self._node: Node | None = None
        self._session: SyncSession | None = None
        self._port: NodePort | None = None
        self._rng: random.Random = world.fork(f"sync of {machine.peer}")
        self._planned: ScheduledEvent | None = None

    @property
    def wire(self) -> Wire | None:
        return None if self._port is None else self._port.wire

    def has(self, port: NodePort) -> bool:
        """Is this the connection, and does the process still run that began it?"""
        return self._port is port and self.machine.node is self._node

    def connect(self) -> None:
        if not self.machine.up or (self._port is not None and self.has(self._port)):
            return
        if self._port is not None:  # of a process that died
            self.died(self._port)
        world = self._world
        if not world.broker_machine.up or world.is_apart(self.peer):
            self._later()
            return
        wire = world.new_wire(self)
        self._port = NodePort(self, world, self._session_of_process(), wire)
        self._port.driver.begin()
        world.broker_opens(wire)

    def _session_of_process(self) -> SyncSession:
        """A process has one for all its connections."""
        node = self.machine.node
        assert node is not None
        if self._session is None or self._node is not node:
            self._node = node
            self._session = SyncSession(
                node._engine,
                Trust(node._engine, HomePaths(node.home)),
                BrokerAddress(URL, CARD),
                entropy=self._rng.randbytes,
                chance=self._rng.random,
            )
        return self._session

    def _later(self) -> None:
        self.attempts += 1
        wait = backoff_ms(self.attempts, self._rng.random())
        if self._planned is not None:
            self._planned.cancel()
        self._planned = self._world.at(wait, self.connect, name=f"{self.peer} connects")

    # --- events --------------------------------------------------------------------------------

    def hear(self, wire: Wire, raw: bytes) -> None:
        port = self._port
        if port is not None and port.wire is wire and self.has(port):
            port.hear(raw)

    def hung_up(self, wire: Wire, code: int) -> None:
        port = self._port
        if port is not None and port.wire is wire and self.has(port):
            self._world.happened[f"closed {code}"] += 1
            port.driver.lost(Unreachable(f"the broker hung up ({code})"))

    def wake(self) -> None:
        """Something was written."""
        port = self._port
        if port is not None and self.has(port):
            port.driver.feed(port.talk.wake)

    def look(self) -> None:
        """The meshes may have changed; a node that is not connected tries to be."""
        port = self._port
        if port is not None and self.has(port):
            port.driver.feed(port.talk.look)
        else:
            self.connect()

    # --- the end of a connection ---------------------------------------------------------------

    def closed(self, port: NodePort, close: Close) -> None:
        """The conversation is over: what was in flight is pending again."""
        self._port = None
        port.wire.node_hangs_up()
        self.attempts = 0 if port.talk.progressed else self.attempts
        world = self._world
        if self.machine.node is self._node:
            world.sync_on(self.machine, lambda engine: port.session.dropped(close.error))
            world.happened["failed alone"] += port.session.suspects
        healthy = world.is_calm and port.begun_in_calm and not port.wire.is_cut
        world.sync_ended(self.machine, close.error, healthy=healthy)
        self._later()

    def died(self, port: NodePort) -> None:
        """The process is gone; the broker notices some time."""
        port.abandon()
        port.wire.node_hangs_up()
        self._port = None
