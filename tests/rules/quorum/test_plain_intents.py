"""The short way for plain intents says "good" only where the rules themselves do, and never
refuses.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules import compiled
from holdfast.rules.bodies import encode_body, encode_value
from holdfast.rules.commit_columns import TYPE, cut, read_columns, record_columns
from holdfast.rules.envelope import UNCOUNTED, Base, Envelope, Fence, decode, encode
from holdfast.rules.errors import Refused
from holdfast.rules.fingerprint import SAFE_INT_MAX
from holdfast.rules.leaf import leaf_of
from holdfast.rules.limits import (
    ENTITY_BYTES_MAX,
    ENTITY_FIELDS_MAX,
    ENTITY_ID_BYTES_MAX,
    LAMPORT_MAX,
)
from holdfast.rules.push_columns import unpacked
from holdfast.rules.quorum.commit_record import CommitRecord, encode_applied, encode_record
from holdfast.rules.quorum.coordinated import coordinated
from holdfast.rules.quorum.entities import canonical, read_fields
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import EntityChange, EntityOperation, decode_intent
from holdfast.rules.quorum.plain_intents import PlainPut, made_plain, read_plain
from holdfast.rules.quorum.view import EntityRevision
from holdfast.rules.reconcile import Outcome
from support.envelopes import make_id
from support.quorum_state import change, fence, operation


def by_the_rules(raw: bytes) -> PlainPut | None:
    """What a good put of one entity says, by the long way."""
    try:
        made = decode(raw)
        body = decode_intent(made)
    except Refused:
        return None
    if not isinstance(body, EntityChange) or len(body.operations) != 1:
        return None
    (put,) = body.operations
    return PlainPut(
        *(raw, made.id, made.mesh, made.entity, made.origin, made.lamport, made.fingerprint),
        *(put.type, put.id, put.base, canonical(read_fields(put.fields))),
    )


def by_the_compiled_part(raw: bytes) -> PlainPut | None:
    """What its columns say of an intent; None if it is not taken."""
    columns = read_columns(PLAIN.mesh, [coordinated("ana", 5, raw)])
    if columns is None:
        return None
    ((name,), (origin,), (id,)) = columns.name_list(), columns.origin_list(), columns.id_list()
    bases = [-1] if columns.bases is None else unpacked(columns.bases)
    assert (columns.raw(0), columns.coordinator) == (raw, "ana")
    assert columns.leaves == leaf_of(raw)
    assert unpacked(columns.times)[0] == int(columns.time_words) == 5
    assert unpacked(columns.stamps)[0] == int(columns.stamp_words)
    return PlainPut(
        *(raw, id, PLAIN.mesh, name, origin, int(columns.stamp_words), columns.prints),
        *(TYPE, columns.entity_list()[0], None if bases[0] == -1 else bases[0], columns.row(0)),
    )


def good(raw: bytes) -> bool:
    """Whether the short way took it; if so, it must agree with the long one in everything."""
    found = read_plain(raw)
    compiled = by_the_compiled_part(raw)
    assert compiled is None or compiled == found, "the compiled part takes no more"
    if found is None:
        return False
    long = by_the_rules(raw)
    assert long is not None, "the rules refuse it"
    assert found == long
    made = decode(raw)
    assert made_plain(raw, made) == found, "whoever has made it need not read it"
    return True


def put(
    fields: dict[str, Any], type: str = "mission", id: str = "m", base: int | None = None
) -> bytes:
    return encode(change(operation("put", type, id, fields, base=base)))


PLAIN = change(operation("put", "mission", "m", {"title": "build", "done": 1}))


@pytest.mark.skipif(compiled.part is None, reason="there is no compiled part")
def test_Q4_usual_writes_of_missions_go_the_shortest_way() -> None:
    for raw in (
        encode(PLAIN),
        put(
            {
                "title": "é ü",
                "z": [1, 2.5, -0.25, 'a \\ \n "', None, {"deep": True}],
                "a": {},
                "m": {"b": 1, "a": 2},
            }
        ),
        put({"title": "t"}, base=0),
        put({"title": "t", "text": "x" * 70_000}, base=1 << 40),
        put({"title": "t"}, id="x" * ENTITY_ID_BYTES_MAX, base=7),
    ):
        assert by_the_compiled_part(raw) is not None
        assert good(raw)


@pytest.mark.skipif(compiled.part is None, reason="there is no compiled part")
def test_Q4_one_entry_that_is_not_plain_or_of_another_coordinator_leaves_the_run() -> None:
    one, patch = encode(PLAIN), encode(change(operation("patch", "mission", "m", {"title": "t"})))
    by_ana, by_bob = coordinated("ana", 5, one), coordinated("bob", 5, one)
    assert read_columns(PLAIN.mesh, [by_ana, by_ana]) is not None
    assert read_columns(PLAIN.mesh, [by_ana, by_bob]) is None
    assert read_columns(PLAIN.mesh, [by_ana, coordinated("ana", 5, patch)]) is None
    assert read_columns("elsewhere", [by_ana]) is None
    for damaged in (by_ana[:-1], by_ana + b"\0", coordinated(" ana", 5, one), b"", b"\x93"):
        assert read_columns(PLAIN.mesh, [by_ana, damaged]) is None


@pytest.mark.skipif(compiled.part is None, reason="there is no compiled part")
@given(
    st.integers(1, LAMPORT_MAX - 1),
    st.integers(0, 1 << 40),
    st.text(max_size=40),
    st.integers(0, 70_000),
    st.sampled_from(["a", "a b", "x" * 128, "é"]),
)
def test_Q4_an_intent_is_made_as_the_encoder_makes_it(
    lamport: int, created_at: int, id: str, size: int, origin: str
) -> None:
    fields = encode_value({"title": "t", "text": "x" * size})
    body = encode_body(EntityChange((EntityOperation("put", "mission", id, None, fields),)))
    made = msgspec.structs.replace(
        PLAIN,
        entity=f"mission/{id}",
        origin=origin,
        lamport=lamport,
        seq=lamport,
        created_at=created_at,
        body=body,
    )
    assert compiled.part is not None
    raw = compiled.part.make_intent(
        *(made.id, made.mesh, made.entity, origin, lamport, created_at, made.fingerprint, body)
    )
    assert raw is None or raw == encode(made)
    assert (raw is not None) == (by_the_compiled_part(encode(made)) is not None)
    assert raw is not None or not (id.isalnum() and id.isascii() and origin == "a")


@pytest.mark.skipif(compiled.part is None, reason="there is no compiled part")
@given(
    st.integers(1, 1 << 62), st.integers(1, 1 << 32), st.integers(0, 1 << 53), st.integers(0, 200)
)
def test_Q4_records_of_columns_are_those_of_their_entries(
    number: int, incarnation: int, epoch: int, length: int
) -> None:
    made = [change(operation("put", "mission", "m" * n, {"title": "t"})) for n in (1, 1 + length)]
    payloads = [coordinated("ana", 1 << (8 * at), encode(one)) for at, one in enumerate(made)]
    columns = read_columns(PLAIN.mesh, payloads)
    assert columns is not None
    token = FenceToken(incarnation, epoch, "ana", number)
    revisions = array("q", [1, number])
    joined, spans = record_columns(
        PLAIN.mesh, columns, fence=token, number=number, revisions=revisions
    )
    for at, (one, span) in enumerate(zip(made, unpacked(spans), strict=True)):
        revision = EntityRevision("mission", one.entity.removeprefix("mission/"), revisions[at])
        assert cut(joined, span) == encode_applied(
            *(one.mesh, one.id, one.fingerprint, number + at, token.further(at)),
            *(1 << (8 * at), revision),
        )


def test_Q4_usual_writes_go_the_short_way() -> None:
    """Otherwise nothing would fail, and everything would take twice as long."""
    for raw in (
        encode(PLAIN),
        put({"title": "é ü \\ \n", "z": [1, 2.5, None, {"deep": True}], "a": {}}),
        put({"title": "t"}, base=0),
        put({"title": "t"}, id="x" * ENTITY_ID_BYTES_MAX, base=7),
        put({"theme": "dark", "maxToken": 5}, type="project_settings", id="main"),
        put({"name": "n", "model": "m"}, type="agent_definition", id="a"),
    ):
        assert good(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91" * 100_000,
        encode(change(operation("patch", "mission", "m", {"title": "t"}))),
        encode(change(operation("delete", "mission", "m"))),
        encode(change(operation("put", "task", "t", {"title": "t"}))),
        encode(change(operation("put", "mission", "m", {"title": "t"}, epoch=1))),
        encode(
            change(
                operation("put", "mission", "a", {"title": "t"}),
                operation("put", "mission", "b", {"title": "t"}),
            )
        ),
    ],
    ids=range(9),
)
def test_Q4_everything_else_is_left_to_the_rules(raw: bytes) -> None:
    assert read_plain(raw) is None


@pytest.mark.parametrize(
    "fields",
    [
        b"{}",
        b"[]",
        b"1",
        b"",
        b"{",
        b'{"title":""}',
        b'{"title":7}',
        b'{"title":"t","title":"u"}',
        b'{"title": "t"}',
        b'{"b":1,"title":"t","a":2,"b":3}',
        b'{"title":"t","a":"\\u0041"}',
        b'{"title":"t","a":"\\u0000"}',
        b'{"title":"t","":1}',
        b'{"title":"t","a":%d}' % SAFE_INT_MAX,
        b'{"title":"t","a":%d}' % (SAFE_INT_MAX + 1),
        b'{"title":"t","a":[%d]}' % (SAFE_INT_MAX + 1),
        b'{"title":"t","a":%s1%s}' % (b"[" * 100, b"]" * 100),
        b'{"title":"t","a":1e2}',
        b'{"title":"t","a":100.0}',
        b'{"title":"t","a":-0.0}',
        b'{"title":"t","a":-0}',
        b'{"title":"t","a":0.00012}',
        b'{"title":"t","a":0.000012}',
        b'{"title":"t","a":1.50}',
        b'{"title":"t","a":123456789012.3456}',
        b'{"title":"t","a":"12345678\\n12345678\x7f"}',
        b'{"title":"t","a":"1234567\xc3\xa9\\t"}',
        b'{"title":"t","a":"%s"}' % (b"x" * ENTITY_BYTES_MAX),
        b'{"title":"%s"}' % (b"x" * 1025),
        b'{"title":"t",%s}' % b",".join(b'"f%d":1' % at for at in range(ENTITY_FIELDS_MAX)),
        b'{"z":1,"title":"t","a":2}',
        b'{"title":"t","a":"text"}',
        b'{"title":"t","a":{"password":"text"}}',
        b'{"title":"t","pid":7}',
    ],
)
@pytest.mark.parametrize("type", ["mission", "project_settings", "agent_definition"])
def test_Q5_fields_of_all_kinds_are_judged_alike(fields: bytes, type: str) -> None:
    for one in (fields, fields.replace(b"title", b"name"), fields.replace(b'"a"', b'"apiKey"')):
        body = encode_body(EntityChange((EntityOperation("put", type, "m", None, one),)))
        good(encode(msgspec.structs.replace(PLAIN, entity=f"{type}/m", body=body)))


TEXTS = ["", "a", "mission/m", "mission/é", "mission/a\0", "x" * 1025, "a b", " a", "x" * 129]
NUMBERS = [-1, 0, 1, 2, UNCOUNTED - 1, UNCOUNTED, LAMPORT_MAX, LAMPORT_MAX + 1, True, 1.0, None]
BODIES: list[Any] = [
    [[["put", "mission", "m", None, b'{"title":"t"}', [], None, None]]],
    [[["put", "mission", "m", 5, b'{"title":"t"}', [], None, None]]],
    [[["put", "mission", "m", -1, b'{"title":"t"}', [], None, None]]],
    [[["put", "mission", "m", LAMPORT_MAX, b'{"title":"t"}', [], None, None]]],
    [[["put", "mission", "m", True, b'{"title":"t"}', [], None, None]]],
    [[["put", "mission", "m", None, b'{"title":"t"}', ["a"], None, None]]],
    [[["put", "mission", "m", None, b'{"title":"t"}', [], 1, None]]],
    [[["put", "mission", "m", None, b'{"title":"t"}', [], None, ["l", 1, 1, 1]]]],
    [[["put", "mission", "m", None, b'{"title":"t"}', [], None, None, 9]]],
    [[["put", "mission", "m", None, b'{"title":"t"}', [], None]]],
    [[["put", "mission", "m", None, b'{"title":"t"}']]],
    [[["put", "mission", "m", None, '{"title":"t"}', [], None, None]]],
    [[["put", "moon", "m", None, b'{"title":"t"}', [], None, None]]],
    [[["put", "mission", "n", None, b'{"title":"t"}', [], None, None]]],
    [[["put", "mission", "", None, b'{"title":"t"}', [], None, None]]],
    [[["put", "mission", "m", None, b'{"title":"t"}', [], None, None]], 1],
    [[]],
    [],
    {},
]
VERSION_8 = bytes(6) + b"\x80" + bytes(1) + b"\x80" + bytes(7)
VALUES: dict[str, list[Any]] = {
    "protocol": ["holdfast", "other", "", None],
    "version": ["1.0", "1.1", "2.0", "", None],
    "id": [make_id(2), VERSION_8, b"", b"\0" * 16, b"\xff" * 16, make_id(3) + b"x", None],
    "mesh": TEXTS,
    "op": ["entity.change", "task.create", "lease.acquire", "", "x" * 65],
    "entity": TEXTS,
    "owner": ["", "a", None],
    "origin": TEXTS,
    "epoch": NUMBERS,
    "seq": NUMBERS,
    "lamport": NUMBERS,
    "created_at": NUMBERS,
    "write_class": ["strong", "append-only", "queued", "local", ""],
    "state": ["intent", "committed", "rejected", "lost", None],
    "fingerprint": [b"\1" * 32, b"\1" * 31, b"\1" * 33, b"", None],
    "base": [None, Base(1, "bob")],
    "meta": [b"", b"{}", b'{"a":1}'],
    "body": [b"", b"\xff", *(msgspec.msgpack.encode(body) for body in BODIES)],
    "to": [None, ("topic", "x"), ("moon", "x")],
    "reply_to": ["", "x", None],
    "priority": ["now", "next", "low", "never"],
    "fence": [None, Fence(1, "bob", 1)],
    "intent": [None, make_id(2), make_id(4), b"short"],
    "committed_at": NUMBERS,
}


def spelled(changes: dict[str, Any]) -> bytes:
    """An envelope as anybody may write it."""
    fields = [changes.get(name, getattr(PLAIN, name)) for name in Envelope.__struct_fields__]
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize("field", sorted(VALUES))
def test_Q4_the_short_way_never_takes_what_the_rules_refuse(field: str) -> None:
    for value in VALUES[field]:
        good(spelled({field: value}))
        good(spelled({field: value} | ({"intent": value} if field == "id" else {})))
    assert set(VALUES) == set(Envelope.__struct_fields__), "every field is tried"


@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(VALUES[name]) for name in VALUES}))
def test_Q4_however_fields_come_together_both_ways_agree(changes: dict[str, Any]) -> None:
    good(spelled(changes))


@given(st.integers(0, len(encode(PLAIN)) - 1), st.integers(0, 255), st.integers(0, 30))
def test_Q4_damaged_intents_are_never_taken_for_good(at: int, byte: int, cut: int) -> None:
    raw = bytearray(encode(PLAIN))
    raw[at] = byte
    good(bytes(raw))
    good(bytes(raw[: len(raw) - cut]))
    good(bytes(raw) + b"\0" * cut)


def test_Q4_another_spelling_of_the_same_intent_is_left_to_the_rules() -> None:
    fields = [getattr(PLAIN, name) for name in Envelope.__struct_fields__]
    for count in range(len(fields)):
        assert not good(msgspec.msgpack.encode(fields[:count]))
    assert not good(msgspec.msgpack.encode([*fields, "of a later version"]))
    long_text = encode(PLAIN).replace(b"\xa8holdfast", b"\xd9\x08holdfast")
    assert read_plain(long_text) is None
    assert decode(long_text.replace(b"\xd9\x08holdfast", b"\xa8holdfast")) == PLAIN


def test_Q4_the_record_of_a_plain_write_has_the_bytes_that_every_node_writes() -> None:
    for number in (1, 127, 70_000, LAMPORT_MAX - 1):
        token, one = fence(number, 3, coordinator="zoë"), EntityRevision("mission", "é", number)
        record = CommitRecord(
            mesh="team",
            id=PLAIN.id,
            fingerprint=PLAIN.fingerprint,
            number=number,
            fence=token,
            committed_at=number,
            outcome=Outcome.APPLIED,
            revisions=(one,),
        )
        found = encode_applied("team", PLAIN.id, PLAIN.fingerprint, number, token, number, one)
        assert found == encode_record(record)
