"""A turn joined to a stored history gives what the fold of all turns gives, in any order."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.limits import TASK_PAGE_ROWS
from holdfast.rules.order import Version, order_key
from holdfast.rules.rows import TaskEventRow
from holdfast.rules.task_join import JoinedTurn, join
from holdfast.rules.tasks import (
    Judged,
    Task,
    TaskEvent,
    TaskStanding,
    Turn,
    fold,
    fold_with_standings,
)
from support.envelopes import make_id


def turn(kind: str, lamport: int, peer: str, generation: int = 0, number: int = 0) -> Turn:
    version = Version(lamport, peer, make_id(number or lamport))
    return Turn(version, kind, generation, 1000 + lamport, f"by {peer}" if kind == "create" else "")


class History:
    """Stored turns in a list, and how many of them a join looked at."""

    def __init__(self) -> None:
        self.rows: list[TaskEventRow] = []
        self.task = Task()
        self.last: Version | None = None
        self.read = 0

    def add(self, new: Turn) -> JoinedTurn | None:
        joined = join(self.task, self.last, new, self)
        if joined is not None:
            for verdict in joined.verdicts:
                self._put(verdict.judged, verdict.standing, verdict.opened)
            self.task = joined.task
            self.last = self.rows[-1].version
        return joined

    def _put(self, judged: Judged, standing: TaskStanding | None, opened: int | None) -> None:
        row = TaskEventRow(
            mesh="team",
            task="t",
            version=judged.turn.version,
            kind=judged.turn.kind,
            generation=judged.turn.generation,
            event=judged.event.value,
            event_time=judged.turn.event_time,
            applied_at=0,
            against=judged.against,
            title=judged.turn.title,
            description=judged.turn.description,
            standing=standing,
            opened=opened,
        )
        self.rows = [kept for kept in self.rows if kept.version != row.version]
        self.rows = sorted([*self.rows, row], key=lambda row: order_key(row.version))

    def forget_standings(self) -> None:
        """As if all turns so far had been stored by a version that kept no standings."""
        self.rows = [msgspec.structs.replace(row, standing=None, opened=None) for row in self.rows]

    def _found(self, rows: list[TaskEventRow]) -> list[TaskEventRow]:
        self.read += len(rows)
        return rows

    def before(self, version: Version, *, or_at: bool = False) -> TaskEventRow | None:
        end = order_key(version)
        found = [
            r for r in self.rows if order_key(r.version) < end or (or_at and r.version == version)
        ]
        return next(iter(self._found(found[-1:])), None)

    def after(self, version: Version, limit: int) -> list[TaskEventRow]:
        return self._found(
            [r for r in self.rows if order_key(r.version) > order_key(version)][:limit]
        )

    def naming(self, first: int, last: int, before: Version) -> list[TaskEventRow]:
        return self._found(
            [
                row
                for row in self.rows
                if row.kind in ("claim", "release")
                and first <= row.generation <= last
                and order_key(row.version) < order_key(before)
            ]
        )

    def opening(self, generation: int) -> TaskEventRow | None:
        found = [row for row in self.rows if row.opened is not None and row.opened >= generation]
        return next(iter(self._found(found[:1])), None)

    def first_create(self) -> TaskEventRow | None:
        return next(iter(self._found([row for row in self.rows if row.kind == "create"][:1])), None)

    def lacks_standings(self) -> bool:
        return any(row.standing is None for row in self.rows)

    def all(self) -> list[TaskEventRow]:
        return self._found(self.rows)


def check_against_the_fold(history: History, turns: list[Turn]) -> None:
    task, judged, standings = fold_with_standings(turns)
    assert history.task == task
    stored = [Judged(row.turn, TaskEvent(row.event), row.against) for row in history.rows]
    assert stored == judged
    if not history.lacks_standings():
        assert [row.standing for row in history.rows] == standings
        reached = [0, *(standing.generation for standing in standings)]
        opened = [after if after > before else None for before, after in pairwise(reached)]
        assert [row.opened for row in history.rows] == opened


KINDS = ["claim", "claim", "claim", "release", "release", "release", "create", "complete", "cancel"]
TURNS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(1, 30),
        st.sampled_from(["ana", "bob", "cyd"]),
        st.sampled_from([0, 0, 0, 1, 1, 2, 3]),
    ),
    max_size=14,
)


@given(TURNS, st.integers(0, 14))
def test_S10_a_turn_that_is_joined_gives_what_the_fold_of_all_gives(
    drawn: list[tuple[str, int, str, int]], old: int
) -> None:
    """In the order drawn. The first `old` turns were stored by a version that kept no standings."""
    turns = [turn(*one, number=n) for n, one in enumerate(drawn, 1)]
    history = History()
    for n, one in enumerate(turns, 1):
        if n == old:
            history.forget_standings()
        joined = history.add(one)
        assert joined is not None
        _, judged = fold(turns[:n])
        assert joined.mine in judged
        check_against_the_fold(history, turns[:n])
        assert history.add(one) is None, "it is known"


def played(rng: random.Random, rounds: int) -> list[Turn]:
    """Turns as peers make them that see each other's turns late: mostly sensible ones."""
    turns = [turn("create", 1, "ana")]
    for n in range(2, rounds):
        seen = fold(rng.sample(turns, rng.randint(len(turns) // 2, len(turns))))[0]
        peer = rng.choice(["ana", "bob", "cyd", "dee"])
        kind = rng.choices(["claim", "release", "complete"], [10, 10, 0.3])[0]
        if kind == "release" and seen.holder is not None and rng.random() < 0.9:
            peer = seen.holder.peer
        turns.append(turn(kind, rng.randint(1, 2 * n), peer, seen.generation, number=n))
    return turns


@pytest.mark.parametrize("seed", range(40))
def test_S10_long_histories_end_alike_in_any_order_of_delivery(seed: int) -> None:
    rng = random.Random(seed)
    turns = played(rng, 60)
    rng.shuffle(turns)
    history = History()
    for n, one in enumerate(turns, 1):
        history.add(one)
        check_against_the_fold(history, turns[:n])


def test_S10_a_late_turn_reads_and_changes_only_what_it_reaches() -> None:
    """Of three hundred rounds. The planted bug was the fold of them all for every turn."""
    history = History()
    history.add(turn("create", 1, "ana"))
    for n in range(300):
        history.add(turn("claim", 10 * n + 10, "bob", n, number=2 * n + 2))
        history.add(turn("release", 10 * n + 15, "bob", n, number=2 * n + 3))
    late = {
        "a claim of an old generation": turn("claim", 1012, "cyd", 5, number=5000),
        "a claim behind the one that holds": turn("claim", 1512, "cyd", 150, number=5001),
        "an earlier release": turn("release", 1612, "bob", 160, number=5002),
        "a claim that waits for good": turn("claim", 1712, "cyd", 999, number=5003),
        "a claim that waited and lost": turn("claim", 1005, "cyd", 98, number=5004),
        "a creation": turn("create", 1812, "cyd", number=5005),
        "the newest": turn("claim", 9000, "cyd", 300, number=5006),
        "the newest release": turn("release", 9001, "cyd", 300, number=5007),
    }
    costs = {}
    for name, one in late.items():
        history.read = 0
        joined = history.add(one)
        assert joined is not None
        costs[name] = (history.read, len(joined.verdicts))
    limit = TASK_PAGE_ROWS + 4
    assert {name: cost for name, cost in costs.items() if max(cost) > limit} == {}
    assert max(changed for _, changed in costs.values()) <= 3
