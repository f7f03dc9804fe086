"""A line of zone, member, broker, member and zone: what is written at one end arrives at the other,
and back, and nothing runs in circles.

Real daemons in threads, a real broker, TLS on loopback. Plant and hall are no members: they have
links with ana and bob, who may relay at the broker.

    plant ◄─ links ─► ana ◄─ broker ─► bob ◄─ links ─► hall
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from holdfast.node.library.node import Mesh
from holdfast.node.links.registry import Links
from holdfast.node.log.digests import digests
from holdfast.node.settings import Settings
from support.daemon import PATIENCE_S, UpInThread, make_home, running
from support.live_broker import MESH, LiveBroker, join, share
from support.seeds import seeds

BIG = b"content of a file that does not fit into its entry " * 2000


class Place:
    """A node that is served."""

    def __init__(self, name: str, up: UpInThread) -> None:
        self.name, self.up, self.api = name, up, up.daemon.api
        self.written = 0

    @property
    def mesh(self) -> Mesh:
        return self.api.node.mesh(MESH)

    def links_with(self, other: Place) -> None:
        """Both pull from each other whatever the other has."""
        for one, source in ((self, other), (other, self)):
            one.api.trust.trust(source.api.trust.card(), reads=[MESH])
        for one, source in ((self, other), (other, self)):
            links = Links(one.api.engine, one.api.trust)
            links.add(source.name, source.up.tls, source.name, meshes=[MESH], carries=["any"])
        for one in (self, other):
            assert one.api.link_manager is not None
            one.api.link_manager.refresh()

    def write(self, lot: random.Random) -> None:
        self.written += 1
        at = self.written
        [
            lambda: self.mesh.state.set(f"{self.name}{at}", at),
            lambda: self.mesh.state.set("by all", f"{self.name}{at}"),
            lambda: self.mesh.facts.append(self.name, "wrote", at),
            lambda: self.mesh.memory.set("thought", at),
            lambda: self.mesh.files.share(f"file{at}", BIG + f"{self.name}{at}".encode()),
        ][lot.randrange(5)]()

    def ids(self) -> list[bytes]:
        return sorted(entry.id for entry in self.api.node.log.range())

    def digests(self) -> object:
        found = self.api.engine.read("test", lambda tx: digests(tx, self.name, [MESH]))
        return found.meshes[MESH].tables

    def received(self) -> dict[str, tuple[int, int]]:
        """By link: what it brought, and what of that was known."""
        assert self.api.link_manager is not None
        return {one.name: (one.received, one.known) for one in self.api.link_manager.status()}

    def pushed(self) -> int:
        assert self.api.sync_manager is not None
        (broker,) = self.api.sync_manager.status()
        return broker.meshes[0].pushed

    def is_quiet(self) -> bool:
        found = [] if self.api.sync_manager is None else self.api.sync_manager.status()
        return all(
            not (mesh.pending or mesh.inflight or mesh.dead)
            for broker in found
            for mesh in broker.meshes
        )


class Line:
    """All four, and the broker."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        broker = ending.enter_context(LiveBroker(folder / "hub"))
        homes = {name: make_home(folder / name, name) for name in ("plant", "ana", "bob", "hall")}
        share(homes["ana"], broker)
        join(homes["bob"], broker, homes["ana"])
        with holdfast.open(homes["ana"], sync="normal") as node:
            node.sharing.grant(MESH, "bob", ["read", "write", "send", "relay"])
        settings = Settings(listen="127.0.0.1:0")
        self.all = [
            Place(name, ending.enter_context(running(home, settings)))
            for name, home in homes.items()
        ]
        self.plant, self.ana, self.bob, self.hall = self.all
        self._moved = threading.Condition()
        for one in self.all:
            one.api.engine.store.on_commit(self._tell)
        self.until(lambda: self._may_relay(self.ana) and self._may_relay(self.bob))
        self.plant.links_with(self.ana)
        self.bob.links_with(self.hall)

    @staticmethod
    def _may_relay(one: Place) -> bool:
        members = one.api.engine.read("test", lambda tx: tx.known_members_list(MESH))
        return any(row.name == one.name and "relay" in row.grants for row in members)

    def _tell(self) -> None:
        with self._moved:
            self._moved.notify_all()

    def until(self, so: Callable[[], bool]) -> None:
        """Looks after each commit of one of them."""
        with self._moved:
            assert self._moved.wait_for(so, PATIENCE_S), "it did not come to that"

    def check_same(self) -> None:
        entries = sum(one.written for one in self.all)
        self.until(lambda: all(len(one.ids()) == entries and one.is_quiet() for one in self.all))
        for one in self.all:
            assert one.ids() == self.ana.ids()
            assert len(set(one.ids())) == entries
            assert one.digests() == self.ana.digests()

    def check_no_circles(self) -> None:
        """Each way carries each entry once, and none back to where it came from."""
        by = {one.name: one.written for one in self.all}
        far = {"plant": ("ana", "bob", "hall"), "hall": ("ana", "bob", "plant")}
        for one, source, beyond in (
            (self.plant, "ana", far["plant"]),
            (self.ana, "plant", ("plant",)),
            (self.hall, "bob", far["hall"]),
            (self.bob, "hall", ("hall",)),
        ):
            assert one.received()[source] == (sum(by[name] for name in beyond), 0)
        assert self.ana.pushed() == by["ana"] + by["plant"]
        assert self.bob.pushed() == by["bob"] + by["hall"]


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with ExitStack() as ending:
        yield Line(tmp_path, ending)


def test_Z6_what_comes_by_links_goes_on_by_the_broker_and_back_once(line: Line) -> None:
    lot = random.Random(f"line {seeds(1)[0]}")
    for _ in range(60):
        line.all[lot.randrange(4)].write(lot)
    line.check_same()
    line.check_no_circles()
    # One more at an end, when all is quiet: it crosses each way once.
    line.plant.write(lot)
    line.hall.write(lot)
    line.check_same()
    line.check_no_circles()
