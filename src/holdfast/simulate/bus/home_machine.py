"""A computer of a world of the bus that has a home: a real node, whose bus shares a mesh.

The home is on the simulated disk, and the bus keeps its messages in the home's database. Going back
means a real restore of a real backup: the log counts on in another epoch, and the file beside the
database that knows the numbers of the bus stays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from holdfast.node.bus.sharing import BusSharing
from holdfast.node.home.opening import Opened, open_home
from holdfast.node.library.node import Node
from holdfast.node.recovery.backup import backup, restore
from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.invites import PeerInvite, parse_any_invite
from holdfast.simulate.bus.home_program import HomeProgram
from holdfast.simulate.bus.machine import PORT, BusMachine
from holdfast.simulate.bus.mesh_books import MESH
from holdfast.simulate.bus.program import BusProgram
from holdfast.simulate.world.invariants import Rows, audit, missing_content, rows
from holdfast.simulate.world.log_history import Seen
from holdfast.simulate.world.machine import set_ages, tamed
from holdfast.storage.files.durable import durable_replace
from holdfast.storage.ports import Reader, Transaction

if TYPE_CHECKING:
    from holdfast.simulate.bus.bus import BusWorld

T = TypeVar("T")


class HomeMachine(BusMachine):
    """A peer's computer with its home. `node` is None while the home is closed."""

    def __init__(self, world: BusWorld, name: str, folder: Path) -> None:
        super().__init__(world, name, folder, durable=True)
        self.home.rmdir()  # a home is made by the code of homes
        self.node: Node | None = None
        self.invite: PeerInvite | None = None
        """By which it joins, unless it is the owner."""
        self._opened: Opened | None = None
        self._backup: tuple[Path, list[Seen]] | None = None
        self._backups = 0
        self._restored_to: list[Seen] | None = None
        """What the log held that the home was put back to, until somebody has looked."""

    def make(self) -> None:
        """Makes the home, with the key that this machine has in this world."""
        opened = self._open(create=True)
        durable_replace(opened.paths.identity, self.seed)
        opened.close()

    def share(self, grants: dict[str, tuple[str, ...]]) -> dict[str, PeerInvite]:
        """This machine's home shares a mesh; returns an invite for each newcomer."""
        opened = self._open()
        Node(opened).create_mesh(MESH)
        chance = self._world.fork("secrets")
        sharing = BusSharing(
            opened.engine, OwnKey(opened.engine, opened.paths), random=chance.randbytes
        )
        sharing.share(MESH)
        at = [f"{host}:{PORT}" for host in self._world.network.hosts_of(self.name)]
        texts = {
            name: sharing.invite(MESH, grants=given, addresses=at).text
            for name, given in grants.items()
        }
        opened.close()
        invites: dict[str, PeerInvite] = {}
        for name, text in texts.items():
            invite = parse_any_invite(text)
            assert isinstance(invite, PeerInvite)
            invites[name] = invite
        return invites

    def _new_program(self) -> BusProgram:
        return HomeProgram(self._world, self)

    # --- the home -------------------------------------------------------------------------------

    def _open(self, *, create: bool = False) -> Opened:
        opened = open_home(
            self.home,
            peer=self.name,
            create=create,
            sync="full",
            source=self.clock,
            vfs=self.disk.name,
            nudges=False,
            environ={},
        )
        return tamed(opened, self.clock)

    async def _open_durable(self, chance: random.Random) -> MeshStore:
        opened = await asyncio.to_thread(self._open)
        self._opened, self.node = opened, Node(opened)
        self._close_store, self._stop_store = self._abandon, opened.close
        self._look_after_opening()
        opened.store.on_commit(self.look)

        async def write(work: Callable[[Transaction], T]) -> T:
            return await asyncio.to_thread(opened.engine.write, "bus", work)

        return await self._started(opened.store, write, chance)

    def _abandon(self) -> None:
        opened, self._opened, self.node = self._opened, None, None
        if opened is not None and not opened._closed:
            opened.abandon()

    @property
    def opened(self) -> Opened:
        assert self._opened is not None, "it is closed"
        return self._opened

    @property
    def has_failed(self) -> bool:
        """Whether its store takes no more writes until it is opened anew."""
        return self._opened is not None and self._opened.store.writer.failed is not None

    @property
    def has_joined(self) -> bool:
        return isinstance(self.program, HomeProgram) and self.program.joined

    # --- what the world sees --------------------------------------------------------------------

    def look(self) -> None:
        """The home has committed something: whatever stands there now would survive a crash."""
        if self._opened is not None:
            with self.weather.fine(), self._opened.store.read() as tx:
                self._world.meshes.look(self.name, tx)

    def _look_after_opening(self) -> None:
        meshes, then = self._world.meshes, self._restored_to
        assert self.node is not None
        with self.weather.fine():
            if then is not None:
                self._restored_to = None
                with self.opened.store.read() as tx:
                    meshes.went_back(self.name, tx, then)
                meshes.promises[self.name].went_back(self.node)
            meshes.opened(self.name)
            self.look()

    def audited(self) -> list[str]:
        """What is wrong with the home, as sentences."""
        node, name = self.node, self.name
        assert node is not None
        with self.weather.fine():
            problems = [*audit(node), *self._world.meshes.promises[name].broken(node)]
            problems += [f"it never got the content of {one}" for one in missing_content(node)]
            problems += node._engine.read("world", _troubles)
        return [f"{name}: {problem}" for problem in problems]

    def mesh_rows(self) -> Rows:
        """Everything in the mesh, as others must have it too."""
        with self.weather.fine(), self.opened.store.read() as tx:
            return rows(tx, MESH)

    def mesh_digests(self) -> dict[StreamName, tuple[int, bytes]]:
        """How many entries it has of each stream, and their digest."""
        with self.weather.fine(), self.opened.store.read() as tx:
            streams = [row for row in tx.stream_list(MESH) if row.entries]
        return {row.name: (row.entries, row.digest) for row in streams}

    # --- going back -----------------------------------------------------------------------------

    def copy(self) -> None:
        """Makes a backup, as a person does while no daemon runs."""
        assert self.program is None, "it runs"
        target = self.home.parent.parent / f"{self.name}-backup-{self._backups}"
        self._backups += 1
        self.disk.crash(self._rng)  # what was not synced is settled now
        with self.weather.fine():
            self._opened = self._open()
            self.node = Node(self._opened)
            self._look_after_opening()
            backup(self.node, target)
            self._opened.close()
            self._opened = self.node = None
        self._backup = target, list(self._world.meshes.histories[self.name].entries)
        self.copy_at = self._world.ticks

    def put_back(self, *, mark_too: bool) -> None:
        """The home is restored. Nobody puts back what stands beside the database: a node whose
        whole disk goes back cannot know, and two histories of one name are for people to settle.
        """
        assert self.program is None, "it runs"
        assert self._backup is not None
        assert self.copy_at is not None
        source, then = self._backup
        self.disk.crash(self._rng)
        self.disk.backstage = True
        try:
            report = restore(source, self.home, force=True)
        finally:
            self.disk.backstage = False
            set_ages(self.home, self.clock)
        self._file_number += 1
        self._restored_to = then
        world = self._world
        world.note(f"{self.name} is restored to {report.head}, in epoch {report.epoch}")
        world.happened["restored"] += 1
        world.books.went_back(self.name, self.copy_at)


def _troubles(tx: Reader) -> list[str]:
    """What was refused, and what a person would have to look at: among honest nodes, nothing."""
    aside = [
        f"{row.link} has quarantined an entry: {row.message}"
        for row in tx.quarantine_list(None, 0, 5)
    ]
    return aside + [row.trouble for row in tx.stream_list(MESH) if row.trouble]
