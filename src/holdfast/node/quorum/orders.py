"""Where the order of each mesh is to be had on this node, whichever engine decides it.

    this node is a voter, or learns to be one      its group         (`embedded`)
    it is a member without a vote                  voters, over the bus (`forwarding`)
    an etcd has the order                          that etcd         (`etcd`)

`LocalQuorum` asks here for orders and hands its operators' verbs on to here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from holdfast.node.core.committed_intake import claims_of, forget_claims
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.embedded.groups import EmbeddedGroups
from holdfast.node.quorum.embedded.operators import EmbeddedOperators
from holdfast.node.quorum.embedded.order import EmbeddedOrder
from holdfast.node.quorum.etcd.operators import EtcdOperators
from holdfast.node.quorum.etcd.order_fold import Write
from holdfast.node.quorum.etcd.orders import EtcdOrders
from holdfast.node.quorum.fold_watch import FoldWatch
from holdfast.node.quorum.forwarding import ForwardedOrder, RequestBus
from holdfast.node.quorum.moving import EngineMoves
from holdfast.node.quorum.ports import MeshOrder, OrderStatus
from holdfast.rules.errors import BadInput, Conflict, NoVoters, OrderContested, UnknownPeer
from holdfast.rules.quorum.state_rows import QuorumRow

log = logging.getLogger("holdfast.quorum")

ETCD_SCHEME: Final = "etcd:"


class EngineOperators(Protocol):
    """What operators do with the order of a mesh once it has begun, on either engine."""

    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None = None) -> None: ...
    async def remove(
        self, mesh: str, peer: str, *, timeout_ms: int | None = None, last: bool = False
    ) -> None: ...
    async def transfer(
        self, mesh: str, to: str | None, *, timeout_ms: int | None = None
    ) -> None: ...
    async def step_down(self, mesh: str, *, timeout_ms: int | None = None) -> None: ...
    async def recover(self, mesh: str) -> None: ...


class NodeOrders:
    """A `QuorumOperators`. Belongs to one event loop."""

    def __init__(
        self,
        engine: NodeEngine,
        groups: EmbeddedGroups,
        operators: EmbeddedOperators,
        etcd: EtcdOrders,
        bus: RequestBus,
        voters: Callable[[str], Sequence[str]],
        write: Write,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`voters` says who may vote in a mesh, those that are linked first: as the bus takes
        them.
        """
        self._engine, self._groups, self._embedded = engine, groups, operators
        self._write = write
        self._etcd, self._etcd_operators = etcd, EtcdOperators(etcd, engine)
        self._bus, self._voters = bus, voters
        self._watch = FoldWatch(engine)
        self._forwarded: dict[str, ForwardedOrder] = {}
        self.on_order: Callable[[str], None] = lambda mesh: None
        """Hears that the order of a mesh is here now, is another one, or is gone."""
        groups.on_group = etcd.on_order = self._group_changed
        self.moves = EngineMoves(
            engine, write, self.own_order, operators, etcd, self._etcd_operators, random
        )
        groups.on_moved = etcd.on_moved = self.moves.ended

    def order(self, mesh: str) -> MeshOrder:
        """NoVoters if the mesh has no quorum that this node knows."""
        order = self.own_order(mesh)
        if order is not None:
            return order
        if self._etcd.is_kept_from(mesh):
            return self._etcd.require(mesh)  # it says why
        if self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh)) is None:
            self._engine.require_mesh(mesh)
            raise NoVoters(
                f"the mesh {mesh!r} has no voters that this node knows",
                hint=f"begin with: holdfast quorum init {mesh}",
            )
        if mesh not in self._forwarded:
            self._forwarded[mesh] = ForwardedOrder(
                self._engine, self._watch, self._bus, mesh, lambda: self._voters(mesh)
            )
        return self._forwarded[mesh]

    def own_order(self, mesh: str) -> MeshOrder | None:
        """The order of a mesh in which this node takes part itself."""
        return self._groups.order(mesh) or self._etcd.order(mesh)

    def brings(self, row: QuorumRow) -> bool:
        """Whether an engine of this node brings what is committed, so that no neighbour is asked
        for it. An etcd brings nothing to a node that cannot go on with its order or does not reach
        it.
        """
        order = self._etcd.order(row.mesh)
        if order is None:
            return row.voter is not None
        return order.part in ("coordinator", "member") and not order.is_cut_off

    def compared(self, mesh: str) -> None:
        """The order of a mesh was compared with that of another node."""
        self._groups.compared(mesh)

    def linked(self) -> None:
        """A link has come up or gone down: another voter may answer now."""
        for order in self._forwarded.values():
            order.voters_changed()

    def _is_etcd(self, mesh: str) -> bool:
        row = self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh))
        return row is not None and row.engine == "etcd"

    def _operators(self, mesh: str) -> EngineOperators:
        return self._etcd_operators if self._is_etcd(mesh) else self._embedded

    def _group_changed(self, mesh: str) -> None:
        self.on_order(mesh)

    # --- QuorumOperators -----------------------------------------------------------------------

    async def init(self, mesh: str, voters: tuple[str, ...], *, engine: str) -> OrderStatus:
        if engine.startswith(ETCD_SCHEME):
            if voters:
                raise BadInput(
                    "an etcd has voters of its own: no node of the mesh is one",
                    hint="leave them out; every node that is to take part says init with join=yes",
                )
            await self._etcd_operators.init(mesh, engine)
        elif engine == "embedded":
            await self._embedded.init(mesh, voters)
        else:
            raise _no_engine()
        return self.order(mesh).status()

    async def move(self, mesh: str, voters: tuple[str, ...], *, engine: str) -> OrderStatus:
        if engine != "embedded" and not engine.startswith(ETCD_SCHEME):
            raise _no_engine()
        await self.moves.move(mesh, engine, voters)
        return self.order(mesh).status()

    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None) -> OrderStatus:
        await self._operators(mesh).add(mesh, peer, timeout_ms=timeout_ms)
        return self.order(mesh).status()

    async def remove(
        self, mesh: str, peer: str, *, timeout_ms: int | None, last: bool
    ) -> OrderStatus:
        before = self.order(mesh)
        await self._operators(mesh).remove(mesh, peer, timeout_ms=timeout_ms, last=last)
        # With the last vote the order that it belonged to is gone: what it says is past.
        return (self.order(mesh) if last else before).status()

    async def transfer(self, mesh: str, to: str | None, *, timeout_ms: int | None) -> OrderStatus:
        await self._operators(mesh).transfer(mesh, to, timeout_ms=timeout_ms)
        return self.order(mesh).status()

    async def step_down(self, mesh: str) -> OrderStatus:
        await self._operators(mesh).step_down(mesh)
        return self.order(mesh).status()

    async def forget_claim(self, mesh: str, peer: str, *, dry_run: bool = False) -> OrderStatus:
        order = self.order(mesh)
        known = self._engine.read("quorum.trouble", lambda tx: claims_of(tx, mesh))
        if all(one.source != peer for one in known):
            raise UnknownPeer(
                f"{peer!r} has shown no other order of {mesh!r}",
                hint=f"see who has: holdfast quorum status {mesh}",
            )
        if isinstance(order, EmbeddedOrder) and order.is_contested:
            raise OrderContested(
                f"{mesh!r} is stopped by that claim: to forget it would be to decide, on this node "
                "alone, which order counts"
            )
        if dry_run:
            return order.status()
        await self._write("quorum.claim", lambda tx: forget_claims(tx, mesh, peer))
        self._groups.compared(mesh)
        log.warning("an operator has let the claim of %s to the order of %s go", peer, mesh)
        return order.status()

    async def recover(self, mesh: str, *, accept_loss: bool) -> OrderStatus:
        order = self.order(mesh)
        has_no_vote = isinstance(order, ForwardedOrder)
        if not accept_loss:
            # A voter has at least what it acknowledged itself; a plain member, what came to it.
            lost = "what only the others have is lost"
            if has_no_vote:
                lost = "it never had a vote, so writes that were acknowledged may be missing here"
            raise Conflict(
                f"{mesh!r} would go on with what this node has; {lost}",
                hint=f"if they are gone for good: holdfast quorum recover {mesh} --accept-loss",
            )
        if isinstance(order, ForwardedOrder):
            await self._recover_alone(order)
        else:
            await self._operators(mesh).recover(mesh)
        return self.order(mesh).status()

    async def _recover_alone(self, order: ForwardedOrder) -> None:
        """This node has no vote and no etcd. Conflict if somebody who has one is heard."""
        mesh = order.mesh
        await self._embedded.check_own(mesh)
        if await order.heard():
            raise Conflict(
                f"a node that takes part in the order of {mesh!r} is there: it has more than this "
                "one, which has no vote",
                hint="if its majority is gone for good, recover on that one: see holdfast bus "
                "status",
            )
        await self._embedded.recover_behind(mesh)


def _no_engine() -> BadInput:
    """Without repeating what was said: it may be an address with a secret."""
    return BadInput("this is no engine of a quorum", hint="say embedded, or etcd://HOST:PORT")
