"""How the bus of a node stands, for people, programs and metrics."""

from __future__ import annotations

import msgspec


class PeerStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One peer of the bus: whom this node trusts, or has blocked."""

    peer: str
    trust: str
    """`trusted`, `blocked` or `expired`; `member` for one that only a mesh knows,
    `capability` for one that only a capability does, `guest` for one that is about to join."""
    link: str = "down"
    """`up` while there is a proved link."""
    address: str | None = None
    """Where it is linked; else where it was reached last."""
    rtt_ms: float | None = None
    seen_at: int | None = None
    """When it was reached last: now, while it is linked."""
    waiting: int = 0
    """Messages that wait for it here."""
    sent: int = 0
    acked: int = 0
    """Of those sent: what the peer has stored."""
    received: int = 0
    again: int = 0
    """Of those received: what came a second time, because an acknowledgement was lost."""
    refused: int = 0
    """What it sent and this node refused."""
    refused_by: dict[str, int] = {}
    """The same by reason."""
    error: str | None = None
    """Why there is no link, as far as that is known."""
    topics: list[str] = []
    """What it listens to, once this node has taken that up."""
    durable: list[str] = []
    """What is kept for it while it is away."""
    services: list[str] = []
    """What it answers here."""


class MeshPeerView(msgspec.Struct, frozen=True, kw_only=True):
    """The exchange with one peer, as people see it."""

    peer: str
    meshes: list[str]
    """What both sides share."""
    problem: str
    entries_sent: int
    entries_new: int
    entries_known: int
    entries_refused: int


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """What this node has of one stream, as people see it."""

    mesh: str
    origin: str
    epoch: int
    entries: int
    upto: int
    """The highest number that is covered."""
    missing: int
    """Numbers that a peer has, or had, and this node does not."""
    trouble: str


class MeshExchangeView(msgspec.Struct, frozen=True, kw_only=True):
    """The meshes that are shared over the bus."""

    peers: list[MeshPeerView] = []
    streams: list[StreamView] = []


class BusStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The bus of one node."""

    name: str
    card: str
    pid: int
    """The process that holds the bus."""
    listening: list[str]
    """host:port; none: this node only calls others."""
    discovery: str
    """`off`, `on`, or why it does not work."""
    waiting: int
    """Messages that wait for absent peers."""
    peers: list[PeerStanding]
    topics: list[str]
    """What is listened to here."""
    services: list[str]
    """What is answered here."""
    counts: dict[str, int]
    """What has happened since the bus was bound, by name."""
    warnings: list[str] = []
    """What people should know: a code, and a sentence. `peer_copied`: two processes use one key."""
    meshes: MeshExchangeView = MeshExchangeView()
    """What is exchanged of meshes, with whom, and what a person has to look at."""
