"""`node.ping`: every way to a peer or a broker is tried and timed, and none hides the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.node.bus.ways import BROKER, BUS, LAN, LINK, PingRound, Way, _is_near, lines, reach
from holdfast.node.library.node import Node
from holdfast.node.links.registry import Links
from holdfast.rules.errors import BadInput, NotOurs, UnknownPeer, Unreachable
from holdfast.rules.limits import PING_WAYS_MAX
from support.broker_up import BrokerUp, broker_at
from support.bus_homes import Homes, trust_of


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUp]:
    with broker_at(tmp_path_factory.mktemp("hub") / "store") as up:
        yield up


@pytest.fixture(scope="module")
def dead_port() -> Iterator[int]:
    """A port of ours where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    with Homes(tmp_path_factory.mktemp("homes"), "daemon") as made:
        yield made


@pytest.fixture(scope="module")
def pair(homes: Homes, hub: BrokerUp) -> tuple[Node, Node]:
    """Ana's daemon has a bus; bo has none. They share a mesh through the hub."""
    ana, bo = homes.pair()
    ana.create_mesh("shared")
    invite = ana.sharing.publish("shared", broker=hub.url).invite
    assert invite is not None
    bo.sharing.join(invite)
    return ana, bo


def test_U2_a_peer_is_reached_by_every_way_at_once(pair: tuple[Node, Node], hub: BrokerUp) -> None:
    _, bo = pair
    found = bo.ping("ana")
    assert (found.target, found.kind) == ("ana", "peer")
    assert [(way.way, way.name, way.error) for way in found.ways] == [
        (LAN, "ana", None),
        (BROKER, "hub", None),
    ]
    by_bus, by_broker = found.ways
    assert by_bus.ms is not None
    assert 0 < by_bus.ms < 60_000
    assert by_broker.address == hub.url
    assert by_broker.ms is not None
    assert by_broker.connect_ms is not None
    assert found.best is by_bus, "a broker only keeps what is sent, however quick it is"
    assert "waits there" in list(lines(found))[1]


def test_U2_coroutines_and_connections_ping_as_the_library_does(
    pair: tuple[Node, Node], homes: Homes
) -> None:
    async def run(home: Path) -> PingRound:
        async with holdfast.aopen(home) as node:
            return await node.ping("hub")

    found = asyncio.run(run(homes.home("bo")))
    assert [(way.way, way.name) for way in found.ways] == [(BROKER, "hub")]
    with holdfast.connect(homes.daemons["ana"].unix) as remote:
        again = remote.ping("hub")
        assert [(way.way, way.name) for way in again.ways] == [(BROKER, "hub")]
        assert again.best is not None
        with pytest.raises(UnknownPeer):
            remote.ping("nobody")


def test_U2_a_broker_that_nobody_has_pinned_says_its_card(
    pair: tuple[Node, Node], hub: BrokerUp, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "new", peer="cy", create=True, sync="normal") as cy:
        (way,) = cy.ping(hub.url).ways
        assert (way.card, way.name) == (hub.card, "hub")
        assert way.ms is not None
        (way,) = cy.ping(hub.url, card=hub.card).ways
        assert way.card is None
        (way,) = cy.ping(hub.url, card=trust_of(cy).card()).ways
        assert way.error is not None
        assert way.error.code == "zone_not_trusted"
    with pytest.raises(NotOurs):
        pair[1].ping(hub.url, card=trust_of(pair[1]).card())


def test_U2_what_does_not_answer_is_told_beside_what_does(
    pair: tuple[Node, Node], dead_port: int
) -> None:
    _, bo = pair
    Links(bo._engine, trust_of(bo)).add(
        "north", f"https://127.0.0.1:{dead_port}", "ana", meshes=["shared"]
    )
    found = bo.ping("ana")
    assert [way.way for way in found.ways] == [LAN, LINK, BROKER]
    dead = found.ways[1]
    assert (dead.name, dead.ms) == ("north", None)
    assert dead.error is not None
    assert dead.error.code == Unreachable.code
    assert found.best is found.ways[0]
    assert any("no answer from ana (link north" in line for line in lines(found))
    Links(bo._engine, trust_of(bo)).remove("north")


def test_U2_whom_nobody_knows_is_said_so(pair: tuple[Node, Node], homes: Homes) -> None:
    _, bo = pair
    with pytest.raises(BadInput, match="this node itself"):
        bo.ping("bo")
    with pytest.raises(UnknownPeer, match="no peer or broker is called 'nobody'"):
        bo.ping("nobody")
    with pytest.raises(BadInput, match="no address of a broker"):
        bo.ping("ftp://x")


def test_U2_at_most_so_many_ways_are_tried(pair: tuple[Node, Node], dead_port: int) -> None:
    _, bo = pair
    links = Links(bo._engine, trust_of(bo))
    url = f"https://127.0.0.1:{dead_port}"
    names = [f"l{number}" for number in range(PING_WAYS_MAX + 2)]
    for name in names:
        links.add(name, url, "ana", meshes=["shared"])
    found = reach(bo._engine, trust_of(bo), "ana", lambda: bo.bus, None)
    assert len(found.ways) == PING_WAYS_MAX
    for name in names:
        links.remove(name)


@pytest.mark.parametrize(
    ("address", "near"),
    [
        *(("192.168.1.7:4650", True), ("127.0.0.1", True), ("[fe80::1%eth0]:4650", True)),
        *(("::1", True), ("localhost:4650", True), ("printer.local:1", True)),
        *(
            ("8.8.8.8:4650", False),
            ("2606:4700::1", False),
            ("example.org:1", False),
            (None, False),
        ),
    ],
)
def test_U2_a_private_network_is_told_from_the_rest(address: str | None, near: bool) -> None:
    assert _is_near(address) is near


def test_U2_the_best_way_is_the_quickest_that_leads_to_the_peer_itself() -> None:
    ways = [
        Way(way=BROKER, name="hub", ms=0.1),
        Way(way=LINK, name="north", ms=9.0),
        Way(way=BUS, name="bo", ms=3.0),
        Way(way=LINK, name="south"),
    ]
    found = PingRound(target="bo", kind="peer", ways=ways)
    assert found.best is ways[2]
    assert PingRound(target="bo", kind="peer", ways=ways[:1]).best is ways[0]
    assert PingRound(target="bo", kind="peer", ways=ways[3:]).best is None
