"""A lane after groups have failed as a whole: what is sent next, and whom that costs an attempt."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.limits import (
    FAILURES_ALONE_MIN,
    OUTBOX_ATTEMPTS_MAX,
    SUSPECTS_MAX,
    SYNC_PUSH_ITEMS,
)
from holdfast.rules.outbox import (
    FAILS_ALONE,
    OutboxState,
    Policy,
    Suspect,
    Trial,
    after_conviction,
)
from holdfast.rules.rows import OutboxRow
from support.stores import outbox_row


def row(number: int) -> OutboxRow:
    return outbox_row(number, number=number, entity="")


class Lane:
    """Rows on their way to a broker that fails at some of them: what the shell does, in memory."""

    def __init__(self, rows: int, poison: set[int], seed: int = 0) -> None:
        self.rows = {number: row(number) for number in range(1, rows + 1)}
        self.poison, self.rng = poison, random.Random(seed)
        self.trial, self.now = Trial(), 0
        self.done: set[int] = set()
        self.sends = 0

    @property
    def waiting(self) -> list[int]:
        """Rows that are neither done nor dead."""
        dead = {n for n, one in self.rows.items() if one.state == OutboxState.DEAD}
        return [number for number in self.rows if number not in self.done | dead]

    def group(self) -> list[int]:
        suspect = self.trial.due(self.now)
        fresh = [number for number in self.waiting if number not in self.trial.suspects]
        if suspect is not None and (self.trial.passes or not fresh):
            return [suspect.row.number]
        return fresh[: self.trial.most]

    def send(self, *, down: bool = False) -> None:
        """One group goes, and fails if the broker is down or fails at one of its rows."""
        self.now += 40_000  # longer than any backoff: all that waits is due
        group = self.group()
        if not group:
            return
        self.sends += 1
        rows = [self.rows[number] for number in group]
        if down or self.poison.intersection(group):
            self.trial = self.trial.failed(rows, "it hung up", self.now, self.rng.random())
            return
        self.done.update(group)
        self.trial, convict = self.trial.passed(group)
        if convict is not None:
            self._charge(convict)

    def _charge(self, convict: Suspect) -> None:
        number = convict.row.number
        after = after_conviction(
            convict, self.rows[number], now_ms=self.now, jitter=0.5, policy=Policy.PARK
        )
        self.rows[number] = after
        if after.state == OutboxState.DEAD:
            self.trial = self.trial.forget(number)

    def attempts(self) -> dict[int, int]:
        return {number: one.attempts for number, one in self.rows.items() if one.attempts}


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_D12_one_poisoned_row_is_found_by_dividing_and_the_others_pass(
    poisoned: int, seed: int
) -> None:
    lane = Lane(200, {poisoned}, seed)
    while len(lane.done) < 199:
        lane.send()
        assert lane.sends < 100, "twice the depth of the division, and the growing again"
    assert lane.attempts().keys() <= {poisoned}


def test_D12_a_poisoned_row_dies_of_its_attempts_with_the_reason() -> None:
    lane = Lane(10, {3})
    written = 10
    while lane.rows[3].state != OutboxState.DEAD:
        written += 1
        lane.rows[written] = row(written)  # somebody goes on working
        lane.send()
        assert written < 100
    dead = lane.rows[3]
    assert (dead.attempts, dead.code) == (OUTBOX_ATTEMPTS_MAX, FAILS_ALONE)
    assert "it hung up" in dead.error
    while lane.waiting:
        lane.send()
    assert lane.attempts().keys() == {3}
    assert lane.trial.suspects == {}


@given(
    st.sets(st.integers(1, 30), max_size=4),
    st.lists(st.integers(2, 12), max_size=8),
    st.integers(0, 2**32),
)
def test_D12_a_broker_that_is_down_costs_no_row_an_attempt(
    poison: set[int], outages: list[int], seed: int
) -> None:
    """Whatever the order of outages and work: only what fails between others is charged. (What
    meets a row once, and only while it is alone, cannot be told from the row: that takes ten of
    them to harm anybody.)
    """
    lane = Lane(30, poison, seed)
    for outage in outages:
        for _ in range(outage):
            lane.send(down=True)
        for _ in range(3):
            lane.send()
    for _ in range(100):
        lane.send()
    assert lane.done == lane.rows.keys() - poison
    assert lane.attempts().keys() <= poison


def test_D12_a_broker_that_takes_nothing_is_no_rows_fault() -> None:
    lane = Lane(100, set())
    for _ in range(500):
        lane.send(down=True)
    assert lane.attempts() == {}
    for _ in range(200):
        lane.send()
    assert lane.waiting == []
    assert lane.attempts() == {}


def test_D12_a_line_that_breaks_once_while_a_row_is_alone_is_no_conviction() -> None:
    trial, _ = Trial().passed([1])
    trial = trial.failed([row(2)], "it broke", 0, 0.0)
    assert trial.accused == 2
    trial, convict = trial.passed([3])
    assert convict is None, f"it takes {FAILURES_ALONE_MIN} times"
    trial, convict = trial.failed([row(2)], "it broke", 0, 0.0).passed([4])
    assert convict is not None
    assert convict.row.number == 2


def test_D12_a_row_that_fails_first_and_alone_is_accused_only_between_others() -> None:
    trial = Trial()
    for _ in range(5):
        trial = trial.failed([row(2)], "it broke", 0, 0.0)
        assert trial.accused is None, "nothing has passed before it"
    trial, convict = trial.passed([3])
    assert convict is None


def test_D12_after_a_break_less_goes_and_then_more_again() -> None:
    trial = Trial()
    rows = [row(number) for number in range(1, 4097)]
    trial = trial.failed(rows, "it broke", 0, 0.0)
    assert trial.most == SYNC_PUSH_ITEMS // 2
    seen = []
    while trial.most > 1:
        seen.append(trial.most)
        trial = trial.failed(rows[: trial.most], "it broke", 0, 0.0)
    assert seen == [512, 256, 128, 64, 32, 16, 8, 4, 2]
    while trial.is_careful:
        trial, _ = trial.passed([1])
    assert trial == msgspec.structs.replace(Trial(), passes=True)


def test_D12_what_is_set_aside_is_bounded() -> None:
    trial = Trial()
    for number in range(1, SUSPECTS_MAX + 3):
        trial = trial.failed([row(number)], "it broke", 0, 0.0)
    assert len(trial.suspects) == SUSPECTS_MAX
    assert 1 not in trial.suspects
