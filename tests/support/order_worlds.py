"""Three nodes of one mesh on each engine, for the suite that all orders share.

A world can cut a node off from whatever decides, heal that, and restart a node. Whoever adds an
engine, adds a world here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec

import holdfast
from holdfast.node.core.commit import Committed
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.quorum.etcd.coordination import OrderTiming
from holdfast.node.quorum.etcd.operators import EtcdOperators
from holdfast.node.quorum.etcd.order import EtcdOrder
from holdfast.node.quorum.etcd.orders import EtcdOrders, place_job
from holdfast.node.quorum.ports import MeshOrder
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.quorum.commit_record import CommitRecord, decode_record
from holdfast.rules.quorum.entities import read_fields
from holdfast.storage.ports import Transaction
from holdfast.transport.fault_proxy import FaultProxy
from support.daemon import make_home
from support.envelopes import MESH
from support.etcd_orders import new_scope
from support.etcd_server import HOST, etcd_server
from support.voter_nodes import VoterNode, mission, until, voter_nodes

NAMES: Final = ("ana", "bo", "cy")
ENOUGH_MS: Final = 30_000
QUICK: Final = OrderTiming(beat_ms=100, lost_ms=2_000)


class OrderSeat(Protocol):
    """One node with its order."""

    name: str

    @property
    def order(self) -> MeshOrder: ...
    @property
    def engine(self) -> NodeEngine: ...


class OrderWorld(Protocol):
    """Three seats, and what can happen to them."""

    @property
    def seats(self) -> Sequence[OrderSeat]: ...
    async def start(self, folder: Path) -> None: ...
    async def close(self) -> None: ...
    async def cut_off(self, seat: OrderSeat) -> None:
        """The seat reaches nobody that decides, and knows it."""

    async def heal(self) -> None: ...
    async def restart(self, seat: OrderSeat) -> None: ...


Story: TypeAlias = Callable[[OrderWorld], Awaitable[None]]
Told: TypeAlias = Callable[[Story], None]

# --- what tests do with a seat -------------------------------------------------------------------


async def propose(seat: OrderSeat, envelope: Envelope, timeout_ms: int = ENOUGH_MS) -> Committed:
    return await seat.order.propose(envelope.id, encode(envelope), timeout_ms=timeout_ms)


async def put(seat: OrderSeat, id: str, title: str) -> Committed:
    return await propose(seat, mission(seat.name, title, id))


def title_of(seat: OrderSeat, id: str) -> Any:
    row = seat.engine.read("entity", lambda tx: tx.entity_get(MESH, "mission", id))
    return None if row is None else read_fields(row.fields)["title"]


async def read(seat: OrderSeat, id: str) -> Any:
    """A linearizable read."""
    await seat.order.confirm(timeout_ms=ENOUGH_MS)
    return title_of(seat, id)


def records(seat: OrderSeat) -> list[bytes]:
    """All commit records of a node, in commit order."""
    rows = seat.engine.read("commits", lambda tx: tx.commit_range(MESH, 1, 10_000))
    return [row.record for row in rows]


def decoded(seat: OrderSeat) -> list[CommitRecord]:
    return [decode_record(raw) for raw in records(seat)]


# --- voters among the nodes --------------------------------------------------------------------


class VoterSeat:
    """A node that votes."""

    def __init__(self, voter: VoterNode) -> None:
        self.voter, self.name = voter, voter.name

    @property
    def order(self) -> MeshOrder:
        return self.voter.order

    @property
    def engine(self) -> NodeEngine:
        return self.voter.node._engine


class EmbeddedWorld:
    """Three voters over links of the bus."""

    async def start(self, folder: Path) -> None:
        self._nodes = voter_nodes(folder, *NAMES)
        voters = await self._nodes.__aenter__()
        self.seats = [VoterSeat(voter) for voter in voters]
        self._voters = voters
        await voters[0].host.operators.init(MESH, [*NAMES[1:]])
        await self._settled()

    async def close(self) -> None:
        await self._nodes.__aexit__(None, None, None)

    async def cut_off(self, seat: OrderSeat) -> None:
        others = [voter for voter in self._voters if voter.name != seat.name]
        for voter in others:
            await voter.down()
        await until(lambda: not seat.order.status().has_quorum)

    async def heal(self) -> None:
        for voter in self._voters:
            if not voter.is_up:
                await voter.up()
        await self._settled()

    async def restart(self, seat: OrderSeat) -> None:
        voter = next(voter for voter in self._voters if voter.name == seat.name)
        await voter.down()
        await voter.up()
        await self._settled()

    async def _settled(self) -> None:
        await until(lambda: all(voter.part in ("voter", "coordinator") for voter in self._voters))
        await until(lambda: all(voter.order.has_quorum for voter in self._voters))


# --- an etcd -----------------------------------------------------------------------------------


class EtcdSeat:
    """A node that follows an order in an etcd, through a way that can be cut."""

    def __init__(self, home: Path, name: str, port: int, timing: OrderTiming = QUICK) -> None:
        self.home, self.name, self._timing = home, name, timing
        self._target = (HOST, port)
        self._proxy = FaultProxy(self._target).start()

    async def up(self, scope: str | None = None) -> None:
        """Comes up, and finds the order where it was or in this scope."""
        self.node = holdfast.open(self.home)
        writer = LoopWriter(self.engine, self.node._opened.store.writer)
        self.orders = EtcdOrders(self.engine, writer.write, timing=self._timing)
        self.operators = EtcdOperators(self.orders, self.engine)
        if scope is not None:
            await self.orders.keep_place(MESH, self.address(scope))
        await self.orders.start()

    async def down(self) -> None:
        await self.orders.close()
        self.node.close()

    async def close(self) -> None:
        await self.down()
        self._proxy.close()

    def cut(self) -> None:
        """Nobody listens where the etcd was."""
        self._proxy.close()

    def mend(self) -> None:
        self._proxy = FaultProxy(self._target, port=self._proxy.address[1]).start()

    def lose_answers(self) -> None:
        """What is sent arrives, and no answer comes back."""
        self._proxy.cut()
        self._proxy.cut_each(0)

    async def move_to(self, scope: str) -> None:
        """The order is found in another place: an etcd that is not as it was."""
        await self.orders.keep_place(MESH, self.address(scope))
        await self.orders.end(MESH)
        await self.orders.begin(MESH)

    def forget_engine(self) -> None:
        """As if others had brought the commits."""

        def forget(tx: Transaction) -> None:
            row = tx.quorum_get(MESH)
            assert row is not None
            tx.quorum_put(msgspec.structs.replace(row, engine="embedded"))
            tx.job_drop(place_job(MESH))

        self.engine.write("test", forget)

    @property
    def order(self) -> EtcdOrder:
        return self.orders.require(MESH)

    @property
    def engine(self) -> NodeEngine:
        return self.node._engine

    def address(self, scope: str, **options: str) -> str:
        asked = {"allow-old-version": "yes", "scope": scope, **options}
        said = "&".join(f"{name}={value}" for name, value in asked.items())
        return f"etcd://{HOST}:{self._proxy.address[1]}?{said}"


class EtcdWorld:
    """Three nodes, each with a member of the etcd of its own. The first one begins the order."""

    def __init__(self, timing: OrderTiming = QUICK) -> None:
        self._timing = timing

    async def start(self, folder: Path) -> None:
        self.scope = new_scope()
        self._cut: list[EtcdSeat] = []
        self.seats: list[EtcdSeat] = []
        for name, port in zip(NAMES, etcd_server().ports, strict=True):
            seat = EtcdSeat(make_home(folder / name, name, MESH), name, port, self._timing)
            await seat.up()
            self.seats.append(seat)
            options = {"join": "yes"} if len(self.seats) > 1 else {}
            await seat.operators.init(MESH, seat.address(self.scope, **options))

    async def close(self) -> None:
        for seat in self.seats:
            await seat.close()

    async def cut_off(self, seat: OrderSeat) -> None:
        assert isinstance(seat, EtcdSeat)
        seat.cut()
        self._cut.append(seat)
        await until(lambda: not seat.order.status().has_quorum)

    async def heal(self) -> None:
        while self._cut:
            seat = self._cut.pop()
            seat.mend()
            await until(lambda: seat.order.status().has_quorum)  # noqa: B023

    async def restart(self, seat: OrderSeat) -> None:
        assert isinstance(seat, EtcdSeat)
        await seat.down()
        await seat.up()


ORDER_WORLDS: Final[dict[str, Callable[[], OrderWorld]]] = {
    "embedded": EmbeddedWorld,
    "etcd": EtcdWorld,
}


async def bounded(story: Any, seconds: float = 200) -> None:
    """Ends also where something hangs."""
    async with asyncio.timeout(seconds):
        await story
