"""A parcel is taken whole and as it was signed, or refused by the first check that it fails."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from holdfast.rules.bus import signed_envelope
from holdfast.rules.bus.signed_envelope import (
    HEAD_BYTES,
    INCARNATION_BYTES,
    NONCE_BYTES,
    SEQUENCE_MAX,
    SIGNATURE_BYTES,
    ParcelSigner,
    Recipient,
    SignedParcel,
    SigningMode,
    check_bus_name,
    check_payload_ids,
    check_recipient,
    check_signature,
    payload_id,
    read_parcel,
    sign_parcel,
)
from holdfast.rules.errors import (
    BadEnvelope,
    BadInput,
    BadPayloadId,
    BadSignature,
    HoldfastError,
    OverLimit,
    WrongRecipient,
)
from holdfast.rules.limits import (
    BUS_FRONTS_KEPT,
    BUS_NAME_BYTES_MAX,
    BUS_PARCEL_BYTES_MAX,
    BUS_PARCEL_MESSAGES_MAX,
    BUS_PAYLOAD_BYTES_MAX,
)

ANA = SigningKey(b"a" * 32)
BOB = bytes(SigningKey(b"b" * 32).verify_key)
LIFE = bytes(range(INCARNATION_BYTES))
TO_BOB = Recipient.direct(BOB, LIFE)
PAYLOADS = [b"green", b"\x00\xff"]
ORDER = 2**252 + 27742317777372353535851937790883648493
"""How many points the group of Ed25519 has."""

recipients = st.sampled_from([TO_BOB, Recipient.topic("builds.red"), Recipient.anycast("größe")])
modes = st.sampled_from(SigningMode)


def parcel(mode: SigningMode, to: Recipient = TO_BOB, payloads: list[bytes] = PAYLOADS) -> bytes:
    nonces = blake3(b"nonces").digest(length=NONCE_BYTES * len(payloads))
    return sign_parcel(ANA, to, payloads, 7, nonces, mode)


def judged(raw: bytes, key: bytes = BOB, life: bytes = LIFE) -> SignedParcel:
    """What a receiver does before it asks its store, in the order of the contract."""
    read = read_parcel(raw)
    check_signature(read)
    check_payload_ids(read)
    check_recipient(read, key, life)
    return read


@cache
def _fields(mode: SigningMode, to: Recipient) -> dict[str, tuple[int, int]]:
    """Where each field of `parcel(mode, to)` begins and ends, counted by hand."""
    count, signatures = len(PAYLOADS), len(PAYLOADS) if mode is SigningMode.EACH else 1
    sizes = {
        "version": 1,
        "mode": 1,
        "sender": 32,
        "recipient length": 2,
        "recipient": len(to.encode()),
        "count": 4,
        "signatures": SIGNATURE_BYTES * signatures,
        "lengths": 4 * count,
        "heads": HEAD_BYTES * count,
        "payloads": sum(map(len, PAYLOADS)),
    }
    places, at = {}, 0
    for name, size in sizes.items():
        places[name] = (at, at := at + size)
    return places


FORM = (BadEnvelope, OverLimit)
REFUSED_BY: dict[str, tuple[type[HoldfastError], ...]] = {
    "version": (BadEnvelope,),
    "mode": (BadEnvelope,),
    "sender": (BadSignature,),
    "recipient length": FORM,
    # Its kind and the text of a name are form; whom it names is signed.
    "recipient": (BadEnvelope, BadSignature),
    "count": FORM,
    "signatures": (BadSignature,),
    "lengths": FORM,
    "heads": (BadSignature,),
    "payloads": (BadPayloadId,),
}


def _flips(start: int, end: int) -> Iterator[tuple[int, int]]:
    return ((at, bit) for at in range(start, end) for bit in range(8))


@pytest.mark.parametrize(
    ("mode", "to"),
    [
        (SigningMode.EACH, TO_BOB),
        (SigningMode.BATCH, TO_BOB),
        (SigningMode.EACH, Recipient.anycast("resize")),
        (SigningMode.BATCH, Recipient.topic("builds")),
    ],
)
def test_B1_every_flipped_bit_of_every_field_is_refused_by_the_check_that_covers_the_field(
    mode: SigningMode, to: Recipient
) -> None:
    good = parcel(mode, to)
    places = _fields(mode, to)
    assert max(end for _, end in places.values()) == len(good), "a field was forgotten"
    judged(good)
    wrong = []
    for field, (start, end) in places.items():
        for at, bit in _flips(start, end):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            found = _refusal(bytes(bad))
            if found not in REFUSED_BY[field]:
                wrong.append((field, at, bit, found))
    assert not wrong


def _refusal(raw: bytes) -> type[HoldfastError] | None:
    try:
        judged(raw)
    except HoldfastError as error:
        return type(error)
    return None


@pytest.mark.parametrize("mode", SigningMode)
def test_B1_the_first_check_that_fails_gives_the_error(mode: SigningMode) -> None:
    good = parcel(mode)
    places = _fields(mode, TO_BOB)
    stranger = b"x" * 32
    worse = [
        ("payloads", BadPayloadId),
        ("signatures", BadSignature),
        ("version", BadEnvelope),
    ]
    with pytest.raises(WrongRecipient):
        judged(good, stranger)
    bad = bytearray(good)
    for field, kind in worse:  # each fault comes on top of the ones before it
        bad[places[field][0]] ^= 1
        with pytest.raises(kind):
            judged(bytes(bad), stranger)


def test_B1_size_is_checked_before_anything_is_read() -> None:
    with pytest.raises(OverLimit):
        read_parcel(b"\xff" * (BUS_PARCEL_BYTES_MAX + 1))
    with pytest.raises(BadEnvelope):
        read_parcel(b"\xff" * BUS_PARCEL_BYTES_MAX)


@given(
    mode=modes,
    to=recipients,
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    first=st.integers(1, SEQUENCE_MAX - 5),
)
def test_B1_a_parcel_is_read_as_it_was_signed(
    mode: SigningMode, to: Recipient, payloads: list[bytes], first: int
) -> None:
    nonces = blake3(b"n").digest(length=NONCE_BYTES * len(payloads))
    raw = sign_parcel(ANA, to, payloads, first, nonces, mode)
    read = judged(raw)
    assert (read.mode, read.sender, read.recipient) == (mode, bytes(ANA.verify_key), to)
    assert (list(read.payloads), read.count) == (payloads, len(payloads))
    heads = read.each_head()
    assert heads == [read.head(at) for at in range(read.count)]
    assert [head.sequence for head in heads] == list(range(first, first + len(payloads)))
    assert b"".join(head.nonce for head in heads) == nonces
    assert [head.payload_id for head in heads] == [payload_id(one) for one in payloads]
    signatures = len(payloads) if mode is SigningMode.EACH else 1
    assert len(read.signatures) == SIGNATURE_BYTES * signatures


def spelled(read: SignedParcel) -> bytes:
    """The layout of a parcel, written a second time."""
    to = read.recipient.encode()
    return b"".join(
        (
            bytes((1, read.mode)),
            read.sender,
            len(to).to_bytes(2),
            to,
            read.count.to_bytes(4),
            read.signatures,
            *(len(one).to_bytes(4) for one in read.payloads),
            read.heads,
            *read.payloads,
        )
    )


@given(st.data())
def test_B1_a_parcel_has_one_spelling(data: st.DataObject) -> None:
    """Whatever bytes are read, they are the ones that its fields are written as."""
    good = parcel(data.draw(modes), data.draw(recipients))
    raw = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(raw)))
        end = at + data.draw(st.integers(0, 4))
        raw[at:end] = data.draw(st.binary(max_size=4))
    try:
        read = read_parcel(bytes(raw))
    except (BadEnvelope, OverLimit):
        return
    assert spelled(read) == bytes(raw)
    if bytes(raw) != good:
        with pytest.raises((BadSignature, BadPayloadId)):
            judged(bytes(raw))


@given(st.binary(max_size=600) | st.binary(max_size=200).map(lambda end: b"\x01\x01" + end))
def test_R4_no_bytes_break_the_reader_of_parcels(raw: bytes) -> None:
    try:
        read_parcel(raw)
    except (BadEnvelope, OverLimit):
        return
    pytest.fail("nobody signed this, and yet it has the size of all its fields")


@pytest.mark.parametrize("mode", SigningMode)
def test_R4_a_parcel_that_was_cut_or_has_something_behind_it_is_refused(mode: SigningMode) -> None:
    good = parcel(mode)
    for size in range(len(good)):
        with pytest.raises((BadEnvelope, OverLimit)):
            read_parcel(good[:size])
    with pytest.raises(BadEnvelope):
        read_parcel(good + b"\0")


def test_R4_a_count_or_length_that_lies_costs_no_memory() -> None:
    good = parcel(SigningMode.BATCH)
    start, end = _fields(SigningMode.BATCH, TO_BOB)["count"]
    for count in (0, BUS_PARCEL_MESSAGES_MAX + 1, 2**32 - 1):
        with pytest.raises(OverLimit):
            read_parcel(good[:start] + count.to_bytes(4) + good[end:])
    start, _ = _fields(SigningMode.BATCH, TO_BOB)["lengths"]
    with pytest.raises(OverLimit):
        read_parcel(good[:start] + b"\xff" * 4 + good[start + 4 :])


@pytest.mark.parametrize("mode", SigningMode)
def test_B1_one_signer_signs_single_messages_and_many_in_turn(mode: SigningMode) -> None:
    signer = ParcelSigner(ANA, TO_BOB, mode)
    for first, payloads in ((7, [b"one"]), (8, [b"two", b"three"]), (10, [b"four"])):
        nonces = bytes(range(NONCE_BYTES)) * len(payloads)
        raw = signer.sign(payloads, first, nonces)
        assert raw == sign_parcel(ANA, TO_BOB, payloads, first, nonces, mode)
        read = judged(raw)
        assert read.payloads == payloads
        assert read.head(0).sequence == first


def test_B1_no_more_fronts_are_remembered_than_are_allowed() -> None:
    """Whoever is forgotten is read again, and a front that is known vouches for nothing."""
    known = signed_envelope._read_front
    parcels = [
        sign_parcel(ANA, Recipient.topic(f"topic.{n}"), [b"x"], 1, bytes(24), SigningMode.EACH)
        for n in range(BUS_FRONTS_KEPT + 2)
    ]
    for raw in (*parcels, *parcels):
        check_signature(read_parcel(raw))
    assert known.cache_info().currsize == known.cache_info().maxsize == BUS_FRONTS_KEPT
    changed = bytearray(parcels[-1])
    changed[-1] ^= 1
    with pytest.raises(BadPayloadId):
        check_payload_ids(read_parcel(bytes(changed)))


def test_B1_a_batch_is_worth_nothing_in_another_order_or_in_part() -> None:
    """The signature of a batch covers its ordered list, and how long the list is."""
    nonces = bytes(NONCE_BYTES * 2)
    raw = sign_parcel(ANA, TO_BOB, [b"one", b"two"], 7, nonces, SigningMode.BATCH)
    read = read_parcel(raw)
    heads = [read.heads[:HEAD_BYTES], read.heads[HEAD_BYTES:]]
    for kept in ([1, 0], [0], [1], [0, 0], [0, 1, 1]):
        other = msgspec.structs.replace(
            read,
            heads=b"".join(heads[at] for at in kept),
            payloads=[read.payloads[at] for at in kept],
        )
        with pytest.raises(BadSignature):
            judged(spelled(other))


def test_B1_a_signature_of_one_way_is_worth_nothing_in_the_other() -> None:
    """One message has the same heads both ways; the domain tags keep them apart."""
    for mode, other in (
        (SigningMode.EACH, SigningMode.BATCH),
        (SigningMode.BATCH, SigningMode.EACH),
    ):
        raw = parcel(mode, payloads=[b"one"])
        with pytest.raises(BadSignature):
            judged(bytes((1, other)) + raw[2:])


def test_B1_a_signature_has_one_spelling() -> None:
    """s and s + the order of the group are the same to a careless verifier: a second valid
    signature for what somebody else signed.
    """
    raw = parcel(SigningMode.BATCH)
    start, end = _fields(SigningMode.BATCH, TO_BOB)["signatures"]
    point, scalar = raw[start : start + 32], int.from_bytes(raw[start + 32 : end], "little")
    other = (scalar + ORDER).to_bytes(32, "little")
    with pytest.raises(BadSignature):
        judged(raw[:start] + point + other + raw[end:])


@pytest.mark.parametrize(
    "point", [bytes(32), b"\x01" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f"]
)
def test_B1_a_key_that_anybody_can_sign_for_is_refused(point: bytes) -> None:
    raw = parcel(SigningMode.BATCH)
    forged = raw[:2] + point + raw[34:]
    start, end = _fields(SigningMode.BATCH, TO_BOB)["signatures"]
    with pytest.raises(BadSignature):
        judged(forged)
    with pytest.raises(BadSignature):
        judged(forged[:start] + b"\x01" + bytes(63) + forged[end:])


def test_B1_a_direct_message_is_for_one_key_and_one_life_of_its_store() -> None:
    raw = parcel(SigningMode.EACH)
    with pytest.raises(WrongRecipient, match="another peer"):
        judged(raw, key=bytes(ANA.verify_key))
    with pytest.raises(WrongRecipient, match="earlier life"):
        judged(raw, life=b"z" * INCARNATION_BYTES)
    for to in (Recipient.topic("a"), Recipient.anycast("a")):
        judged(parcel(SigningMode.EACH, to), key=b"x" * 32)


def test_B1_what_nobody_could_read_is_not_signed() -> None:
    nonce = bytes(NONCE_BYTES)
    with pytest.raises(OverLimit):
        sign_parcel(ANA, TO_BOB, [], 1, b"", SigningMode.EACH)
    many = BUS_PARCEL_MESSAGES_MAX + 1
    with pytest.raises(OverLimit):
        sign_parcel(ANA, TO_BOB, [b""] * many, 1, nonce * many, SigningMode.BATCH)
    with pytest.raises(BadInput):
        sign_parcel(ANA, TO_BOB, [b"a"], 1, b"short", SigningMode.EACH)
    for first in (0, -1, SEQUENCE_MAX):
        with pytest.raises(OverLimit):
            sign_parcel(ANA, TO_BOB, [b"a"], first, nonce, SigningMode.EACH)
    for payloads in ([bytes(BUS_PAYLOAD_BYTES_MAX + 1)], [bytes(BUS_PAYLOAD_BYTES_MAX)] * 3):
        with pytest.raises(OverLimit):
            sign_parcel(ANA, TO_BOB, payloads, 1, nonce * len(payloads), SigningMode.BATCH)
    largest = sign_parcel(ANA, TO_BOB, [bytes(BUS_PAYLOAD_BYTES_MAX)], 1, nonce, SigningMode.EACH)
    judged(largest)


def test_B1_a_recipient_is_a_whole_key_and_life_or_a_name_that_can_be_shown() -> None:
    for key, life in ((BOB[1:], LIFE), (BOB, LIFE[1:]), (b"", b"")):
        with pytest.raises(BadInput):
            Recipient.direct(key, life)
    for name in ("", "a\nb", "\ud800", "\0"):
        with pytest.raises(BadInput):
            Recipient.topic(name)
        with pytest.raises(BadInput):
            check_bus_name(name, "service")
    assert check_bus_name("ü" * (BUS_NAME_BYTES_MAX // 2), "topic")
    with pytest.raises(OverLimit):
        Recipient.anycast("ü" * (BUS_NAME_BYTES_MAX // 2) + "a")
