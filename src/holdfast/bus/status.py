"""How a bus stands, for people and programs."""

from __future__ import annotations

import msgspec


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How it stands with one peer."""

    name: str
    key: str
    """The text of the key that it proved, or of the first that is known."""
    state: str
    """`connected` or `absent`."""
    address: str = ""
    rtt_ms: float | None = None
    sent: int = 0
    """Messages written to its links since the bus was bound."""
    acked: int = 0
    received: int = 0
    again: int = 0
    """Messages that came a second time, because an acknowledgement was lost."""
    refused: dict[str, int] = {}
    """Messages of this peer that were refused, by reason."""
    queued: int = 0
    """Messages in memory that wait for room on the link."""
    under_way: int = 0
    """Messages that the peer has not acknowledged yet."""
    topics: list[str] = []
    """What it listens to, as far as it told and this peer has taken it up."""
    durable: list[str] = []
    """What is kept for it while it is away."""
    services: list[str] = []


class BusStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a bus stands."""

    name: str
    key: str
    addresses: list[str]
    peers: list[PeerStatus]
    topics: list[str]
    durable: list[str]
    services: list[str]
    asking: int
    """Requests of ours that wait for a reply."""
    handling: int
    """Requests of others that are being handled."""
    counts: dict[str, int]
    """Events since the bus was bound, by name."""
    warnings: list[str] = []
    """What people should know: the code and a sentence."""
    problems: dict[str, str] = {}
    """Why there is no link to a wanted peer, by its name: the code and what it means."""
