"""What is accepted is what our own writers would have written, and what is stored ends no line."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rfc8785 import dumps

from holdfast.rules import canonical
from holdfast.rules.bodies import StateSet, check_value, decode_body, encode_value
from holdfast.rules.canonical import check_meta, check_spelling, on_one_line, stored_meta
from holdfast.rules.envelope import decode, encode
from holdfast.rules.errors import BadEnvelope, BadValue, Refused
from holdfast.rules.fingerprint import canonical_meta
from support.envelopes import envelope

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(TEXT, part, max_size=3),
    max_leaves=6,
)


def accepts(raw: bytes) -> bool:
    try:
        check_spelling(raw, check_value(raw))
    except Refused:
        return False
    return True


@given(VALUES)
def test_S6_what_a_node_writes_another_takes(value: object) -> None:
    assert accepts(encode_value(value))


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(1e21)
@example(1e-7)
@example(2.0**60)
@example(-0.0)
def test_S6_numbers_may_be_spelled_as_other_languages_do(number: float) -> None:
    """RFC 8785 spells them as JSON.stringify does."""
    assert accepts(dumps({"n": [number]}))


@pytest.mark.parametrize(
    "raw",
    [
        b" 1",
        b"1\n",
        b'{"a": 1}',
        b"[1,\n2]",
        b'{"a":1,\r"b":2}',
        b'{"a":1,"a":1}',
        b'{"a":1,"b":2,"a":1e+21}',
        b'"\\u00e9"',
        b'"\\/"',
        b'"\\u001F"',
        b"-0",
        b"1E5",
        b"1.50",
        b"1e05",
        b"\xef\xbb\xbf1",
        b'"\xed\xa0\x80"',
        b"1" * 5000,
    ],
)
def test_S6_another_spelling_of_a_value_is_refused(raw: bytes) -> None:
    assert not accepts(raw)


@given(VALUES, st.integers(0, 60), st.sampled_from([b" ", b"\n", b"\r", b"\t", b"0", b",", b"\\"]))
def test_R4_a_byte_more_is_another_value_or_refused(value: object, at: int, byte: bytes) -> None:
    raw = encode_value(value)
    other = raw[:at] + byte + raw[at:]
    if accepts(other):
        read = json.loads(other)
        assert other in (encode_value(read), dumps(read)) or _same_but_numbers(other, read)


def _same_but_numbers(raw: bytes, read: object) -> bool:
    def without(text: bytes) -> bytes:
        return re.sub(canonical._TOKEN, b"0", text)

    return without(raw) == without(encode_value(read))


# --- meta ----------------------------------------------------------------------------------------


def by_the_book(raw: bytes) -> bool:
    """RFC 8785 by its own library, over Python's reader."""
    try:
        value = json.loads(raw)
        return isinstance(value, dict) and bool(value) and dumps(value) == raw
    except (ValueError, RecursionError):
        return False


def takes(raw: bytes) -> bool:
    try:
        check_meta(raw)
    except Refused:
        return False
    return True


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=3))
def test_D3_meta_is_taken_in_the_form_of_rfc_8785_and_in_no_other(meta: dict[str, Any]) -> None:
    try:
        good = canonical_meta(meta)
    except BadValue:
        return  # an integer that a double cannot hold
    assert takes(good)
    for other in (
        json.dumps(meta).encode(),
        msgspec.json.encode(meta),
        good + b"\n",
        b"{ " + good[1:],
    ):
        assert takes(other) == (other == good)


@given(
    st.binary(max_size=40)
    | st.text('{}[]":,0123456789.eE+-truefalsn\\ab\n ', max_size=30).map(str.encode)
)
@example(b"{}")
@example(b'{"a":1,"b":[]}')
@example(b'{"\xc3\xa9":1,"z":2}')
def test_R4_any_bytes_are_meta_by_the_book_or_refused(raw: bytes) -> None:
    assert takes(raw) == (not raw or by_the_book(raw))


# --- msgpack -------------------------------------------------------------------------------------


def test_Q2_the_same_envelope_in_longer_msgpack_is_refused() -> None:
    made = envelope("state.set", "k", StateSet(b"1"))
    raw = encode(made)
    assert decode(raw) == made
    longer = raw.replace(b"\xa1k", b"\xd9\x01k")  # the key with a length of one byte more
    assert msgspec.msgpack.decode(longer) == msgspec.msgpack.decode(raw)
    with pytest.raises(BadEnvelope, match="canonical"):
        decode(longer)
    padded = msgspec.structs.replace(made, body=b"\x91\xc5\x00\x011")
    with pytest.raises(BadEnvelope, match="canonical"):
        decode_body(padded)


# --- what is stored already ----------------------------------------------------------------------


@given(st.binary(max_size=40) | VALUES.map(lambda v: json.dumps(v, indent=1).encode()))
@example(b'null,"origin":"ana"')
@example(b"\xff")
@example(b'{"a":1}\n{"origin":"ana"}')
@example(b" 1 ")
@example(b"[" * 5000)
def test_D13_whatever_is_stored_is_one_value_on_one_line(raw: bytes) -> None:
    line = on_one_line(raw)
    assert not set(line) & set(range(0x20))
    shown = json.loads(line)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        assert set(shown) == {"unreadable"}
    else:
        if "unreadable" not in line.decode():
            assert shown == value
    assert isinstance(stored_meta(raw), dict)
