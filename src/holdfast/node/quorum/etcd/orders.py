"""All orders of this node that an etcd holds: where each etcd is, and one connection to each.

The address of an etcd is kept in this home, with the mesh: other nodes have files of their own for
certificates and passwords. It holds no secret; a password is read from the file that it names.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.etcd.coordination import OrderTiming
from holdfast.node.quorum.etcd.engine import EtcdEngine
from holdfast.node.quorum.etcd.order import EtcdOrder
from holdfast.node.quorum.etcd.order_fold import Write
from holdfast.rules.errors import AlreadyExists, BadInput, HoldfastError, NoVoters
from holdfast.rules.etcd.standing import joined_standing
from holdfast.rules.limits import QUORUM_CHANGE_MS
from holdfast.rules.quorum.order_move import has_not_begun
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Transaction
from holdfast.transport.etcd_address import EtcdAddress, parse_etcd_address
from holdfast.transport.etcd_gateway import EtcdGateway

log = logging.getLogger("holdfast")


class EtcdPlace(msgspec.Struct, frozen=True):
    """Where the order of a mesh is, as this home keeps it."""

    address: str
    nonce: bytes
    """By which this node knows an order that it began itself, also if no answer came."""

    @property
    def parsed(self) -> EtcdAddress:
        return parse_etcd_address(self.address)


def place_job(mesh: str) -> str:
    return f"quorum-etcd:{mesh}"


class EtcdOrders:
    """Belongs to one event loop. `start` comes first, `close` last."""

    def __init__(
        self,
        engine: NodeEngine,
        write: Write,
        *,
        timing: OrderTiming | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._engine, self._write, self._timing, self._random = engine, write, timing, random
        self._orders: dict[str, EtcdOrder] = {}
        self._problems: dict[str, HoldfastError] = {}
        self.on_order: Callable[[str], None] = lambda mesh: None
        """Hears that this node has begun or ended to follow the order of a mesh."""
        self.on_moved: Callable[[str], None] = lambda mesh: None
        """Hears that an order has ended, to go on with another engine."""

    # --- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Goes on with the orders that this node followed. One whose etcd cannot even be called,
        because a certificate is missing or wrong, does not keep the others from it.
        """
        rows = self._engine.read("quorum.orders", lambda tx: tx.quorum_list())
        for row in rows:
            if row.engine == "etcd" and self.place(row.mesh) is not None:
                try:
                    await self.begin(row.mesh)
                except HoldfastError as error:
                    self._problems[row.mesh] = error
                    log.error("the order of %s: %s (%s)", row.mesh, error.message, error.hint)

    async def close(self) -> None:
        for mesh in list(self._orders):
            await self.end(mesh)

    async def begin(self, mesh: str) -> EtcdOrder:
        """Follows the order of a mesh from where this node is."""
        place = self.place(mesh)
        if place is None:
            raise BadInput(
                f"this home does not know where the etcd of {mesh!r} is",
                hint=f"tell it: holdfast quorum init {mesh} --engine 'etcd://HOST:PORT?join=yes'",
            )
        gateway, etcd = await self.engine_of(mesh, place)
        found = partial(self._found, mesh, etcd, place) if self._is_ours(mesh, place) else None
        order = EtcdOrder(
            self._engine, mesh, self._write, gateway, etcd, timing=self._timing, found=found
        )
        order.on_moved = lambda: self.on_moved(mesh)
        order.on_cut_off = lambda: self.on_order(mesh)
        order.start()
        self._orders[mesh] = order
        self._problems.pop(mesh, None)
        self.on_order(mesh)
        return order

    def _is_ours(self, mesh: str, place: EtcdPlace) -> bool:
        """Whether this node has ended the order of before, and so begins this one."""
        row = self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh))
        return row is not None and row.tag == place.nonce and has_not_begun(row)

    async def _found(self, mesh: str, etcd: EtcdEngine, place: EtcdPlace) -> None:
        """Begins an order behind the one of another engine. Twice is once."""
        row = self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh))
        assert row is not None, "its order is known here"
        assert row.fence is not None, "an order has ended with a commit"
        try:
            await etcd.begin(
                row.incarnation,
                epoch_base=row.fence.lease_epoch,
                commits=row.number,
                fence=str(row.fence),
                nonce=place.nonce,
                timeout_ms=QUORUM_CHANGE_MS,
            )
        except AlreadyExists:
            state = etcd.known
            if state is None or all(base.nonce != place.nonce for base in state.bases):
                raise

    async def end(self, mesh: str) -> None:
        order = self._orders.pop(mesh, None)
        if order is not None:
            try:
                await order.close()
            finally:  # whoever ends a move may be cancelled in the middle of it
                await order.gateway.close()
            self.on_order(mesh)

    async def engine_of(self, mesh: str, place: EtcdPlace) -> tuple[EtcdGateway, EtcdEngine]:
        """A connection to the etcd of a mesh, and its order there. BadInput if a file that the
        address names cannot be used.
        """
        address = place.parsed
        gateway = await asyncio.to_thread(partial(EtcdGateway, address))
        etcd = EtcdEngine(
            gateway,
            address.scope or mesh,
            node=self._engine.ctx.peer,
            nonce=partial(self._random, 16),
        )
        return gateway, etcd

    # --- what others ask -----------------------------------------------------------------------

    def order(self, mesh: str) -> EtcdOrder | None:
        return self._orders.get(mesh)

    def orders(self) -> list[EtcdOrder]:
        return list(self._orders.values())

    def is_kept_from(self, mesh: str) -> bool:
        """Whether this node knows where the order is, and cannot even ask."""
        return mesh in self._problems

    def require(self, mesh: str) -> EtcdOrder:
        order = self._orders.get(mesh)
        if order is None:
            error = self._problems.get(mesh)
            raise NoVoters(
                f"this node follows no order of {mesh!r} in an etcd"
                + ("" if error is None else f": {error.message}"),
                hint=None if error is None else error.hint,
            )
        return order

    # --- what is kept --------------------------------------------------------------------------

    def place(self, mesh: str) -> EtcdPlace | None:
        job = self._engine.read("quorum.place", lambda tx: tx.job_get(place_job(mesh)))
        return None if job is None else msgspec.convert(job.cursor, EtcdPlace)

    async def keep_place(self, mesh: str, address: str, *, nonce: bytes | None = None) -> EtcdPlace:
        """Notes where the etcd of a mesh is, before anything is begun there. One that was begun
        before, and cut short, is begun with the same nonce.
        """
        known = self.place(mesh)
        if nonce is None:
            nonce = self._random(16) if known is None else known.nonce
        place = EtcdPlace(address, nonce)

        def keep(tx: Transaction) -> None:
            cursor = msgspec.to_builtins(place)
            now = self._engine.ctx.now_ms()
            tx.job_put(JobRow(name=place_job(mesh), cursor=cursor, updated_at=now))

        await self._write("quorum.place", keep)
        return place

    async def forget_place(self, mesh: str) -> None:
        await self._write("quorum.place", lambda tx: tx.job_drop(place_job(mesh)))

    async def note_standing(self, mesh: str, etcd: EtcdEngine, *, timeout_ms: int) -> None:
        """Notes that this node follows the order in an etcd, from its beginning or from the last
        commit that others have brought.
        """
        state = (await etcd.end(timeout_ms=timeout_ms)).state

        def note(tx: Transaction) -> None:
            tx.quorum_put(joined_standing(mesh, tx.quorum_get(mesh), state))

        await self._write("quorum.init", note)
