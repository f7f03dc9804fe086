"""R4: whatever comes in gets a typed error or a decision, and a refusal changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.protocol.fusion_envelope import fusion_json, read_fusion
from holdfast.rules.audit_chain import AuditChain, next_event
from holdfast.rules.bodies import decode_body
from holdfast.rules.envelope import decode
from holdfast.rules.errors import HoldfastError
from holdfast.rules.fingerprint import fingerprint
from holdfast.rules.quorum.auth_material import (
    ApiKeyAuth,
    decode_auth,
    encode_auth,
    make_snapshot_of_auth,
)
from holdfast.rules.quorum.commit_record import decode_record
from holdfast.rules.quorum.fence import parse_order, parse_token
from holdfast.rules.quorum.intents import QUORUM_OPS
from holdfast.rules.quorum.moments import parse_moment
from holdfast.rules.rebuild import rebuild_event
from support.envelopes import TASK, make_id
from support.quorum_state import QuorumState, change, fence, intent, operation
from support.seeds import seeds

CHANGE = change(
    operation("put", "task", "t", {"title": "a", "dependencies": ["x"], "steps": [{}]}, base=0),
    operation("patch", "mission", "m", {"goal": 1}, removed=("note",), base=2, epoch=1),
)


def record() -> bytes:
    state = QuorumState()
    state.fold(CHANGE)
    return state.records[0]


EVENT = next_event(AuditChain("team", "s", "a", 1), None, id=make_id(1), at=1, payload=b'{"a":1}')
SAMPLES: list[tuple[Callable[[bytes], object], bytes]] = [
    (decode_record, record()),
    (
        lambda raw: decode_body(decode(raw)),
        rebuild_event(msgspec.structs.replace(EVENT, lamport=1)),
    ),
    (decode_auth, encode_auth(make_snapshot_of_auth({"p": ApiKeyAuth("k")}, 0))),
    (read_fusion, fusion_json(CHANGE, None)),
    (lambda raw: parse_order(raw.decode("latin-1")), str(fence(3).order).encode()),
    (lambda raw: parse_token(raw.decode("latin-1")), str(fence(3)).encode()),
    (lambda raw: parse_moment(raw.decode("latin-1")), b"2026-05-17T08:30:00.000Z"),
]


def harmed(draw: random.Random, raw: bytes) -> bytes:
    found = bytearray(raw)
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(found) + 1)
        kind = draw.randrange(5)
        if kind == 0:
            found[place : place + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            del found[place : place + draw.randint(1, 8)]
        elif kind == 2:
            found[place:place] = draw.choice(
                (b"\xc0", b"\x91", b'"', b"[" * 70, b"9" * 30, b"\x00", b"\xdf\xff\xff\xff\xff")
            )
        elif kind == 3:
            found = found[:place]
        else:
            found[place:place] = found[: draw.randint(0, 20)]
    return bytes(found)


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
def test_R4_every_decoder_answers_harmed_bytes_with_a_typed_error_or_reads_them(
    sample: int,
) -> None:
    decode, raw = SAMPLES[sample]
    decode(raw)
    refused = 0
    for seed in seeds(250):
        try:
            decode(harmed(random.Random(seed), raw))
        except HoldfastError:
            refused += 1
    assert refused > 150


def test_R4_a_committed_entry_with_any_body_gets_a_decision() -> None:
    outcomes = set()
    for seed in seeds(600):
        draw = random.Random(seed)
        op = draw.choice(sorted(QUORUM_OPS))
        entity = draw.choice(("task/t", "deploy", "cyd", TASK))
        body = harmed(draw, CHANGE.body) if draw.random() < 0.7 else draw.randbytes(12)
        made = intent(op, entity, fingerprint=fingerprint(kind=op, ref=entity, body=body))
        state = QuorumState()
        decision = state.fold(msgspec.structs.replace(made, body=body))
        outcomes.add(decision.outcome)
        assert decision.counts
        if decision.outcome is None:
            assert decision.reason
            assert [state.entities, state.leases, state.tasks, state.nodes] == [{}, {}, {}, {}]
    assert None in outcomes


@pytest.mark.parametrize(
    "fields",
    [
        b'{"title":"a","n":123456789012345678901234567890}',
        b'{"title":"a","n":-9223372036854775809}',
        b'{"title":"a","n":' + b"9" * 4000 + b"}",
        b'{"title":"a","n":' + b"9" * 9000 + b"}",
        b'{"title":"a","n":1e400}',
        b'{"title":"a","n":1e308}',
        b'{"title":"a","n":0.1}',
        b'{"title":"a","n":-0}',
        b'{"title":"a","n":-0.0}',
        b'{"title":"a","s":"\\ud800"}',
        b'{"title":"a","s":"\xff"}',
        b'{"title":"a","s":"\\u0000"}',
        b'{"title":"a","d":' + b"[" * 63 + b"]" * 63 + b"}",
        b'{"title":"a","d":' + b"[" * 90 + b"]" * 90 + b"}",
        b'{"title":"a","d":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_R4_odd_json_is_refused_or_kept_as_it_reads(fields: bytes) -> None:
    put = msgspec.structs.replace(operation("put", "mission", "m"), fields=fields)
    state = QuorumState()
    decision = state.fold(change(put))
    if decision.outcome is None:
        assert decision.reason in ("bad_value", "over_limit", "bad_entity")
        return
    stored: Any = msgspec.json.decode(state.entities["mission", "m"].fields)
    assert stored == msgspec.json.decode(fields)
    # A node that reads the row again comes to the same bytes.
    patch = operation("patch", "mission", "m", {"more": 1}, base=1)
    assert state.fold(change(patch)).outcome is not None
