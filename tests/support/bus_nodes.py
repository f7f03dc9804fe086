"""Nodes with homes of their own whose buses speak TLS on loopback, and that share meshes with no
broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import holdfast
from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.node.bus.capabilities import CapabilityPeers
from holdfast.node.bus.directory import TrustDirectory
from holdfast.node.bus.home_directory import HomeDirectory
from holdfast.node.bus.member_peers import MemberPeers
from holdfast.node.bus.members import JoinedOverBus, MeshMembers
from holdfast.node.bus.sharing import BusSharing
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.trust.trust import Trust
from holdfast.rules.invites import PeerInvite, parse_any_invite
from holdfast.rules.keys import public_key
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.store import SqliteStore
from support.daemon import make_home

PATIENCE_S = 60


class BusNode:
    """One node with its bus."""

    def __init__(self, home: Path) -> None:
        self.node = holdfast.open(home)
        self.engine = self.node._engine
        self.trust = Trust(self.engine, HomePaths(home))
        self.sharing = BusSharing(self.engine, self.trust)
        self.name = self.trust.name

    async def bind(self) -> Self:
        self.key = public_key(self.trust.seed())
        store = self.engine.store
        assert isinstance(store, SqliteStore)
        write = LoopWriter(self.engine, store.writer).write
        self.peers = MemberPeers(self.engine, self.trust, write)
        rights = CapabilityPeers(self.engine, self.trust)
        zones = TrustDirectory(self.engine, write)
        self.directory = HomeDirectory(self.engine, zones, self.peers, rights)
        self.members = MeshMembers(self.engine, self.trust, self.peers, write, rights.gone)
        self.bus = await Bus.bind_with(
            BusOptions(
                seed=self.trust.seed(),
                former=self.trust.former(),
                name=self.name,
                peers=self.directory,
            )
        )
        await self.members.take_over()
        self.members.start(self.bus)
        return self

    async def rotate(self) -> bytes:
        """Changes the key of this node, as `peer rotate` and `peer rotate --switch` do; returns the
        old one.
        """
        old = self.key
        self.trust.make_next()
        self.trust.switch()
        await self.bus.close()
        await self.bind()
        return old

    async def close(self) -> None:
        await self.bus.close()
        self.node.close()

    def invite(self, mesh: str = "team", uses: int = 1, grants: tuple[str, ...] = ()) -> PeerInvite:
        """An invite of this node, as a newcomer reads it."""
        made = self.sharing.invite(mesh, uses=uses, grants=grants, addresses=self.bus.addresses)
        invite = parse_any_invite(made.text)
        assert isinstance(invite, PeerInvite)
        return invite

    async def join(self, invite: PeerInvite) -> JoinedOverBus:
        return await self.members.join(invite)

    async def dial(self, other: BusNode) -> None:
        """Tells this node where another one is, and waits until they are linked."""
        await self.peers.note_addresses(other.key, other.bus.addresses)
        await self.bus.refresh_peers()
        await self.until(lambda: self.is_linked(other) and other.is_linked(self))

    def is_linked(self, other: BusNode) -> bool:
        return self.bus.links.link_to([other.key]) is not None

    def names(self, mesh: str = "team") -> list[str]:
        """The members of a mesh, as this node knows them."""
        return [member.name for member in self.sharing.members(mesh)]

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Waits until something has become true; looks whenever the loop has done something."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_true():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def bus_nodes(folder: Path, *names: str) -> AsyncIterator[list[BusNode]]:
    """Nodes of these names; only the first has the mesh `team`, and shares it."""
    nodes: list[BusNode] = []
    try:
        for name in names:
            home = make_home(folder / name, name, "own" if nodes else "team")
            nodes.append(await BusNode(home).bind())
        nodes[0].sharing.share("team")
        yield nodes
    finally:
        for node in nodes:
            await node.close()


def told(folder: Path, story: Callable[[list[BusNode]], Awaitable[None]], *names: str) -> None:
    """Runs a story between nodes of these names; the first one owns the mesh `team`."""

    async def run() -> None:
        async with asyncio.timeout(60), bus_nodes(folder, *names) as nodes:
            await story(nodes)

    asyncio.run(run())
