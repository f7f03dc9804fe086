"""The program that uses the bus on a simulated machine: it reads, answers, sends and asks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, cast

from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.ports import PeerDirectory
from holdfast.bus.received import ReceivedRequest
from holdfast.bus.static_peers import StaticPeers
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.envelope import Priority
from holdfast.rules.errors import BusError, HoldfastError, PeerUnreachable, RequestTimedOut
from holdfast.rules.keys import card_of

if TYPE_CHECKING:
    from holdfast.simulate.bus.bus import BusWorld
    from holdfast.simulate.bus.machine import BusMachine

MAIL: Final = "mail"
NEWS: Final = "news"
GOSSIP: Final = "gossip"
ECHO: Final = "echo"
PRIORITIES: Final[tuple[Priority, ...]] = ("now", "next", "low")
BUFFER: Final = 4
"""Small, so that slow readers fill it."""


def reply_to(server: str, body: bytes) -> bytes:
    return b"%s heard %s" % (server.encode(), body)


class BusProgram:
    """One process: from the binding of its bus to its end."""

    def __init__(self, world: BusWorld, machine: BusMachine) -> None:
        self.bus: Bus | None = None
        """None until it is bound."""
        self.reads_slowly_until = 0
        self._world, self._machine = world, machine
        self._life = machine.life
        self._rng: random.Random = world.fork(f"program of {machine.name} {machine.life}")
        self._readers: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    @property
    def name(self) -> str:
        return self._machine.name

    async def run(self) -> None:
        """Binds the bus, and reads."""
        machine, world = self._machine, self._world
        try:
            store = await machine.open_store()
            bus = await Bus.bind_with(self._options(cast(MeshStore, store)))
            await self._attach(bus)
        except Exception as error:
            if not machine.may_have_failed(error):
                world.broken(f"{self.name} does not start: {type(error).__name__}: {error}")
            world.happened["did not start"] += 1
            world.at(0, world.give_up_start, machine, self._life, name=f"{self.name} gives up")
            return
        self.bus = bus
        bus.serve(ECHO, self._answer)
        loop = asyncio.get_running_loop()
        self._readers = [
            loop.create_task(self._read(MAIL, durable=False)),
            loop.create_task(self._read(NEWS, durable=True)),
            loop.create_task(self._hear_gossip()),
        ]
        for one in bus.outstanding():
            if one.service != ECHO:
                continue  # of members among themselves, who ask anew
            world.happened["asked again"] += 1
            self._tasks.append(loop.create_task(self._reissue(one.id, one.remaining_ms)))

    async def _attach(self, bus: Bus) -> None:
        """Plugs in what uses the links, before anybody hears that the bus is bound."""

    def _peers(self) -> PeerDirectory:
        """Who is who, as somebody has written it down."""
        machine, world = self._machine, self._world
        peers = StaticPeers()
        for other in world.machines.values():
            if other is not machine:
                addresses = world.known_addresses(machine, other)
                for address in addresses:
                    peers.add(f"{card_of(other.name, other.key)}@{address}")
                if not addresses:
                    peers.add(card_of(other.name, other.key))
        return peers

    def _options(self, store: MeshStore) -> BusOptions:
        machine, world = self._machine, self._world
        chance = world.fork(f"chance of {self.name} {self._life}")
        assert machine.net is not None
        return BusOptions(
            seed=machine.seed,
            name=self.name,
            listen=world.listens_at(machine),
            store=store,
            peers=self._peers(),
            net=machine.net,
            batch=world.traits.batch,
            clock=machine.clock,
            random=chance.randbytes,
            jitter=chance.random,
        )

    async def end(self) -> None:
        """Closes the bus, as a daemon does when it stops."""
        self._ending = True
        bus = self.bus
        if bus is not None:
            await bus.close()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def inject(self, to: str, stream: int, body: bytes) -> None:
        """Puts a parcel into the link to a peer that nobody has signed now."""
        link = None if self.bus is None else self.bus.router.link_to(to)
        if link is not None and link.has_room(Stream(stream), len(body)):
            self._world.happened["injected"] += 1
            link.send(FrameKind.PARCEL, Stream(stream), body)

    # --- reading --------------------------------------------------------------------------------

    async def _read(self, topic: str, *, durable: bool) -> None:
        """Takes messages one by one, sometimes slowly; comes back after an error."""
        assert self.bus is not None
        world = self._world
        while not self._ending:
            try:
                async with self.bus.subscribe(topic, buffer=BUFFER, durable=durable) as messages:
                    async for message in messages:
                        if not self._machine.is_alive:
                            return
                        sender = world.name_of(message.key)
                        world.books.handed_out(self.name, self._life, sender, message.id)
                        if world.ticks < self.reads_slowly_until:
                            await asyncio.sleep(self._rng.random() * 3)
                        elif self._rng.random() < 0.1:
                            await asyncio.sleep(self._rng.random() / 10)
            except HoldfastError as error:
                if not self._ending:
                    world.trouble(self._machine, "read", error)
            if not self._ending:
                await asyncio.sleep(1)

    async def _hear_gossip(self) -> None:
        assert self.bus is not None
        try:
            async with self.bus.subscribe(GOSSIP, buffer=BUFFER) as messages:
                async for message in messages:
                    self._world.heard_gossip(self.name, self._life, message.id)
        except HoldfastError as error:
            if not self._ending:
                self._world.trouble(self._machine, "gossip", error)

    async def _answer(self, request: ReceivedRequest) -> bytes:
        if self._machine.is_alive:
            self._world.books.handles(self.name, self._life, request.id, request.body)
        try:
            if self._rng.random() < 0.5:
                await asyncio.sleep(self._rng.random() * 2)
        except asyncio.CancelledError:
            self._world.books.gave_up(self.name, self._life, request.id)
            raise
        return reply_to(self.name, request.body)

    # --- sending --------------------------------------------------------------------------------

    async def send(self, to: str, id: bytes, body: bytes) -> None:
        bus = self.bus
        assert bus is not None
        world, books = self._world, self._world.books
        priority = self._rng.choice(PRIORITIES)
        wait_ms = self._rng.choice((0, 500, 5_000))
        try:
            receipt = await bus.send(
                to, body, topic=MAIL, id=id, priority=priority, wait_ms=wait_ms
            )
        except BusError as error:
            if self._machine.is_alive:
                world.trouble(self._machine, "send", error)
                books.answered(self.name, to, id, "failed")
            return
        if self._machine.is_alive:
            world.happened[receipt.state] += 1
            books.answered(self.name, to, id, receipt.state)

    async def publish(self, topic: str, id: bytes, body: bytes) -> None:
        bus = self.bus
        assert bus is not None
        try:
            receipt = await bus.publish(topic, body, id=id)
        except BusError as error:
            if self._machine.is_alive:
                self._world.trouble(self._machine, "publish", error)
            return
        if self._machine.is_alive:
            self._world.happened["published"] += 1
            self._world.books.published(self.name, id, receipt.kept)

    async def ask(self, to: str | None, id: bytes, body: bytes, timeout_ms: int) -> None:
        bus = self.bus
        assert bus is not None
        self._world.books.asks(self.name, id, body, timeout_ms)
        cancel_after = self._rng.random() * timeout_ms / 1000
        work = bus.request(to, ECHO, body, id=id, timeout_ms=timeout_ms)
        if self._rng.random() < 0.2:
            await self._outcome(id, lambda: asyncio.wait_for(work, cancel_after))
        else:
            await self._outcome(id, lambda: work)

    async def _reissue(self, id: bytes, remaining_ms: int) -> None:
        assert self.bus is not None
        bus = self.bus
        self._world.books.asks_again(id, remaining_ms)
        await self._outcome(id, lambda: bus.reissue(id))

    async def _outcome(self, id: bytes, ask: Callable[[], Awaitable[object]]) -> None:
        world = self._world
        try:
            reply = await ask()
        except TimeoutError:
            outcome = "cancelled"
        except (RequestTimedOut, PeerUnreachable, BusError) as error:
            outcome = error.code
            if self._machine.is_alive:
                world.trouble(self._machine, "ask", error)
        else:
            outcome = "replied"
            world.check_reply(self.name, id, reply)
        if self._machine.is_alive:
            world.happened[f"request {outcome}"] += 1
            world.books.ended(id, outcome)
