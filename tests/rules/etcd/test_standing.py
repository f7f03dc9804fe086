"""Which nodes can go on with an incarnation."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.errors import MustRejoin
from holdfast.rules.etcd.entry import OrderBase, OrderState
from holdfast.rules.etcd.standing import (
    after_set_back,
    first_standing,
    joined_standing,
    standing_in,
)
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.state_rows import QuorumRow

FENCE = FenceToken(1, 4, "ana", 90)
FIRST = OrderBase(1, 0, 0, "", b"first")
SECOND = OrderBase(2, 95, 12, str(FENCE), b"second")
ROW = QuorumRow(
    mesh="team", engine="etcd", incarnation=1, tag=b"first", applied=120, number=12, fence=FENCE
)


def state(*bases: OrderBase) -> OrderState:
    return OrderState(
        incarnation=bases[-1].incarnation if bases else 1,
        epoch_base=0,
        incarnation_value=b"n",
        epoch_version=1,
        coordinator="ana",
        floor_version=0,
        floor=0,
        ids_before_ms=0,
        bases=bases,
    )


def test_Q10_a_new_node_begins_with_the_first_incarnation() -> None:
    row = first_standing("team", state(FIRST, SECOND))
    assert (row.incarnation, row.tag, row.applied, row.engine) == (1, b"first", 0, "etcd")


def test_Q10_a_new_node_cannot_begin_in_the_middle_of_a_history() -> None:
    with pytest.raises(MustRejoin):
        first_standing("team", state(SECOND))


def test_Q4_a_node_goes_on_with_an_incarnation_that_begins_where_it_is() -> None:
    row = standing_in(ROW, state(FIRST, SECOND), 2)
    assert (row.incarnation, row.tag, row.applied) == (2, b"second", 120)


@pytest.mark.parametrize(
    "row",
    [
        msgspec.structs.replace(ROW, number=11),
        msgspec.structs.replace(ROW, number=13),
        msgspec.structs.replace(ROW, fence=FenceToken(1, 4, "bo", 90)),
        msgspec.structs.replace(ROW, fence=None),
        msgspec.structs.replace(ROW, incarnation=3),
    ],
)
def test_Q4_a_node_that_has_something_else_does_not(row: QuorumRow) -> None:
    with pytest.raises(MustRejoin):
        standing_in(row, state(FIRST, SECOND), 2)


def test_Q4_an_incarnation_that_nobody_has_begun_is_not_followed() -> None:
    with pytest.raises(MustRejoin):
        standing_in(ROW, state(FIRST, SECOND), 3)


def test_Q4_after_a_set_back_only_a_recovery_is_followed() -> None:
    assert after_set_back(ROW, state(FIRST)) is None
    row = after_set_back(ROW, state(FIRST, SECOND))
    assert row is not None
    assert (row.incarnation, row.applied) == (2, 95)
    with pytest.raises(MustRejoin):
        after_set_back(msgspec.structs.replace(ROW, number=11), state(FIRST, SECOND))


def test_Q10_who_got_commits_from_others_joins_behind_them() -> None:
    follows = msgspec.structs.replace(ROW, engine="embedded", applied=3)
    row = joined_standing("team", follows, state(FIRST, SECOND))
    assert (row.engine, row.incarnation, row.applied) == ("etcd", 1, FENCE.sequence)
    row = joined_standing("team", follows, state(SECOND))
    assert (row.incarnation, row.tag, row.applied) == (2, b"second", 0)
    assert joined_standing("team", None, state(FIRST)).number == 0
    with pytest.raises(MustRejoin):
        joined_standing("team", msgspec.structs.replace(follows, number=11), state(SECOND))
