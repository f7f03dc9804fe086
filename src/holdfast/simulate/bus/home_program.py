"""The process of a home in a world of the bus: its bus, with the members and the exchange of its
mesh plugged in as `node/bus/host.py` does, and a program that writes to the mesh.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.bus.bus import Bus
from holdfast.bus.ports import PeerDirectory
from holdfast.node.bus.capabilities import CapabilityPeers
from holdfast.node.bus.directory import TrustDirectory
from holdfast.node.bus.home_directory import HomeDirectory
from holdfast.node.bus.member_peers import MemberPeers
from holdfast.node.bus.members import MeshMembers
from holdfast.node.bus.meshes.exchange import MeshExchange
from holdfast.node.bus.meshes.grants import MemberGrants
from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.errors import BusClosed, HoldfastError, StoreFailed, Unknown
from holdfast.simulate.bus.mesh_liar import lie
from holdfast.simulate.bus.program import BusProgram
from holdfast.simulate.world.workload import Answers, WorkItem
from holdfast.storage.ports import Transaction

if TYPE_CHECKING:
    from holdfast.simulate.bus.bus import BusWorld
    from holdfast.simulate.bus.home_machine import HomeMachine

JOIN_MS_MAX = 10_000
T = TypeVar("T")


class HomeProgram(BusProgram):
    """One process of a home."""

    def __init__(self, world: BusWorld, machine: HomeMachine) -> None:
        super().__init__(world, machine)
        self._home = machine
        self.members: MeshMembers | None = None
        self.exchange: MeshExchange | None = None
        self.joined = machine.invite is None

    def _peers(self) -> PeerDirectory:
        """Those whom the home knows: members tell each other where they are."""
        engine, paths = self._home.opened.engine, self._home.opened.paths
        own_key = OwnKey(engine, paths)
        self._member_peers = MemberPeers(engine, own_key, self._write)
        self._rights = CapabilityPeers(engine, own_key)
        self.members = MeshMembers(
            engine, own_key, self._member_peers, self._write, self._rights.gone
        )
        zones = TrustDirectory(engine, self._write)
        return HomeDirectory(engine, zones, self._member_peers, self._rights)

    async def _write(self, name: str, work: Callable[[Transaction], Any]) -> Any:
        return await asyncio.to_thread(self._home.opened.engine.write, name, work)

    async def _attach(self, bus: Bus) -> None:
        assert self.members is not None
        self.members.start(bus)
        self.exchange = MeshExchange(
            self._home.opened.engine,
            bus.key,
            grants=MemberGrants(self._member_peers.standing),
            jitter=self._rng.random,
        )
        try:
            await self.exchange.start()
        except Exception:
            await bus.close()
            raise
        bus.attach(self.exchange)
        if not self.joined:
            self._tasks.append(asyncio.get_running_loop().create_task(self._join()))

    async def _join(self) -> None:
        """Joins the mesh; whatever stops it, it is tried again."""
        assert self.members is not None
        assert self.exchange is not None
        assert self._home.invite is not None
        while True:
            try:
                await self.members.join(self._home.invite, wait_ms=JOIN_MS_MAX)
                await self.exchange.refresh()
            except BusClosed:
                return
            except HoldfastError as error:
                self._world.note(f"{self.name} has not joined: {error.code} {error.message}")
                await asyncio.sleep(1)
            else:
                self.joined = True
                self._world.happened["joined"] += 1
                return

    # --- writing --------------------------------------------------------------------------------

    async def work(self, chore: WorkItem) -> None:
        """The node does one piece of work."""
        world, machine = self._world, self._home
        node, promises = machine.node, world.meshes.promises[self.name]
        assert node is not None
        answers: Answers
        try:
            answers = await asyncio.to_thread(chore.do, node)
        except HoldfastError as error:
            answers = [error] * max(1, len(chore.ids))
        except Exception as error:
            if machine.is_alive:
                world.broken(f"{self.name} cannot do {chore.op}: {error!r}")
            return
        if not machine.is_alive:
            answers = [Unknown("its node died")] * len(answers)
        for id, answer in zip(chore.ids, answers, strict=False):
            promises.answered(id, answer)
            world.happened["wrote"] += answer is None
        if any(isinstance(answer, StoreFailed | Unknown) for answer in answers):
            world.reopen_soon(machine)

    def lie(self) -> None:
        """Brings a peer something of others that they have not written."""
        if lie(self._home, self, self._rng):
            self._world.happened["lied"] += 1

    # --- at the end -----------------------------------------------------------------------------

    def left_over(self) -> list[str]:
        """Tasks of the exchange and the members that have outlived the bus."""
        assert self.exchange is not None
        assert self.members is not None
        tasks = [*self.exchange._context._tasks, *self.members._tasks]
        return [repr(task) for task in tasks if not task.done()]
