"""What the parts of the bus need of each other.

    Net            carries bytes: TLS on TCP here, a simulated network in `holdfast.simulate`
    Link           one proved connection to a peer, with streams and credit
    LinkEvents     who is told about links: the bus
    PeerDirectory  who is who, and who may speak with us
    Discovery      where peers may be: candidates, never proof

Time is the event loop's (`loop.time()`, `call_later`), so that a simulated loop can run all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from holdfast.protocol.bus_frames import FrameKind, Stream, WelcomeFrame
from holdfast.rules.bus.mesh_store import PeerKey


class Listening(Protocol):
    """A place where peers can reach us, until it is closed."""

    address: str
    """host:port, as it is bound."""

    async def close(self) -> None: ...


class Net(Protocol):
    """Carries bytes between peers. A protocol gets `connection_made` with the transport, whose
    `get_extra_info("certificate")` is the digest of the listener's certificate.
    """

    async def dial(self, address: str, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Connects to host:port. Raises PeerUnreachable."""

    async def listen(self, address: str, protocol: Callable[[], asyncio.Protocol]) -> Listening: ...


class Link(Protocol):
    """One proved connection to a peer."""

    peer: PeerKey
    name: str
    """Who the peer is here: the name by which `PeerDirectory` knows it."""
    dialled: bool
    """We dialled, it listened."""
    welcome: WelcomeFrame
    """What the peer told of itself."""
    address: str
    since: float
    rtt_ms: float | None

    def has_room(self, stream: Stream, size: int) -> bool:
        """Whether a frame of this size may go at once."""

    async def room(self, stream: Stream, size: int) -> None:
        """Waits until it may go. Raises PeerUnreachable when the link ends meanwhile."""

    def send(self, kind: FrameKind, stream: Stream, body: bytes) -> None:
        """Queues a frame. Frames of a lower stream overtake those that wait; within a stream order
        is kept. What is handed over here was numbered and signed just before, and parcels keep
        their order across streams from that point on.
        """

    def taken(self, stream: Stream, size: int) -> None:
        """A handler has taken so many bytes of a stream: the peer may send as many more."""

    async def ping(self) -> float:
        """Milliseconds to the peer and back."""

    def close(self, code: str, message: str = "") -> None:
        """Says goodbye and ends the link."""


class LinkEvents(Protocol):
    """Whom the links tell what happens. Called in the loop; must not block."""

    async def welcome(self, peer: PeerKey) -> WelcomeFrame:
        """What to tell a peer that has proved its key. Raises NotTrusted for a stranger."""

    async def admit(self, peer: PeerKey, welcome: WelcomeFrame) -> str:
        """The name of a peer after its welcome; raises NotTrusted or CapabilityRefused if it may
        not speak with us.
        """

    def link_up(self, link: Link) -> None: ...
    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> None: ...
    def link_down(self, link: Link, error: Exception | None) -> None: ...


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer that may speak with us."""

    name: str
    keys: tuple[PeerKey, ...]
    addresses: tuple[str, ...] = ()
    """Where it was reached last, and where people say it is."""
    meshes: tuple[str, ...] = ()
    """What it may read here; `*` for everything."""


class PeerDirectory(Protocol):
    """Who is who. A peer is its key, never its address."""

    async def find(self, name: str) -> Peer | None:
        """By name, or by the text of a key."""

    async def of_key(self, key: PeerKey) -> Peer | None: ...
    async def all(self) -> list[Peer]: ...
    async def admit(self, key: PeerKey, name: str, capabilities: Sequence[bytes]) -> Peer:
        """The peer that has proved this key and shows these capabilities. Raises NotTrusted."""

    async def note_address(self, key: PeerKey, address: str) -> None:
        """It was reached there."""

    def capabilities(self) -> Sequence[bytes]:
        """What we show others."""


FoundPeer = Callable[[PeerKey, Sequence[str]], None]
"""Gets the key of a peer and places, as host:port, where it may be."""


class DiscoveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How discovery stands, for people and for metrics."""

    state: str
    """`on`, `quiet`, `deaf` (too much was said; it listens again in a while), or `failed`."""
    announced: tuple[str, ...] = ()
    """The addresses that others are told."""
    strangers: int = 0
    """How often names were heard that belong to nobody we look for."""
    foreign: int = 0
    """How often names were heard that are not of our form."""
    dropped: int = 0
    """How often a known name was not looked up because too many waited."""
    problem: str = ""


class Discovery(Protocol):
    """Finds places where peers may be. Anybody can lie there: the hello of a link decides."""

    async def start(self, key: PeerKey, listening: Sequence[str], found: FoundPeer) -> None:
        """Says where we are, and begins to listen for others. `listening`: where the bus listens,
        as bound. `found` is called in the loop, again whenever something new is heard of a peer.
        """

    def seek(self, keys: Iterable[PeerKey]) -> None:
        """From now on these peers are looked for, and no others."""

    def look(self, key: PeerKey) -> None:
        """A peer that is looked for could not be reached: ask again. May be called at any rate."""

    async def find(self, instance: str) -> Sequence[str]:
        """Where the peer of this instance (`rules/bus/discovery.instance_of` its key) may be, known
        or not. Waits until something is heard of it: give it a timeout.
        """

    def status(self) -> DiscoveryStatus: ...
    async def stop(self) -> None:
        """Says goodbye."""
