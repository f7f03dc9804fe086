"""Walks and searches find the bugs that they are there for: they are planted, one at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.project import TESTS
from support.raft_bugs import BUGS, RaftBug
from support.raft_messages import MessageSearch
from support.raft_rounds import RoundSearch
from support.raft_scenario import replay
from support.raft_searches import MESSAGES, PLANTED_ROUNDS
from support.raft_walk import RaftWalk, ReadWalk

pytestmark = pytest.mark.timeout(600)

WALKS_MAX = 600
STEPS = 800
CASES = [(bug, finder) for bug in BUGS for finder in bug.finders]


@pytest.mark.parametrize(("bug", "finder"), CASES, ids=lambda it: getattr(it, "name", it))
def test_R1_a_planted_bug_is_found(
    bug: RaftBug, finder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug.plant(monkeypatch)
    kind, _, where = finder.partition(": ")
    found = FINDERS[kind](where)
    print(f"{bug.name}: {found}")
    assert found, f"{finder} does not see it"


def test_R1_every_trap_that_the_contract_names_is_planted() -> None:
    named = {
        "ack before disk",
        "vote before disk",
        "commit of an older term by counting",
        "leader's own disk not counted",
        "change before the term is settled",
        "two changes in flight",
        "truncation on match",
        "votes counted twice",
        "read confirmed by an old round",
        "vote forgotten by a restore",
        "late disk ack counted",
    }
    assert named <= {bug.name for bug in BUGS}


def _by_walks(first: str) -> str:
    """The walk in which a bug was found is tried first; if the code has changed since and nothing
    happens there, the search goes through the others.
    """
    return _walked(RaftWalk, first)


def _by_reads(first: str) -> str:
    return _walked(ReadWalk, first)


def _walked(kind: type[RaftWalk], first: str) -> str:
    for seed in dict.fromkeys((int(first), *range(WALKS_MAX))):
        try:
            kind(seed).run(STEPS)
        except AssertionError as error:
            return f"in walk {seed}: {error}"
    return ""


def _by_rounds(where: str) -> str:
    try:
        RoundSearch(PLANTED_ROUNDS[where]).run()
    except AssertionError as error:
        return str(error)
    return ""


def _by_messages(where: str) -> str:
    try:
        MessageSearch(MESSAGES[where][0]).run()
    except AssertionError as error:
        return str(error)
    return ""


def _by_scenario(name: str) -> str:
    try:
        replay(TESTS / "scenarios" / "quorum" / f"{name}.txt")
    except AssertionError as error:
        return str(error)
    return ""


FINDERS: dict[str, Callable[[str], str]] = {
    "scenario": _by_scenario,
    "walk": _by_walks,
    "reads": _by_reads,
    "rounds": _by_rounds,
    "messages": _by_messages,
}
