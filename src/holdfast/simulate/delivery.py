"""A world of delivery: nodes that share meshes through a broker, and everything that goes wrong.

Nodes are those of `holdfast.simulate.nodes`, with their real sync (`delivery_node`); the broker is
the real one on a machine of its own (`delivery_hub`). Between them are wires that are cut at any
frame and calls whose answers are lost (`delivery_wires`, `delivery_calls`). Machines die in the
middle of anything; the broker and nodes go back to older copies (`delivery_copies`); members are
removed and come back; what is old is swept.

What must hold meanwhile is stated in `delivery_books` and `delivery_queues`. In the end

* every node stands where the broker stands, and all hold the same rows;
* what a node has written and still has is at the broker, once;
* every message is with everybody whom it is for, once, unless it was swept in its time;
* no message of a queue is lost, and each is finished by whoever had it in hand;
* every outbox is done, or says of the rest why not.

The same seed tells the same story again:

    python -m holdfast.simulate.delivery 42
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from hashlib import sha256
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import msgspec

from holdfast.node.core import Core
from holdfast.node.sweep import Ttl
from holdfast.rules.desk import MEMBER_GRANTS, DestinationRow, MemberRow
from holdfast.rules.errors import (
    DiskFull,
    HoldfastError,
    NotAllowed,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    Unknown,
    UnknownDestination,
    Unreachable,
)
from holdfast.rules.ids import id_text
from holdfast.rules.keys import public_key
from holdfast.rules.limits import DAY_MS, HOUR_MS, SECOND_MS
from holdfast.rules.rows import SpoolRow
from holdfast.simulate.audit import audit, differences, missing_content
from holdfast.simulate.delivery_books import ALL, Books
from holdfast.simulate.delivery_chores import TOPIC, DeliveryChores
from holdfast.simulate.delivery_copies import Copies
from holdfast.simulate.delivery_hub import CARD, HUB, URL, Faults, Hub
from holdfast.simulate.delivery_node import NodeEnd
from holdfast.simulate.delivery_queues import DELIVERIES_MAX, QUEUE, VISIBILITY_MS, Queues
from holdfast.simulate.delivery_storm import DeliveryStorm
from holdfast.simulate.delivery_wires import Wire
from holdfast.simulate.machine import Died, Machine
from holdfast.simulate.nodes import RESTART_MS_MAX, NodeWorld, PromiseBroken, running, set_aside
from holdfast.simulate.relation import Relation
from holdfast.storage.broker_sqlite import SqliteDesk
from holdfast.storage.durable import durable_replace
from holdfast.storage.home import HomePaths
from holdfast.storage.ports import Reader, Transaction

T = TypeVar("T")

PEERS: Final = ("ana", "bob", "cai", "dee")
TTL: Final = Ttl(
    log_ms=4 * HOUR_MS,
    tombstone_ms=9 * DAY_MS,
    dedupe_ms=9 * DAY_MS,
    blob_ms=HOUR_MS,
    orphan_ms=HOUR_MS,
    spool_ms=2 * HOUR_MS,
    unread_ms=4 * HOUR_MS,
)
"""Logs reach further back than the copies of the broker: what it forgets is still in them."""
HOURS: Final = 6
SETTLE_ROUNDS_MAX: Final = 40
SETTLE_ROUND_MS: Final = 10 * 60 * SECOND_MS
PATIENCE: Final = (DiskFull, Unknown, StoreFailed, StoreBusy, StoreClosed, Unreachable, NotAllowed)
"""What a sync may meet with: its own disk, a line that breaks, and being removed."""
REASONS: Final = frozenset({UnknownDestination.code})
"""Why a broker may refuse a message of an honest node for good."""


class Traits(NamedTuple):
    """What is drawn for a world."""

    peers: int
    meshes: tuple[str, ...]
    relay: bool
    """Every member may bring what others wrote, not only the owner."""
    broker_goes_back: bool
    nodes_go_back: bool
    removing: bool


def traits_of(seed: int) -> Traits:
    rng = random.Random(f"world {seed} delivery")
    nodes_go_back = rng.random() < 0.4
    return Traits(
        peers=rng.choice((2, 3, 3, 4)),
        meshes=rng.choice((("team",), ("team",), ("team", "lab"))),
        # What two nodes and the broker have all forgotten is brought by a third, if it may.
        relay=nodes_go_back or rng.random() < 0.5,
        broker_goes_back=rng.random() < 0.5,
        nodes_go_back=nodes_go_back,
        removing=rng.random() < 0.4,
    )


class DeliveryWorld(NodeWorld):
    """Nodes, their broker, and the lines between them."""

    ttl = TTL

    def __init__(self, seed: int) -> None:
        self.traits = traits_of(seed)
        super().__init__(seed, peers=PEERS[: self.traits.peers], meshes=self.traits.meshes)
        self.ends: dict[str, NodeEnd] = {}
        self.keys = {peer: public_key(_seed_of(peer)) for peer in self._peers}
        self.books = Books(self.meshes, {key: peer for peer, key in self.keys.items()})
        self.queues = Queues(self)
        self.copies = Copies(self)
        self.chores = DeliveryChores(self.fork("chores"), self.mint, self.meshes, self.ttl)
        self.chores.keys = self.keys
        self._faults = Faults()
        self._wires = 0
        self._restarting = False
        self._sweeping = False

    def topology(self) -> list[Relation]:
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
        self.hub = Hub(self, folder)
        self._stack.callback(self.hub.close)
        self.hub.start()
        self.hub.work(self._register)
        for peer, machine in self.machines.items():
            durable_replace(HomePaths(machine.home).identity, _seed_of(peer))
            running(machine)._core.write("share", partial(self._share, peer=peer))
            self.ends[peer] = NodeEnd(self, machine, self.keys[peer])
            self.ends[peer].connect()
        self.after_hub()
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

    async def _register(self, desk: SqliteDesk) -> None:
        owner, *others = self._peers
        now = self.now_ms
        for mesh in self.meshes:
            await desk.mesh_register(mesh, mesh, self.keys[owner], owner, f"server {mesh}", now)
            topic = DestinationRow(kind="topic", ref=TOPIC, made_at=now)
            queue = DestinationRow(
                kind="queue",
                ref=QUEUE,
                made_at=now,
                visibility_ms=VISIBILITY_MS,
                deliveries_max=DELIVERIES_MAX,
            )
            await desk.destination_put(mesh, topic)
            await desk.destination_put(mesh, queue)
            for peer in others:
                await self._admit(desk, mesh, peer)
            await desk.subscribe(mesh, self.keys[owner], TOPIC)

    async def _admit(self, desk: SqliteDesk, mesh: str, peer: str) -> None:
        grants = MEMBER_GRANTS | {"relay"} if self.traits.relay else MEMBER_GRANTS
        key = self.keys[peer]
        row = MemberRow(key=key, name=peer, grants=grants, added_at=self.now_ms)
        await desk.member_put(mesh, row)
        await desk.subscribe(mesh, key, TOPIC)

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

    # --- the broker -----------------------------------------------------------------------------

    def is_apart(self, peer: str) -> bool:
        return (peer, HUB) in self.links.cut or (HUB, peer) in self.links.cut

    def new_wire(self, end: NodeEnd) -> Wire:
        self._wires += 1
        return Wire(self, self._wires, end)

    def hub_opens(self, wire: Wire) -> None:
        self._on_hub("connect", lambda: self.hub.open_wire(wire))

    def hub_hears(self, wire: Wire, raw: bytes) -> None:
        self._on_hub("frame", lambda: self.hub.hear(wire, raw))

    def hub_hung_up(self, wire: Wire) -> None:
        self._on_hub("hang up", lambda: self.hub.hung_up(wire))

    def hub_ticks(self) -> None:
        self._on_hub("tick", self.hub.tick)

    def hub_sweeps(self) -> None:
        if self.hub.is_well:
            self.queues.look()
            self._sweeping = True
            self._on_hub("sweep", self.hub.sweep)
        self._note_swept()

    def _note_swept(self) -> None:
        """Also when it died of it, half-way."""
        if self._sweeping and self.hub.is_well:
            self._sweeping = False
            self._expect(self.books.swept(self.hub))

    def hub_does(self, what: str, work: Callable[[SqliteDesk], Coroutine[Any, Any, T]]) -> T:
        """One call of the desk; raises what it does, `Died`, or Unreachable if it is down."""
        if not self.hub.up:
            raise Unreachable("the broker is down")
        try:
            found = self.hub.work(work)
        except Died:
            self.mark_death(self.hub, what)
            raise
        except HoldfastError as error:
            self._hub_trouble(what, error)
            self.after_hub()
            raise
        self.after_hub()
        return found

    def _on_hub(self, what: str, act: Callable[[], None]) -> None:
        if not self.hub.up:
            return
        self.hub.since_start.add(what)
        try:
            act()
        except Died:
            self.mark_death(self.hub, what)
            return
        except HoldfastError as error:
            self._hub_trouble(what, error)
        self.after_hub()

    def _hub_trouble(self, what: str, error: HoldfastError) -> None:
        # Whether it has to start again the desk itself says.
        self.note(f"the broker has trouble with {what}: {type(error).__name__}")

    def after_hub(self) -> None:
        """What the broker said leaves, and what it did is looked at."""
        hub = self.hub
        if self._faults.heard:
            self.break_off(f"a fault of the broker: {self._faults.heard[0]}")
        if not hub.up:
            return
        assert hub.desk is not None
        if hub.desk.failed is None:
            self._expect(self.books.look(hub))
        elif not self._restarting:
            self._restarting = True
            self.at(SECOND_MS, self.reopen, hub, name="the broker starts again")
        # Connections are woken in an order that differs from run to run.
        leaving, hub.leaving = sorted(hub.leaving, key=lambda one: one[0].number), []
        for wire, said in leaving:
            if isinstance(said, bytes):
                wire.down(said)
            else:
                wire.broker_hangs_up(said)

    def reopen(self, machine: Machine) -> None:
        if machine is self.hub:
            self._restarting = False
            self._hang_up_all()
        super().reopen(machine)

    def mark_death(self, machine: Machine, op: str) -> None:
        if machine is self.hub:
            self._faults.heard.clear()  # whatever it said while it died
            self._restarting = False
            self._hang_up_all()
        super().mark_death(machine, op)

    def _hang_up_all(self) -> None:
        """The broker's process is gone: nodes hear of it, sooner or later."""
        for end in self.ends.values():
            if end.wire is not None:
                end.wire.broker_hangs_up(1006)

    def start(self, machine: Machine) -> bool:
        if machine is not self.hub:
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
        self.after_hub()
        self._note_swept()
        self.look_into_hub()
        return True

    def look_into_hub(self) -> None:
        if self.hub.is_well:
            self._expect([*self.books.audit(self.hub), *self.queues.lost()])

    # --- nodes ----------------------------------------------------------------------------------

    def sync_on(self, machine: Machine, act: Callable[[Core], T]) -> T | None:
        """A node syncs; None if its disk, its line or its machine failed meanwhile."""
        if not machine.up:
            return None
        try:
            return self._act(machine, lambda node: act(node._core))
        except Died:
            self.mark_death(machine, "sync")
        except PATIENCE as error:
            self._note_trouble(machine, "sync", error)
            self.observe(machine)
        except HoldfastError as error:
            self.break_off(f"the sync of {machine.peer} ends: {type(error).__name__}: {error}")
        return None

    def took_snapshot(self, peer: str, mesh: str) -> None:
        """A node has a snapshot in place of the changes that it holds."""
        found = self.hub.peek(lambda desk: desk.snapshot_get(mesh))
        assert found is not None
        book = self.books.meshes[mesh]
        book.jumped[peer] = max(book.jumped.get(peer, 0), min(found.seq, book.seq))
        self.happened["snapshot taken"] += 1

    def observed(self, machine: Machine, tx: Reader) -> list[str]:
        log = self.chronicles[machine.peer]
        return self.books.look_at_node(machine.peer, log, tx)

    def look_into(self, machine: Machine) -> None:
        if not self.went_back[machine.peer]:
            super().look_into(machine)
            return
        with machine.weather.fine():
            node = running(machine)
            problems = [line for line in audit(node) if not _of_past(line)]
            problems += self.promises[machine.peer].broken(node)
            problems += node._core.read("quarantine", set_aside)
        if problems:
            self.break_off(f"{machine.peer}: {'; '.join(problems[:5])}")

    def _expect(self, problems: Sequence[str]) -> None:
        if problems:
            self.break_off("; ".join(problems[:5]))

    # --- people ---------------------------------------------------------------------------------

    def remove_member(self, peer: str, mesh: str) -> bool:
        now = self.hub.clock.now_ms()
        book = self.books.meshes[mesh]

        def excuse() -> None:
            """What topics would have brought it does not come any more."""
            for at, row in enumerate(book.rows):
                if row.kind == "topic":
                    book.rows[at] = row._replace(entitled=row.entitled - {peer})

        try:
            self.hub_does("remove", lambda desk: desk.member_remove(mesh, self.keys[peer], now))
        except (Died, *PATIENCE):
            if self.hub.up:
                return False
        excuse()
        return True

    def admit(self, peer: str, mesh: str) -> bool:
        try:
            self.hub_does("admit", lambda desk: self._admit(desk, mesh, peer))
        except (Died, *PATIENCE):
            return False
        return True

    # --- calm -----------------------------------------------------------------------------------

    def calm(self) -> None:
        self.hub.weather.clear()
        self.hub.clock.frozen_ms = None
        super().calm()

    def _settle(self) -> None:
        if not self.hub.up:
            self.break_off("the broker does not start")
        for mesh in self.meshes:
            for peer in self._peers[1:]:
                assert self.admit(peer, mesh), "nothing fails any more"
        left: list[str] = []
        for _ in range(SETTLE_ROUNDS_MAX):
            for end in self.ends.values():
                end.look()
            self.run(until=self.ticks + SETTLE_ROUND_MS // 2)
            self.hub_ticks()
            self.run(until=self.ticks + SETTLE_ROUND_MS // 2)
            self.hub_ticks()
            left = [line for peer in self._peers for line in self._left(peer)]
            if not left:
                return
        self.break_off(f"after {SETTLE_ROUNDS_MAX} rounds: {'; '.join(left[:5])}")

    def _left(self, peer: str) -> list[str]:
        def look(tx: Reader) -> list[str]:
            problems = []
            for mesh, book in self.books.meshes.items():
                row = tx.mesh_get(mesh)
                assert row is not None
                here, there = (row.broker_epoch, row.broker_seq), (book.epoch, book.seq)
                if here != there:
                    problems.append(f"{peer} is at {here} of {mesh}, the broker at {there}")
                waits = tx.spool_list(f"broker:{mesh}", ("pending", "inflight"), 0, 5)
                problems += [f"{peer} still has {_told(row)}" for row in waits]
            return problems

        return running(self.machines[peer])._core.read("left", look)

    def compare(self) -> None:
        self.look_into_hub()
        self._expect(self.books.undelivered())
        for peer in self._peers:
            self._expect(self.books.unseen(peer, self.chronicles[peer]))
            self._expect(self._unsent(peer))
        first, *others = self.machines.values()
        for mesh in self.meshes:
            expected = self.rows_of(first, mesh)
            for machine in others:
                for line in differences(expected, self.rows_of(machine, mesh)):
                    self.break_off(f"{first.peer} and {machine.peer} end up apart: {line}")
        if not self.traits.broker_goes_back and not self.traits.nodes_go_back:
            for machine in self.machines.values():
                missing = missing_content(running(machine))
                if missing:
                    self.break_off(f"{machine.peer} never got the content of {missing}")

    def _unsent(self, peer: str) -> list[str]:
        """What it wrote and still has is at the broker, or its outbox says why not."""

        def look(tx: Reader) -> list[str]:
            problems = []
            ended: dict[bytes, SpoolRow] = {}
            for mesh in self.meshes:
                rows = tx.spool_list(f"broker:{mesh}", ("dead", "aborted"), 0, ALL)
                ended |= {row.id: row for row in rows}
            problems += [
                f"{peer} gave up {_told(row)}"
                for row in ended.values()
                if row.state == "dead" and (row.code not in REASONS or row.entity)
            ]
            for entry in tx.log_range(1, ALL, ALL):
                book = self.books.meshes[entry.mesh]
                mine = entry.origin == peer or self.traits.relay
                if mine and entry.id not in book.seqs and entry.id not in ended:
                    problems.append(
                        f"{peer} has {entry.op} {id_text(entry.id)} of {entry.origin}, and the "
                        "broker has not"
                    )
            return problems

        return running(self.machines[peer])._core.read("unsent", look)


def _of_past(problem: str) -> bool:
    """Is it about what a restored node got back of its own? That stands in the order of the broker,
    and was counted in an epoch that is over.
    """
    return problem.startswith("own entry") or "own envelopes" in problem


def _told(row: SpoolRow) -> str:
    return f"{row.state} {row.entity or 'message'} {id_text(row.id)} ({row.code}: {row.error})"


def _seed_of(peer: str) -> bytes:
    return sha256(f"key of {peer}".encode()).digest()


def tell(seed: int) -> DeliveryWorld:
    """A storm and the calm after it; returns the world, closed."""
    try:
        with DeliveryWorld(seed) as world:
            world.storm(hours=HOURS)
            world.calm()
    except BaseException as error:
        error.add_note(f"play it again with: python -m holdfast.simulate.delivery {seed}")
        raise
    return world


def main(arguments: Sequence[str]) -> int:
    """Tells the stories of the seeds that are named."""
    for seed in map(int, arguments):
        try:
            world = tell(seed)
        except PromiseBroken as broken:
            print(broken)
            return 1
        print(f"seed {seed}: {world.events} events, every promise kept, digest {world.digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
