"""What the host of a node's groups does for operators: voters come and go, coordinators change."""

from __future__ import annotations

from typing import Protocol

from holdfast.node.quorum.ports import OrderStatus


class QuorumOperators(Protocol):
    """The verbs of `QuorumApi` that change who decides. Each says there what it does."""

    async def init(self, mesh: str, voters: tuple[str, ...], *, engine: str) -> OrderStatus: ...
    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None) -> OrderStatus: ...
    async def remove(self, mesh: str, peer: str, *, timeout_ms: int | None) -> OrderStatus: ...
    async def transfer(
        self, mesh: str, to: str | None, *, timeout_ms: int | None
    ) -> OrderStatus: ...
    async def step_down(self, mesh: str) -> OrderStatus: ...
    async def recover(self, mesh: str, *, accept_loss: bool) -> OrderStatus: ...
