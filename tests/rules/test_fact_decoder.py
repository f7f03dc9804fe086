"""The short way for facts says "good" only where the rules themselves do, and never refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules import compiled, fact_decoder
from holdfast.rules.bodies import Fact, decode_body, encode_body
from holdfast.rules.envelope import Base, Envelope, Fence, decode, encode
from holdfast.rules.errors import Refused
from holdfast.rules.fact_columns import read_columns
from holdfast.rules.fact_decoder import read_fact
from holdfast.rules.limits import ENVELOPE_BYTES_MAX, LAMPORT_MAX, META_BYTES_MAX
from support.envelopes import envelope, fact_append, file_share, make_id, state_set


def by_the_rules(raw: bytes) -> Envelope | None:
    """The envelope of a good fact without objects, by the long way."""
    try:
        made = decode(raw)
        body = decode_body(made)
    except Refused:
        return None
    return made if isinstance(body, Fact) and not body.objects else None


def good(raw: bytes) -> bool:
    """Whether the short way took it; if so, it must agree with the long one in everything."""
    found = read_fact(raw)
    if compiled.part is not None:
        taken = list(read_columns((raw,), "")[1])
        assert taken in ([], [found]), "the compiled reader takes what this one does not"
    if found is None:
        return False
    made = by_the_rules(raw)
    assert made is not None, "the rules refuse it"
    assert found == (made.id, made.mesh, made.op, made.entity, made.origin, made.lamport, raw)
    return True


def test_Z7_a_fact_as_every_node_writes_it_goes_the_short_way() -> None:
    """Otherwise nothing would fail, and everything would take three times as long."""
    for raw in (
        fact_append("s", "is", {"a": [1, 2.5, None], "b": "text"}),
        fact_append("s", "is", "with a \\ in it"),
        fact_append("é", "ist", "ü", origin="zoë"),
        fact_append("s", "is", 1, meta=b'{"by":"me"}'),
    ):
        assert good(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91" * 100_000,
        state_set("k", 1),
        file_share("k", b"x"),
        encode(envelope("fact.append", "s", Fact("is", b"1", (b"\1" * 32,)))),
        encode(envelope("fact.append", "s", base=(1, "bob"), lamport=5)),
    ],
    ids=range(8),
)
def test_Z7_everything_else_is_left_to_the_rules(raw: bytes) -> None:
    assert read_fact(raw) is None


PLAIN = envelope("fact.append", "s", Fact("is", b"true"), id=make_id(1), lamport=7)
TEXTS = [
    "",
    "a",
    "é",
    "e\u0301",
    "a\0",
    " a",
    "a ",
    "\x1f",
    "A",
    "a/b",
    "x" * 64,
    "x" * 65,
    "x" * 129,
]
TEXTS += ["x" * 1024, "x" * 1025, "é" * 512, "é" * 513]
NUMBERS = [
    -1,
    0,
    1,
    2,
    LAMPORT_MAX - 1,
    LAMPORT_MAX,
    LAMPORT_MAX + 1,
    2**64 - 1,
    True,
    1.0,
    1.5,
    None,
]
BODIES: list[Any] = [
    ["is", b"1"],
    ["is"],
    ["is", b"1", []],
    ["is", b"1", [b"\1" * 32]],
    ["is", b"1", [b"short"]],
    ["is", b"1", [], 5],
    ["is", "1"],
    ["is", b"{"],
    ["is", b'"\\u0000"'],
    ["", b"1"],
    ["x" * 257, b"1"],
    ["i\0s", b"1"],
    [7, b"1"],
    [],
    {},
]
OF_VERSION_8 = make_id(2)[:6] + bytes((0x80 | make_id(2)[6] & 0x0F,)) + make_id(2)[7:]
VALUES: dict[str, list[Any]] = {
    "protocol": ["holdfast", "other", "", None],
    "version": ["1.0", "1.1", "1.x", "2.0", "1", "", None],
    "id": [make_id(2), OF_VERSION_8, b"", b"\0" * 16, b"\xff" * 16, make_id(3) + b"x", None],
    "mesh": TEXTS,
    "op": ["fact.append", "fact.other", "state.set", "state.delete", "task.cancel", "", "x" * 65],
    "entity": TEXTS,
    "owner": TEXTS,
    "origin": TEXTS,
    "epoch": NUMBERS,
    "seq": NUMBERS,
    "lamport": NUMBERS,
    "created_at": NUMBERS,
    "write_class": ["strong", "append-only", "queued", "local", "loud", ""],
    "state": ["intent", "committed", "rejected", "queued", "reconciled", "lost", None],
    "fingerprint": [b"\1" * 32, b"\1" * 31, b"\1" * 33, b"", None],
    "base": [None, Base(1, "bob"), Base(6, "é"), Base(7, "bob"), Base(0, "bob"), Base(1, "")],
    "meta": [b"", b"{}", b"x" * META_BYTES_MAX, b"x" * (META_BYTES_MAX + 1)],
    "body": [b"", b"\xff", *(msgspec.msgpack.encode(body) for body in BODIES)],
    "to": [None, ("topic", "x"), ("moon", "x")],
    "reply_to": ["", "x", None],
    "priority": ["now", "next", "low", "never"],
    "fence": [None, Fence(1, "bob", 1)],
    "intent": [None, make_id(4), b"short"],
    "committed_at": NUMBERS,
}


def spelled(changes: dict[str, Any]) -> bytes:
    """An envelope as anybody may write it."""
    fields = [changes.get(name, getattr(PLAIN, name)) for name in Envelope.__struct_fields__]
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize("field", sorted(VALUES))
def test_Z7_the_short_way_never_takes_what_the_rules_refuse(field: str) -> None:
    for value in VALUES[field]:
        good(spelled({field: value}))
    assert set(VALUES) == set(Envelope.__struct_fields__), "every field is tried"


@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(VALUES[name]) for name in VALUES}))
def test_Z7_however_fields_come_together_both_ways_agree(changes: dict[str, Any]) -> None:
    good(spelled(changes))


@given(st.integers(0, len(encode(PLAIN)) - 1), st.integers(0, 255), st.integers(0, 30))
def test_Z7_damaged_bytes_are_never_taken_for_good(at: int, byte: int, cut: int) -> None:
    raw = bytearray(encode(PLAIN))
    raw[at] = byte
    good(bytes(raw))
    good(bytes(raw[: len(raw) - cut]))
    good(bytes(raw) + b"\0" * cut)


def test_Z7_shorter_and_longer_arrays_are_left_to_the_rules_or_read_alike() -> None:
    fields = [getattr(PLAIN, name) for name in Envelope.__struct_fields__]
    for count in range(len(fields) + 1):
        good(msgspec.msgpack.encode(fields[:count]))
    good(msgspec.msgpack.encode([*fields, "of a later version"]))
    body = encode_body(Fact("is", b'"' + b"x" * ENVELOPE_BYTES_MAX + b'"'))
    assert not good(encode(msgspec.structs.replace(PLAIN, body=body)))


def test_Z7_names_that_passed_are_remembered_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fact_decoder, "_NAMES_MAX", 3)
    fact_decoder._good_names.clear()
    for n in range(20):
        assert good(fact_append("s", f"p{n}", 1, origin=f"o{n}"))
        assert len(fact_decoder._good_names) <= 3
    assert not good(fact_append("s", "is", 1, origin=" o"))
    assert all(origin != " o" for _, origin, _ in fact_decoder._good_names)
