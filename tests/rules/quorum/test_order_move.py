"""The end of an order: what is refused, what it decides, and where the next one begins."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.rules.errors import BadEnvelope
from holdfast.rules.limits import INCARNATION_MAX, QUORUM_ID_MAX, QUORUM_IDS_PER_INCARNATION
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import MOVE, ORDER, OrderMove, decode_intent
from holdfast.rules.quorum.order_move import (
    first_voter_id,
    has_not_begun,
    moved_standing,
    rule_move,
)
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.quorum.view import PutOrder
from holdfast.rules.quorum.write_queue import can_wait
from holdfast.rules.reconcile import Outcome
from support.quorum_state import intent

FENCE = FenceToken(3, 9, "ana", 70)
TAG = b"t" * 16


def test_Q4_the_end_of_an_order_raises_the_incarnation() -> None:
    ruling = rule_move(OrderMove(3, "etcd", TAG), FENCE)
    assert ruling.outcome is Outcome.APPLIED
    (put,) = ruling.writes
    assert put == PutOrder("etcd", 4, TAG)
    row = QuorumRow(
        mesh="team", incarnation=3, tag=b"o" * 16, voter=2, applied=70, number=50, fence=FENCE
    )
    assert isinstance(put, PutOrder)
    moved = moved_standing(row, put)
    assert moved == replace(row, engine="etcd", incarnation=4, tag=TAG, voter=None, applied=0)
    assert has_not_begun(moved)
    assert not has_not_begun(row)


def test_Q4_a_move_that_was_made_for_an_earlier_incarnation_ends_nothing() -> None:
    ruling = rule_move(OrderMove(2, "etcd", TAG), FENCE)
    assert (ruling.outcome, ruling.writes) == (Outcome.SUPERSEDED, ())


@pytest.mark.parametrize(
    ("entity", "body"),
    [
        ("other", OrderMove(1, "etcd", TAG)),
        (ORDER, OrderMove(0, "etcd", TAG)),
        (ORDER, OrderMove(INCARNATION_MAX, "etcd", TAG)),
        (ORDER, OrderMove(1, "etcd", b"short")),
        (ORDER, OrderMove(1, "paxos", TAG)),  # type: ignore[arg-type]
    ],
)
def test_Q2_what_is_no_move_is_refused(entity: str, body: OrderMove) -> None:
    with pytest.raises(BadEnvelope):
        decode_intent(intent(MOVE, entity, body))


def test_Q6_a_move_never_waits_in_the_queue() -> None:
    assert not can_wait(MOVE)


def test_Q10_ids_of_voters_begin_above_those_of_earlier_incarnations() -> None:
    assert first_voter_id(1) == 1
    assert first_voter_id(2) == 1 + QUORUM_IDS_PER_INCARNATION
    assert first_voter_id(INCARNATION_MAX) < QUORUM_ID_MAX
