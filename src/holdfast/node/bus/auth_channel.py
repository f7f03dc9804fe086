"""The channel for auth material: whether it is open, for whom, and the way to another node.

The channel is closed unless the settings open it, and then it is open for this node's own user and
for the peers that the settings name. Between nodes a snapshot travels over the bus, in a box that
only the keys of the receiver open: messages that wait lie on disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from nacl.exceptions import CryptoError
from nacl.public import SealedBox
from nacl.signing import SigningKey, VerifyKey

from holdfast.bus.bus import Bus
from holdfast.bus.ports import Peer
from holdfast.bus.received import ReceivedRequest
from holdfast.node.bus.auth_material import AuthMaterial
from holdfast.node.settings import QuorumSettings
from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.errors import (
    AuthChannelClosed,
    BadAnswer,
    NotAuthMaterial,
    NotGranted,
    UnknownPeer,
)
from holdfast.rules.limits import BUS_REQUEST_MS
from holdfast.rules.quorum.auth_material import AuthSummary, encode_auth

PUSH: Final = "holdfast.auth.push"
PULL: Final = "holdfast.auth.pull"
_CONTENT: Final = "application/octet-stream"


class PeerFinder(Protocol):
    async def find(self, name: str) -> Peer | None: ...


class AuthChannel:
    """The channel of one home. Belongs to one event loop."""

    def __init__(self, material: AuthMaterial, own_key: OwnKey, settings: QuorumSettings) -> None:
        self.material, self._own_key, self._settings = material, own_key, settings
        self._bus: Bus | None = None
        self._peers: PeerFinder | None = None

    def start(self, bus: Bus, peers: PeerFinder) -> None:
        """Answers on a bus, as long as the settings say so."""
        self._bus, self._peers = bus, peers
        self.set(self._settings)

    def set(self, settings: QuorumSettings) -> None:
        """The operator opens or closes it."""
        self._settings = settings
        if self._bus is None:
            return
        for service, handler in ((PUSH, self._on_push), (PULL, self._on_pull)):
            self._bus.stop_serving(service)
            if settings.auth_channel:
                self._bus.serve(service, handler)

    def check_open(self) -> None:
        if not self._settings.auth_channel:
            raise AuthChannelClosed("this node neither takes nor gives auth material")

    def check_peer(self, peer: str) -> None:
        """Whether another node may use it."""
        self.check_open()
        if peer not in self._settings.auth_peers:
            raise NotGranted(
                f"{peer!r} may not exchange auth material with this node",
                hint=f'its operator can allow it: auth_peers = ["{peer}"] under [quorum]',
            )

    async def push(self, peer: str) -> AuthSummary:
        """Sends what is here to a peer, which must have its own channel open for us."""
        keys, bus = await self._reach(peer)
        raw = encode_auth(await asyncio.to_thread(self.material.export))
        reply = await bus.request(
            peer, PUSH, boxed(raw, keys), content_type=_CONTENT, timeout_ms=BUS_REQUEST_MS
        )
        return _summary(reply.body)

    async def pull(self, peer: str) -> AuthSummary:
        """Fetches what a peer has."""
        _, bus = await self._reach(peer)
        reply = await bus.request(peer, PULL, b"", timeout_ms=BUS_REQUEST_MS)
        raw = unboxed(reply.body, self._own_key.seed())
        return await asyncio.to_thread(self.material.receive, raw, peer)

    async def _reach(self, peer: str) -> tuple[Sequence[bytes], Bus]:
        self.check_peer(peer)
        assert self._bus is not None, "it was started with the bus"
        assert self._peers is not None, "and with its peers"
        found = await self._peers.find(peer)
        if found is None:
            raise UnknownPeer(f"nobody of the name {peer!r} is known here")
        return found.keys, self._bus

    async def _on_push(self, request: ReceivedRequest) -> bytes:
        self.check_peer(request.sender)
        raw = unboxed(request.body, self._own_key.seed())
        came = await asyncio.to_thread(self.material.receive, raw, request.sender)
        return msgspec.json.encode(came)

    async def _on_pull(self, request: ReceivedRequest) -> bytes:
        self.check_peer(request.sender)
        raw = encode_auth(await asyncio.to_thread(self.material.export))
        return boxed(raw, [request.key])


def boxed(raw: bytes, keys: Sequence[bytes]) -> bytes:
    """A snapshot that each of these keys opens, and nothing else does."""
    return msgspec.msgpack.encode(
        [SealedBox(VerifyKey(key).to_curve25519_public_key()).encrypt(raw) for key in keys]
    )


def unboxed(body: bytes, seed: bytes) -> bytes:
    """What is in a box for the key of this seed. NotAuthMaterial if it has none."""
    try:
        boxes = msgspec.msgpack.decode(body, type=list[bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise NotAuthMaterial("no box of auth material: it cannot be read") from None
    opener = SealedBox(SigningKey(seed).to_curve25519_private_key())
    for box in boxes:
        try:
            return bytes(opener.decrypt(box))
        except (CryptoError, ValueError):
            continue  # it is for another key of this node
    raise NotAuthMaterial("the box of auth material is not for a key of this node")


def _summary(body: bytes) -> AuthSummary:
    try:
        return msgspec.json.decode(body, type=AuthSummary)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BadAnswer("the peer did not say what it took") from None
