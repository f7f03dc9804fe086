"""The order of a mesh with one voter: what is proposed is committed and folded at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.node.core.commit import CommitRun, Committed, CommittedEntry
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.ports import OrderMember, OrderStatus
from holdfast.rules.errors import HoldfastError
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.state_rows import QuorumRow


def give_voters(engine: NodeEngine, mesh: str) -> None:
    """Makes this node the only voter of a mesh of its own."""
    row = QuorumRow(mesh=mesh, incarnation=1, tag=b"s" * 16, voter=1)
    engine.store.write(lambda tx: tx.quorum_put(row))


class SoleVoter:
    """A `MeshOrder` of a group of one."""

    def __init__(self, engine: NodeEngine, mesh: str) -> None:
        self.mesh = mesh
        self.on_change: Callable[[], None] = lambda: None
        self.engine = engine
        self.fails_with: HoldfastError | None = None
        """Raised instead of an answer."""
        self.hangs = False
        self.proposed = 0

    async def propose(self, id: bytes, raw: bytes, *, timeout_ms: int) -> Committed:
        self.proposed += 1
        await self._ready()
        return self.commit(raw)

    def commit(self, raw: bytes) -> Committed:
        row = self.engine.store.write(lambda tx: tx.quorum_get(self.mesh))
        assert row is not None
        index = row.applied + 1
        fence = FenceToken(row.incarnation, 1, self.engine.ctx.peer, index)
        entry = CommittedEntry(raw, fence, self.engine.ctx.now_ms(), index)
        (made,) = self.engine.store.write(CommitRun(self.engine.ctx, self.mesh, [entry]))
        return made

    async def confirm(self, *, timeout_ms: int) -> None:
        await self._ready()

    async def _ready(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails_with is not None:
            raise self.fails_with

    def status(self) -> OrderStatus:
        name = self.engine.ctx.peer
        return OrderStatus(
            mesh=self.mesh,
            engine="embedded",
            incarnation=1,
            part="coordinator",
            lease_epoch=1,
            coordinator=name,
            members=(OrderMember(id=1, peer=name, place="voter", leads=True),),
        )
