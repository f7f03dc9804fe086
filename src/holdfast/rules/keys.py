"""How a zone proves who it is, and what a token looks like.

A zone is known by its Ed25519 key, and a **card** is how people hand a key on: `name:ed25519:key`.

Two zones that connect say **hello**. Each signs the same transcript: both names, both keys, a fresh
random number from each, and the digest of the certificate that encrypts the connection. The numbers
make every hello a new one, so a recorded signature is worth nothing later. The certificate ties the
hello to this connection: an attacker in the middle can only show a certificate of his own, and then
the transcripts of the two sides differ. So certificates need no authority behind them, and a zone
may make a new one at any time.

The two signatures begin with different words. Otherwise an attacker could make a zone sign as a
server what he then shows as a client. A hello on a link of the bus has words of its own for the
same reason.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Final, Literal

import msgspec

from holdfast.rules.errors import BadInput, BadToken
from holdfast.rules.limits import TOKEN_BYTES
from holdfast.rules.names import check_peer
from holdfast.rules.rows import ZoneKey

KEY_BYTES: Final = 32
PROOF_BYTES: Final = 64
NONCE_BYTES: Final = 32
KIND: Final = "ed25519"
TOKEN_PREFIX: Final = "hf_"

Role = Literal["server", "client"]
Purpose = Literal["http", "bus"]
"""What a hello opens: a session over HTTP, or a link of the bus. A proof for one is worth nothing
for the other."""

_CARD_HINT: Final = "a card is NAME:ed25519:KEY; on the other node run: holdfast peer card"
_WORDS: Final[dict[tuple[Purpose, Role], bytes]] = {
    ("http", "server"): b"holdfast hello server 1\0",
    ("http", "client"): b"holdfast hello client 1\0",
    ("bus", "server"): b"holdfast bus hello server 1\0",
    ("bus", "client"): b"holdfast bus hello client 1\0",
}
_encode: Final = msgspec.msgpack.Encoder().encode


# --- Keys and cards ----------------------------------------------------------------------------


def text_of(raw: bytes) -> str:
    """Bytes as base64url without padding."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def bytes_of(text: str, size: int, what: str = "the text") -> bytes:
    """The inverse of `text_of`; raises for any other spelling of the same bytes."""
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raw = b""
    if len(raw) != size or text_of(raw) != text:
        raise BadInput(f"{what} is not {size} bytes in base64url without padding")
    return raw


def check_key_bytes(key: bytes) -> bytes:
    """Raises unless only the owner of this key can sign with it.

    For a handful of points on the curve anybody can make a signature that fits any message, so a
    node that trusts one of them would trust everybody.
    """
    from nacl.bindings import crypto_core_ed25519_is_valid_point  # here: it takes long to load

    if len(key) != KEY_BYTES or not crypto_core_ed25519_is_valid_point(key):
        raise BadInput("that is not a usable Ed25519 key", hint=_CARD_HINT)
    return key


def is_good(key: ZoneKey, now_ms: int) -> bool:
    """Whether the key has not expired yet."""
    return key.expires_at is None or now_ms < key.expires_at


def public_key(seed: bytes) -> bytes:
    from nacl.signing import SigningKey

    return bytes(SigningKey(seed).verify_key)


def card_of(name: str, key: bytes) -> str:
    return f"{name}:{KIND}:{text_of(key)}"


def parse_card(text: str) -> tuple[str, bytes]:
    """Name and key of a card. The name may contain colons."""
    parts = text.strip().rsplit(":", 2)
    if len(parts) != 3 or parts[1] != KIND:
        raise BadInput("that is not the card of a zone", hint=_CARD_HINT)
    try:
        key = bytes_of(parts[2], KEY_BYTES, "the key on the card")
    except BadInput as error:
        raise BadInput(error.message, hint=_CARD_HINT) from None
    return check_peer(parts[0]), check_key_bytes(key)


def split_card(text: str) -> tuple[str, str | None]:
    """The card and the address of `CARD@HOST:PORT`; None for a card alone. A name may contain an
    at sign, so what stands before the last one must be a card.
    """
    card, at, address = text.strip().rpartition("@")
    if not at or f":{KIND}:" not in card:
        return text, None
    return card, address


# --- Hello -------------------------------------------------------------------------------------


class HelloTranscript(msgspec.Struct, frozen=True, array_like=True):
    """Everything that the two sides of a connection must agree on."""

    client_zone: str
    client_key: bytes
    client_nonce: bytes
    server_zone: str
    server_key: bytes
    server_nonce: bytes
    certificate: bytes
    """SHA-256 of the certificate that the server shows, as each side knows it by itself."""

    def transcript(self) -> bytes:
        return _encode(self)


def prove(seed: bytes, role: Role, hello: HelloTranscript, purpose: Purpose = "http") -> bytes:
    """One side's signature."""
    from nacl.signing import SigningKey

    return SigningKey(seed).sign(_WORDS[purpose, role] + hello.transcript()).signature


def check_proof(
    key: bytes, role: Role, hello: HelloTranscript, proof: bytes, purpose: Purpose = "http"
) -> bool:
    """Whether the owner of the key signed this hello in this role, for this purpose."""
    if len(proof) != PROOF_BYTES or len(key) != KEY_BYTES:
        return False
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        VerifyKey(key).verify(_WORDS[purpose, role] + hello.transcript(), proof)
    except BadSignatureError:
        return False
    return True


# --- Tokens ------------------------------------------------------------------------------------


def token_text(random: bytes) -> str:
    """A token as its bearer keeps it. People and scanners recognise it by its beginning."""
    assert len(random) == TOKEN_BYTES
    return f"{TOKEN_PREFIX}{text_of(random)}"


def token_digest(text: str) -> bytes:
    """What is kept of a token. It is random and long, so a plain hash cannot be guessed back."""
    try:
        if not text.startswith(TOKEN_PREFIX):
            raise BadInput("no prefix")
        bytes_of(text.removeprefix(TOKEN_PREFIX), TOKEN_BYTES)
    except BadInput:
        # The message does not repeat the text: it may be a secret of something else.
        raise BadToken("this is not a token of Holdfast") from None
    return sha256(text.encode()).digest()
