"""What an envelope from outside may say about its own commit."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rules.arrivals import Arrival, read_arrivals
from holdfast.rules.envelope import Fence, encode
from holdfast.rules.errors import BadEnvelope, NotCommitted
from support.envelopes import changed, fact_append, make_id, state_set
from support.quorum_state import change, operation

SAID: list[dict[str, Any]] = [
    *({"state": state} for state in ("intent", "rejected", "queued", "reconciled")),
    {"fence": Fence(1, "ana", 1)},
    {"intent": make_id(1)},
    {"committed_at": 5},
    {"write_class": "local"},
]


@pytest.mark.parametrize("fields", SAID, ids=str)
@pytest.mark.parametrize(
    "raw", [state_set("k", 1), fact_append("k", "is", 1)], ids=("state", "fact")
)
def test_Q2_a_write_that_no_quorum_decides_says_nothing_of_one(
    raw: bytes, fields: dict[str, Any]
) -> None:
    (arrival,) = read_arrivals([changed(raw, **fields)])
    assert isinstance(arrival, Arrival)
    assert isinstance(arrival.error, BadEnvelope)


@pytest.mark.parametrize(
    "raw", [state_set("k", 1), fact_append("k", "is", 1)], ids=("state", "fact")
)
def test_Q1_whatever_calls_itself_strong_is_held_at_the_door(raw: bytes) -> None:
    (arrival,) = read_arrivals([changed(raw, write_class="strong", fence=Fence(1, "ana", 1))])
    assert isinstance(arrival, Arrival)
    assert isinstance(arrival.error, NotCommitted), "a fence that it brings itself proves nothing"


def test_Q2_an_intent_comes_with_the_order_of_its_quorum_or_is_held() -> None:
    raw = encode(change(operation("put", "mission", "m", {"title": "t"})))
    assert isinstance(Arrival(raw).error, NotCommitted)


def test_Q1_plain_writes_pass_as_before() -> None:
    facts = read_arrivals([fact_append("k", "is", 1)])
    assert isinstance(facts[0], tuple), "the fast way still takes them"
    assert Arrival(state_set("k", 1)).error is None
