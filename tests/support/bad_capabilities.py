"""Capabilities that nobody may accept, shown to a real home as peers show them in their welcome."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from nacl.signing import SigningKey

from holdfast.node.bus.capabilities import CapabilityPeers
from holdfast.node.home.opening import open_home
from holdfast.node.library.node import Node
from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.bus import capability
from holdfast.rules.bus.capability import Capability, issue
from holdfast.rules.errors import CapabilityRefused, NotTrusted
from holdfast.rules.limits import BUS_CLOCK_SKEW_MS, DAY_MS
from support.source import START_MS, HandClock

BOB, EVE = SigningKey(b"b" * 32), SigningKey(b"e" * 32)
WIDE, NARROW = "service:>", "service:echo"


def accepted_though_bad() -> str:
    """Which of them a home lets in; empty if none. A good one must be let in."""
    with TemporaryDirectory() as folder:
        opened = open_home(Path(folder) / "home", peer="ana", create=True, source=HandClock())
        own_key = OwnKey(opened.engine, opened.paths)
        peers = CapabilityPeers(opened.engine, own_key)
        found = []
        for name, (raw, holder) in _shown(SigningKey(own_key.seed())).items():
            try:
                peers.admit(bytes(holder.verify_key), "somebody", [raw])
            except (NotTrusted, CapabilityRefused):
                continue
            found.append(name)
        Node(opened).close()
    assert "good" in found, "the look itself is broken"
    return ", ".join(name for name in found if name != "good")


def _shown(owner: SigningKey) -> dict[str, tuple[bytes, SigningKey]]:
    """By what is wrong: a capability, and who shows it."""
    bobs = _of(owner, NARROW, START_MS, START_MS + DAY_MS)
    late = START_MS - 2 * DAY_MS
    return {
        "good": (_then(bobs, BOB, NARROW), EVE),
        "widened": (_then(bobs, BOB, WIDE), EVE),
        "for longer": (_then(bobs, BOB, NARROW, days=2), EVE),
        "expired": (_of(owner, NARROW, late, START_MS - BUS_CLOCK_SKEW_MS - 1).raw, BOB),
        "passed on by another key": (_then(bobs, EVE, NARROW), EVE),
        "issued by another key": (_of(EVE, NARROW, START_MS, START_MS + DAY_MS).raw, BOB),
    }


def _of(owner: SigningKey, scope: str, begin: int, end: int) -> Capability:
    return issue(owner, bytes(BOB.verify_key), [scope], now_ms=begin, expires_at=end, name="bob")


def _then(before: Capability, by: SigningKey, scope: str, days: int = 1) -> bytes:
    """One step more, for eve, whoever signs it and whatever it says."""
    step = capability._signed(
        by,
        before.steps[-1].signature,
        bytes(EVE.verify_key),
        "",
        [scope],
        START_MS,
        START_MS + days * DAY_MS,
    )
    return Capability(before.version, before.issuer, (*before.steps, step)).raw
