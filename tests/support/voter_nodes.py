"""Nodes whose groups vote over real links: each holds the bus of a home of its own, on loopback."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import holdfast
from holdfast.node.bus.host import BusHost
from holdfast.node.bus.sharing import BusSharing
from holdfast.node.core.commit import Committed
from holdfast.node.quorum.embedded.order import EmbeddedOrder
from holdfast.node.settings import BusSettings, Settings
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.ids import uuid7
from holdfast.rules.invites import PeerInvite, parse_any_invite
from holdfast.rules.quorum.view import EntityRow
from holdfast.storage.files.home import HomePaths
from support.daemon import make_home
from support.envelopes import MESH
from support.quorum_state import change, operation

PATIENCE_S: Final = 60
SETTINGS: Final = Settings(bus=BusSettings(listen=["127.0.0.1:0"], discovery="off"))
_numbers = itertools.count(1)


class VoterNode:
    """One node with its bus and its groups; `up` and `down` as often as one likes."""

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.name = home, name
        self._settings = SETTINGS

    async def up(self) -> None:
        self.node = holdfast.open(self.home)
        self.host = await BusHost.bind(
            self.node._engine, self.node._opened.store, HomePaths(self.home), self._settings
        )
        # Where it was: the others find it again.
        listen = list(self.host.bus.addresses)
        self._settings = Settings(bus=BusSettings(listen=listen, discovery="off"))
        self.is_up = True

    async def up_alone(self) -> None:
        """Its home is open, and nobody hears of it."""
        self.node = holdfast.open(self.home)

    async def down(self) -> None:
        if self.is_up:
            self.is_up = False
            await self.host.close()
            self.node.close()

    is_up = False

    @property
    def order(self) -> EmbeddedOrder:
        order = self.host.groups.order(MESH)
        assert order is not None, f"{self.name} takes no part"
        return order

    @property
    def part(self) -> str:
        order = self.host.groups.order(MESH) if self.is_up else None
        return "none" if order is None else order.part

    def voters(self) -> list[str]:
        config = self.order.driver.state.log.config
        return [one.peer for one in config.members if one.place == "voter"]

    async def put(self, title: str, *, id: str = "m1", timeout_ms: int = 20_000) -> Committed:
        """Writes a mission through the quorum."""
        envelope = mission(self.name, title, id)
        return await self.order.propose(envelope.id, encode(envelope), timeout_ms=timeout_ms)

    def mission(self, id: str = "m1") -> EntityRow | None:
        return self.node._engine.read("entity", lambda tx: tx.entity_get(MESH, "mission", id))

    async def join(self, owner: VoterNode) -> None:
        made = BusSharing(owner.node._engine, owner.host._own_key).invite(
            MESH, addresses=owner.host.bus.addresses
        )
        invite = parse_any_invite(made.text)
        assert isinstance(invite, PeerInvite)
        await self.host.members.join(invite)


def mission(origin: str, title: str, id: str = "m1", *, id_of: bytes | None = None) -> Envelope:
    """An intent that writes a mission; `id_of` is the intent's own id, if it is to be one that was
    used before.
    """
    number = next(_numbers)
    made = uuid7(1_700_000_000_000 + number, number.to_bytes(10, "big"))
    return change(
        operation("put", "mission", id, {"title": title}), origin=origin, id=id_of or made
    )


async def until(is_true: Callable[[], bool]) -> None:
    """Waits until something has become true; looks whenever the loop has done something."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def voter_nodes(folder: Path, *names: str) -> AsyncIterator[list[VoterNode]]:
    """Members of the mesh `team`, which the first one owns; nobody votes yet."""
    nodes: list[VoterNode] = []
    try:
        for name in names:
            home = make_home(folder / name, name, "own" if nodes else MESH)
            node = VoterNode(home, name)
            await node.up()
            nodes.append(node)
        owner = nodes[0]
        sharing = BusSharing(owner.node._engine, owner.host._own_key)
        sharing.share(MESH)
        await owner.host.refresh()
        for node in nodes[1:]:
            await node.join(owner)
        yield nodes
    finally:
        for node in nodes:
            await node.down()


def voted(folder: Path, story: Callable[[list[VoterNode]], Awaitable[None]], *names: str) -> None:
    """Runs a story between nodes of these names."""

    async def run() -> None:
        async with asyncio.timeout(4 * PATIENCE_S), voter_nodes(folder, *names) as nodes:
            await story(nodes)

    asyncio.run(run())
