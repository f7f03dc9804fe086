"""The ledger stays readable: one entry for what a peer wrote apart, however often it wrote."""

from __future__ import annotations

from itertools import permutations

import pytest

from holdfast.node.library.node import Node
from support import envelopes as e
from support.envelopes import make_id

WRITES = [e.state_set("k", f"draft {n}", lamport=n, origin="bob", id=make_id(n)) for n in (3, 4, 5)]
WINNER = e.state_set("k", "won", lamport=9, origin="cyd", id=make_id(9))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_S18_what_a_peer_wrote_apart_is_one_entry_about_its_last_write(
    node: Node, order: tuple[int, ...]
) -> None:
    node.apply([WINNER, *(WRITES[place] for place in order)])
    (row,) = node.conflicts()
    assert (row.loser.lamport, row.winner.lamport) == (5, 9)
    node.restore_conflict(row.number)
    assert node.mesh("team").state.get("k") == "draft 5"


def test_S18_two_peers_that_lost_have_an_entry_each(node: Node) -> None:
    other = e.state_set("k", "mine", lamport=6, origin="dan", id=make_id(6))
    node.apply([WINNER, *WRITES, other])
    assert [row.loser.peer for row in node.conflicts()] == ["bob", "dan"]


def test_S18_what_is_lost_after_a_decision_is_a_new_entry(node: Node) -> None:
    node.apply([WINNER, WRITES[0]])
    (first,) = node.conflicts()
    node.dismiss_conflict(first.number)
    node.apply(WRITES[1:])
    (second,) = node.conflicts()
    assert second.number != first.number
    assert second.loser.lamport == 5
