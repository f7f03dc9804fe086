"""Copies of a broker and of nodes, and going back to them.

A broker that goes back begins a new epoch: by itself, where it can tell, or because its operator
says so. Copies of it are not older than what the logs of nodes still hold: what it forgets they
bring again.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.node.recovery.backup import backup, restore
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import HOUR_MS
from holdfast.simulate.delivery.books import BookRow
from holdfast.simulate.nodes.nodes import running
from holdfast.simulate.world.log_history import Seen
from holdfast.simulate.world.machine import Died, Machine
from holdfast.storage.broker.sqlite import SqliteBrokerStore

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld

COPY_AGE_MS_MAX: Final = 2 * HOUR_MS
KEPT_MAX: Final = 3


class Copies:
    """The copies of the broker and of nodes that were made in this world."""

    def __init__(self, world: DeliveryWorld) -> None:
        self._world = world
        self._broker_machine: list[tuple[int, Path, dict[str, list[BookRow]]]] = []
        """Copies of the broker: when each was made, where it is, what each mesh held."""
        self._nodes: dict[str, list[tuple[Path, list[Seen]]]] = {}

    def _place(self, what: str) -> Path:
        world = self._world
        world.happened["copy"] += 1
        return world.broker_machine.home.parent.parent / f"{what}-copy-{world.happened['copy']}"

    def forget(self) -> None:
        """Drops all copies: they are older than what the logs of nodes still hold."""
        self._broker_machine.clear()
        self._nodes.clear()

    # --- the broker -----------------------------------------------------------------------------

    def copy_broker(self) -> None:
        world = self._world
        if not world.broker_machine.is_well:
            return
        target = self._place("hub")
        world.broker_machine.copy_to(target)
        held = {slug: list(book.rows) for slug, book in world.books.meshes.items()}
        self._broker_machine.append((world.ticks, target, held))
        del self._broker_machine[:-KEPT_MAX]

    def broker_goes_back_to_copy(self, rng: random.Random) -> None:
        """An operator puts a copy in the place of the broker's files."""
        world, broker_machine = self._world, self._world.broker_machine
        young = [
            one
            for one in self._broker_machine
            # One from before a mesh was made there: its owner would have to publish it again.
            if world.ticks - one[0] <= COPY_AGE_MS_MAX
            and one[2].keys() == world.books.meshes.keys()
        ]
        if not broker_machine.is_well or not young:
            return
        _, source, held = rng.choice(young)
        world.look_into_broker()
        if not self._stops(broker_machine):
            return
        world.hang_up_all()
        alone = rng.random() < 0.5 and broker_machine.clean
        with broker_machine.offline():
            for name in ("broker.db", "broker.db-wal", "broker.db-shm"):
                (broker_machine.home / name).unlink(missing_ok=True)
            if not alone:  # the mark is as old as the database, and cannot tell
                shutil.copy(source / "broker.mark", broker_machine.home / "broker.mark")
            shutil.copy(source / "broker.db", broker_machine.home / "broker.db")
            (broker_machine.home / "broker.db").chmod(0o600)
        world.happened["noticed" if alone else "told by its operator"] += 1
        before = {slug: book.epoch for slug, book in world.books.meshes.items()}
        with broker_machine.weather.fine():
            broker_machine.start()
            if not alone:
                for slug in world.books.meshes:
                    broker_machine.peek(_ahead, slug, before[slug])
        for slug, book in world.books.meshes.items():
            world.note(f"{slug} goes back from {book.seq} to {len(held[slug])}")
            world.happened["forgotten"] += max(0, book.seq - len(held[slug]))
            book.went_back(held[slug])
            mesh = broker_machine.peek(SqliteBrokerStore.mesh_get, slug)
            if mesh is None or mesh.epoch <= before[slug]:
                world.break_off(f"the broker went back unseen: {slug} is in {before[slug]}")
        world.queues.went_back()
        world.books.swept(broker_machine)
        world.after_broker()
        world.look_into_broker()

    def _stops(self, machine: Machine) -> bool:
        world = self._world
        try:
            machine.stop()
        except Died:
            world.mark_death(machine, "close")
            return False
        except HoldfastError as error:
            world.note(f"{machine.peer} does not stop: {type(error).__name__}")
            world.start(machine)
            return False
        return True

    # --- nodes ----------------------------------------------------------------------------------

    def copy_node(self, machine: Machine) -> None:
        if not machine.up:
            return
        target = self._place(machine.peer)
        with machine.weather.fine():
            backup(running(machine), target)
        kept = self._nodes.setdefault(machine.peer, [])
        kept.append((target, list(self._world.chronicles[machine.peer].entries)))
        del kept[:-KEPT_MAX]

    def node_goes_back(self, machine: Machine, rng: random.Random) -> None:
        world, kept = self._world, self._nodes.get(machine.peer)
        if not machine.up or not kept:
            return
        source, then = rng.choice(kept)
        if not self._stops(machine):
            return
        with machine.offline():
            report = restore(source, machine.home, force=True)
        with machine.weather.fine():
            node = machine.start()
            with node._engine.store.read() as tx:
                problems = world.chronicles[machine.peer].went_back(tx, then)
            world.promises[machine.peer].went_back(node)
        world.expect(problems)
        world.went_back[machine.peer] += 1
        world.happened["restored"] += 1
        world.note(f"{machine.peer} is back at {report.head}, in epoch {report.epoch}")
        world.books.forget_node(machine.peer, world.chronicles[machine.peer])
        world.observe(machine)
        world.look_into(machine)
        world.ends[machine.peer].connect()


async def _ahead(store: SqliteBrokerStore, slug: str, epoch: int) -> None:
    """What an operator does who knows that the broker was restored."""
    while True:
        (made,) = await store.new_epoch(slug, "restored", 0)
        if made.epoch > epoch:
            return
