"""Q4: fences, their order and their text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadFence, FenceForged, FenceTooOld
from holdfast.rules.limits import INCARNATION_MAX, LAMPORT_MAX
from holdfast.rules.quorum.fence import (
    FENCE_CHARS,
    FenceOrder,
    FenceToken,
    check_newer,
    envelope_fence,
    parse_order,
    parse_token,
)

NUMBERS = st.one_of(st.integers(0, 40), st.integers(0, LAMPORT_MAX - 1))
ORDERS = st.builds(
    FenceOrder, st.one_of(st.integers(1, 3), st.integers(1, INCARNATION_MAX)), NUMBERS, NUMBERS
)
PEERS = st.sampled_from(["ana", "bob", "a@b", "zoë", "x y"])


@given(ORDERS, ORDERS)
def test_Q4_texts_of_fences_sort_as_the_fences_do(one: FenceOrder, other: FenceOrder) -> None:
    assert (str(one) < str(other)) == (one < other)
    assert len(str(one)) == FENCE_CHARS
    assert parse_order(str(one)) == one


@given(ORDERS, PEERS)
def test_Q4_a_token_is_read_back_from_its_text(order: FenceOrder, peer: str) -> None:
    token = FenceToken(order.incarnation, order.lease_epoch, peer, order.sequence)
    assert parse_token(str(token)) == token
    assert envelope_fence(token).sequence == order.sequence


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        str(FenceOrder(1, 2, 3))[1:],
        str(FenceOrder(1, 2, 3)) + "0",
        str(FenceOrder(1, 2, 3)) + "\n",
        str(FenceOrder(1, 2, 3)).replace(".", ":"),
        str(FenceOrder(0, 2, 3)),
        "9999999999." + str(FenceOrder(1, 2, 3))[11:],
        str(FenceOrder(1, 2, 3))[:11] + "9" * 19 + str(FenceOrder(1, 2, 3))[30:],
        "\u0660" * 10 + str(FenceOrder(1, 2, 3))[10:],
    ],
)
def test_Q4_what_is_no_fence_is_refused(text: str) -> None:
    with pytest.raises(BadFence):
        parse_order(text)
    with pytest.raises(BadFence):
        parse_token(f"{text}@ana")


@pytest.mark.parametrize("coordinator", ["", " ana", "a\0b", "x" * 129])
def test_Q4_a_token_names_a_coordinator_that_can_be_one(coordinator: str) -> None:
    with pytest.raises(BadFence):
        parse_token(f"{FenceOrder(1, 2, 3)}@{coordinator}")
    with pytest.raises(BadFence):
        parse_token(str(FenceOrder(1, 2, 3)))


def test_Q4_an_older_fence_is_refused_and_a_newer_one_is_not() -> None:
    seen = FenceToken(2, 5, "ana", 40)
    check_newer(None, seen, "mesh")
    for newer in (
        FenceToken(2, 5, "ana", 41),
        FenceToken(2, 6, "bob", 1),
        FenceToken(3, 0, "bob", 0),
    ):
        check_newer(seen, newer, "mesh")
    for older in (
        seen,
        FenceToken(2, 5, "ana", 39),
        FenceToken(2, 4, "bob", 99),
        FenceToken(1, 9, "bob", 99),
    ):
        with pytest.raises(FenceTooOld):
            check_newer(seen, older, "mesh")


def test_Q4_two_coordinators_of_one_epoch_are_a_forgery() -> None:
    seen = FenceToken(2, 5, "ana", 40)
    for forged in (FenceToken(2, 5, "bob", 41), FenceToken(2, 5, "bob", 40)):
        with pytest.raises(FenceForged):
            check_newer(seen, forged, "mesh")
