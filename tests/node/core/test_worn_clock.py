"""The clock of a mesh cannot be ended, and a mesh whose clock was worn by earlier code goes on."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.node.library.node import Node, open_node
from holdfast.rules.errors import BadStamp
from holdfast.rules.lamport import ceiling
from holdfast.rules.limits import DAY_MS, KNOWN_PAST_MS, LAMPORT_MAX, LAMPORT_STEP_MAX
from holdfast.storage.files.home import HomePaths
from support.envelopes import fact_append, make_id, state_set
from support.nodes import Nodes, deliver, store_of, team
from support.source import HandClock

WORN = 2**62


@pytest.mark.parametrize("many", [1, 50], ids=["one by one", "in runs"])
def test_S4_stamps_that_leap_as_far_as_they_may_do_not_wear_the_clock_out(
    nodes: Nodes, many: int
) -> None:
    """The outsiders' attack: each stamp 2^48 ahead of the last, or as far as passes."""
    clock = HandClock(KNOWN_PAST_MS)
    node = nodes.open(clock=clock)
    stamp, refused = 0, 0
    for round in range(4):
        raws = []
        for number in range(many):
            stamp += 2**48 if round % 2 else ceiling(0) // (2 * many)
            raws.append(fact_append("s", "is", 1, id=make_id(100 * round + number), lamport=stamp))
        refused += sum(isinstance(one.error, BadStamp) for one in node.apply(raws))
        stamp = min(stamp, ceiling(0))
    assert refused >= 2 * many, "those of two rounds at least"
    assert team(node).clock().lamport <= ceiling(0) + 4 * many
    assert team(node).state.set("k", 1).lamport <= ceiling(0) + 4 * many + 1


def test_S4_what_was_too_high_passes_when_its_time_has_come(nodes: Nodes) -> None:
    clock = HandClock(KNOWN_PAST_MS)
    node = nodes.open(clock=clock)
    raw = state_set("k", 1, lamport=ceiling(KNOWN_PAST_MS + DAY_MS))
    (refused,) = node.apply([raw])
    assert isinstance(refused.error, BadStamp)
    assert "set it" in (refused.error.hint or "")
    clock.advance(DAY_MS)
    (taken,) = node.apply([raw])
    assert taken.error is None


def worn(nodes: Nodes, peer: str) -> Node:
    node = nodes.open(peer)
    store_of(node).write(lambda tx: tx.clock_raise("team", WORN))
    return node


def test_S4_members_of_a_worn_mesh_go_on_writing_to_each_other(nodes: Nodes) -> None:
    ana, bob = worn(nodes, "ana"), worn(nodes, "bob")
    for number in range(3):
        team(ana).state.set("a", number)
        deliver(ana, bob)
        team(bob).state.set("b", number)
        deliver(bob, ana)
    for node in (ana, bob):
        assert {one.key: one.value for one in team(node).state.list()} == {"a": 2, "b": 2}
    (refused,) = bob.apply([state_set("x", 1, lamport=WORN + 2 * LAMPORT_STEP_MAX)])
    assert isinstance(refused.error, BadStamp), "but nobody leaps"


def test_S4_an_old_home_that_was_worn_opens_after_a_crash_and_writes(tmp_path: Path) -> None:
    """Made by hand, as no code makes it any more: a clock at almost its end, and the sign of a
    process that was killed with sync `normal`.
    """
    home = tmp_path / "home"
    with open_node(home, peer="ana", create=True) as node:
        node.create_mesh("team").state.set("k", 1)
    paths = HomePaths(home)
    connection = apsw.Connection(str(paths.database))
    for left in (2**40, 9):
        connection.execute("UPDATE mesh SET lamport = ?", (LAMPORT_MAX - left,))
        paths.mark.write_text('{"epoch":1,"offset":99,"volatile":true}')
        with open_node(home) as node:
            assert node.mesh("team").clock().lamport > LAMPORT_MAX - left
            if left > 9:
                assert node.mesh("team").state.get("k") == 1
                assert node.mesh("team").state.set("k", 2).lamport < LAMPORT_MAX
            else:
                node.mesh("team").state.set("k", 3)
                with pytest.raises(BadStamp, match="no number left"):
                    node.mesh("team").state.set("k", 4)
    connection.close()
