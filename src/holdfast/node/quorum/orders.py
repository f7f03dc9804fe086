"""Where the order of each mesh is to be had on this node, whichever engine decides it.

    this node is a voter, or learns to be one      its group         (`embedded`)
    it is a member without a vote                  voters, over the bus (`forwarding`)

`LocalQuorum` asks here for orders and hands its operators' verbs on to here.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.embedded.groups import EmbeddedGroups
from holdfast.node.quorum.embedded.operators import EmbeddedOperators
from holdfast.node.quorum.ports import MeshOrder, OrderStatus
from holdfast.rules.errors import BadInput, Conflict, NoVoters


class NodeOrders:
    """A `QuorumOperators`. Belongs to one event loop."""

    def __init__(
        self,
        engine: NodeEngine,
        groups: EmbeddedGroups,
        operators: EmbeddedOperators,
    ) -> None:
        self._engine, self._groups, self._operators = engine, groups, operators
        self.on_order: Callable[[str], None] = lambda mesh: None
        """Hears that the order of a mesh is here now, is another one, or is gone."""
        groups.on_group = self._group_changed

    def order(self, mesh: str) -> MeshOrder:
        """NoVoters if the mesh has no quorum that this node knows."""
        order = self._groups.order(mesh)
        if order is None:
            self._engine.require_mesh(mesh)
            raise NoVoters(
                f"the mesh {mesh!r} has no voters that this node knows",
                hint=f"begin with: holdfast quorum init {mesh}",
            )
        return order

    def _group_changed(self, mesh: str) -> None:
        self.on_order(mesh)

    # --- QuorumOperators -----------------------------------------------------------------------

    async def init(self, mesh: str, voters: tuple[str, ...], *, engine: str) -> OrderStatus:
        if engine != "embedded":
            raise BadInput(f"{engine!r} is no engine of a quorum", hint="say embedded")
        await self._operators.init(mesh, voters)
        return self.order(mesh).status()

    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None) -> OrderStatus:
        await self._operators.add(mesh, peer, timeout_ms=timeout_ms)
        return self.order(mesh).status()

    async def remove(self, mesh: str, peer: str, *, timeout_ms: int | None) -> OrderStatus:
        status = self.order(mesh).status
        await self._operators.remove(mesh, peer, timeout_ms=timeout_ms)
        return status()

    async def transfer(self, mesh: str, to: str | None, *, timeout_ms: int | None) -> OrderStatus:
        await self._operators.transfer(mesh, to, timeout_ms=timeout_ms)
        return self.order(mesh).status()

    async def step_down(self, mesh: str) -> OrderStatus:
        await self._operators.step_down(mesh)
        return self.order(mesh).status()

    async def recover(self, mesh: str, *, accept_loss: bool) -> OrderStatus:
        if not accept_loss:
            raise Conflict(
                f"{mesh!r} would go on with what this node has; what only the others have is lost",
                hint=f"if they are gone for good: holdfast quorum recover {mesh} --accept-loss",
            )
        await self._operators.recover(mesh)
        return self.order(mesh).status()
