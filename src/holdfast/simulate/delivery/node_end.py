"""A node's end of the line to its broker: the real `SyncSession`, driven one event after the other.

What a daemon does in tasks side by side happens here in turns. Whatever raises ends the connection,
and another is begun after a while, as in life.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.object_transfer import ObjectGone, pull_objects
from holdfast.node.library.node import Node
from holdfast.node.sharing import join
from holdfast.node.snapshots.download import take_snapshot
from holdfast.node.snapshots.upload import keep_snapshot, upload_snapshot
from holdfast.node.sync import receive
from holdfast.node.sync.session import BrokerAddress, SyncSession
from holdfast.node.trust.trust import Trust
from holdfast.protocol.frames import (
    Challenge,
    Entries,
    FromBroker,
    FromNode,
    SnapshotNeeded,
    SnapshotWanted,
    Welcome,
    encode_frame,
    read_from_broker,
)
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.errors import BlobMissing, Conflict, NotAllowed
from holdfast.rules.limits import SECOND_MS
from holdfast.simulate.delivery.broker_machine import CARD, URL
from holdfast.simulate.delivery.calls import SimulatedBrokerRequests
from holdfast.simulate.delivery.wires import Wire
from holdfast.simulate.world.machine import Machine
from holdfast.simulate.world.world import ScheduledEvent
from holdfast.storage.files.home import HomePaths

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld

ANSWER_MS_MAX: Final = 45 * SECOND_MS
HELLO_MS_MAX: Final = 30 * SECOND_MS
LOOK_MS: Final = 5 * SECOND_MS
PUSH_ITEMS: Final = 3
"""Few to a frame, so that there is something to cut between."""


class NodeEnd:
    """One node, as its sync goes through its lives."""

    def __init__(self, world: DeliveryWorld, machine: Machine, key: bytes) -> None:
        self._world, self._machine = world, machine
        self.peer, self.key = machine.peer, key
        self.wire: Wire | None = None
        self.attempts = 0
        self._node: Node | None = None
        self._sync: SyncSession | None = None
        self._rng: random.Random = world.fork(f"sync of {machine.peer}")
        self._greeted = False
        self._pushed_at = 0
        self._planned: ScheduledEvent | None = None
        self._due: ScheduledEvent | None = None

    # --- the connection -----------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """Is this still the process that has the connection?"""
        return self.wire is not None and self._machine.node is self._node

    def connect(self) -> None:
        if not self._machine.up or self.is_ours:
            return
        if self.wire is not None:  # of a process that died
            self.wire.node_hangs_up()
            self.wire = None
        world = self._world
        if not world.broker_machine.up or world.is_apart(self.peer):
            self.later()
            return
        node = self._node = self._machine.node
        assert node is not None
        trust = Trust(node._engine, HomePaths(node.home))
        self._sync = SyncSession(
            node._engine,
            trust,
            BrokerAddress(URL, CARD),
            entropy=self._rng.randbytes,
            chance=self._rng.random,
        )
        self._greeted = False
        wire = self.wire = world.new_wire(self)
        world.at(HELLO_MS_MAX, self._expect_welcome, wire, name=f"{self.peer} waits for a welcome")
        world.hub_opens(wire)

    def _expect_welcome(self, wire: Wire) -> None:
        if wire is self.wire and self.is_ours and not self._greeted:
            self.drop()

    def later(self) -> None:
        self.attempts += 1
        wait = backoff_ms(self.attempts, self._rng.random())
        if self._planned is not None:
            self._planned.cancel()
        self._planned = self._world.at(wait, self.connect, name=f"{self.peer} connects")

    def hung_up(self, wire: Wire, code: int) -> None:
        if wire is self.wire and self.is_ours:
            self._world.happened[f"closed {code}"] += 1
            self.drop()

    def drop(self) -> None:
        """This process hangs up."""
        wire, sync = self.wire, self._sync
        self.wire = None
        if wire is not None:
            wire.node_hangs_up()
        if sync is not None and self._machine.node is self._node:
            self._do(lambda engine: _dropped(sync))
        self.later()

    # --- frames -------------------------------------------------------------------------------

    def hear(self, wire: Wire, raw: bytes) -> None:
        if wire is not self.wire or not self.is_ours:
            return
        frame = read_from_broker(raw)
        told = self._do(lambda engine: self._heard(engine, frame))
        if told is None:
            self._broke()
            return
        self._send(told)
        self.push()

    def _heard(self, engine: NodeEngine, frame: FromBroker) -> list[FromNode]:
        sync = self._sync
        assert sync is not None
        if isinstance(frame, Challenge):
            return [sync.hello(frame)]
        if isinstance(frame, Welcome):
            self._greeted, self.attempts = True, 0
            told = sync.welcomed(frame)
            for slug, mesh in list(sync.meshes.items()):
                if mesh.trouble is None:
                    self._patiently(partial(self._meet, sync, slug))
                    self._patiently(partial(self._finish_join, engine, slug))
            self._keep_snapshots(engine, sync)
            return told
        if isinstance(frame, Entries):
            return self._take(engine, sync, frame)
        if isinstance(frame, SnapshotWanted):
            self._world.happened["snapshot wanted"] += 1
            self._patiently(lambda: upload_snapshot(engine, self._calls(), frame.mesh))
            return []
        told = sync.on_frame(frame)
        if isinstance(frame, SnapshotNeeded):
            told += self._take_snapshot(engine, sync, frame)
        self._keep_snapshots(engine, sync)
        return told

    def _keep_snapshots(self, engine: NodeEngine, sync: SyncSession) -> None:
        for slug, mesh in list(sync.meshes.items()):
            if mesh.went_back and mesh.trouble is None:
                mesh.went_back = False
                self._patiently(partial(keep_snapshot, engine, self._calls(), slug))

    def _finish_join(self, engine: NodeEngine, slug: str) -> None:
        """Before anything else of the mesh, as a daemon does."""
        if engine.read("mesh.join", lambda tx: join.is_joining(tx, slug)):
            join.go_on(engine, self._calls(), slug, lambda: False)
            self._world.publication.took(self.peer)

    def _meet(self, sync: SyncSession, slug: str) -> None:
        sync.known_members(slug, self._calls().known_members(slug))

    def _take(self, engine: NodeEngine, sync: SyncSession, entries: Entries) -> list[FromNode]:
        told: list[FromNode] = []
        for piece in receive.pieces(receive.decode_page(entries)):
            while True:
                wanted = receive.objects_wanted(engine, piece)
                source = self._calls().objects(entries.mesh)
                absent = pull_objects(engine, source, wanted, lambda _: None, lambda: False)
                self._world.happened["object absent"] += len(absent)
                try:
                    told += sync.on_entries(piece, absent)
                except ObjectGone:
                    continue
                break
        return told

    def _take_snapshot(
        self, engine: NodeEngine, sync: SyncSession, behind: SnapshotNeeded
    ) -> list[FromNode]:
        self._world.happened["behind"] += 1
        if not behind.snapshot:
            return []
        took = take_snapshot(engine, self._calls(), behind.mesh)
        if took is None:
            return []
        self._world.took_snapshot(self.peer, behind.mesh)
        return sync.snapshot_taken(behind.mesh)

    def _patiently(self, act: Callable[[], object]) -> None:
        """What others may do, or what is tried again: that it is not allowed, or comes at a moment
        when the mesh counts in a new epoch, ends nothing.
        """
        try:
            act()
        except (Conflict, NotAllowed) as error:
            self._world.note(f"{self.peer}: {error.message}")

    def _calls(self) -> SimulatedBrokerRequests:
        return SimulatedBrokerRequests(self._world, self.peer, self.key)

    # --- what goes out ------------------------------------------------------------------------

    def wake(self) -> None:
        """Something was written."""
        if self.is_ours and self._greeted:
            self.push()

    def push(self) -> None:
        sync = self._sync
        if not self.is_ours or not self._greeted or sync is None:
            return
        told = self._do(lambda engine: self._all_due(engine, sync))
        if told is None:
            self._broke()
            return
        if told:
            self._pushed_at = self._world.ticks
            wire = self.wire
            self._world.at(
                ANSWER_MS_MAX, lambda: self._expect_answer(wire), name=f"{self.peer} waits"
            )
        self._send(told)
        self._plan(sync)

    def _all_due(self, engine: NodeEngine, sync: SyncSession) -> list[FromNode]:
        told: list[FromNode] = []
        for slug in list(sync.meshes):
            while True:
                push = sync.push(slug, PUSH_ITEMS)
                if push is not None:
                    told.append(push)
                    continue
                wanted = sync.objects_to_bring(slug)[:1]
                if not wanted:
                    break
                self._bring(engine, slug, wanted[0])
                sync.brought(slug, wanted)
        return told

    def _bring(self, engine: NodeEngine, slug: str, sha: str) -> None:
        try:
            self._calls().put_object(engine, slug, sha)
        except (BlobMissing, NotAllowed) as error:
            self._world.note(f"{self.peer} does not bring an object: {error.message}")

    def _expect_answer(self, wire: Wire | None) -> None:
        sync = self._sync
        if wire is not self.wire or not self.is_ours or sync is None:
            return
        waits = any(mesh.inflight for mesh in sync.meshes.values())
        if waits and self._world.ticks - self._pushed_at >= ANSWER_MS_MAX:
            self._world.happened["no answer"] += 1
            self.drop()

    def _plan(self, sync: SyncSession) -> None:
        """The next push, when something that was put off is due."""
        with self._machine.weather.fine():
            found = [sync.next_at(slug) for slug in sync.meshes]
        times = [at for at in found if at is not None]
        if self._due is not None:
            self._due.cancel()
        if times:
            wait = max(LOOK_MS, min(times) - self._machine.clock.now_ms())
            self._due = self._world.at(wait, self.push, name=f"{self.peer} has something due")

    def look(self) -> None:
        """What a daemon does from time to time."""
        sync = self._sync
        if not self._machine.up:
            return
        if not self.is_ours:
            self.connect()
            return
        if sync is None or not self._greeted:
            return

        def work(engine: NodeEngine) -> list[FromNode]:
            sync.expire()
            return [*sync.look(), *sync.retry()]

        told = self._do(work)
        if told is None:
            self._broke()
            return
        self._send(told)
        self.push()

    # --- trouble ------------------------------------------------------------------------------

    def _do(self, act: Callable[[NodeEngine], list[FromNode]]) -> list[FromNode] | None:
        """None if it failed."""
        return self._world.sync_on(self._machine, act)

    def _broke(self) -> None:
        if self._machine.node is self._node:
            self.drop()
        else:
            if self.wire is not None:
                self.wire.node_hangs_up()
            self.wire = None

    def _send(self, frames: list[FromNode]) -> None:
        for frame in frames:
            if self.wire is not None:
                self.wire.up(encode_frame(frame))


def _dropped(sync: SyncSession) -> list[FromNode]:
    sync.dropped()
    return []
