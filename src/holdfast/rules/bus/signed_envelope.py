"""The signed envelope: how a message of the bus proves who sent it, to whom, and that it is new.

A peer signs, under a domain tag: its own key, the recipient, a random nonce, a sequence number and
the BLAKE3 hash of the payload (the payload id). The payload itself is not encrypted: that is the
link's business. Everything that a receiver acts on stands in the payload, or is signed beside it.

The recipient of a direct message is a key and the **incarnation** of that peer's store. A store
that may have gone back in time takes a new incarnation, so that what was signed for the old one is
worth nothing to it.

On a link, messages travel in **parcels**. All messages of a parcel have one sender and one
recipient. Either each has a signature of its own, or one signature covers the ordered list of them.
A parcel of one message with a signature of its own is the plain signed envelope, which others can
pass on.

    version  1 byte      mode      1 byte      sender      32 bytes
    recipient length     2 bytes               recipient
    count    4 bytes                           signatures  64 bytes: one, or one for each
    lengths  4 bytes for each payload
    heads    64 bytes for each: nonce 24, sequence 8, payload id 32
    payloads

Numbers are big-endian, every length is given once, and nothing may follow: so there is one spelling
of a parcel. An arrival is checked in this order: size and form (`read_parcel`), signature
(`check_signature`), payload id (`check_payload_ids`), recipient (`check_recipient`), and then the
sequence and nonce by the store (`rules/bus/replay.py`). Nothing changes before all of them passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from blake3 import blake3

from holdfast.rules.errors import (
    BadEnvelope,
    BadInput,
    BadPayloadId,
    BadSignature,
    OverLimit,
    WrongRecipient,
)
from holdfast.rules.keys import KEY_BYTES
from holdfast.rules.limits import (
    BUS_FRONTS_KEPT,
    BUS_NAME_BYTES_MAX,
    BUS_PARCEL_BYTES_MAX,
    BUS_PARCEL_MESSAGES_MAX,
    BUS_PAYLOAD_BYTES_MAX,
    LAMPORT_MAX,
)

if TYPE_CHECKING:
    from nacl.signing import SigningKey

VERSION: Final = 1
NONCE_BYTES: Final = 24
INCARNATION_BYTES: Final = 16
PAYLOAD_ID_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
HEAD_BYTES: Final = NONCE_BYTES + 8 + PAYLOAD_ID_BYTES
SEQUENCE_MAX: Final = LAMPORT_MAX - 1
"""Sequences are positive and fit 63 bits, which every database can hold."""

_ONE: Final = b"holdfast bus envelope 1\0"
_MANY: Final = b"holdfast bus batch 1\0"
_FRONT: Final = Struct(f">BB{KEY_BYTES}sH")
_COUNT: Final = Struct(">I")
_HEAD: Final = Struct(f">{NONCE_BYTES}sQ{PAYLOAD_ID_BYTES}s")
_SIGNED_FROM: Final = 2
"""Version and mode are not signed: the domain tag says them."""
_RECIPIENT_LENGTH_AT: Final = _FRONT.size - 2


class SigningMode(IntEnum):
    """How the messages of a parcel are signed."""

    EACH = 1
    BATCH = 2


_MODES: Final = {int(mode): mode for mode in SigningMode}


class RecipientKind(IntEnum):
    DIRECT = 1
    TOPIC = 2
    ANYCAST = 3


class Recipient(NamedTuple):
    """Whom a message is for: one peer's store, all who listen to a topic, or any one peer that
    serves something.
    """

    kind: RecipientKind
    key: bytes = b""
    incarnation: bytes = b""
    name: str = ""

    @classmethod
    def direct(cls, key: bytes, incarnation: bytes) -> Recipient:
        if len(key) != KEY_BYTES or len(incarnation) != INCARNATION_BYTES:
            raise BadInput("a direct recipient is a key of 32 bytes and an incarnation of 16")
        return cls(RecipientKind.DIRECT, key, incarnation)

    @classmethod
    def topic(cls, name: str) -> Recipient:
        return cls(RecipientKind.TOPIC, name=check_bus_name(name, "topic"))

    @classmethod
    def anycast(cls, name: str) -> Recipient:
        return cls(RecipientKind.ANYCAST, name=check_bus_name(name, "service"))

    def encode(self) -> bytes:
        if self.kind is RecipientKind.DIRECT:
            return bytes((self.kind,)) + self.key + self.incarnation
        return bytes((self.kind,)) + self.name.encode()


class SignedHead(NamedTuple):
    """What the signature covers of one message, beside sender and recipient."""

    nonce: bytes
    sequence: int
    payload_id: bytes


class SignedParcel(msgspec.Struct, frozen=True, gc=False):
    """Messages of one sender for one recipient, as they travel."""

    front: bytes
    """What stands before the signatures. Mode, sender and recipient are read from it."""
    mode: SigningMode
    sender: bytes
    recipient: Recipient
    signatures: bytes
    heads: bytes
    payloads: Sequence[bytes]

    @property
    def count(self) -> int:
        return len(self.payloads)

    def head(self, at: int) -> SignedHead:
        return SignedHead._make(_HEAD.unpack_from(self.heads, at * HEAD_BYTES))

    @property
    def last_sequence(self) -> int:
        return int.from_bytes(self.heads[-PAYLOAD_ID_BYTES - 8 : -PAYLOAD_ID_BYTES])

    def each_head(self) -> list[SignedHead]:
        return [SignedHead._make(found) for found in self.raw_heads()]

    def raw_heads(self) -> Iterator[tuple[bytes, int, bytes]]:
        """The fields of each head, plain: there are many."""
        return _HEAD.iter_unpack(self.heads)


def check_bus_name(name: str, what: str) -> str:
    """A name of a topic or service: text without control characters, of bounded length."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise BadInput(f"{name!r} is no name of a {what}", hint="use printable text")
    if len(name.encode("utf-8", "surrogatepass")) > BUS_NAME_BYTES_MAX:
        raise OverLimit(f"the name of a {what} has over {BUS_NAME_BYTES_MAX} bytes")
    return name


def payload_id(payload: bytes) -> bytes:
    return blake3(payload).digest()


# --- writing -------------------------------------------------------------------------------------


def sign_parcel(
    key: SigningKey,
    recipient: Recipient,
    payloads: Sequence[bytes],
    first_sequence: int,
    nonces: bytes,
    mode: SigningMode,
) -> bytes:
    """The bytes of a parcel. Its messages get consecutive numbers, and 24 bytes of `nonces`
    each.
    """
    return ParcelSigner(key, recipient, mode).sign(payloads, first_sequence, nonces)


class ParcelSigner:
    """Signs what one peer sends to one recipient: what is the same in all of it is made once."""

    __slots__ = ("_front", "_front_of_one", "_mode", "_secret", "_text_of_one")

    def __init__(self, key: SigningKey, recipient: Recipient, mode: SigningMode) -> None:
        sender, to = bytes(key.verify_key), recipient.encode()
        self._mode = mode
        self._secret = bytes(key) + sender
        self._front = _FRONT.pack(VERSION, mode, sender, len(to)) + to
        self._front_of_one = self._front + _COUNT.pack(1)
        self._text_of_one = _signed_front(mode, self._front_of_one)

    def sign(self, payloads: Sequence[bytes], first_sequence: int, nonces: bytes) -> bytes:
        """The bytes of a parcel, as `sign_parcel` has them."""
        from nacl.bindings import crypto_sign  # here: its library takes long to load

        count = len(payloads)
        _check_count(count)
        if len(nonces) != count * NONCE_BYTES:
            raise BadInput(f"{count} messages need {count * NONCE_BYTES} bytes of nonces")
        if not 1 <= first_sequence <= SEQUENCE_MAX - count:
            raise OverLimit(f"{first_sequence} is no sequence number that messages can begin at")
        if count > 1:
            return self._sign_many(payloads, first_sequence, nonces)
        payload = payloads[0]
        length = len(payload)
        if length > BUS_PAYLOAD_BYTES_MAX:
            raise _too_large(length)
        head = _HEAD.pack(nonces, first_sequence, blake3(payload).digest())
        signature = crypto_sign(self._text_of_one + head, self._secret)[:SIGNATURE_BYTES]
        return b"".join((self._front_of_one, signature, _COUNT.pack(length), head, payload))

    def _sign_many(self, payloads: Sequence[bytes], first_sequence: int, nonces: bytes) -> bytes:
        from nacl.bindings import crypto_sign

        count, secret = len(payloads), self._secret
        heads = b"".join(
            [
                _HEAD.pack(
                    nonces[at * NONCE_BYTES : (at + 1) * NONCE_BYTES],
                    first_sequence + at,
                    blake3(payload).digest(),
                )
                for at, payload in enumerate(payloads)
            ]
        )
        front = self._front + _COUNT.pack(count)
        signatures = [
            crypto_sign(text, secret)[:SIGNATURE_BYTES]
            for text in _signed_texts(self._mode, front, heads)
        ]
        lengths = [len(payload) for payload in payloads]
        raw = b"".join((front, *signatures, _lengths(count).pack(*lengths), heads, *payloads))
        if max(lengths) > BUS_PAYLOAD_BYTES_MAX or len(raw) > BUS_PARCEL_BYTES_MAX:
            raise _too_large(max(lengths))
        return raw


def _too_large(length: int) -> OverLimit:
    return OverLimit(
        f"a payload has {length} bytes; the most is {BUS_PAYLOAD_BYTES_MAX}, and "
        f"{BUS_PARCEL_BYTES_MAX} for a parcel"
    )


def _lengths(count: int) -> Struct:
    """How the lengths of so many payloads are written."""
    return _COUNT if count == 1 else Struct(f">{count}I")


def _signed_front(mode: SigningMode, front: bytes) -> bytes:
    """What stands before the heads in a text that is signed: sender and recipient as they travel,
    and of a batch how many there are. The length stands before the recipient, so that no two lists
    of fields give the same text.
    """
    if mode is SigningMode.BATCH:
        return _MANY + front[_SIGNED_FROM:]
    return _ONE + front[_SIGNED_FROM : -_COUNT.size]


def _signed_texts(mode: SigningMode, front: bytes, heads: bytes) -> Sequence[bytes]:
    """What each signature of a parcel covers."""
    text = _signed_front(mode, front)
    if mode is SigningMode.BATCH:
        return (text + heads,)
    return [text + heads[at : at + HEAD_BYTES] for at in range(0, len(heads), HEAD_BYTES)]


# --- checking, in this order -----------------------------------------------------------------


def read_parcel(raw: bytes) -> SignedParcel:
    """1. Size and form. Raises OverLimit or BadEnvelope; nothing is believed yet."""
    size = len(raw)
    if size > BUS_PARCEL_BYTES_MAX:
        raise OverLimit(f"a parcel has {size} bytes; the most is {BUS_PARCEL_BYTES_MAX}")
    if size < _FRONT.size:
        raise _too_short()
    at = _RECIPIENT_LENGTH_AT
    signed = _FRONT.size + (raw[at] << 8 | raw[at + 1]) + _COUNT.size
    front = raw[:signed]
    mode, sender, recipient, count = _read_front(front)
    measured = signed + SIGNATURE_BYTES * (count if mode is SigningMode.EACH else 1)
    headed = measured + 4 * count
    at = headed + HEAD_BYTES * count
    if size < at:
        raise _too_short()
    lengths = _lengths(count).unpack_from(raw, measured)
    if max(lengths) > BUS_PAYLOAD_BYTES_MAX:
        raise OverLimit(f"a payload has {max(lengths)} bytes; most is {BUS_PAYLOAD_BYTES_MAX}")
    left = size - at - sum(lengths)
    if left < 0:
        raise _too_short()
    if left:
        raise BadEnvelope(f"{left} bytes follow the end of a parcel")
    heads, signatures = raw[headed:at], raw[signed:measured]
    if count == 1:
        payloads = [raw[at:]]
    else:
        payloads = []
        for length in lengths:
            payloads.append(raw[at : at + length])
            at += length
    return SignedParcel(front, mode, sender, recipient, signatures, heads, payloads)


@lru_cache(maxsize=BUS_FRONTS_KEPT)
def _read_front(front: bytes) -> tuple[SigningMode, bytes, Recipient, int]:
    """What stands before the signatures: a peer says the same in every parcel of as many messages,
    so it is most often known.
    """
    version, mode, sender, to = _FRONT.unpack_from(front)
    if version != VERSION:
        raise BadEnvelope(f"a parcel of version {version} cannot be read; this is {VERSION}")
    if mode not in _MODES:
        raise BadEnvelope(f"{mode} is no way to sign a parcel")
    counted = _FRONT.size + to
    if len(front) < counted + _COUNT.size:
        raise _too_short()
    recipient = _read_recipient(front[_FRONT.size : counted])
    (count,) = _COUNT.unpack_from(front, counted)
    _check_count(count)
    return _MODES[mode], sender, recipient, count


def _too_short() -> BadEnvelope:
    return BadEnvelope("a parcel ends in the middle")


def check_signature(parcel: SignedParcel) -> None:
    """2. The sender signed it. Raises BadSignature. This is the slow step, and takes no lock: it
    may run in a thread.
    """
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import BadSignatureError

    signatures, key = parcel.signatures, parcel.sender
    texts = _signed_texts(parcel.mode, parcel.front, parcel.heads)
    try:
        if len(signatures) != len(texts) * SIGNATURE_BYTES:
            raise ValueError("a signature is missing")
        at = 0
        for text in texts:
            end = at + SIGNATURE_BYTES
            crypto_sign_open(signatures[at:end] + text, key)
            at = end
    except (BadSignatureError, ValueError):
        raise BadSignature("a message is not signed by the key that it names") from None


def check_payload_ids(parcel: SignedParcel) -> None:
    """3. Each payload is the one that was signed. Raises BadPayloadId."""
    heads, end = parcel.heads, 0
    for payload in parcel.payloads:
        end += HEAD_BYTES
        if blake3(payload).digest() != heads[end - PAYLOAD_ID_BYTES : end]:
            raise BadPayloadId("a payload does not hash to the id that was signed")


def check_recipient(parcel: SignedParcel, key: bytes, incarnation: bytes) -> None:
    """4. It is for us as we are now, where it names one peer. Raises WrongRecipient."""
    to = parcel.recipient
    if to.kind is not RecipientKind.DIRECT:
        return
    if to.key != key:
        raise WrongRecipient("a message is for another peer")
    if to.incarnation != incarnation:
        raise WrongRecipient("a message was signed for an earlier life of this peer's store")


def _check_count(count: int) -> None:
    if not 1 <= count <= BUS_PARCEL_MESSAGES_MAX:
        raise OverLimit(f"a parcel has {count} messages; 1 to {BUS_PARCEL_MESSAGES_MAX} fit")


def _read_recipient(raw: bytes) -> Recipient:
    kind, rest = (raw[0], raw[1:]) if raw else (0, b"")
    if kind == RecipientKind.DIRECT and len(rest) == KEY_BYTES + INCARNATION_BYTES:
        return Recipient(RecipientKind.DIRECT, rest[:KEY_BYTES], rest[KEY_BYTES:])
    if kind in (RecipientKind.TOPIC, RecipientKind.ANYCAST):
        try:
            name = check_bus_name(rest.decode(), "recipient")
        except (UnicodeDecodeError, BadInput):
            raise BadEnvelope("the name of a recipient cannot be read") from None
        return Recipient(RecipientKind(kind), name=name)
    raise BadEnvelope("the recipient of a parcel cannot be read")
