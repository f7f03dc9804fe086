"""What a peer does with parcels of another one, by the words of `docs/protocol/bus.md`.

Written a second time, with sets and lists, and with none of the bus's code: own bytes, own checks,
own memory of what came. It keeps everything for ever, so a store that forgets too early, or
remembers what it refused, is told from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from blake3 import blake3
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

EACH, BATCH = 1, 2
DIRECT, TOPIC, ANYCAST = 1, 2, 3
SEND, PUBLISH, REQUEST, REPLY, CANCEL = 1, 2, 3, 4, 5
SEQUENCE_MAX = (1 << 63) - 2
_ONE, _MANY = b"holdfast bus envelope 1\0", b"holdfast bus batch 1\0"


def digest_of(payload: bytes) -> bytes:
    return blake3(payload).digest()


class Head(NamedTuple):
    nonce: bytes
    sequence: int
    payload_id: bytes

    def pack(self) -> bytes:
        return self.nonce + self.sequence.to_bytes(8) + self.payload_id


def direct(key: bytes, life: bytes) -> bytes:
    return bytes([DIRECT]) + key + life


def payload(
    id: bytes, kind: int, *, topic: str = "", body: bytes = b"", about: bytes = b"", durable: bool
) -> bytes:
    fields = [1, id, kind, topic, body, "", about, "next", None, "", durable]
    return msgspec.msgpack.encode(fields)


def write_parcel(
    signer: SigningKey, to: bytes, heads: list[Head], payloads: list[bytes], mode: int
) -> bytes:
    """A parcel as a peer would write it that signs whatever it likes."""
    sender, count = bytes(signer.verify_key), len(payloads).to_bytes(4)
    signed = b"".join(signer.sign(text).signature for text in _texts(sender, to, heads, mode))
    return b"".join(
        (
            *(bytes([1, mode]), sender, len(to).to_bytes(2), to, count, signed),
            *(len(one).to_bytes(4) for one in payloads),
            *(head.pack() for head in heads),
            *payloads,
        )
    )


def _texts(sender: bytes, to: bytes, heads: list[Head], mode: int) -> list[bytes]:
    front = sender + len(to).to_bytes(2) + to
    if mode == BATCH:
        all_heads = b"".join(head.pack() for head in heads)
        return [_MANY + front + len(heads).to_bytes(4) + all_heads]
    return [_ONE + front + head.pack() for head in heads]


class Refusal(Exception):
    """A whole parcel is refused, and the link with it."""

    def __init__(self, *codes: str) -> None:
        super().__init__(*codes)
        self.codes = codes
        """The codes that would be right: where form alone is wrong, either may be."""


class BusModel:
    """One receiver."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.marks: dict[bytes, int] = {}
        self.inbox: list[tuple[bytes, bytes, bytes]] = []
        """Sender, id and body of what waits for a handler."""
        self._nonces: set[bytes] = set()
        self._ids: set[tuple[bytes, bytes]] = set()

    def take(self, life: bytes, link: bytes, raw: bytes) -> list[tuple[int, str]] | Refusal:
        """The numbers that are refused, with their codes; a Refusal if nothing of it counts.
        `link` is the key that the other side has proved.
        """
        try:
            return self._take(life, link, raw)
        except Refusal as refusal:
            return refusal

    def _take(self, life: bytes, link: bytes, raw: bytes) -> list[tuple[int, str]]:
        sender, to, heads, payloads, mode, signatures = self._read(raw)
        if sender != link:
            raise Refusal("bad_signature")
        for at, text in enumerate(_texts(sender, to, heads, mode)):
            try:
                VerifyKey(sender).verify(text, signatures[at * 64 : at * 64 + 64])
            except (BadSignatureError, ValueError):
                raise Refusal("bad_signature") from None
        for head, one in zip(heads, payloads, strict=True):
            if digest_of(one) != head.payload_id:
                raise Refusal("bad_payload_id")
        refused: list[tuple[int, str]] = []
        for head, one in zip(heads, payloads, strict=True):
            code = self._take_one(life, sender, to, head, one)
            if code:
                refused.append((head.sequence, code))
        return refused

    def _take_one(self, life: bytes, sender: bytes, to: bytes, head: Head, one: bytes) -> str:
        if to[0] == DIRECT and to != direct(self.key, life):
            return "wrong_recipient"
        fields = _fields(one)
        if fields is None:
            return "bad_envelope"
        _, id, kind, topic, body, _, _, _, _, _, durable = fields
        if to[0] == TOPIC or (to[0] == ANYCAST and topic.encode() != to[1:]):
            return "wrong_recipient"  # what is signed for a topic travels in another frame
        if head.sequence <= self.marks.get(sender, 0) or head.nonce in self._nonces:
            return "bad_sequence"
        if head.sequence > SEQUENCE_MAX:
            return "bad_sequence"
        self.marks[sender] = head.sequence
        self._nonces.add(head.nonce)
        if (sender, id) in self._ids:
            return ""
        if kind in (SEND, REQUEST, REPLY) or durable:
            self._ids.add((sender, id))
        if kind == SEND or (kind == PUBLISH and durable):
            self.inbox.append((sender, id, body))
        return ""

    def _read(self, raw: bytes) -> tuple[bytes, bytes, list[Head], list[bytes], int, bytes]:
        rest = bytearray(raw)

        def cut(size: int) -> bytes:
            if len(rest) < size:
                raise Refusal("bad_envelope", "over_limit")
            taken = bytes(rest[:size])
            del rest[:size]
            return taken

        version, mode = cut(2)
        sender = cut(32)
        to = cut(int.from_bytes(cut(2)))
        count = int.from_bytes(cut(4))
        known = version == 1 and mode in (EACH, BATCH) and 1 <= count <= 1024
        if not (known and _is_recipient(to)):
            raise Refusal("bad_envelope", "over_limit")
        signatures = cut(64 * (count if mode == EACH else 1))
        sizes = [int.from_bytes(cut(4)) for _ in range(count)]
        heads = [Head(cut(24), int.from_bytes(cut(8)), cut(32)) for _ in range(count)]
        payloads = [cut(size) for size in sizes]
        if rest:
            raise Refusal("bad_envelope")
        return sender, to, heads, payloads, mode, signatures


def _is_recipient(to: bytes) -> bool:
    if to[:1] == bytes([DIRECT]):
        return len(to) == 1 + 32 + 16
    try:
        name = to[1:].decode()
    except UnicodeDecodeError:
        return False
    named = 0 < len(to) - 1 <= 128 and name.isprintable()
    return to[:1] in (bytes([TOPIC]), bytes([ANYCAST])) and named


def _fields(one: bytes) -> list[Any] | None:
    """The fields of a message; None if it is none."""
    try:
        fields = msgspec.msgpack.decode(one)
    except msgspec.DecodeError:
        return None
    return fields if isinstance(fields, list) and len(fields) == 11 else None
