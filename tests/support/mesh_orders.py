"""An order of a mesh in one process, with real folds: the second implementation of `MeshOrder`.

The nodes share one list of entries. Whoever proposes appends to it, and every node that is not cut
off folds it into its own store by `CommitRun`, as after a real engine. What a network or a failing
majority would do is switched by hand:

    has_quorum   off: nothing can be committed or confirmed
    unknown      a proposal is taken, and its answer lost: `release` commits it, `lose` forgets it
    gate         proposals wait until it is set
    elect        another node coordinates, in the next lease epoch
    cut          a node neither proposes nor folds
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from holdfast.node.core.commit import CommitRun, Committed, CommittedEntry
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.ports import OrderMember, OrderStatus
from holdfast.node.quorum.service.lane import LoopWrite
from holdfast.rules.envelope import decode
from holdfast.rules.errors import NoQuorum, NoVoters, OutcomeUnknown
from holdfast.rules.quorum.fence import FenceToken
from support.envelopes import MESH


class SharedOrder:
    """What all nodes of a mesh agree on."""

    def __init__(self, mesh: str = MESH) -> None:
        self.mesh = mesh
        self.entries: list[CommittedEntry] = []
        self.nodes: dict[str, NodeOrder] = {}
        self.voteless: set[str] = set()
        """Nodes that take part without belonging to the group of voters."""
        self.coordinator = ""
        self.epoch = 1
        self.has_quorum = True
        self.unknown = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.held: list[bytes] = []
        self.proposed: list[bytes] = []
        """The ids of all proposals, in the order in which they came."""

    def add(self, engine: NodeEngine, write: LoopWrite) -> NodeOrder:
        node = NodeOrder(self, engine, write)
        self.nodes[engine.ctx.peer] = node
        self.coordinator = self.coordinator or engine.ctx.peer
        return node

    def order_of(self, peer: str) -> Callable[[str], NodeOrder]:
        """Finds the order of a mesh as a node takes part in it."""

        def find(mesh: str) -> NodeOrder:
            if mesh != self.mesh:
                raise NoVoters(f"the mesh {mesh!r} has no voters")
            return self.nodes[peer]

        return find

    def changed(self) -> None:
        for node in list(self.nodes.values()):
            node.on_change()

    def elect(self, peer: str) -> None:
        self.coordinator, self.epoch = peer, self.epoch + 1
        self.changed()

    def lose_quorum(self) -> None:
        self.has_quorum = False

    def regain(self) -> None:
        self.has_quorum = True
        self.changed()

    def append(self, raw: bytes) -> None:
        index = len(self.entries) + 1
        token = FenceToken(1, self.epoch, self.coordinator, index)
        at = max(1_700_000_000_000, decode(raw).created_at)
        self.entries.append(CommittedEntry(raw, token, at, index))

    async def release(self) -> None:
        """Commits what was taken without an answer."""
        held, self.held = self.held, []
        for raw in held:
            self.append(raw)
        await self.spread()

    def lose(self) -> None:
        self.held.clear()

    async def spread(self) -> None:
        """Every node that can be reached folds what it lacks."""
        for node in list(self.nodes.values()):
            if not node.cut:
                await node.fold()


class NodeOrder:
    """A `MeshOrder`: the order as one node takes part in it."""

    def __init__(self, shared: SharedOrder, engine: NodeEngine, write: LoopWrite) -> None:
        self._shared, self._engine, self._write = shared, engine, write
        self.mesh = shared.mesh
        self.on_change: Callable[[], None] = lambda: None
        self.on_folded: Callable[[Sequence[Committed]], None] = lambda results: None
        self.cut = False
        self.knows_coordinator = True
        self.confirmed_at: float | None = None
        self.heard: dict[str, int | None] = {}
        """By peer: how long ago it was heard, where that is not just now."""
        with engine.store.read() as tx:
            standing = tx.quorum_get(shared.mesh)
        self.applied = 0 if standing is None else standing.applied
        self._results: dict[int, Committed] = {}
        self._turn = asyncio.Lock()

    @property
    def peer(self) -> str:
        return self._engine.ctx.peer

    def _refuse(self) -> None:
        if not self._shared.has_quorum or self.cut:
            raise NoQuorum("the switch of the test is off")

    async def propose(self, id: bytes, raw: bytes, *, timeout_ms: int) -> Committed:
        shared = self._shared
        shared.proposed.append(id)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await shared.gate.wait()
        if not shared.gate.is_set():
            shared.held.append(raw)
            raise OutcomeUnknown("it takes too long")
        self._refuse()
        if shared.unknown:
            shared.held.append(raw)
            raise OutcomeUnknown("the answer was lost")
        shared.append(raw)
        index = len(shared.entries)
        await shared.spread()
        self.confirmed_at = monotonic()
        return self._results[index]

    async def confirm(self, *, timeout_ms: int) -> None:
        self._refuse()
        await self.fold()
        self.confirmed_at = monotonic()

    async def fold(self) -> None:
        async with self._turn:
            entries = self._shared.entries[self.applied :]
            if not entries:
                return
            run = CommitRun(self._engine.ctx, self.mesh, entries)
            results = await self._write("quorum.fold", run)
            self.applied += len(entries)
            for entry, result in zip(entries, results, strict=True):
                self._results[entry.index] = result
        self.on_folded(results)

    def status(self) -> OrderStatus:
        shared = self._shared
        coordinates = shared.coordinator == self.peer and shared.has_quorum and not self.cut
        knows = self.knows_coordinator and shared.has_quorum and not self.cut
        members = tuple(
            OrderMember(
                id=number,
                peer=peer,
                place="voter",
                leads=peer == shared.coordinator,
                linked=not node.cut and self.heard.get(peer, 0) == 0,
                heard_ms=None if peer == self.peer else self.heard.get(peer, 0),
            )
            for number, (peer, node) in enumerate(shared.nodes.items(), 1)
            if peer not in shared.voteless
        )
        since = self.confirmed_at
        return OrderStatus(
            mesh=self.mesh,
            engine="embedded",
            incarnation=1,
            part="coordinator" if coordinates else "voter",
            lease_epoch=shared.epoch,
            coordinator=shared.coordinator if knows else "",
            members=members,
            committed=len(shared.entries),
            applied=self.applied,
            confirmed_ms=None if since is None else int((monotonic() - since) * 1000),
            has_quorum=shared.has_quorum and not self.cut,
        )
