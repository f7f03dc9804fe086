"""The ways by which this node reaches a peer or a broker, each tried once.

A peer may be reached over the bus (`lan` within a private network, else `bus`), by a link to the
zone of its name (`link`), and through the brokers of the meshes that it is a member of (`broker`):
those keep what is sent to it, and only the broker itself answers. All ways are tried at the same
time, because one that is dead takes seconds to say so.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from holdfast.node.broker_client.client import BrokerClient, card_shown
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.trust import Trust
from holdfast.rules.arguments import checked
from holdfast.rules.errors import BadInput, HoldfastError, NotOurs, UnknownPeer
from holdfast.rules.invites import check_broker_url
from holdfast.rules.keys import parse_card
from holdfast.rules.limits import PING_WAYS_MAX
from holdfast.rules.names import meant_peer
from holdfast.rules.rows import LinkRow
from holdfast.service.problem import Problem
from holdfast.storage.ports import Reader
from holdfast.transport.peer_client import PeerClient

if TYPE_CHECKING:
    from holdfast.node.bus.standing import PeerStanding

LAN: Final = "lan"
BUS: Final = "bus"
LINK: Final = "link"
BROKER: Final = "broker"


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way, and whether the other end answered."""

    way: str
    """`lan`, `bus`, `link` or `broker`."""
    name: str
    """Of the link or the broker; over the bus that of the peer."""
    address: str | None = None
    ms: float | None = None
    """There and back, on a connection that stood; None if nobody answered."""
    connect_ms: float | None = None
    """How long the connection and the proofs of both keys took; the bus keeps one."""
    card: str | None = None
    """Of a broker that nobody has pinned: what it showed."""
    error: Problem | None = None


class PingRound(msgspec.Struct, frozen=True, kw_only=True):
    """A peer or a broker, with every way to it."""

    target: str
    kind: str
    """`peer` or `broker`."""
    ways: list[Way]

    @property
    def best(self) -> Way | None:
        """The quickest of the ways that lead to the target itself; else a broker's."""
        answered = [way for way in self.ways if way.ms is not None]
        return min(answered, key=lambda way: (way.way == BROKER, way.ms), default=None)


class PeerBus(Protocol):
    """What is needed of the bus of this node."""

    def ping(self, peer: str) -> float: ...
    def peers(self) -> list[PeerStanding]: ...


class AsyncBus(Protocol):
    """The same for coroutines."""

    def ping(self, peer: str) -> Coroutine[Any, Any, float]: ...
    def peers(self) -> Coroutine[Any, Any, list[PeerStanding]]: ...


class BusOfLoop:
    """The bus of coroutines, for threads that wait."""

    def __init__(self, bus: AsyncBus, loop: asyncio.AbstractEventLoop) -> None:
        self._bus, self._loop = bus, loop

    def ping(self, peer: str) -> float:
        return asyncio.run_coroutine_threadsafe(self._bus.ping(peer), self._loop).result()

    def peers(self) -> list[PeerStanding]:
        return asyncio.run_coroutine_threadsafe(self._bus.peers(), self._loop).result()


class _Places(msgspec.Struct, frozen=True):
    """What this node knows of others."""

    links: list[LinkRow]
    brokers: dict[str, str]
    """By address: the card."""
    members: dict[str, set[str]]
    """By address of a broker: who is in a mesh there."""
    peers: set[str]
    """Who has written into a mesh of this node, or is a zone."""


@checked
def reach(
    engine: NodeEngine, trust: Trust, target: str, bus: Callable[[], PeerBus], card: str | None
) -> PingRound:
    """Tries every way to a target. `bus` opens the bus, which is not needed for a broker. `card`
    is that of a broker through which no mesh is shared.
    """
    known = engine.read("ping", _look)
    if "://" in target:
        return _answered(engine, target, BROKER, [_broker(trust, known, target, card)])
    named = {parse_card(at)[0]: (url, at) for url, at in known.brokers.items()}
    if target in named and target not in known.peers:
        return _answered(engine, target, BROKER, [_pinned(trust, *named[target])])
    peer = meant_peer(target)
    if peer == engine.ctx.peer:
        raise BadInput(f"{peer} is this node itself", hint="name another one: holdfast peer list")
    through = [url for url, members in known.members.items() if peer in members]
    ways: Iterator[_Try] = chain(
        [partial(_over_bus, bus, peer)],
        (partial(_by_link, trust, row) for row in known.links if row.zone == peer),
        (_pinned(trust, url, known.brokers[url]) for url in through),
    )
    found = _answered(engine, peer, "peer", islice(ways, PING_WAYS_MAX))
    if found.ways:
        return found
    if peer in known.peers:
        raise UnknownPeer(
            f"{peer} is known by what it wrote; there is no way to it from here",
            hint=f"trust its card, so that the bus finds it: holdfast peer trust CARD; or name its "
            f"broker, one of: {', '.join(sorted(named)) or 'none yet'}",
        )
    raise UnknownPeer(
        f"no peer or broker is called {target!r} here",
        hint="see: holdfast peer list; a broker may be named by its address, as https://HOST:PORT",
    )


def _look(tx: Reader) -> _Places:
    shared = [row for row in tx.mesh_list() if row.broker_url and row.broker_card]
    members: dict[str, set[str]] = {}
    for row in shared:
        names = (member.name for member in tx.known_members_list(row.slug))
        members.setdefault(row.broker_url or "", set()).update(names)
    heard = {row.peer for mesh in tx.mesh_list() for row in tx.peer_list(mesh.slug)}
    return _Places(
        links=tx.link_list(),
        brokers={row.broker_url or "": row.broker_card or "" for row in shared},
        members=members,
        peers=heard | {row.name for row in tx.zone_list()},
    )


_Try = Callable[[], Way | None]
"""Tries a way; None if there is no such way."""


def _answered(engine: NodeEngine, target: str, kind: str, ways: Iterable[_Try]) -> PingRound:
    """All ways at the same time."""
    with ThreadPoolExecutor(PING_WAYS_MAX, "holdfast-ping") as threads:
        tried = list(threads.map(partial(_tried, engine.ctx.now_ms), ways))
    return PingRound(target=target, kind=kind, ways=[way for way in tried if way is not None])


class _Failed(Exception):
    """A way that is there and does not answer."""

    def __init__(self, way: Way, error: HoldfastError) -> None:
        super().__init__(error.message)
        self.way, self.error = way, error


def _tried(now_ms: Callable[[], int], way: _Try) -> Way | None:
    try:
        return way()
    except _Failed as failed:
        error = Problem.of(failed.error, now_ms())
        return msgspec.structs.replace(failed.way, error=error)


def _over_bus(bus: Callable[[], PeerBus], peer: str) -> Way | None:
    way = Way(way=BUS, name=peer)
    try:
        opened = bus()
        ms = opened.ping(peer)
        at = {row.peer: row.address for row in opened.peers()}.get(peer)
    except UnknownPeer:
        return None
    except HoldfastError as error:
        raise _Failed(way, error) from None
    return Way(way=LAN if _is_near(at) else BUS, name=peer, address=at, ms=round(ms, 3))


def _is_near(address: str | None) -> bool:
    """Whether an address, HOST or HOST:PORT, is of a private network or of this machine."""
    text = address or ""
    for host in (text, text.rpartition(":")[0]):
        try:
            return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_private
        except ValueError:
            continue
    return text.partition(":")[0] == "localhost" or ".local" in text


def _by_link(trust: Trust, row: LinkRow) -> Way:
    us = (trust.name, trust.seed)
    return _timed(
        Way(way=LINK, name=row.name, address=row.url),
        lambda: PeerClient(row.url, us=us, pinned=lambda: trust.zone(row.zone)),
    )


def _pinned(trust: Trust, url: str, card: str) -> _Try:
    way = Way(way=BROKER, name=parse_card(card)[0], address=url)
    return partial(_timed, way, lambda: BrokerClient.of(trust, url, card))


def _broker(trust: Trust, known: _Places, url: str, card: str | None) -> _Try:
    """A broker by its address: as it is pinned, else as its card says, else as it shows itself."""
    address = check_broker_url(url).rstrip("/")
    pinned = known.brokers.get(address)
    if pinned is not None and card is not None and parse_card(pinned) != parse_card(card):
        raise NotOurs(
            f"the broker at {address} is pinned by another card", hint="leave the card out"
        )
    if pinned is not None or card is not None:
        return _pinned(trust, address, pinned or card or "")

    def stranger() -> Way:
        try:
            shown = card_shown(address, (trust.name, trust.seed))
        except HoldfastError as error:
            raise _Failed(Way(way=BROKER, name=address, address=address), error) from None
        way = Way(way=BROKER, name=parse_card(shown)[0], address=address, card=shown)
        return _timed(way, lambda: BrokerClient.of(trust, address, shown))

    return stranger


class _Caller(Protocol):
    """A client that proves who we are and measures."""

    def ping(self) -> tuple[float, float]: ...
    def close(self) -> None: ...


def _timed(way: Way, connect: Callable[[], _Caller]) -> Way:
    try:
        with closing(connect()) as caller:
            connect_ms, ms = caller.ping()
    except HoldfastError as error:
        raise _Failed(way, error) from None
    return msgspec.structs.replace(way, connect_ms=round(connect_ms, 3), ms=round(ms, 3))


def lines(found: PingRound) -> Iterator[str]:
    """What a round is to people, a line for each way."""
    for way in found.ways:
        where = f"{way.way} {way.address}" if way.address else way.way
        if way.way in (LINK, BROKER):
            where = f"{way.way} {way.name} at {way.address}"
        if way.error is not None:
            yield f"no answer from {found.target} ({where}): {way.error.message}"
        elif way.way == BROKER and found.kind == "peer":
            yield f"through {where} in {way.ms:.1f} ms: what is sent to {found.target} waits there"
        else:
            yield f"pong from {found.target} ({where}) in {way.ms:.1f} ms"
