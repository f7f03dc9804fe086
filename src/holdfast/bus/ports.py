"""What the parts of the bus need of each other.

    Net            carries bytes: TLS on TCP here, a simulated network in `holdfast.simulate`
    Link           one proved connection to a peer, with streams and credit
    LinkEvents     who is told about links: the bus
    LinkPart       who else uses them, beside the bus: the store that peers share
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
from holdfast.rules.bus.succession import KeySuccession
from holdfast.rules.errors import HoldfastError


class Listening(Protocol):
    """A place where peers can reach us, until it is closed."""

    address: str
    """host:port, as it is bound."""

    async def close(self) -> None: ...


class Net(Protocol):
    """Carries bytes between peers. A protocol gets `connection_made` with the transport, whose
    `get_extra_info("certificate")` is the digest of the listener's certificate, and `peername` a
    tuple that begins with the host. Of the transport links use `write`, `get_write_buffer_size`,
    `pause_reading`, `resume_reading`, `close` and `abort`; it calls `pause_writing` when it holds
    `BUS_TRANSPORT_BYTES`, and `resume_writing` when that has left.
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

    def available(self, stream: Stream) -> int:
        """How many bytes of frames may go at once on a stream; 0 if none may."""

    def has_room(self, stream: Stream, size: int = 0) -> bool:
        """Whether a frame of this size may go at once: its stream has credit, and little waits in
        the network. A frame may be larger than the credit that is left, so whatever is available,
        one frame fits. The link tells `LinkEvents.writable` when it may after all.
        """

    async def room(self, stream: Stream, size: int = 0) -> None:
        """Waits until a frame may go; those who wait for lower streams are let on first. Whoever
        waited numbers, signs and sends without another wait. Raises PeerUnreachable when the link
        ends.
        """

    def send(self, kind: FrameKind, stream: Stream, body: bytes, *, at_once: bool = False) -> None:
        """Sends a frame. The bus hands over a parcel only when there is room for it, and numbers it
        just before: frames leave in the order in which they were handed over, whatever their
        streams. Only those of the control stream, which need no room, overtake what leaves in the
        same turn of the loop. `at_once`: nothing else is expected to leave with it. Raises
        PeerUnreachable on a link that has ended.
        """

    def taken(self, stream: Stream, size: int) -> None:
        """A handler has taken so many bytes of a stream: the peer may send as many more."""

    def stop_reading(self) -> None:
        """No further frame of this peer is read until `read_on`: its last one needs more turns of
        the loop. The peer waits for itself, and nobody else does.
        """

    def read_on(self) -> None: ...
    def blame(self, error: HoldfastError) -> None:
        """Counts what the peer did wrong, by the error's code; too much of it ends the link."""

    def broken(self, error: HoldfastError) -> None:
        """The peer breaks the rules of the bus: it is told the code, and the link ends."""

    async def ping(self) -> float:
        """Milliseconds to the peer and back."""

    def close(self, code: str, message: str = "") -> None:
        """Says goodbye and ends the link."""


class LinkEvents(Protocol):
    """Whom the links tell what happens. Called in the loop; must not block. There is one link up to
    a key at most, and the end of one is told before the next one is up.
    """

    async def welcome(self, peer: PeerKey) -> WelcomeFrame:
        """What to tell a peer that has proved its key. Raises NotTrusted for a stranger."""

    async def admit(self, peer: PeerKey, welcome: WelcomeFrame) -> str:
        """The name of a peer after its welcome; raises NotTrusted or CapabilityRefused if it may
        not speak with us.
        """

    async def follow(self, peer: PeerKey, chain: Sequence[KeySuccession]) -> bool:
        """Whether a peer that we know by an earlier key may be known by this one from now on."""

    def link_up(self, link: Link) -> None: ...
    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> None: ...
    def frames_end(self, link: Link) -> None:
        """The frames that came together were all told. What is sent now leaves in one write."""

    def writable(self, link: Link) -> None:
        """There is room again on some stream for which `has_room` said no."""

    def link_down(self, link: Link, error: Exception | None) -> None: ...


class LinkPart(Protocol):
    """Something that uses the links of a bus beside its messages; `Bus.attach` plugs it in. Called
    in the loop; must not block and must not raise. The link is one that the bus keeps: of two links
    to one peer only the one that stays is told.
    """

    def link_up(self, link: Link) -> None: ...
    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> bool:
        """A MESH or QUORUM frame came; True if the part takes it. Then it calls `link.taken(stream,
        len(body))` when it has worked it off, on a stream with credit: until then the peer has that
        much less of it.
        """

    def link_down(self, link: Link) -> None: ...
    async def close(self) -> None:
        """The bus is closing: ends what is under way. Links go down afterwards."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer that may speak with us."""

    name: str
    keys: tuple[PeerKey, ...]
    addresses: tuple[str, ...] = ()
    """Where it was reached last, and where people say it is."""
    meshes: tuple[str, ...] = ()
    """What it may read here; `*` for everything."""
    scopes: tuple[str, ...] | None = None
    """The only things that it may ask for and publish (`rules/bus/scope.py`); None: no limit."""
    is_passing: bool = False
    """It is known for as long as its link: nothing is kept for it."""
    ends_at: int | None = None
    """When that ends, by the wall clock; its link ends then."""
    relays: tuple[str, ...] = ()
    """Patterns of topics: what others published there it may pass on, ours and to us."""
    relays_until: int = 0
    """When that ends, by the wall clock."""


class PeerDirectory(Protocol):
    """Who is who. A peer is its key, never its address."""

    async def find(self, name: str) -> Peer | None:
        """By name, or by the text of a key."""

    async def of_key(self, key: PeerKey) -> Peer | None: ...
    async def all(self) -> list[Peer]: ...
    async def admit(self, key: PeerKey, name: str, capabilities: Sequence[bytes]) -> Peer:
        """The peer that has proved this key and shows these capabilities. Raises NotTrusted."""

    async def follow(self, key: PeerKey, chain: Sequence[KeySuccession]) -> bool:
        """Whether a peer that is known by an earlier key is known by this one too, as the chain
        shows.
        """

    async def note_address(self, key: PeerKey, address: str) -> None:
        """It was reached there."""

    def capabilities(self, peer: PeerKey) -> Sequence[bytes]:
        """What we show a peer."""


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
        """Where the peer of this instance (`instance_of` its key, in
        `rules/bus/links/discovery.py`) may be, known or not. Waits until something is
        heard of it: give it a timeout.
        """

    def status(self) -> DiscoveryStatus: ...
    async def stop(self) -> None:
        """Says goodbye."""
