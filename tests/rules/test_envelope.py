"""The envelope: what enters a store was checked, and its bytes are never made again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bodies import StateSet
from holdfast.rules.envelope import (
    Base,
    Envelope,
    Fence,
    decode,
    decode_stored,
    decode_trusted,
    encode,
)
from holdfast.rules.errors import (
    BadEnvelope,
    BadId,
    BadInput,
    BadKey,
    BadPeerId,
    BadStamp,
    BadValue,
    OverLimit,
    Refused,
    UnsupportedProtocol,
)
from holdfast.rules.fingerprint import canonical_meta
from holdfast.rules.limits import (
    ENVELOPE_BYTES_MAX,
    LAMPORT_MAX,
    META_BYTES_MAX,
    SOURCE_TIME_MS_MAX,
)
from support.envelopes import envelope, make_id

GOOD = envelope("state.set", "k", StateSet(b"1"), lamport=9, id=make_id(1))


def with_fields(**fields: Any) -> bytes:
    return encode(msgspec.structs.replace(GOOD, **fields))


def test_Q2_an_envelope_survives_its_bytes() -> None:
    full = msgspec.structs.replace(
        GOOD,
        base=Base(3, "ana", 4),
        meta=b'{"a":1}',
        to=("topic", "news"),
        reply_to="x",
        priority="now",
        fence=Fence(2, "ana", 7),
        intent=b"\1" * 16,
        committed_at=5,
        write_class="strong",
        state="intent",
    )
    for made in (GOOD, full):
        assert decode(encode(made)) == made
        assert decode_trusted(encode(made)) == made
        assert encode(decode(encode(made))) == encode(made), "one form for one envelope"


def test_Q2_it_says_its_protocol_and_version_first() -> None:
    fields = msgspec.msgpack.decode(encode(GOOD))
    assert fields[:2] == ["holdfast", "1.0"]
    assert fields[2] == make_id(1)


def test_Q2_fields_of_a_newer_minor_version_are_read_over() -> None:
    fields = msgspec.msgpack.decode(encode(GOOD))
    newer = msgspec.msgpack.encode([*fields[:1], "1.7", *fields[2:], "new", {"more": [1]}])
    read = decode(newer)
    assert read == msgspec.structs.replace(GOOD, version="1.7")


def test_Q2_the_first_version_has_all_its_fields_and_no_others() -> None:
    fields = msgspec.msgpack.decode(encode(GOOD))
    for wrong in (fields[:18], [*fields, None]):
        with pytest.raises(BadEnvelope, match="canonical"):
            decode(msgspec.msgpack.encode(wrong))
        assert decode_stored(msgspec.msgpack.encode(wrong)) == GOOD


@pytest.mark.parametrize("version", ["2.0", "0.9", "1", "1.", "1.x", "", "1.-1", "11.0", "one.0"])
def test_Q2_another_major_version_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedProtocol):
        decode(with_fields(version=version))


@pytest.mark.parametrize("protocol", ["", "Holdfast", "other"])
def test_Q2_another_protocol_is_refused(protocol: str) -> None:
    with pytest.raises(UnsupportedProtocol):
        decode(with_fields(protocol=protocol))


WRONG: list[tuple[dict[str, Any], type[Refused]]] = [
    ({"id": b""}, BadId),
    ({"id": b"\0" * 16}, BadId),
    ({"id": make_id(1) + b"x"}, BadId),
    ({"mesh": ""}, BadInput),
    ({"mesh": "Team"}, BadInput),
    ({"mesh": "../x"}, BadInput),
    ({"op": ""}, BadKey),
    ({"op": "x" * 65}, OverLimit),
    ({"op": "a\0b"}, BadKey),
    ({"entity": ""}, BadKey),
    ({"entity": "a\0"}, BadKey),
    ({"entity": "x" * 1025}, OverLimit),
    ({"origin": ""}, BadPeerId),
    ({"origin": "cafe\u0301"}, BadPeerId),
    ({"origin": "x" * 129}, OverLimit),
    ({"owner": "cafe\u0301"}, BadPeerId),
    ({"owner": "a\n"}, BadPeerId),
    ({"op": "letter"}, BadKey),
    ({"op": "a.b\n"}, BadKey),
    ({"op": "A.b"}, BadKey),
    ({"version": "1.\u0663"}, UnsupportedProtocol),
    ({"version": "1.00"}, UnsupportedProtocol),
    ({"meta": b"\xff"}, BadValue),
    ({"meta": b"{}"}, BadValue),
    ({"meta": b"null"}, BadValue),
    ({"meta": b'null,"origin":"ana"'}, BadValue),
    ({"meta": b'{"b":1,"a":1}'}, BadValue),
    ({"meta": b'{"a":1}\n'}, BadValue),
    ({"meta": b'{"a":1,"a":1}'}, BadValue),
    ({"meta": b'{"a":1.0}'}, BadValue),
    ({"meta": b'{"a":"\\u00e9"}'}, BadValue),
    ({"meta": b'{"a":9007199254740993}'}, BadValue),
    ({"base": Base(3, "ana", 2**63)}, BadEnvelope),
    ({"fence": Fence(-1, "ana", 7)}, BadEnvelope),
    ({"fence": Fence(1, "a\n", 7)}, BadPeerId),
    ({"created_at": SOURCE_TIME_MS_MAX}, BadStamp),
    ({"committed_at": SOURCE_TIME_MS_MAX}, BadStamp),
    ({"lamport": 0}, BadEnvelope),
    ({"lamport": -1}, BadEnvelope),
    ({"lamport": LAMPORT_MAX}, BadEnvelope),
    ({"lamport": 2**64 - 1}, BadEnvelope),
    ({"seq": 0}, BadEnvelope),
    ({"seq": 2**63}, BadEnvelope),
    ({"epoch": 0}, BadEnvelope),
    ({"epoch": 2**63}, BadEnvelope),
    ({"created_at": -1}, BadEnvelope),
    ({"created_at": 2**63}, BadEnvelope),
    ({"committed_at": -1}, BadEnvelope),
    ({"committed_at": 2**63}, BadEnvelope),
    ({"fingerprint": b""}, BadEnvelope),
    ({"fingerprint": b"x" * 31}, BadEnvelope),
    ({"write_class": "Strong"}, BadEnvelope),
    ({"write_class": ""}, BadEnvelope),
    ({"state": "done"}, BadEnvelope),
    ({"priority": "soon"}, BadEnvelope),
    ({"to": ("everyone", "x")}, BadEnvelope),
    ({"intent": b"short"}, BadEnvelope),
    ({"meta": b"x" * (META_BYTES_MAX + 1)}, OverLimit),
    ({"base": Base(9, "ana")}, BadEnvelope),
    ({"base": Base(10, "ana")}, BadEnvelope),
    ({"base": Base(0, "ana")}, BadEnvelope),
    ({"base": Base(1, "")}, BadPeerId),
    ({"body": b"x" * ENVELOPE_BYTES_MAX}, OverLimit),
]


@pytest.mark.parametrize(("fields", "error"), WRONG, ids=lambda value: str(value)[:40])
def test_Q2_a_field_that_cannot_be_is_refused(fields: dict[str, Any], error: type[Refused]) -> None:
    with pytest.raises(error) as refused:
        decode(with_fields(**fields))
    assert type(refused.value) is error, "a leaf, as programs expect it"


@pytest.mark.parametrize("position", range(24))
def test_Q2_a_field_of_the_wrong_type_is_refused(position: int) -> None:
    strange: list[Any] = [{}, [[]], 1.5, True]
    for wrong in strange:
        fields = msgspec.msgpack.decode(encode(GOOD))
        fields += [None] * (24 - len(fields))
        fields[position] = wrong
        with pytest.raises(Refused):
            decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "raw", [b"", b"\x90", b"\xc0", b"\x80", b"holdfast", b"\xdc\xff\xff", encode(GOOD)[:-1]]
)
def test_Q2_bytes_that_are_no_envelope_are_refused(raw: bytes) -> None:
    with pytest.raises(BadEnvelope):
        decode(raw)


def test_Q2_bytes_after_the_envelope_are_refused() -> None:
    with pytest.raises(BadEnvelope):
        decode(encode(GOOD) + b"\0")


def test_Q2_text_that_is_not_utf_8_is_refused() -> None:
    raw = encode(msgspec.structs.replace(GOOD, entity="kkkk")).replace(b"kkkk", b"k\xff\xfek")
    with pytest.raises(BadEnvelope):
        decode(raw)


def test_Q2_a_deep_pit_is_refused() -> None:
    with pytest.raises(BadEnvelope):
        decode(b"\x91" * 100_000)


_envelopes = st.builds(
    lambda **fields: msgspec.structs.replace(GOOD, **fields),
    entity=st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=9
    ),
    lamport=st.integers(2, LAMPORT_MAX - 1),
    seq=st.integers(1, LAMPORT_MAX - 1),
    epoch=st.integers(1, LAMPORT_MAX - 1),
    created_at=st.integers(0, SOURCE_TIME_MS_MAX - 1),
    committed_at=st.none() | st.integers(0, SOURCE_TIME_MS_MAX - 1),
    fingerprint=st.binary(min_size=32, max_size=32),
    base=st.none() | st.builds(Base, st.just(1), st.just("ana"), st.none() | st.integers(0, 9)),
    meta=st.dictionaries(
        st.text(max_size=3), st.integers(-9, 9) | st.text(max_size=3), max_size=3
    ).map(canonical_meta),
    body=st.binary(max_size=40),
    priority=st.sampled_from(["now", "next", "low"]),
    to=st.none() | st.tuples(st.sampled_from(["topic", "dm", "queue"]), st.text(max_size=5)),
)


@given(_envelopes)
def test_Q2_any_envelope_that_may_exist_survives(made: Envelope) -> None:
    raw = encode(made)
    assert decode(raw) == made
    assert encode(decode_trusted(raw)) == raw
