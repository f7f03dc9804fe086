"""Three nodes, a broker, and whatever can go wrong between them, drawn by lot.

Lines break between any two frames, frames are lost, nodes and the broker are restarted, and the
broker is restored from older copies. In the end all lines hold, and then: all nodes have the same
state, nothing waits, the broker holds every change that anybody made, and nothing was set aside.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from holdfast.rules.outbox import lane_of
from support.envelopes import MESH
from support.nodes import Nodes, team
from support.source import HandClock
from support.sync_wire import Brokerage, Laptop, now, settle

LANE = lane_of(MESH)
SEEDS = range(25)
STEPS = 150


class Storm:
    """One history from one seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(f"storm {seed}")
        self.folder = folder
        self.clock = HandClock(seed=seed)
        self.nodes = Nodes("memory", folder, self.clock)
        self.broker = Brokerage(folder / "broker", self.clock)
        self.laptops = [
            Laptop(self.nodes.open(name), self.broker, folder / name)
            for name in ("ana", "bob", "eve")
        ]
        self.laptops[0].share()
        self.laptops[1].join()
        self.laptops[2].join()
        self.written = 0
        self.copies: list[Path] = []

    # --- what can happen -----------------------------------------------------------------------

    def write(self) -> None:
        laptop = self.rng.choice(self.laptops)
        for _ in range(self.rng.randint(1, 5)):
            self.written += 1
            key = f"k{self.rng.randint(0, 20)}"
            team(laptop.node).state.set(key, self.written)

    def talk(self) -> None:
        laptop = self.rng.choice(self.laptops)
        if laptop.talk is None:
            laptop.connect()
            return
        step = self.rng.choice((laptop.push, laptop.speak, laptop.listen, laptop.fetch))
        for _ in range(self.rng.randint(1, 4)):
            step()

    def lose(self) -> None:
        """A frame is lost on its way, as no TCP would; the rest must cope with it."""
        laptop = self.rng.choice(self.laptops)
        if laptop.to_node:
            laptop.to_node.popleft()

    def drop(self) -> None:
        laptop = self.rng.choice(self.laptops)
        if laptop.talk is not None:
            laptop.drop()

    def restart_node(self) -> None:
        at = self.rng.randrange(len(self.laptops))
        old = self.laptops[at]
        fresh = Laptop(self.nodes.reopen(old.node), self.broker, old.trust._paths.root)
        fresh.engine.write("test", lambda tx: tx.outbox_recover())
        self.laptops[at] = fresh

    def copy_broker(self) -> None:
        self._hang_up()
        now(self.broker.store.close())
        copy = self.folder / f"copy-{len(self.copies)}"
        shutil.copytree(self.broker.folder, copy)
        self.copies.append(copy)
        self._open()

    def restore_broker(self) -> None:
        if not self.copies:
            return
        self._hang_up()
        now(self.broker.store.close())
        copy = self.rng.choice(self.copies)
        for old in self.broker.folder.glob("broker.db*"):
            old.unlink()
        for found in copy.glob("broker.db*"):
            shutil.copy(found, self.broker.folder / found.name)
        self._open()

    def new_epoch(self) -> None:
        now(self.broker.store.new_epoch(MESH, "by hand", self.clock.now_ms()))

    def _hang_up(self) -> None:
        for laptop in self.laptops:
            if laptop.talk is not None:
                laptop.drop()

    def _open(self) -> None:
        from holdfast.storage.broker.sqlite import SqliteBrokerStore

        self.broker.store = SqliteBrokerStore(self.broker.folder, sync="off")
        now(self.broker.store.open(self.clock.now_ms()))

    # --- a history -----------------------------------------------------------------------------

    def run(self) -> None:
        rare = (self.restart_node, self.copy_broker, self.restore_broker, self.new_epoch)
        for _ in range(STEPS):
            self.clock.advance(self.rng.randint(1, 500))
            lot = self.rng.random()
            if lot < 0.2:
                self.write()
            elif lot < 0.88:
                self.talk()
            elif lot < 0.93:
                self.rng.choice((self.drop, self.lose))()
            else:
                self.rng.choice(rare)()
        self._hang_up()
        for laptop in self.laptops:
            laptop.connect()
        for _ in range(3):
            settle(*self.laptops)

    def check(self) -> None:
        states = [
            {entry.key: entry.value for entry in team(laptop.node).state.list()}
            for laptop in self.laptops
        ]
        assert states[0] == states[1] == states[2]
        for laptop in self.laptops:
            counts = laptop.engine.read("test", lambda tx: tx.outbox_counts())
            assert {state for _, state in counts} <= {"done"}, counts
            assert laptop.engine.read("test", lambda tx: tx.quarantine_count(LANE)) == 0
            assert laptop.node.log.head().offset == self.written
        mesh = self.broker.mesh()
        page = now(self.broker.store.feed(MESH, self.laptops[0].key, 0, 10_000, 1 << 30, own=True))
        assert len(page.rows) == mesh.seq == self.written
        assert now(self.broker.store.orphans(10)) == []
        self.nodes.close()
        self.broker.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_D6_whatever_breaks_nothing_is_lost_and_all_agree(tmp_path: Path, seed: int) -> None:
    storm = Storm(tmp_path, seed)
    storm.run()
    storm.check()
