"""The ledger's rule against its definition, over all orders of delivery of small histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations
from random import Random

import pytest

from holdfast.rules import ledger
from holdfast.rules.envelope import Base
from holdfast.rules.ledger import Seen, Written, lost_among, meet
from holdfast.rules.order import Version, order_key
from support.envelopes import make_id
from support.seeds import seeds


def write(number: int, peer: str, lamport: int, base: Written | None = None) -> Written:
    named = None if base is None else Base(base.version.lamport, base.version.peer)
    return Written(Version(lamport, peer, make_id(number)), named)


# --- the definition ------------------------------------------------------------------------------


def discarded(versions: Iterable[Written]) -> set[Version]:
    """Every version that is not the newest one nor an ancestor of it: over bases, and over what a
    peer wrote before. A base that has not arrived stands for all that its peer wrote up to it.
    """
    known = set(versions)
    newest = max(known, key=lambda one: order_key(one.version))
    reached: set[Written] = set()
    waiting = [newest]
    while waiting:
        one = waiting.pop()
        if one in reached:
            continue
        reached.add(one)
        for other in known:
            earlier = other.version.peer == one.version.peer and order_key(
                other.version
            ) < order_key(one.version)
            named = (
                one.base is not None
                and other.version.peer == one.base.peer
                and other.version.lamport <= one.base.lamport
            )
            if earlier or named:
                waiting.append(other)
    return {one.version for one in known - reached}


class Ledger:
    """A key on a node, kept by the rule."""

    def __init__(self) -> None:
        self.log: list[Written] = []
        self.standing: Written | None = None
        self.seen: Seen = {}
        self.lost: dict[Version, Written] = {}
        self.looked_at = 0

    def take(self, one: Written) -> None:
        self.log.append(one)
        if self.standing is None:
            self.standing, self.seen = one, {}
            if one.base is not None:
                self.seen[one.base.peer] = one.base.lamport
            return
        by_version = {each.version: each for each in self.log}
        met = meet(self.standing, self.seen, list(self.lost.values()), one, self._history(one))
        for version in met.found:
            del self.lost[version]
        for version in met.lost:
            assert version not in self.lost, "it stands there once"
            self.lost[version] = by_version[version]
        self.seen = met.seen
        if met.wins:
            self.standing = one

    def _history(self, without: Written) -> Iterator[Written]:
        for one in sorted(self.log, key=lambda one: order_key(one.version), reverse=True):
            if one != without:
                self.looked_at += 1
                yield one


def histories(rng: Random) -> list[Written]:
    """What up to four peers write on one key, each having seen some of the others' versions."""
    made: list[Written] = []
    clocks = dict.fromkeys(rng.sample("abcd", rng.randint(2, 4)), 0)
    held: dict[str, Written | None] = dict.fromkeys(clocks)
    for number in range(rng.randint(2, 5)):
        peer = rng.choice(sorted(clocks))
        for other in made:
            if rng.random() < 0.4:  # it arrived there before
                clocks[peer] = max(clocks[peer], other.version.lamport) + 1
                here = held[peer]
                if here is None or order_key(here.version) < order_key(other.version):
                    held[peer] = other
        clocks[peer] += 1
        one = write(number, peer, clocks[peer], held[peer])
        held[peer] = one
        made.append(one)
    return made


@pytest.mark.parametrize("seed", seeds(60))
def test_S18_the_ledger_is_its_definition_in_every_order_of_delivery(seed: int) -> None:
    made = histories(Random(seed))
    for order in permutations(made):
        node = Ledger()
        for count, one in enumerate(order, 1):
            node.take(one)
            assert set(node.lost) == discarded(order[:count]), (order, count)
    assert set(lost_among(made)) == discarded(made)


def test_S18_three_versions_each_over_the_one_before_leave_nothing_in_any_order() -> None:
    a = write(1, "ana", 1)
    b = write(2, "bob", 2, a)
    c = write(3, "cyd", 3, b)
    for order in permutations((a, b, c)):
        node = Ledger()
        for one in order:
            node.take(one)
        assert node.lost == {}


def test_S18_every_lost_version_of_a_peer_is_there() -> None:
    first = write(1, "ana", 1)
    second = write(2, "ana", 2, first)
    other = write(3, "bob", 5)
    for order in permutations((first, second, other)):
        node = Ledger()
        for one in order:
            node.take(one)
        assert set(node.lost) == {first.version, second.version}


def test_S18_a_look_back_ends_where_the_branches_part() -> None:
    """Otherwise every conflict on a busy key would read all of its past."""
    node = Ledger()
    before = None
    for number in range(500):
        before = write(number, "ab"[number % 2], number + 1, before)
        node.take(before)
    fork = write(600, "a", 501, before)
    node.take(fork)
    node.take(write(601, "cyd", 502, before))
    assert set(node.lost) == {fork.version}
    assert node.looked_at <= 4


@pytest.mark.parametrize("name", ["_found", "_apart"])
def test_S18_the_model_sees_a_rule_that_leaves_out_a_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*given: object) -> list[Version]:
        return []

    monkeypatch.setattr(ledger, name, nothing)
    with pytest.raises(AssertionError):
        _all_seeds()


def _all_seeds() -> None:
    for seed in range(60):
        test_S18_the_ledger_is_its_definition_in_every_order_of_delivery(seed)
