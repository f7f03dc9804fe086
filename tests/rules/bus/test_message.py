"""One message of the bus: every field is checked where it enters, and again where it is read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.message import (
    CODE_CHARS_MAX,
    BusMessage,
    MessageKind,
    check_message,
    decode_message,
    encode_message,
)
from holdfast.rules.errors import BadEnvelope, BadId, BadInput, OverLimit
from holdfast.rules.ids import uuid7
from holdfast.rules.limits import BUS_PAYLOAD_BYTES_MAX, BUS_TTL_MS_MAX, REASON_CHARS_MAX

ID = uuid7(1_700_000_000_000, b"0123456789")
ASKED = uuid7(1_700_000_000_000, b"9876543210")

printable = st.text(max_size=20).filter(str.isprintable)
ids = st.binary(min_size=10, max_size=10).map(lambda end: uuid7(1_700_000_000_000, end))


@st.composite
def messages(draw: st.DrawFn) -> BusMessage:
    kind = draw(st.sampled_from(MessageKind))
    answers = kind in (MessageKind.REPLY, MessageKind.CANCEL)
    named = kind in (MessageKind.PUBLISH, MessageKind.REQUEST)
    return BusMessage(
        id=draw(ids),
        kind=kind,
        topic=draw(printable.filter(len) if named else printable),
        body=draw(st.binary(max_size=40)),
        content_type=draw(printable),
        correlation=draw(ids) if answers else b"",
        priority=draw(st.sampled_from(["now", "next", "low"])),
        ttl_ms=draw(st.none() | st.integers(0, BUS_TTL_MS_MAX)),
        code=draw(printable) if kind is MessageKind.REPLY else "",
        durable=draw(st.booleans()),
    )


@given(messages())
def test_B1_a_message_is_read_as_it_was_written(message: BusMessage) -> None:
    assert decode_message(encode_message(check_message(message))) == message


@given(messages(), st.data())
def test_B1_other_bytes_are_refused_or_mean_what_is_written_for_them(
    message: BusMessage, data: st.DataObject
) -> None:
    raw = bytearray(encode_message(message))
    at = data.draw(st.integers(0, len(raw)))
    raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        read = decode_message(bytes(raw))
    except (BadEnvelope, OverLimit):
        return
    assert decode_message(encode_message(read)) == read
    check_message(read)


@given(st.binary(max_size=300) | st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=3), inner),
).map(msgspec.msgpack.encode))  # fmt: skip
def test_R4_no_bytes_break_the_reader_of_messages(raw: bytes) -> None:
    try:
        decode_message(raw)
    except (BadEnvelope, OverLimit):
        return


def test_R4_a_message_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(BadEnvelope):
        decode_message(b"\x91" * 100_000)


def test_R4_an_error_repeats_little_of_what_a_stranger_wrote() -> None:
    fields = msgspec.msgpack.decode(encode_message(BusMessage(id=ID, kind=MessageKind.SEND)))
    fields[7] = "soon " * 10_000
    with pytest.raises(BadEnvelope) as refused:
        decode_message(msgspec.msgpack.encode(fields))
    assert len(refused.value.message) < 2 * REASON_CHARS_MAX


def test_B1_a_field_more_than_the_version_has_is_refused() -> None:
    fields = msgspec.msgpack.decode(encode_message(BusMessage(id=ID, kind=MessageKind.SEND)))
    with pytest.raises(BadEnvelope):
        decode_message(msgspec.msgpack.encode([*fields, "something that nobody checks"]))


SEND, REQUEST, REPLY = MessageKind.SEND, MessageKind.REQUEST, MessageKind.REPLY


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"kind": 9},
        {"id": ID[:15]},
        {"id": bytes(16)},
        {"kind": REQUEST},
        {"kind": MessageKind.PUBLISH},
        {"topic": "a\nb"},
        {"correlation": ASKED},
        {"kind": REPLY},
        {"kind": REPLY, "correlation": bytes(16)},
        {"kind": MessageKind.CANCEL, "correlation": b"short"},
        {"code": "failed"},
        {"kind": REPLY, "correlation": ASKED, "code": "a\nb"},
        {"content_type": "\x1b[31m"},
        {"priority": "soon"},
        {"ttl_ms": -1},
        {"ttl_ms": BUS_TTL_MS_MAX + 1},
        {"durable": 1},
        {"body": "text"},
    ],
)
def test_B1_a_message_that_breaks_a_rule_is_refused(fields: dict[str, Any]) -> None:
    raw = encode_message(BusMessage(**{"id": ID, "kind": SEND, **fields}))
    with pytest.raises(BadEnvelope):
        decode_message(raw)


@pytest.mark.parametrize(
    "fields",
    [
        {"body": bytes(BUS_PAYLOAD_BYTES_MAX + 1)},
        {"content_type": "a" * (REASON_CHARS_MAX + 1)},
        {"kind": REPLY, "correlation": ASKED, "code": "a" * (CODE_CHARS_MAX + 1)},
        {"topic": "a" * 129},
    ],
)
def test_B1_a_message_over_a_limit_is_refused_on_both_sides(fields: dict[str, Any]) -> None:
    message = BusMessage(**{"id": ID, "kind": SEND, **fields})
    with pytest.raises(OverLimit):
        check_message(message)
    with pytest.raises(OverLimit):
        decode_message(encode_message(message))


def test_B1_a_sender_gets_the_plain_error() -> None:
    with pytest.raises(BadId):
        check_message(BusMessage(id=bytes(16), kind=SEND))
    with pytest.raises(BadInput, match="only replies and cancels"):
        check_message(BusMessage(id=ID, kind=SEND, correlation=ASKED))
