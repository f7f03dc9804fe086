"""What each op carries, and what it may not carry."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules import bodies
from holdfast.rules.audit_chain import AuditChain, next_event
from holdfast.rules.bodies import (
    OPS,
    AuditAppend,
    Body,
    Fact,
    FileShare,
    MemorySet,
    MessageSend,
    Nothing,
    StateSet,
    TaskCreate,
    TaskTurn,
    VectorDelete,
    VectorStore,
    check_value,
    decode_body,
    decode_loose,
    decode_trusted_body,
    decode_value,
    encode_body,
    encode_value,
    family_of,
)
from holdfast.rules.errors import (
    BadEnvelope,
    BadId,
    BadInput,
    BadKey,
    BadPath,
    BadValue,
    BadVector,
    OverLimit,
    Refused,
)
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import (
    FACT_OBJECTS_MAX,
    FILE_BYTES_MAX,
    INLINE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    TAGS_MAX,
    VALUE_BYTES_MAX,
    VALUE_DEPTH_MAX,
)
from holdfast.rules.vectors import pack
from support.envelopes import MODEL, TASK, envelope, make_id

OTHER_TASK = id_text(make_id(77))


def share(whole_content: bytes, **fields: Any) -> FileShare:
    whole = {
        "sha256": sha256(whole_content).digest(),
        "size": len(whole_content),
        "content": whole_content,
        **fields,
    }
    return FileShare(**whole)


def store(**fields: Any) -> VectorStore:
    whole = {
        "provider": MODEL.provider,
        "model": MODEL.name,
        "version": MODEL.version,
        "dim": MODEL.dim,
        "quantization": MODEL.quantization,
        "embedding": pack((1.0, 2.0), 2),
        **fields,
    }
    return VectorStore(**whole)


EVENT = next_event(
    AuditChain("team", "activityLog", "bob", 1), None, id=make_id(7), at=5, payload=b'{"a":1}'
)
AUDITED = AuditAppend(1, 1, EVENT.at, EVENT.previous, EVENT.hash, EVENT.payload)
GOOD: list[tuple[str, str, Body]] = [
    ("state.set", "k", StateSet(b'{"a":[1,null]}')),
    ("state.delete", "k", Nothing()),
    ("memory.set", "k", MemorySet(b'"v"', ("t", "é"))),
    ("memory.forget", "k", Nothing()),
    ("vector.store", "k", store(content="c", metadata=b'{"n":1}')),
    ("vector.delete", "k", VectorDelete(MODEL.fingerprint)),
    ("file.share", "a/b.txt", share(b"hello")),
    ("file.share", "empty", share(b"")),
    ("file.share", "big", FileShare(b"\1" * 32, INLINE_BYTES_MAX)),
    ("file.share", "huge", FileShare(b"\1" * 32, FILE_BYTES_MAX)),
    ("file.delete", "a/b.txt", Nothing()),
    ("task.create", TASK, TaskCreate("title", "more")),
    ("task.claim", TASK, TaskTurn(3)),
    ("task.release", TASK, TaskTurn(0)),
    ("task.complete", TASK, Nothing()),
    ("task.cancel", TASK, Nothing()),
    ("fact.append", "s", Fact("is", b"true")),
    ("fact.append", "s", Fact("shows", b"null", (b"\1" * 32, b"\2" * 32))),
    ("audit.append", "activityLog", AUDITED),
    ("message.send", "topic/news", MessageSend(b"\0\xff", "x/y")),
    ("message.send", f"dm/{'a' * 64}", MessageSend(b"")),
    ("message.send", "queue/a/b", MessageSend(b"x" * MESSAGE_BYTES_MAX)),
]


def destined(op: str, entity: str) -> dict[str, Any]:
    """Messages bear their destination twice: for people who look at the log, and for the broker."""
    if op == "task.create":
        return {"id": parse_id(entity)}
    if op == "audit.append":
        return {"id": EVENT.id}
    return {"to": tuple(entity.split("/", 1))} if op == "message.send" else {}


@pytest.mark.parametrize(("op", "entity", "body"), GOOD, ids=[op for op, _, _ in GOOD])
def test_Q2_every_op_reads_back_what_it_carries(op: str, entity: str, body: Body) -> None:
    made = envelope(op, entity, body, **destined(op, entity))
    assert decode_body(made) == body
    assert decode_trusted_body(made) == body
    assert decode_loose(op, made.body) == body


def test_Q2_every_op_is_tried() -> None:
    assert {op for op, _, _ in GOOD} == OPS


def test_Q2_an_op_of_a_newer_version_has_no_body_here() -> None:
    made = envelope("state.increment", "k", StateSet(b"1"))
    assert decode_body(made) is None
    assert decode_trusted_body(made) is None
    assert family_of(made.op) == "state"


def test_Q2_fields_that_a_newer_version_adds_are_read_over() -> None:
    made = envelope("state.set", "k", StateSet(b"1"))
    longer = msgspec.msgpack.encode([b"1", "new", [1]])
    later = msgspec.structs.replace(made, version="1.1", body=longer)
    assert decode_body(later) == StateSet(b"1")
    for wrong in (
        msgspec.structs.replace(made, body=longer),
        msgspec.structs.replace(later, body=b"\xdc\0\3" + longer[1:]),
        msgspec.structs.replace(later, body=longer.replace(b"\xc4\1", b"\xc5\0\1")),
    ):
        with pytest.raises(BadEnvelope, match="canonical"):
            decode_body(wrong)


@pytest.mark.parametrize(
    ("to", "entity", "body", "error"),
    [
        (None, "topic/news", MessageSend(b""), BadEnvelope),
        (("topic", "news"), "news", MessageSend(b""), BadEnvelope),
        (("topic", "olds"), "topic/news", MessageSend(b""), BadEnvelope),
        (("dm", "bob"), "dm/bob", MessageSend(b""), BadValue),
        (("dm", "A" * 64), f"dm/{'A' * 64}", MessageSend(b""), BadValue),
        (("topic", ""), "topic/", MessageSend(b""), BadKey),
        (("topic", "x" * 129), f"topic/{'x' * 129}", MessageSend(b""), OverLimit),
        (("topic", "t"), "topic/t", MessageSend(b"x" * (MESSAGE_BYTES_MAX + 1)), OverLimit),
        (("topic", "t"), "topic/t", MessageSend(b"", "a\0b"), BadKey),
    ],
)
def test_D5_a_message_whose_destination_or_content_is_wrong_is_refused(
    to: tuple[str, str] | None, entity: str, body: Body, error: type[Refused]
) -> None:
    with pytest.raises(error):
        decode_body(envelope("message.send", entity, body, to=to))


WRONG: list[tuple[str, str, Body, type[Refused]]] = [
    ("state.set", "k", StateSet(b""), BadValue),
    ("state.set", "k", StateSet(b"{"), BadValue),
    ("state.set", "k", StateSet(b"NaN"), BadValue),
    ("state.set", "k", StateSet(b"1e999"), BadValue),
    ("state.set", "k", StateSet(b'"\\u0000"'), BadValue),
    ("state.set", "k", StateSet(b'{"\\u0000":1}'), BadValue),
    ("state.set", "k", StateSet(b'"\\ud800"'), BadValue),
    ("state.set", "k", StateSet(b'"\xff"'), BadValue),
    ("state.set", "k", StateSet(b"[" * 99 + b"]" * 99), OverLimit),
    ("state.set", "k", StateSet(b"[" * 100_000), BadValue),
    ("state.set", "k", StateSet(b'"' + b"x" * VALUE_BYTES_MAX + b'"'), OverLimit),
    ("memory.set", "k", MemorySet(b"1", ("",)), BadKey),
    ("memory.set", "k", MemorySet(b"1", ("x" * 129,)), OverLimit),
    ("memory.set", "k", MemorySet(b"1", ("t",) * (TAGS_MAX + 1)), OverLimit),
    ("memory.set", "k", MemorySet(b"nope"), BadValue),
    ("vector.store", "k", store(dim=3), BadVector),
    ("vector.store", "k", store(dim=0, embedding=b""), BadVector),
    ("vector.store", "k", store(dim=10**9), BadVector),
    ("vector.store", "k", store(quantization="int8"), BadVector),
    ("vector.store", "k", store(provider="a:b"), BadVector),
    ("vector.store", "k", store(provider=""), BadVector),
    ("vector.store", "k", store(embedding=b"\0\0\xc0\x7f" * 2), BadVector),
    ("vector.store", "k", store(metadata=b"nope"), BadValue),
    ("vector.store", "k", store(content="a\0b"), BadKey),
    ("vector.delete", "k", VectorDelete("xyz"), BadVector),
    ("vector.delete", "k", VectorDelete("0123456789ABCDEF"), BadVector),
    ("vector.delete", "k", VectorDelete("'); DROP TABLE--"), BadVector),
    ("file.share", "../x", share(b"a"), BadPath),
    ("file.share", "/x", share(b"a"), BadPath),
    ("file.share", "x", share(b"a", sha256=b"short"), BadEnvelope),
    ("file.share", "x", share(b"a", size=2), BadEnvelope),
    ("file.share", "x", share(b"a", size=-1), OverLimit),
    ("file.share", "x", share(b"a", content=None), BadEnvelope),
    ("file.share", "x", share(b"a", content=b"b"), BadEnvelope),
    ("file.share", "x", share(b"x" * INLINE_BYTES_MAX), BadEnvelope),
    ("file.share", "x", FileShare(b"\1" * 32, FILE_BYTES_MAX + 1), OverLimit),
    ("file.delete", "a//b", Nothing(), BadPath),
    ("task.create", TASK, TaskCreate(""), BadValue),
    ("task.create", TASK, TaskCreate("x" * 1025), OverLimit),
    ("task.create", TASK, TaskCreate("a\0"), BadKey),
    ("task.create", TASK, TaskCreate("t", "x" * 65_537), OverLimit),
    ("task.claim", TASK, TaskTurn(-1), BadEnvelope),
    ("task.release", TASK, TaskTurn(2**63), BadEnvelope),
    ("task.create", OTHER_TASK, TaskCreate("t"), BadEnvelope),
    ("task.claim", "t", TaskTurn(0), BadId),
    ("task.claim", TASK.upper(), TaskTurn(0), BadId),
    ("task.complete", TASK.replace("-", ""), Nothing(), BadId),
    ("task.cancel", "'; DROP", Nothing(), BadId),
    ("fact.append", "s", Fact("", b"1"), BadKey),
    ("fact.append", "s", Fact("x" * 257, b"1"), OverLimit),
    ("fact.append", "s", Fact("is", b"maybe"), BadValue),
    ("fact.append", "s", Fact("is", b"1", (b"short",)), BadEnvelope),
    ("fact.append", "s", Fact("is", b"1", (b"\1" * 32, b"\1" * 32)), BadEnvelope),
    (
        "fact.append",
        "s",
        Fact("is", b"1", tuple(bytes([n]) * 32 for n in range(FACT_OBJECTS_MAX + 1))),
        OverLimit,
    ),
]


@pytest.mark.parametrize(
    ("op", "entity", "body", "error"), WRONG, ids=[f"{w[0]} {str(w[2])[:30]}" for w in WRONG]
)
def test_Q2_a_body_that_cannot_be_is_refused(
    op: str, entity: str, body: Body, error: type[Refused]
) -> None:
    with pytest.raises(error) as refused:
        decode_body(envelope(op, entity, body))
    assert type(refused.value) is error
    assert op in refused.value.message, "it says which op was wrong"


@pytest.mark.parametrize("op", sorted(OPS))
def test_Q2_bytes_that_are_no_body_are_refused(op: str) -> None:
    made = envelope(op, "k", Nothing())
    for raw in (b"", b"\xc0", b"\x80", b"\x91", b"\xff", b"\x92\x01", b"\x91" * 100_000):
        with pytest.raises(BadEnvelope):
            decode_body(msgspec.structs.replace(made, body=raw))


@pytest.mark.parametrize(("op", "entity", "body"), GOOD, ids=[op for op, _, _ in GOOD])
def test_S6_what_a_peer_owns_has_an_owner_and_what_a_mesh_has_once_has_none(
    op: str, entity: str, body: Body
) -> None:
    made = envelope(op, entity, body)
    owner = "" if made.owner else "bob"
    with pytest.raises(BadEnvelope, match="owner"):
        decode_body(msgspec.structs.replace(made, owner=owner))


def test_Z1_a_fact_without_objects_has_the_bytes_it_always_had() -> None:
    """Others hold its fingerprint: it must not change because facts can now name objects."""
    assert encode_body(Fact("is", b"true")).hex() == "92a26973c40474727565"
    assert envelope("fact.append", "s", Fact("is", b"true")).fingerprint.hex() == (
        "b7c36d4142d20e343257812a60a56b2e55ccec35b0052ac71580dfcdb52883ed"
    )
    longer = msgspec.msgpack.encode(["is", b"true", [], "new"])
    made = msgspec.structs.replace(envelope("fact.append", "s"), version="1.1", body=longer)
    assert decode_body(made) == Fact("is", b"true")
    for unusual in (["is", b"true", []], ["is", b"true", [], "new"]):
        body = msgspec.msgpack.encode(unusual)
        with pytest.raises(BadEnvelope, match="canonical"):
            decode_body(msgspec.structs.replace(made, version="1.0", body=body))


# --- values --------------------------------------------------------------------------------------


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def _looked_through(raw: bytes) -> None:
    """The rule in full: the whole value is read and every part of it looked at."""
    if len(raw) > VALUE_BYTES_MAX:
        raise OverLimit("too large")
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadValue("not JSON") from None
    bodies._check_json(value, 0)


def _verdict(check: Callable[[bytes], None], raw: bytes) -> type[Refused] | None:
    try:
        check(raw)
    except Refused as error:
        return type(error)
    return None


_spelled = st.lists(
    st.sampled_from(
        [
            *(b"[", b"]", b"{", b"}", b":", b",", b'"', b" ", b"1", b"-", b".", b"e9", b"null"),
            *(b'"a"', b'"a":', b"\\", b"\\u0000", b"\\\\u0000", b"\0", b"\xff", b"\xc3\xa9"),
            *(b"[" * VALUE_DEPTH_MAX, b"]" * VALUE_DEPTH_MAX, b'{"k":' * 40, b"}" * 40),
        ]
    ),
    max_size=12,
).map(b"".join)


@given(_spelled | _json.map(msgspec.json.encode) | st.binary(max_size=20))
def test_S6_the_quick_look_at_a_value_decides_as_the_thorough_one(raw: bytes) -> None:
    assert _verdict(check_value, raw) is _verdict(_looked_through, raw)


@pytest.mark.parametrize("levels", range(VALUE_DEPTH_MAX - 1, VALUE_DEPTH_MAX + 4))
@pytest.mark.parametrize(("left", "right"), [(b"[", b"]"), (b'{"k":', b"}"), (b'[{"k":', b"}]")])
def test_S6_the_quick_look_counts_levels_as_the_thorough_one(
    levels: int, left: bytes, right: bytes
) -> None:
    for inside in (b"1", b"[]", b'"[{[{"'):
        raw = left * levels + inside + right * levels
        assert _verdict(check_value, raw) is _verdict(_looked_through, raw)


@given(_json)
def test_S6_any_json_value_survives(value: object) -> None:
    raw = encode_value(value)
    assert decode_value(raw) == value
    check_value(raw)
    raw.decode()  # it is stored as text


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "read"), [((1, 2), [1, 2]), (Colour.RED, "red"), (True, True), (2**400, 2**400)]
)
def test_S6_what_json_can_say_is_taken(value: object, read: object) -> None:
    assert decode_value(encode_value(value)) == read


def _deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def _itself() -> object:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: math.nan, lambda: math.inf, lambda: [-math.inf], lambda: b"bytes", object),
        *(lambda: {1: 2}, lambda: {None: 1}, lambda: {"a": {2}}, lambda: "a\0b", lambda: {"\0": 1}),
        *(lambda: "\ud800", lambda: {"\udfff": 1}, lambda: 1j, lambda: 10**5000, lambda: [print]),
    ],
)
def test_S6_what_json_cannot_say_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadValue):
        encode_value(make())


def test_S6_values_are_limited_in_depth_and_size() -> None:
    assert encode_value(_deep(VALUE_DEPTH_MAX))
    for value in (_deep(VALUE_DEPTH_MAX + 2), _deep(5000), _itself(), "x" * VALUE_BYTES_MAX):
        with pytest.raises(OverLimit):
            encode_value(value)
    assert len(encode_value("x" * (VALUE_BYTES_MAX - 2))) == VALUE_BYTES_MAX


def test_S6_what_is_taken_here_is_taken_there() -> None:
    """A value that one node accepts and another refuses would never arrive."""
    for levels in range(VALUE_DEPTH_MAX - 2, VALUE_DEPTH_MAX + 4):
        raw = msgspec.json.encode(_deep(levels))
        assert _accepts(lambda raw=raw: check_value(raw)) == _accepts(  # type: ignore[misc]
            lambda levels=levels: encode_value(_deep(levels))  # type: ignore[misc]
        )


def _accepts(act: Callable[[], object]) -> bool:
    try:
        act()
    except Refused:
        return False
    return True


@given(st.binary(max_size=60))
def test_R4_any_bytes_are_json_or_refused(raw: bytes) -> None:
    if _accepts(lambda: check_value(raw)):
        decode_value(raw)
        raw.decode()


@given(st.sampled_from(sorted(OPS)), st.binary(max_size=80), st.booleans())
def test_R4_any_bytes_are_a_body_or_refused(op: str, raw: bytes, owned: bool) -> None:
    made = msgspec.structs.replace(envelope(op, "k", Nothing()), body=raw)
    if owned:
        made = msgspec.structs.replace(made, owner="bob")
    if _accepts(lambda: decode_body(made)):
        body = decode_trusted_body(made)
        assert body is not None
        assert encode_body(body) == raw, "what is accepted is what we would have written"


@pytest.mark.parametrize(
    "value",
    [
        *(
            b"1",
            b'"text"',
            b'{"a":[1,2]}',
            b'"a\\nb"',
            b'"' + b"x" * 90 + b'"',
            b"[" * 64 + b"]" * 64,
        ),
        *(b"", b"1 2", b'"\\u0000"', b'{"\\u0000":1}', b"[" * 66 + b"]" * 66, b'"\\ud800"', b"01"),
        b'"' + b"x" * VALUE_BYTES_MAX + b'"',
    ],
)
def test_S4_values_are_refused_in_a_crowd_as_they_are_alone(value: bytes) -> None:
    try:
        check_value(value)
        alone = []
    except BadInput:
        alone = [1]
    assert bodies.refused_values([b"2", value, b'{"b":null}']) == alone
