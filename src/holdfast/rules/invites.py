"""The text of an invite: all that a person needs to join a mesh, in one word.

    holdfast://join/gqZo…

It holds the address of the broker, its card (so that nobody can pose as it), the name of the mesh
and a secret. An invite to a mesh without a broker holds the card of the mesh's owner instead, and
where its node listens, if that is known. Everybody who has the text may join, so it is handed on
like a key. The broker, or the owner's node, keeps only the digest of the secret. No character in it
means anything to a shell, and its last bytes are a checksum: a node refuses a text that was cut off
in copying before it asks anybody.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

import msgspec

from holdfast.rules.errors import BadInput, HoldfastError
from holdfast.rules.keys import parse_card, text_of
from holdfast.rules.limits import (
    BUS_ADDRESSES_MAX,
    BUS_CAPABILITY_BYTES_MAX,
    LINK_URL_BYTES_MAX,
)
from holdfast.rules.names import check_mesh
from holdfast.rules.shown_address import shown_address

PREFIX: Final = "holdfast://join/"
SECRET_BYTES: Final = 32
_SUM_BYTES: Final = 4
_TEXT_CHARS_MAX: Final = 4096
_VERSION: Final = 1
_PEER_VERSION: Final = 2
_HINT: Final = "copy the whole text; a new one: holdfast mesh invite MESH"
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class Invite(msgspec.Struct, frozen=True, array_like=True):
    """What an invite holds."""

    url: str
    """Where the broker is: `https://host:port`, or `http://` on loopback."""
    card: str
    """The broker's card: `name:ed25519:key`."""
    mesh: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Invite(url={self.url!r}, mesh={self.mesh!r})"  # the secret stays out of logs


class PeerInvite(msgspec.Struct, frozen=True, array_like=True):
    """What an invite to a mesh without a broker holds."""

    card: str
    """The card of the mesh's owner: `name:ed25519:key`."""
    mesh: str
    secret: bytes
    addresses: tuple[str, ...] = ()
    """Where the owner's node listens, as host:port; it may be found otherwise."""
    expires_at: int = 0
    capability: bytes = b""
    """The right to ask to join, if a member made the invite: for the key whose seed the secret
    is."""

    def __repr__(self) -> str:
        return f"PeerInvite(card={self.card!r}, mesh={self.mesh!r})"


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    version: int
    invite: msgspec.Raw


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Packed).decode
_decode_broker: Final = msgspec.msgpack.Decoder(Invite).decode
_decode_peer: Final = msgspec.msgpack.Decoder(PeerInvite).decode


def format_invite(invite: Invite | PeerInvite) -> str:
    check_invite(invite)
    version = _VERSION if isinstance(invite, Invite) else _PEER_VERSION
    packed = _encode(_Packed(version, msgspec.Raw(_encode(invite))))
    return PREFIX + text_of(packed + _sum(packed))


def parse_invite(text: str) -> Invite:
    """The invite in a text, to a mesh at a broker. An error does not repeat the text, because it is
    a secret.
    """
    invite = parse_any_invite(text)
    if isinstance(invite, PeerInvite):
        raise BadInput(
            "the invite is to a mesh without a broker",
            hint="join with: holdfast mesh join INVITE, or node.bus.join(invite)",
        )
    return invite


def parse_peer_invite(text: str) -> PeerInvite:
    """The invite in a text, to a mesh without a broker."""
    invite = parse_any_invite(text)
    if isinstance(invite, Invite):
        raise BadInput(
            "the invite is to a mesh at a broker",
            hint="join with: holdfast mesh join INVITE, or node.sharing.join(invite)",
        )
    return invite


def parse_any_invite(text: str) -> Invite | PeerInvite:
    """The invite in a text, of either kind."""
    word = text.strip()
    if not word.startswith(PREFIX) or len(word) > _TEXT_CHARS_MAX:
        raise BadInput("that is no invite: it does not begin with holdfast://join/", hint=_HINT)
    body = word.removeprefix(PREFIX)
    try:
        raw = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        raise BadInput("the invite was changed on its way", hint=_HINT) from None
    packed, end = raw[:-_SUM_BYTES], raw[-_SUM_BYTES:]
    if end != _sum(packed) or text_of(raw) != body:
        raise BadInput("the invite is not whole, or was changed on its way", hint=_HINT)
    found: Invite | PeerInvite
    try:
        unpacked = _decode(packed)
        if unpacked.version == _VERSION:
            found = _decode_broker(unpacked.invite)
        elif unpacked.version == _PEER_VERSION:
            found = _decode_peer(unpacked.invite)
        else:
            raise BadInput(
                "the invite is of another version", hint="upgrade Holdfast on this machine"
            )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadInput("the invite cannot be read", hint=_HINT) from None
    check_invite(found)
    return found


def check_invite(invite: Invite | PeerInvite) -> None:
    check_mesh(invite.mesh)
    if isinstance(invite, Invite):
        check_broker_url(invite.url)
    elif not _are_addresses(invite.addresses):
        raise BadInput("the invite names addresses that cannot be", hint=_HINT)
    elif len(invite.capability) > BUS_CAPABILITY_BYTES_MAX:
        raise BadInput("the invite holds a right that is too long", hint=_HINT)
    try:
        parse_card(invite.card)
    except HoldfastError:
        whom = "broker" if isinstance(invite, Invite) else "owner"
        raise BadInput(f"the invite names no {whom} by its card", hint=_HINT) from None
    if len(invite.secret) != SECRET_BYTES:
        raise BadInput("the invite holds no secret", hint=_HINT)


def _are_addresses(addresses: tuple[str, ...]) -> bool:
    return len(addresses) <= BUS_ADDRESSES_MAX and all(
        0 < len(one) <= LINK_URL_BYTES_MAX and one.isprintable() and ":" in one for one in addresses
    )


def check_broker_url(url: str) -> str:
    """Raises unless a broker can be at this address: on another machine only with TLS."""
    try:
        parts = urlsplit(url)
        plain = parts.scheme == "http" and parts.hostname in _LOOPBACK
        fits = (
            (parts.scheme == "https" or plain)
            and bool(parts.hostname)
            and parts.port != 0
            and not (parts.username or parts.query or parts.fragment)
            and parts.path in ("", "/")
            and len(url) <= LINK_URL_BYTES_MAX
            and url.isprintable()
        )
    except ValueError:
        fits = False
    if not fits:
        raise BadInput(
            f"{shown_address(url)} is no address of a broker",
            hint="write https://HOST:PORT, or http://127.0.0.1:PORT for one on this machine",
        )
    return url


def digest(secret: bytes) -> bytes:
    """What a broker keeps of an invite's secret, which is random and too long to be guessed."""
    return sha256(b"holdfast invite 1\0" + secret).digest()


def _sum(packed: bytes) -> bytes:
    return sha256(b"holdfast invite sum 1\0" + packed).digest()[:_SUM_BYTES]
