"""Who gets the next connection."""

from __future__ import annotations

from holdfast.broker.processes.turns import in_turn


def test_D1_the_process_with_the_fewest_connections_is_asked_first() -> None:
    assert in_turn({1: 3, 2: 0, 3: 1}, 2) == [2, 3, 1]
    assert in_turn({}, 1) == []


def test_D1_of_equals_the_next_one_is_asked_so_that_all_have_their_turn() -> None:
    last, given = 0, []
    for _ in range(6):
        last = in_turn({1: 5, 2: 5, 3: 5}, last)[0]
        given.append(last)
    assert given == [1, 2, 3, 1, 2, 3]
    assert in_turn({1: 0, 3: 0}, 3) == [1, 3]
