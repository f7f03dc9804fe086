"""One mesh by three ways at once: a broker, links between zones and the bus, in triangles.

Real daemons in threads, a real broker, TLS on loopback. Ana, bob and cyd are members at the broker,
pull from each other in a ring, and are linked with each other over the bus; dan is on the bus only.
Every way could hand on what another brought. None does: everything stands once in every log, and
what crosses each way is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.library.node import Mesh, Node
from holdfast.node.links.registry import Links
from holdfast.node.log.digests import digests
from holdfast.node.settings import BusSettings, Settings
from holdfast.node.sync.status import MeshStatus
from support.daemon import PATIENCE_S, UpInThread, make_home, running
from support.live_broker import MESH, LiveBroker, join, share

SETTINGS = Settings(listen="127.0.0.1:0", bus=BusSettings(listen=["127.0.0.1:0"]))
BIG = b"content of a file that does not fit into its entry " * 4000


class Crossed(msgspec.Struct, frozen=True):
    """How many envelopes have crossed each way since the daemons began."""

    bus: int
    links: int
    pushed: int
    """Handed to the broker, those among them that it had already."""
    fed: int
    """Brought by the broker."""

    def since(self, before: Crossed) -> Crossed:
        ours, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(before)
        return Crossed(*(a - b for a, b in zip(ours, theirs, strict=True)))


class OneOfThem:
    """A node that is served, by all ways that it has."""

    def __init__(self, name: str, up: UpInThread) -> None:
        self.name, self.up, self.api = name, up, up.daemon.api
        self._written = 0

    @property
    def node(self) -> Node:
        return self.api.node

    @property
    def mesh(self) -> Mesh:
        return self.node.mesh(MESH)

    def trusts(self, other: OneOfThem) -> None:
        assert other.api.bus is not None
        at = other.api.bus.bus.addresses
        self.api.trust.trust(other.api.trust.card(), reads=[MESH], at=at)

    def pulls(self, source: OneOfThem) -> None:
        links = Links(self.api.engine, self.api.trust)
        links.add(source.name, source.up.tls, source.name, meshes=[MESH], carries=["any"])
        self.refresh_links()

    def rests(self, link: str, rests: bool) -> None:
        links = Links(self.api.engine, self.api.trust)
        (links.pause if rests else links.resume)(link)
        self.refresh_links()

    def refresh_links(self) -> None:
        assert self.api.link_manager is not None
        self.api.link_manager.refresh()

    def on_bus(self, shared: bool) -> None:
        """Shares the mesh over the bus, or no longer."""
        assert self.api.bus is not None
        exchange, bus = self.api.bus.exchange, self.api.bus
        self.up.wait_for(exchange.share(MESH) if shared else exchange.unshare(MESH))
        self.up.wait_for(bus.refresh())

    def write(self) -> int:
        """One of each kind; returns how many entries that makes."""
        self._written += 1
        at = self._written
        self.mesh.state.set(f"{self.name}{at}", at)
        self.mesh.state.set("by all of them", f"{self.name}{at}")
        self.mesh.facts.append(self.name, "wrote", at)
        self.mesh.memory.set("thought", f"{self.name}{at}")
        self.mesh.files.share(f"file{at}", BIG + f"{self.name}{at}".encode())
        return 5

    def head(self) -> int:
        return self.api.engine.read("test", lambda tx: tx.log_bounds()[1])

    def ids(self) -> list[bytes]:
        return sorted(entry.id for entry in self.node.log.range())

    def digests(self) -> object:
        found = self.api.engine.read("test", lambda tx: digests(tx, self.name, [MESH]))
        return found.meshes[MESH].tables

    def sync(self) -> MeshStatus | None:
        found = [] if self.api.sync_manager is None else self.api.sync_manager.status()
        return found[0].meshes[0] if found and found[0].meshes else None

    def is_quiet(self) -> bool:
        """Nothing waits here to go to the broker."""
        status = self.sync()
        return status is None or not (status.pending or status.inflight or status.dead)

    def crossed(self) -> Crossed:
        assert self.api.bus is not None
        assert self.api.link_manager is not None
        exchanged = self.up.run(self.api.bus.exchange.status)
        status = self.sync()
        return Crossed(
            bus=sum(one.entries_sent for one in exchanged.peers),
            links=sum(one.received for one in self.api.link_manager.status()),
            pushed=0 if status is None else status.pushed,
            fed=0 if status is None else status.received,
        )


class AtOnce:
    """All four, and the broker."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self.broker = ending.enter_context(LiveBroker(folder / "hub"))
        homes = {name: make_home(folder / name, name) for name in ("ana", "bob", "cyd", "dan")}
        share(homes["ana"], self.broker)
        for name in ("bob", "cyd"):
            join(homes[name], self.broker, homes["ana"])
        self.all = [
            OneOfThem(name, ending.enter_context(running(home, SETTINGS)))
            for name, home in homes.items()
        ]
        self.members, self.ana = self.all[:3], self.all[0]
        for one in self.all:
            for other in self.all:
                if other is not one:
                    one.trusts(other)
        for at, one in enumerate(self.members):
            one.pulls(self.members[at - 1])
        for one in self.all:
            one.on_bus(True)
        self.entries = 0
        self._moved = threading.Condition()
        for one in self.all:
            one.api.engine.store.on_commit(self._tell)

    def _tell(self) -> None:
        with self._moved:
            self._moved.notify_all()

    def until(self, so: Callable[[], bool]) -> None:
        """Looks after each commit of one of them."""
        with self._moved:
            assert self._moved.wait_for(so, PATIENCE_S), "it did not come to that"

    def reached(self, who: list[OneOfThem], entries: int) -> bool:
        return all(one.head() == entries for one in who)

    def write(self, *who: OneOfThem) -> None:
        for one in who:
            self.entries += one.write()

    def settled(self) -> bool:
        return self.reached(self.all, self.entries) and all(one.is_quiet() for one in self.all)

    def crossed(self) -> Crossed:
        each = [msgspec.structs.astuple(one.crossed()) for one in self.all]
        return Crossed(*(sum(column) for column in zip(*each, strict=True)))

    def check_equal(self) -> None:
        self.until(self.settled)
        for one in self.all:
            assert one.ids() == self.ana.ids(), f"{one.name} has something else"
            assert len(set(one.ids())) == self.entries, f"{one.name} has something twice"
            assert one.digests() == self.ana.digests()
        for one in self.all:
            newest = self.all[-1]._written
            content = BIG + f"dan{newest}".encode()
            assert one.mesh.files.read(f"file{newest}", peer="dan") == content


@pytest.fixture
def at_once(tmp_path: Path) -> Iterator[AtOnce]:
    with ExitStack() as ending:
        yield AtOnce(tmp_path, ending)


def cut_broker(nodes: AtOnce) -> Callable[[], Any]:
    nodes.broker.stop()
    return nodes.broker.start


def cut_links(nodes: AtOnce) -> Callable[[], Any]:
    def rest(rests: bool) -> None:
        for at, one in enumerate(nodes.members):
            one.rests(nodes.members[at - 1].name, rests)

    rest(True)
    return lambda: rest(False)


def cut_bus(nodes: AtOnce) -> Callable[[], Any]:
    def switch(shared: bool) -> None:
        for one in nodes.all:
            one.on_bus(shared)

    switch(False)
    return lambda: switch(True)


def test_B4_broker_links_and_bus_at_once_bring_everything_once(at_once: AtOnce) -> None:
    nodes, all_of = at_once, len(at_once.all)
    nodes.write(*nodes.all, *nodes.all)
    nodes.check_equal()
    _check_crossed(nodes, nodes.crossed(), nodes.entries)
    for cut in (cut_broker, cut_links, cut_bus):
        before, entries = nodes.crossed(), nodes.entries
        heal = cut(nodes)
        # Dan has the bus alone: while that is cut, only the others reach each other.
        nodes.write(*nodes.all)
        there = nodes.members if cut is cut_bus else nodes.all
        wanted = nodes.entries - (5 if cut is cut_bus else 0)
        nodes.until(partial(nodes.reached, there, wanted))
        heal()
        nodes.check_equal()
        _check_crossed(nodes, nodes.crossed().since(before), nodes.entries - entries)
    # Nothing goes round in circles: one more change crosses each way as often as one change does,
    # whatever time has passed.
    before = nodes.crossed()
    nodes.ana.mesh.facts.append("the", "last", 1)
    nodes.entries += 1
    nodes.check_equal()
    after = nodes.crossed().since(before)
    assert after.pushed == 1
    assert after.fed <= 2
    assert after.links <= 3
    assert after.bus <= 2 * (all_of - 1)


def _check_crossed(nodes: AtOnce, crossed: Crossed, entries: int) -> None:
    """Each way carries an entry to each node about once; the broker gets each of them."""
    ways = len(nodes.all) - 1
    assert crossed.bus <= 2 * ways * entries, crossed
    assert crossed.links <= len(nodes.members) * entries, crossed
    assert crossed.fed <= (len(nodes.members) - 1) * entries + entries, crossed
    # By its origin, and by the one that relays if that was slow.
    assert entries <= crossed.pushed <= 2 * entries, crossed
