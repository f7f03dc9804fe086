"""A world of delivery: nodes that share meshes through a broker, and everything that goes wrong.

Nodes are those of `holdfast.simulate.nodes.nodes`, with their real sync (`node_end`); the broker is
the real one on a machine of its own (`broker_machine`). Between them are wires that are cut at any
frame and calls whose answers are lost (`wires`, `calls`). Machines die in the middle of anything;
the broker and nodes go back to older copies (`copies`); members are removed and come back; what is
old is swept. A mesh is published and joined meanwhile (`publish`); everybody sleeps for longer than
ids are remembered, and the broker's clock shows a day that is weeks ahead (`time`).

What must hold meanwhile is stated in `books` and `queues`. In the end

* every node stands where the broker stands, and all hold the same rows;
* what a node has written and still has is at the broker, once;
* every message is with everybody whom it is for, once, unless it was swept in its time;
* no message of a queue is lost, and each is finished by whoever had it in hand;
* what was published is with everybody who joined, as its owner has it, and was published once;
* every outbox is done, or says of the rest why not.

The same seed tells the same story again:

    python -m holdfast.simulate delivery 42
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.broker_rows import MEMBER_GRANTS, DestinationRow, MemberRow
from holdfast.rules.errors import (
    DiskFull,
    HoldfastError,
    NotAllowed,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    Unknown,
    Unreachable,
)
from holdfast.rules.keys import public_key
from holdfast.rules.limits import DAY_MS, HOUR_MS, SECOND_MS
from holdfast.simulate.delivery.books import Books
from holdfast.simulate.delivery.broker_machine import CARD, HUB, URL, BrokerMachine
from holdfast.simulate.delivery.broker_world import BrokerWorld
from holdfast.simulate.delivery.calm import compare, left
from holdfast.simulate.delivery.copies import Copies
from holdfast.simulate.delivery.node_end import NodeEnd
from holdfast.simulate.delivery.publish import Publication
from holdfast.simulate.delivery.queues import DELIVERIES_MAX, QUEUE, VISIBILITY_MS, QueueTakers
from holdfast.simulate.delivery.storm import DeliveryStorm
from holdfast.simulate.delivery.time import back_in_time
from holdfast.simulate.delivery.traits import traits_of
from holdfast.simulate.delivery.workload import TOPIC, DeliveryWorkload
from holdfast.simulate.nodes.link import SimulatedLink
from holdfast.simulate.nodes.nodes import running, set_aside
from holdfast.simulate.world.invariants import audit
from holdfast.simulate.world.machine import Died, Machine
from holdfast.simulate.world.seeds import replayable
from holdfast.storage.broker.sqlite import SqliteBrokerStore
from holdfast.storage.files.durable import durable_replace
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader, Transaction

T = TypeVar("T")

PEERS: Final = ("ana", "bob", "cai", "dee")
TTL: Final = Ttl(
    log_ms=4 * HOUR_MS,
    tombstone_ms=9 * DAY_MS,
    dedupe_ms=9 * DAY_MS,
    blob_ms=HOUR_MS,
    orphan_ms=HOUR_MS,
    outbox_ms=2 * HOUR_MS,
    unread_ms=4 * HOUR_MS,
)
"""Logs reach further back than the copies of the broker: what it forgets is still in them."""
HOURS: Final = 6
SETTLE_ROUNDS_MAX: Final = 40
SETTLE_ROUND_MS: Final = 10 * 60 * SECOND_MS
PATIENCE: Final = (DiskFull, Unknown, StoreFailed, StoreBusy, StoreClosed, Unreachable, NotAllowed)
"""Errors that may end a connection: of the node's own disk, of the line, of a removed member."""


class DeliveryWorld(BrokerWorld):
    """Nodes, their broker, and the lines between them."""

    ttl = TTL
    leaping = False

    def __init__(self, seed: int) -> None:
        self.traits = traits_of(seed)
        super().__init__(seed, peers=PEERS[: self.traits.peers], meshes=self.traits.meshes)
        self.ends = {}
        self.keys = {peer: public_key(_seed_of(peer)) for peer in self._peers}
        self.books = Books(self.meshes, {key: peer for peer, key in self.keys.items()})
        self.queues = QueueTakers(self)
        self.copies = Copies(self)
        self.chores = self.message_watch = DeliveryWorkload(
            self.fork("chores"), self.new_id, self.meshes, self.ttl
        )
        self.message_watch.keys = self.keys
        if self.traits.reusing:
            self.message_watch.reuse = self.fork("reused ids")
        self.message_watch.poisons = bool(self.traits.poison)
        self.publication = Publication(self)
        self.slept_at: int | None = None
        """When everybody fell asleep. Since then somebody looks after the broker, and sweeps."""
        self.is_calm = False
        self.begin_broker()

    def topology(self) -> list[SimulatedLink]:
        return []

    def pairs(self) -> list[tuple[str, str]]:
        """Everybody talks with the broker, and with nobody else."""
        return [way for peer in self._peers for way in ((peer, HUB), (HUB, peer))]

    def new_storm(self) -> DeliveryStorm:
        return DeliveryStorm(self)

    def __enter__(self) -> Self:
        logging.getLogger("holdfast").addHandler(self._faults)
        super().__enter__()
        folder = next(iter(self.machines.values())).home.parent.parent
        self.broker_machine = BrokerMachine(self, folder, poison=self.traits.poison)
        self._stack.callback(self.broker_machine.close)
        self.broker_machine.start()
        self.broker_machine.work(self._register)
        for peer, machine in self.machines.items():
            durable_replace(HomePaths(machine.home).identity, _seed_of(peer))
            running(machine)._engine.write("share", partial(self._share, peer=peer))
            self.ends[peer] = NodeEnd(self, machine, self.keys[peer])
            self.ends[peer].connect()
        self.publication.prepare()
        self.after_broker()
        self.run(until=self.ticks + 10 * SECOND_MS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        logging.getLogger("holdfast").removeHandler(self._faults)
        super().__exit__(kind, error, traceback)

    async def _register(self, store: SqliteBrokerStore) -> None:
        owner, *others = self._peers
        now = self.now_ms
        for mesh in self.meshes:
            await store.mesh_register(mesh, mesh, self.keys[owner], owner, f"server {mesh}", now)
            topic = DestinationRow(kind="topic", ref=TOPIC, made_at=now)
            queue = DestinationRow(
                kind="queue",
                ref=QUEUE,
                made_at=now,
                visibility_ms=VISIBILITY_MS,
                deliveries_max=DELIVERIES_MAX,
            )
            await store.destination_put(mesh, topic)
            await store.destination_put(mesh, queue)
            for peer in others:
                await self._admit(store, mesh, peer)
            await store.subscribe(mesh, self.keys[owner], TOPIC)

    async def _admit(self, store: SqliteBrokerStore, mesh: str, peer: str) -> None:
        grants = MEMBER_GRANTS | {"relay"} if self.traits.relay else MEMBER_GRANTS
        key = self.keys[peer]
        row = MemberRow(key=key, name=peer, grants=grants, added_at=self.now_ms)
        await store.member_put(mesh, row)
        await store.subscribe(mesh, key, TOPIC)

    def _share(self, tx: Transaction, peer: str) -> None:
        kind = "shared_owner" if peer == self._peers[0] else "shared_guest"
        for mesh in self.meshes:
            row = tx.mesh_get(mesh)
            assert row is not None
            tx.mesh_change(
                msgspec.structs.replace(
                    row,
                    kind=kind,
                    broker_url=URL,
                    broker_card=CARD,
                    server_id=f"server {mesh}",
                    broker_epoch=1,
                )
            )

    # --- nodes ----------------------------------------------------------------------------------

    def sync_on(self, machine: Machine, act: Callable[[NodeEngine], T]) -> T | None:
        """Lets a node do something; None if its disk, its line or its machine failed meanwhile."""
        if not machine.up:
            return None
        try:
            return self._act(machine, lambda node: act(node._engine))
        except Died:
            self.mark_death(machine, "sync")
        except PATIENCE as error:
            self._note_trouble(machine, "sync", error)
            self.observe(machine)
        except HoldfastError as error:
            self.break_off(f"the sync of {machine.peer} ends: {type(error).__name__}: {error}")
        return None

    def carry_out(self, machine: Machine, run: Callable[[], T]) -> T | HoldfastError:
        """A node carries out an effect of its sync. Returns its result, or the error that it met;
        raises `Died`.
        """
        try:
            return self._act(machine, lambda node: run())
        except Died:
            self.mark_death(machine, "sync")
            raise
        except HoldfastError as error:
            self._note_trouble(machine, "sync", error)
            self.observe(machine)
            return error

    def sync_ended(self, machine: Machine, error: Exception | None, *, healthy: bool) -> None:
        """A connection is over. Only some errors may be the reason; others are faults of ours, and
        so is leaving a broker that answers on a line that nothing was wrong with.
        """
        if isinstance(error, Unreachable) and "does not answer" in error.message:
            self.happened["no answer"] += 1
            if healthy and self.traits.poison != "silent":
                self.break_off(f"{machine.peer} left a healthy broker: {error.message}")
        if not isinstance(error, PATIENCE):
            self.break_off(f"the sync of {machine.peer} ends: {type(error).__name__}: {error}")

    def took_snapshot(self, peer: str, mesh: str) -> None:
        """A node has a snapshot in place of the changes that it holds."""
        found = self.broker_machine.peek(lambda store: store.snapshot_get(mesh))
        assert found is not None
        if mesh not in self.books.meshes:
            self.after_broker()
        book = self.books.meshes[mesh]
        book.jumped[peer] = max(book.jumped.get(peer, 0), min(found.seq, book.seq))
        self.happened["snapshot taken"] += 1

    def observed(self, machine: Machine, tx: Reader) -> list[str]:
        log = self.chronicles[machine.peer]
        self.publication.observe(machine.peer, tx)
        return self.books.look_at_node(machine.peer, log, tx)

    def look_into(self, machine: Machine) -> None:
        if not self.went_back[machine.peer]:
            super().look_into(machine)
            return
        with machine.weather.fine():
            node = running(machine)
            problems = [line for line in audit(node) if not _of_past(line)]
            problems += self.promises[machine.peer].broken(node)
            problems += node._engine.read("quarantine", set_aside)
        if problems:
            self.break_off(f"{machine.peer}: {'; '.join(problems[:5])}")

    # --- people ---------------------------------------------------------------------------------

    def remove_member(self, peer: str, mesh: str) -> bool:
        key, now = self.keys[peer], self.broker_machine.clock.now_ms()
        book = self.books.meshes[mesh]

        def excuse() -> None:
            """Messages of topics are no longer owed to it."""
            for at, row in enumerate(book.rows):
                if row.kind == "topic":
                    book.rows[at] = row._replace(entitled=row.entitled - {peer})

        try:
            self.broker_does("remove", lambda store: store.member_remove(mesh, key, now))
        except (Died, *PATIENCE):
            if self.broker_machine.up:
                return False
        excuse()
        return True

    def admit(self, peer: str, mesh: str) -> bool:
        try:
            self.broker_does("admit", lambda store: self._admit(store, mesh, peer))
        except (Died, *PATIENCE):
            return False
        return True

    # --- calm -----------------------------------------------------------------------------------

    def calm(self) -> None:
        self.broker_machine.weather.clear()
        self.broker_machine.clock.frozen_ms = None
        back_in_time(self)
        self.is_calm = True
        super().calm()

    def _settle(self) -> None:
        if not self.broker_machine.up:
            self.break_off("the broker does not start")
        for mesh in self.meshes:
            for peer in self._peers[1:]:
                assert self.admit(peer, mesh), "nothing fails any more"
        self.broker_ticks()
        self.expect(self.queues.hidden())
        rest: list[str] = []
        for _ in range(SETTLE_ROUNDS_MAX):
            self.publication.turn()
            for end in self.ends.values():
                end.look()
            self.run(until=self.ticks + SETTLE_ROUND_MS // 2)
            self.broker_ticks()
            self.run(until=self.ticks + SETTLE_ROUND_MS // 2)
            self.broker_ticks()
            rest = [line for peer in self._peers for line in left(self, peer)]
            rest += self.publication.left()
            if not rest:
                return
        self.break_off(f"after {SETTLE_ROUNDS_MAX} rounds: {'; '.join(rest[:5])}")

    def compare(self) -> None:
        compare(self)


def _of_past(problem: str) -> bool:
    """Is it about what a restored node got back of its own? That stands in the order of the broker,
    and was counted in an epoch that is over.
    """
    return problem.startswith("own entry") or "own envelopes" in problem


def _seed_of(peer: str) -> bytes:
    return sha256(f"key of {peer}".encode()).digest()


def tell(seed: int) -> DeliveryWorld:
    """A storm and the calm after it; returns the world, closed."""
    with replayable("delivery", seed), DeliveryWorld(seed) as world:
        world.storm(hours=HOURS)
        world.calm()
    return world
