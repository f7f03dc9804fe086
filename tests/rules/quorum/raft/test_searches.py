"""Exhaustive searches with the product's own step: no state breaks what Raft promises.

Each search says how far it goes and how many states there are at least; one that has become smaller
fails. In CI the large ones take turns by day; a soak runs all of them.
"""

from __future__ import annotations

import pytest

from support.raft_messages import MessageSearch
from support.raft_rounds import RoundSearch
from support.raft_searches import MESSAGES, ROUNDS
from support.seeds import part


@pytest.mark.timeout(3600)
def test_Q4_no_way_through_atomic_rounds_breaks_a_promise() -> None:
    for name in part(ROUNDS, of=len(ROUNDS)):
        bounds, states = ROUNDS[name]
        assert RoundSearch(bounds).run() >= states >= 200_000, name


@pytest.mark.timeout(600)
def test_Q4_no_order_of_single_messages_breaks_a_promise() -> None:
    for name in part(MESSAGES, of=2):
        bounds, states = MESSAGES[name]
        assert MessageSearch(bounds).run() >= states, name


@pytest.mark.parametrize("name", ["an election", "a late disk"])
def test_R1_a_search_is_as_large_as_it_was(name: str) -> None:
    """Complete ones have just as many states as before: a rule that allows less would be seen."""
    bounds, states = MESSAGES[name]
    assert MessageSearch(bounds).run() == states
