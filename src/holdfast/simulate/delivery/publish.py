"""A mesh that is personal at first: in the storm its owner publishes it, and the others join.

Both are begun again and again until they are done, as people do with a command that was cut off.
Machines die in the middle of it more often than of anything else. Before, the owner has written
some; if its log has forgotten that, the mesh goes as a snapshot, else through the outbox.

What must hold: there is one such mesh at the broker, of this owner and under the id that it was
told; everybody has joined it; and in the end all hold the same rows (`calm`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.node import Node
from holdfast.node.sharing import join
from holdfast.node.sharing.publish import Publishing, begun
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import EpochMismatch, InviteEnded
from holdfast.rules.invites import Invite, parse_invite
from holdfast.rules.rows import Entry
from holdfast.simulate.delivery.calls import SimulatedBrokerClient
from holdfast.simulate.nodes.nodes import running
from holdfast.simulate.world.machine import Death, Machine
from holdfast.simulate.world.workload import Answers, WorkItem, Workload
from holdfast.storage.broker.sqlite import SqliteBrokerStore
from holdfast.storage.ports import Reader

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld

NOTES: Final = "notes"
WRITTEN_BEFORE: Final = 12
DEATHS: Final = 0.7
"""Which part of the attempts begins with a machine that will die."""
DEATH_CALLS_MAX: Final = (12, 50)
"""Within how many disk calls it dies: one phase takes a few, all together about forty."""
DEATH_KINDS: Final[tuple[Death, ...]] = ("kill", "power")


class Publication:
    """One mesh on its way to everybody. Without the trait it does nothing."""

    def __init__(self, world: DeliveryWorld) -> None:
        self._world = world
        self._way = world.traits.publishing
        self._rng = world.fork("publishing")
        self._owner, *self._others = world.keys
        self._chores = Workload(world.fork("notes"), world.new_id, (NOTES,), world.ttl)
        self._shared_at: int | None = None
        """Where the owner's log was when the mesh became a shared one."""
        self._published = False
        self._invite: Invite | None = None
        self._joined: dict[str, None] = {}
        world.books.to_come = (NOTES,) if self._way else ()

    def prepare(self) -> None:
        """What the owner wrote while it was alone."""
        if not self._way:
            return
        machine = self._world.machines[self._owner]
        running(machine).create_mesh(NOTES)
        for _ in range(WRITTEN_BEFORE):
            self._world.perform(machine, self._chores.draw())
        if self._way == "snapshot":
            ttl = msgspec.structs.replace(self._world.ttl, log_ms=0)
            self._world.perform(machine, WorkItem("sweep", (), _sweep(ttl)))

    def turn(self) -> None:
        """The owner publishes, or another node joins; both go on where they were cut off."""
        if not self._way:
            return
        if not self._published:
            self._publish()
            return
        waiting = self._outside()
        if waiting:
            self._join(self._rng.choice(waiting))

    def _outside(self) -> list[str]:
        """Who has not joined, or did so after the copy was made that the broker went back to: they
        need another invite.
        """
        world = self._world
        if not world.broker_machine.is_well:
            return []
        keys = {row.key for row in world.broker_machine.peek(SqliteBrokerStore.member_list, NOTES)}
        return [
            peer
            for peer in self._others
            if peer not in self._joined or world.keys[peer] not in keys
        ]

    def work(self) -> None:
        """A member writes to the mesh, whether it is shared yet or not."""
        if self._way:
            peer = self._rng.choice([self._owner, *self._joined])
            machine = self._world.machines[peer]
            if machine.up and self._world.perform(machine, self._chores.draw()):
                self._world.ends[peer].wake()

    # --- both ---------------------------------------------------------------------------------

    def _publish(self) -> None:
        calls = self._calls(self._owner)

        def act(engine: NodeEngine) -> bool:
            try:
                done = Publishing(engine, calls, NOTES).run()
            except EpochMismatch:
                return False  # the broker went back: when the sync has heard of it, it goes on
            text = done.invite or calls.invite(NOTES).text
            self._invite = parse_invite(text)
            return True

        if self._attempt(self._world.machines[self._owner], act):
            self._published = True
            self._world.happened[f"published by {self._way}"] += 1

    def _join(self, peer: str) -> None:
        calls, invite = self._calls(peer), self._invite
        if invite is None:
            self._invite_again()
            return

        def act(engine: NodeEngine) -> bool:
            try:
                join.join(engine, calls, invite)
            except InviteEnded:
                self._invite = None  # it was for one, or its time is over
                return False
            self.took(peer)
            return True

        if self._attempt(self._world.machines[peer], act):
            self._world.happened["joined again" if peer in self._joined else "joined"] += 1
            self._joined[peer] = None

    def _invite_again(self) -> None:
        calls = self._calls(self._owner)

        def act(engine: NodeEngine) -> bool:
            self._invite = parse_invite(calls.invite(NOTES).text)
            return True

        self._world.sync_on(self._world.machines[self._owner], act)

    def _attempt(self, machine: Machine, act: Callable[[NodeEngine], bool]) -> bool:
        world = self._world
        if not machine.up or not world.broker_machine.up:
            return False
        if not world.is_calm and self._rng.random() < DEATHS:
            death = self._rng.choice(DEATH_KINDS)
            machine.doom(death, self._rng.randrange(self._rng.choice(DEATH_CALLS_MAX)))
        before = machine.node
        done = bool(world.sync_on(machine, act))
        if machine.node is not before:
            world.happened["died of sharing"] += 1
        elif not world.is_calm:
            machine.weather.calls_left = None  # it has got away with it
        return done

    def took(self, peer: str) -> None:
        """A node has taken the broker's snapshot, if there is one."""
        world = self._world
        if (
            world.broker_machine.up
            and world.broker_machine.peek(SqliteBrokerStore.snapshot_get, NOTES) is not None
        ):
            world.took_snapshot(peer, NOTES)

    def _calls(self, peer: str) -> SimulatedBrokerClient:
        return SimulatedBrokerClient(self._world, peer, self._world.keys[peer])

    # --- what must hold -----------------------------------------------------------------------

    def observe(self, peer: str, tx: Reader) -> None:
        if self._way and peer == self._owner and self._shared_at is None:
            row = tx.mesh_get(NOTES)
            if row is not None and row.shared:
                self._shared_at = tx.log_bounds()[1]

    def brought(self, peer: str, entry: Entry) -> bool:
        """Is it from before: brought as a whole, or because a later one has taken its place, not
        at all? Others know it only from there.
        """
        if entry.mesh != NOTES:
            return False
        at = self._world.chronicles[self._owner].offsets.get(entry.id)
        return at is not None and self._shared_at is not None and at <= self._shared_at

    def left(self) -> list[str]:
        """What is still to be done, or was done wrong."""
        if not self._way:
            return []
        world = self._world
        problems = [f"{peer} is no member of {NOTES}" for peer in self._outside()]
        engine = running(world.machines[self._owner])._engine
        if engine.read("left", lambda tx: begun(tx, NOTES)) is not None:
            problems.append("publishing has not ended")
        row = engine.require_mesh(NOTES)
        mesh = world.broker_machine.peek(SqliteBrokerStore.mesh_get, NOTES)
        if mesh is None or (mesh.server_id, mesh.owner) != (row.server_id, world.keys[self._owner]):
            problems.append(f"the broker has {mesh}, and its owner {row.server_id}")
        return problems


def _sweep(ttl: Ttl) -> Callable[[Node], Answers]:
    def do(node: Node) -> Answers:
        node.sweep(ttl)
        return []

    return do
