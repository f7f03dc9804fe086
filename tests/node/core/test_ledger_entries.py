"""The ledger on real nodes: every lost version once, none that was seen, whatever the order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.node.core import fold_tasks
from holdfast.node.library.node import Node
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.ledger import Written
from holdfast.rules.limits import LEDGER_OF_KEY_MAX
from holdfast.rules.merge import version_of
from holdfast.storage.memory.families import MemoryFamilies
from support import envelopes as e
from support.envelopes import make_id
from support.nodes import Nodes, store_of, team
from support.seeds import seeds
from support.source import HandClock

WRITES = [e.state_set("k", f"draft {n}", lamport=n, origin="bob", id=make_id(n)) for n in (3, 4, 5)]
WINNER = e.state_set("k", "won", lamport=9, origin="cyd", id=make_id(9))


def entries(node: Node) -> list[tuple[Any, ...]]:
    """What the ledger says, without what each node numbers and dates for itself."""
    return sorted(
        (row.entity, row.loser, row.winner, row.loser_op, row.loser_body, row.reason)
        for row in node.conflicts()
    )


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_S18_every_version_that_a_peer_lost_is_there_once(
    node: Node, order: tuple[int, ...]
) -> None:
    raws = [*WRITES, WINNER]
    node.apply([raws[place] for place in order])
    rows = sorted(node.conflicts(), key=lambda row: row.loser.lamport)
    assert [(row.loser.lamport, row.winner.lamport) for row in rows] == [(3, 9), (4, 9), (5, 9)]
    node.restore_conflict(rows[0].number)
    assert team(node).state.get("k") == "draft 3"
    assert sorted(row.loser.lamport for row in node.conflicts()) == [4, 5]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_S18_three_versions_each_over_the_one_before_leave_no_entry(
    node: Node, order: tuple[int, ...]
) -> None:
    raws = [
        e.state_set("k", 1, lamport=1, origin="bob"),
        e.state_set("k", 2, lamport=2, origin="cyd", base=(1, "bob")),
        e.state_set("k", 3, lamport=3, origin="dan", base=(2, "cyd")),
    ]
    node.apply([raws[place] for place in order])
    assert team(node).state.get("k") == 3
    assert list(node.conflicts()) == []


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_S18_a_version_that_knew_of_none_leaves_all_before_it(
    node: Node, order: tuple[int, ...]
) -> None:
    raws = [
        e.state_set("k", 1, lamport=1, origin="bob"),
        e.state_set("k", 2, lamport=2, origin="cyd", base=(1, "bob")),
        e.state_set("k", 3, lamport=3, origin="dan"),
    ]
    node.apply([raws[place] for place in order])
    assert sorted(row.loser.lamport for row in node.conflicts()) == [1, 2]


def test_S18_a_version_that_is_seen_after_all_leaves_the_ledger(node: Node) -> None:
    node.apply([WINNER, WRITES[0]])
    (row,) = node.conflicts()
    node.apply([e.state_set("k", "both", lamport=12, origin="bob", base=(9, "cyd"))])
    assert list(node.conflicts()) == [], "bob has seen what bob wrote, and what won"
    assert row.loser_op == "state.set"


def test_S18_what_is_decided_stays_so_and_what_is_lost_later_is_new(node: Node) -> None:
    node.apply([WINNER, WRITES[0]])
    (first,) = node.conflicts()
    node.dismiss_conflict(first.number)
    node.apply(WRITES)
    assert [row.loser.lamport for row in node.conflicts()] == [4, 5]
    assert len(list(node.conflicts(open_only=False))) == 3


def test_S18_the_newest_of_too_many_lost_versions_are_listed(node: Node) -> None:
    count = LEDGER_OF_KEY_MAX + 20
    node.apply([e.state_set("k", "won", lamport=count + 9, origin="cyd")])
    node.apply([e.state_set("k", n, lamport=n, origin="bob") for n in range(1, count + 1)])
    lost = [row.loser.lamport for row in node.conflicts()]
    assert lost == list(range(21, count + 1))


def histories(rng: Random) -> list[bytes]:
    """Writes of a few peers on two keys, each peer having seen some of the others' before."""
    made: list[bytes] = []
    for number in range(rng.randint(3, 4)):
        origin, key = rng.choice(("bob", "cyd", "dan")), rng.choice(("k", "k", "j"))
        known = [decode_trusted(raw) for raw in made]
        mine = [one for one in known if one.entity == key and one.origin == origin]
        heard = [one for one in known if one.entity == key and rng.random() < 0.5]
        seen = max([*mine, *heard], key=lambda one: (one.lamport, one.origin), default=None)
        own = max((one.lamport for one in known if one.origin == origin), default=0)
        lamport = max(own, 0 if seen is None else seen.lamport) + rng.randint(1, 2)
        base = None if seen is None else (seen.lamport, seen.origin)
        fields: dict[str, Any] = {"lamport": lamport, "origin": origin, "base": base}
        made.append(
            e.state_set(key, number, **fields)
            if rng.random() < 0.8
            else e.raw("state.delete", key, **fields)
        )
    return made


@pytest.mark.parametrize("seed", seeds(6))
def test_S18_every_node_has_the_same_ledger_whatever_the_order(tmp_path: Path, seed: int) -> None:
    made, nodes = histories(Random(seed)), in_memory(tmp_path)
    found = set()
    for number, order in enumerate(permutations(made)):
        node = nodes.open(f"node {number}")
        node.apply(order)
        found.add(str(entries(node)))
        assert {row[1] for row in entries(node)} == by_definition(made)
    assert len(found) == 1


def in_memory(folder: Path) -> Nodes:
    """Many nodes: on disks they would take their time. The other tests run on both stores."""
    return Nodes("memory", folder, HandClock())


def test_S18_a_node_that_forgets_what_was_seen_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryFamilies, "state_seen", lambda tx, mesh, key: {})
    with pytest.raises(AssertionError):
        _some_seeds(tmp_path)


def _some_seeds(folder: Path) -> None:
    for seed in range(6):
        test_S18_every_node_has_the_same_ledger_whatever_the_order(folder, seed)


def by_definition(raws: Sequence[bytes]) -> set[Any]:
    """What the newest version of each key has neither seen nor is."""
    lost = set()
    for key in ("k", "j"):
        known = [
            Written(version_of(one), one.base)
            for one in map(decode_trusted, raws)
            if one.entity == key
        ]
        if not known:
            continue
        newest = max(known, key=lambda one: one.version[:2])
        reached, waiting = set(), [newest]
        while waiting:
            one = waiting.pop()
            if one in reached:
                continue
            reached.add(one)
            base = (one.base.lamport, one.base.peer) if one.base is not None else None
            waiting += [
                other
                for other in known
                if other.version[:2] == base
                or (other.version.peer == one.version.peer and other.version < one.version)
            ]
        lost |= {one.version for one in known if one not in reached}
    return lost


def test_S18_the_ledger_outlives_the_log(node: Node) -> None:
    """The value of the version that stood is in its row where the log has let it go."""
    node.apply([WRITES[0], e.state_set("other", 1, lamport=4, origin="bob")])
    store_of(node).write(lambda tx: tx.log_truncate(2, 10, 1))
    node.apply([WINNER])
    (row,) = node.conflicts()
    node.restore_conflict(row.number)
    assert team(node).state.get("k") == "draft 3"


def test_S18_a_lost_claim_that_wins_later_leaves_the_ledger(tmp_path: Path) -> None:
    assert len(ledgers_of_turns(in_memory(tmp_path))) == 1


def test_S18_a_lost_claim_that_stays_in_the_ledger_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fold_tasks._note_lost

    def only_added(*args: Any, lost: bool, held: bool) -> None:
        if lost:
            real(*args, lost=lost, held=held)

    monkeypatch.setattr(fold_tasks, "_note_lost", only_added)
    assert len(ledgers_of_turns(in_memory(tmp_path))) > 1


def ledgers_of_turns(nodes: Nodes) -> set[str]:
    """What the ledger says after the same turns in many orders."""
    turns = [
        e.task_create(e.TASK, lamport=1),
        e.task_claim(e.TASK, lamport=2, origin="bob"),
        e.task_release(e.TASK, lamport=3, origin="bob"),
        e.task_claim(e.TASK, 0, lamport=4, origin="cyd"),
        e.task_claim(e.TASK, 1, lamport=6, origin="dan"),
    ]
    found = set()
    for number, order in enumerate(permutations(turns)):
        if number % 3:
            continue
        node = nodes.open(f"node {number}")
        node.apply(order)
        found.add(str(entries(node)))
    return found
