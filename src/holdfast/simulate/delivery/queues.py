"""People who take messages from a queue, and what must hold for each message: it is finished by
whoever has it in hand, and never lost.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from holdfast.broker.access import require_member
from holdfast.broker.queue_delivery import LEASE_BYTES, settle_messages
from holdfast.rules.broker_rows import TakenRow
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import LeaseEnded, NotAllowed, Unreachable
from holdfast.rules.ids import id_text
from holdfast.rules.limits import HOUR_MS, SECOND_MS
from holdfast.simulate.delivery.calls import SimulatedBrokerClient
from holdfast.storage.broker.sqlite import SqliteBrokerStore
from holdfast.storage.broker.sqlite.inspect import latest_lease_end, queued

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld

QUEUE: Final = "work"
VISIBILITY_MS: Final = 120 * SECOND_MS
DELIVERIES_MAX: Final = 6
MOST: Final = 2
HOWS: Final = ("done", "done", "done", "again", "dead", "extend")


class QueueTakers:
    """All takers of a world, and the fate of every message that they met."""

    def __init__(self, world: DeliveryWorld) -> None:
        self._world = world
        self._rng: random.Random = world.fork("queues")
        self.finished: dict[bytes, None] = {}
        """Messages whose taker got the answer that they are finished."""
        self.perhaps: dict[bytes, None] = {}
        """Messages whose taker asked for that, and got no answer."""
        self.dead: dict[bytes, None] = {}

    def went_back(self) -> None:
        """The broker may have forgotten that something was finished."""
        self.perhaps |= self.finished
        self.finished = {}

    def take(self, peer: str, mesh: str) -> None:
        """A node takes what there is, and finishes it after a while, perhaps too late."""
        world = self._world
        leases = [self._rng.randbytes(LEASE_BYTES) for _ in range(MOST)]
        key = world.ends[peer].key

        async def work(store: SqliteBrokerStore) -> list[TakenRow]:
            await require_member(store, mesh, key, "read")
            return await store.take(
                mesh, QUEUE, key, MOST, leases, world.broker_machine.clock.now_ms()
            )

        try:
            taken = SimulatedBrokerClient(world, peer, key).call(work)
        except (Unreachable, NotAllowed):
            return
        for one in taken:
            world.happened["taken again" if one.deliveries > 1 else "taken"] += 1
            wait = self._rng.randrange(1, 2 * VISIBILITY_MS)
            how = self._rng.choice(HOWS)
            world.at(wait, self._settle, peer, mesh, one, how, name=f"{peer} is {how}")

    def _settle(self, peer: str, mesh: str, one: TakenRow, how: str) -> None:
        world = self._world
        if not world.broker_machine.is_well:
            return
        id = decode_trusted(one.raw).id
        key = world.ends[peer].key
        theirs = world.broker_machine.peek(lambda store: _in_hand(store, mesh, one))

        async def work(store: SqliteBrokerStore) -> bool:
            await require_member(store, mesh, key, "read")
            now = world.broker_machine.clock.now_ms()
            return await settle_messages(store, mesh, QUEUE, one.seq, one.lease, how, "no", now)

        try:
            SimulatedBrokerClient(world, peer, key).call(work)
        except Unreachable:
            if how == "done" and theirs:
                self.perhaps[id] = None
            return
        except NotAllowed:
            return
        except LeaseEnded:
            world.happened["lease ended"] += 1
            if theirs:
                world.break_off(f"{peer} has {id_text(id)} in hand, and is told that it has not")
            return
        if not theirs:
            world.break_off(f"{peer} is {how} with {id_text(id)}, which it has no longer in hand")
        if how == "done":
            world.happened["finished"] += 1
            self.finished[id] = None

    def hidden(self) -> list[str]:
        """Leases that last for longer than any may. Asked when the clock is right, and the broker
        has had a look at it.
        """
        now = self._world.broker_machine.clock.now_ms()
        ends = self._world.broker_machine.peek(_latest_end)
        hours = 0 if ends is None else (ends - now) // HOUR_MS
        return [f"a lease hides its message for {hours} hours"] if hours > 2 else []

    def look(self) -> None:
        """Notes the dead letters, which go in their time."""
        for mesh in self._world.meshes:
            found = self._world.broker_machine.peek(
                SqliteBrokerStore.dead_letters, mesh, QUEUE, 1000
            )
            self.dead |= {letter.id: None for letter in found}

    def lost(self) -> list[str]:
        """Messages of a queue that are neither there nor finished."""
        self.look()
        ended = self.finished.keys() | self.perhaps.keys() | self.dead.keys()
        problems = []
        for slug, book in self._world.books.meshes.items():
            waiting = self._world.broker_machine.peek(_waiting, slug)
            problems += [
                f"queue message {id_text(row.id)} is lost"
                for seq, row in enumerate(book.rows, 1)
                if row.kind == "queue" and seq not in waiting and row.id not in ended
            ]
            problems += [
                f"queue message {id_text(book.rows[seq - 1].id)} is finished, and still there"
                for seq in sorted(waiting)
                if book.rows[seq - 1].id in self.finished
            ]
        return problems


async def _in_hand(store: SqliteBrokerStore, mesh: str, one: TakenRow) -> bool:
    return queued(store, mesh).get(one.seq) == one.lease


async def _latest_end(store: SqliteBrokerStore) -> int | None:
    return latest_lease_end(store)


async def _waiting(store: SqliteBrokerStore, mesh: str) -> set[int]:
    return set(queued(store, mesh))
