"""What operators do with the order of a mesh in an etcd: begin, join, hand over, recover.

Who votes there is the etcd's own business: its members come and go by its own tools. A node of the
mesh takes part as soon as its operator tells it where the etcd is.
"""

from __future__ import annotations

import asyncio

from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.etcd.coordination import not_handed_over
from holdfast.node.quorum.etcd.engine import EtcdEngine
from holdfast.node.quorum.etcd.order import EtcdOrder
from holdfast.node.quorum.etcd.orders import EtcdOrders, EtcdPlace
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    Conflict,
    HoldfastError,
    NoQuorum,
    UnknownMesh,
)
from holdfast.rules.limits import QUORUM_CHANGE_MS, SECOND_MS
from holdfast.transport.etcd_address import next_scope, parse_etcd_address, with_scope


class EtcdOperators:
    """Belongs to one event loop."""

    def __init__(self, orders: EtcdOrders, engine: NodeEngine) -> None:
        self._orders, self._engine = orders, engine

    async def init(self, mesh: str, address: str, *, timeout_ms: int | None = None) -> None:
        """Begins the order of a mesh in an etcd, or with `join=yes` in the address takes part in
        the one that is there. AlreadyExists if this node has voters for the mesh, or if somebody
        has begun an order of that name. What was cut short goes on when it is asked for again.
        """
        limit_ms = QUORUM_CHANGE_MS if timeout_ms is None else timeout_ms
        parsed = parse_etcd_address(address)
        self._engine.require_mesh(mesh)
        row = self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh))
        follows = row is not None and row.engine == "etcd" and self._orders.order(mesh) is None
        if row is not None and not (follows or (parsed.join and row.voter is None)):
            raise AlreadyExists(
                f"the mesh {mesh!r} has voters already", hint=f"see: holdfast quorum status {mesh}"
            )
        place = await self._orders.keep_place(mesh, address)
        gateway, etcd = await self._orders.engine_of(mesh, place)
        try:
            if not parsed.join and row is None:
                await self._found(mesh, etcd, place, limit_ms)
            if not follows:
                await self._orders.note_standing(mesh, etcd, timeout_ms=limit_ms)
        except HoldfastError:
            if not follows:
                await self._forget_unless_begun(mesh, etcd, place)
            raise
        finally:
            await gateway.close()
        order = await self._orders.begin(mesh)
        await _led(order, limit_ms)

    async def check_free(self, mesh: str, address: str) -> None:
        """Raises unless an order can be begun there: the etcd answers, is new enough, and holds
        none of that name.
        """
        if parse_etcd_address(address).join:
            raise BadInput(
                f"no order of {mesh!r} is in this etcd yet",
                hint="leave join=yes out of the address",
            )
        gateway, etcd = await self._orders.engine_of(mesh, EtcdPlace(address, b""))
        try:
            await etcd.end(timeout_ms=QUORUM_CHANGE_MS)
        except UnknownMesh:
            return
        finally:
            await gateway.close()
        raise _taken(mesh, "move", address, etcd)

    async def begun(self, order: EtcdOrder) -> None:
        """Waits until somebody coordinates an order that this node has begun."""
        await _led(order, QUORUM_CHANGE_MS)

    async def _found(self, mesh: str, etcd: EtcdEngine, place: EtcdPlace, limit_ms: int) -> None:
        try:
            await etcd.begin(1, nonce=place.nonce, timeout_ms=limit_ms)
        except AlreadyExists:
            raise _taken(mesh, "init", place.address, etcd) from None

    async def _forget_unless_begun(self, mesh: str, etcd: EtcdEngine, place: EtcdPlace) -> None:
        """What was refused leaves nothing behind; what may have happened is kept, to go on."""
        state = etcd.known
        if state is not None and all(base.nonce != place.nonce for base in state.bases):
            await self._orders.forget_place(mesh)

    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None = None) -> None:
        raise _own_members(mesh)

    async def remove(
        self, mesh: str, peer: str, *, timeout_ms: int | None = None, last: bool = False
    ) -> None:
        raise _own_members(mesh)

    async def transfer(self, mesh: str, to: str | None, *, timeout_ms: int | None = None) -> None:
        """Lets another node coordinate. Writes go on meanwhile."""
        order = self._orders.require(mesh)
        limit_ms = QUORUM_CHANGE_MS if timeout_ms is None else timeout_ms
        try:
            await order.coordination.let_go(to or "", timeout_ms=limit_ms)
        except TimeoutError:
            raise not_handed_over(to or "", mesh) from None

    async def step_down(self, mesh: str, *, timeout_ms: int | None = None) -> None:
        """The coordinator stops; another node takes over, or later the same one again."""
        order = self._orders.require(mesh)
        limit_ms = QUORUM_CHANGE_MS if timeout_ms is None else timeout_ms
        await order.coordination.ask("", timeout_ms=limit_ms)

    async def recover(self, mesh: str, *, timeout_ms: int | None = None) -> None:
        """After the etcd was restored from a backup: the order goes on in a new incarnation, behind
        what this node has. A node that has something else must get the commits of this one first.
        """
        limit_ms = QUORUM_CHANGE_MS if timeout_ms is None else timeout_ms
        order = self._orders.require(mesh)
        if order.part == "must_rejoin":
            raise Conflict(
                f"this node has not got what the order of {mesh!r} goes on from: "
                f"{order.status().problem}",
                hint="recover on a node that has",
            )
        if order.part != "failed":  # it is as far as the etcd, or will be in a moment
            await order.confirm(timeout_ms=limit_ms)
        place = self._orders.place(mesh)
        assert place is not None, "it is followed"
        await self._orders.end(mesh)
        gateway, etcd = await self._orders.engine_of(mesh, place)
        try:
            row = self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh))
            assert row is not None, "it is followed"
            await etcd.begin_incarnation(
                row.incarnation + 1,
                epoch_min=0 if row.fence is None else row.fence.lease_epoch,
                commits=row.number,
                fence="" if row.fence is None else str(row.fence),
                timeout_ms=limit_ms,
            )
        finally:
            await gateway.close()
            began = await self._orders.begin(mesh)
        await _led(began, limit_ms)


async def _led(order: EtcdOrder, timeout_ms: int) -> None:
    """Waits until somebody coordinates: without, nothing can be appended."""
    try:
        async with asyncio.timeout(timeout_ms / SECOND_MS):
            await order.coordination.settled()
    except TimeoutError:
        raise NoQuorum(
            f"the etcd of {order.mesh!r} was not reached within {timeout_ms} ms; this node goes on "
            "to try"
        ) from None


def _taken(mesh: str, verb: str, address: str, etcd: EtcdEngine) -> AlreadyExists:
    used = etcd.keys.scope
    free = with_scope(address, next_scope(used))
    join = (
        "if it is that of this mesh, by another node: add join=yes to the address; else "
        if verb == "init"
        else "an order that has ended there is kept; "
    )
    return AlreadyExists(
        f"the etcd holds an order called {used!r} already",
        hint=f"{join}give this one another name: holdfast quorum {verb} {mesh} --engine '{free}'",
    )


def _own_members(mesh: str) -> BadInput:
    return BadInput(
        f"an etcd decides for {mesh!r}: no node of the mesh votes, and the etcd has members of its "
        "own",
        hint="use etcdctl member add or remove; a node takes part by: `holdfast quorum init "
        f"{mesh} --engine 'etcd://HOST:PORT?join=yes'`",
    )
