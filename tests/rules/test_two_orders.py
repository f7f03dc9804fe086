"""When a group stops because others have another order."""

from __future__ import annotations

import pytest

from holdfast.rules.two_orders import is_contested


@pytest.mark.parametrize("voters", range(1, 8))
def test_Q4_a_minority_of_liars_stops_no_group_and_as_many_as_a_majority_do(voters: int) -> None:
    majority = voters // 2 + 1
    assert [is_contested(claims, voters) for claims in range(voters + 1)] == [
        claims >= majority for claims in range(voters + 1)
    ]


@pytest.mark.parametrize("one", range(1, 8))
@pytest.mark.parametrize("other", range(1, 8))
def test_Q4_of_two_groups_that_have_met_one_stops_at_least(one: int, other: int) -> None:
    assert is_contested(other, one) or is_contested(one, other)
