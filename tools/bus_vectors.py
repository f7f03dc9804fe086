"""The test vectors of the bus: signed parcels, messages, capabilities (see `vectors`)."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec
from nacl.signing import SigningKey

from holdfast.rules.bus import capability as capabilities
from holdfast.rules.bus.message import BusMessage, MessageKind, decode_message, encode_message
from holdfast.rules.bus.signed_envelope import (
    NONCE_BYTES,
    Recipient,
    SigningMode,
    check_payload_ids,
    check_recipient,
    check_signature,
    read_parcel,
    sign_parcel,
)
from holdfast.rules.errors import HoldfastError
from holdfast.rules.ids import uuid7
from holdfast.rules.limits import BUS_CAPABILITY_MS, DAY_MS

AT_MS: Final = 1_700_000_000_000


def _bytes(text: str, size: int = 32) -> bytes:
    """Bytes that look random and follow from a text."""
    return b"".join(sha256(f"{text} {n}".encode()).digest() for n in range(size // 32 + 1))[:size]


ANA, BOB, EVE = (SigningKey(_bytes(name)) for name in ("ana", "bob", "eve"))
BOBS_KEY: Final = bytes(BOB.verify_key)
LIFE: Final = _bytes("an incarnation", 16)
TO_BOB: Final = Recipient.direct(BOBS_KEY, LIFE)


def _id(number: int) -> bytes:
    return uuid7(AT_MS, b"\0\0\0" + number.to_bytes(7, "big"))


# --- messages ------------------------------------------------------------------------------------


def _messages() -> list[tuple[str, BusMessage]]:
    return [
        ("a plain send", BusMessage(id=_id(1), kind=MessageKind.SEND, body=b"hello")),
        (
            "a send with everything",
            BusMessage(
                id=_id(2),
                kind=MessageKind.SEND,
                topic="builds.größe",
                body=b'{"a":1}',
                content_type="application/json",
                priority="now",
                ttl_ms=86_400_000,
                durable=True,
            ),
        ),
        ("a publish", BusMessage(id=_id(3), kind=MessageKind.PUBLISH, topic="builds", body=b"red")),
        (
            "a request",
            BusMessage(id=_id(4), kind=MessageKind.REQUEST, topic="resize", ttl_ms=30_000),
        ),
        (
            "a reply",
            BusMessage(id=_id(5), kind=MessageKind.REPLY, correlation=_id(4), body=b"\x00\xff"),
        ),
        (
            "a reply with an error",
            BusMessage(
                id=_id(6), kind=MessageKind.REPLY, correlation=_id(4), code="failed", body=b"why"
            ),
        ),
        ("a cancel", BusMessage(id=_id(7), kind=MessageKind.CANCEL, correlation=_id(4))),
    ]


def messages() -> dict[str, Any]:
    made = []
    for name, message in _messages():
        raw = encode_message(message)
        assert decode_message(raw) == message, name
        made.append({"name": name, "fields": msgspec.to_builtins(message, builtin_types=(bytes,)),
                     "raw": raw})  # fmt: skip
    return {"what": "the elements of a message of the bus, and its payload", "vectors": made}


# --- parcels -------------------------------------------------------------------------------------


def parcels() -> dict[str, Any]:
    payloads = [encode_message(message) for _, message in _messages()]
    long = bytes(range(256)) * 13
    made = []
    for name, to, mode, first, given in (
        ("one message", TO_BOB, SigningMode.EACH, 1, payloads[:1]),
        ("three, signed one by one", TO_BOB, SigningMode.EACH, 41, payloads[:3]),
        ("three, signed together", TO_BOB, SigningMode.BATCH, 2**40, payloads[:3]),
        ("one, as a batch", TO_BOB, SigningMode.BATCH, 7, payloads[3:4]),
        ("to a topic", Recipient.topic("builds"), SigningMode.EACH, 9, payloads[2:3]),
        ("to any who serves", Recipient.anycast("größe"), SigningMode.BATCH, 2**62, payloads[3:4]),
        ("payloads of several chunks and of none", TO_BOB, SigningMode.BATCH, 5,
         [long, b"", long[:1024], long[:1025], long[:3000]]),
    ):  # fmt: skip
        nonces = _bytes(f"nonces of {name}", NONCE_BYTES * len(given))
        raw = sign_parcel(ANA, to, given, first, nonces, mode)
        read = read_parcel(raw)
        check_signature(read)
        check_payload_ids(read)
        check_recipient(read, BOBS_KEY, LIFE)
        made.append(
            {
                "name": name,
                "seed": bytes(ANA),
                "sender": bytes(ANA.verify_key),
                "mode": int(mode),
                "recipient": [int(to.kind), to.key, to.incarnation, to.name],
                "first_sequence": first.to_bytes(8),
                "nonces": nonces,
                "payloads": given,
                "payload_ids": [head.payload_id for head in read.each_head()],
                "raw": raw,
            }
        )
    about = "the seed of a sender, what it signs, and the parcel; recipient: kind, key, life, name"
    return {"what": about, "vectors": made}


def refused_parcels() -> dict[str, Any]:
    payloads = [encode_message(message) for _, message in _messages()][:2]
    nonces = _bytes("nonces", 2 * NONCE_BYTES)
    good = sign_parcel(ANA, TO_BOB, payloads, 7, nonces, SigningMode.BATCH)
    one = sign_parcel(ANA, TO_BOB, payloads[:1], 7, nonces[:NONCE_BYTES], SigningMode.BATCH)
    other = sign_parcel(ANA, Recipient.direct(bytes(EVE.verify_key), LIFE), payloads, 7, nonces,
                        SigningMode.BATCH)  # fmt: skip
    old = sign_parcel(ANA, Recipient.direct(BOBS_KEY, bytes(16)), payloads, 7, nonces,
                      SigningMode.BATCH)  # fmt: skip
    cases = [
        ("empty", b""),
        ("cut off", good[:-1]),
        ("something behind it", good + b"\0"),
        ("another version", b"\x02" + good[1:]),
        ("another way to sign", good[:1] + b"\x03" + good[2:]),
        ("signed in the other way", one[:1] + b"\x01" + one[2:]),
        ("a length beyond every limit", good[:153] + b"\xff" * 4 + good[157:]),
        ("another sender", good[:2] + bytes(EVE.verify_key) + good[34:]),
        ("another payload", good[:-1] + bytes((good[-1] ^ 1,))),
        ("no messages", good[:85] + bytes(4) + good[89:]),
        ("a recipient of an unknown kind", good[:36] + b"\x09" + good[37:]),
        ("for another peer", other),
        ("for an earlier life of the store", old),
    ]
    made = []
    for name, raw in cases:
        made.append({"name": name, "raw": raw, "code": _refusal(raw, name)})
    about = (
        f"bytes that the peer {BOBS_KEY.hex()} with the incarnation {LIFE.hex()} refuses, and the "
        "code of the error that ours gives"
    )
    return {"what": about, "vectors": made}


def _refusal(raw: bytes, name: str) -> str:
    try:
        read = read_parcel(raw)
        check_signature(read)
        check_payload_ids(read)
        check_recipient(read, BOBS_KEY, LIFE)
    except HoldfastError as error:
        return error.code
    raise AssertionError(f"{name} is not refused")


# --- capabilities --------------------------------------------------------------------------------


def bus_capabilities() -> dict[str, Any]:
    end = AT_MS + BUS_CAPABILITY_MS
    eve = bytes(EVE.verify_key)
    first = capabilities.issue(
        ANA,
        BOBS_KEY,
        ["mesh:team:read", "mesh:team:write", "topic:builds.>"],
        now_ms=AT_MS,
        expires_at=end,
        name="bob",
    )
    second = capabilities.narrow(
        BOB, first, eve, ["mesh:team:read", "topic:builds.red"], now_ms=AT_MS + 1,
        expires_at=end - DAY_MS,
    )  # fmt: skip
    third = capabilities.narrow(
        EVE, second, BOBS_KEY, ["topic:builds.red"], now_ms=AT_MS + 2, expires_at=end - DAY_MS
    )
    made = []
    for name, signers, given in (
        ("of one step", [ANA], first),
        ("passed on with less", [ANA, BOB], second),
        ("passed on twice", [ANA, BOB, EVE], third),
    ):
        capabilities.check_capability(given.raw, given.holder, AT_MS + 3)
        made.append({
            "name": name, "seeds": [bytes(key) for key in signers], "issuer": given.issuer,
            "steps": [msgspec.to_builtins(step, builtin_types=(bytes,)) for step in given.steps],
            "raw": given.raw,
        })  # fmt: skip
    about = "the seed of each signer; holder, name, scopes, times and signature of each step; bytes"
    return {"what": about, "vectors": made}
