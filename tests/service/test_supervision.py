"""The machine under the supervisor: when a unit runs, waits and ends, whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.backoff import RetryPlan, backoff_ms
from holdfast.rules.errors import Unreachable
from holdfast.rules.limits import BACKOFF_MS_MAX, BACKOFF_MS_MIN
from holdfast.service.problem import Problem
from holdfast.service.supervision import Mode, Supervision


class Light(StrEnum):
    """The states of a unit that nobody needs."""

    ON = "on"
    OFF = "off"
    BROKEN = "broken"


Unit = Supervision[Light]
BEGIN: Unit = Supervision(state=Light.OFF, since=0)


def running(unit: Unit = BEGIN) -> Unit:
    begun = unit.elapsed().begun()
    assert begun.mode is Mode.RUNNING
    return begun


def fail(unit: Unit, now_ms: int = 10, jitter: float = 0.5) -> Unit:
    delay_ms = backoff_ms(unit.attempts + 1, jitter)
    problem = Problem.of(Unreachable("away"), now_ms)
    return unit.failed(RetryPlan(Light.BROKEN, delay_ms), problem)


def test_Z7_a_unit_that_fails_waits_and_says_why() -> None:
    unit = fail(running(), now_ms=100, jitter=0.0)
    assert (unit.mode, unit.delay_ms) == (Mode.WAITING, BACKOFF_MS_MIN)
    assert unit.shown() == {
        "state": Light.BROKEN,
        "since": 100,
        "attempts": 1,
        "retry_at": 100 + BACKOFF_MS_MIN,
        "last_error": Problem("unreachable", "away", Unreachable("away").hint, 100),
    }


@given(jitter=st.floats(0, 1, exclude_max=True), failures=st.integers(2, 40))
def test_Z7_waits_never_shrink_while_a_unit_fails_and_never_pass_the_longest(
    jitter: float, failures: int
) -> None:
    unit, waits = BEGIN, []
    for _ in range(failures):
        unit = fail(running(unit), jitter=jitter)
        assert unit.delay_ms is not None
        waits.append(unit.delay_ms)
    assert waits == sorted(waits)
    assert BACKOFF_MS_MIN <= waits[0] <= waits[-1] <= BACKOFF_MS_MAX


def test_Z7_after_a_success_the_next_failure_is_the_first_again() -> None:
    unit = BEGIN
    for _ in range(9):
        unit = fail(running(unit), jitter=0.99)
    assert unit.attempts == 9
    again = fail(running(unit).worked(), jitter=0.99)
    assert again.attempts == 1
    assert again.delay_ms == fail(running(), jitter=0.99).delay_ms


def test_Z6_a_wake_cuts_a_wait_short() -> None:
    assert fail(running()).woke().mode is Mode.READY
    resting = running().rested(Light.OFF, 5)
    assert (resting.mode, resting.delay_ms, resting.retry_at) == (Mode.WAITING, None, None)
    assert resting.woke().mode is Mode.READY


def test_Z6_a_wake_that_comes_during_a_run_is_not_lost() -> None:
    assert fail(running().woke()).mode is Mode.READY
    assert running().woke().rested(Light.OFF, 5).mode is Mode.READY
    # It counts once, and not at all where the run has worked meanwhile.
    assert fail(running(fail(running().woke()))).mode is Mode.WAITING
    assert fail(running().woke().worked()).mode is Mode.WAITING


def test_Z6_a_unit_runs_once_at_a_time() -> None:
    unit = running()
    assert unit.begun() == unit
    waiting = fail(unit)
    assert waiting.begun() == waiting


def test_Z6_a_state_keeps_its_beginning_until_it_is_left() -> None:
    unit = BEGIN.entered(Light.ON, 5).entered(Light.ON, 9)
    assert (unit.state, unit.since) == (Light.ON, 5)
    assert unit.entered(Light.OFF, 12).since == 12


EVENTS: dict[str, Callable[[Unit], Unit]] = {
    "begun": Supervision.begun,
    "elapsed": Supervision.elapsed,
    "woke": Supervision.woke,
    "returned": Supervision.returned,
    "worked": Supervision.worked,
    "failed": fail,
    "rested": lambda unit: unit.rested(Light.OFF, 7),
    "entered": lambda unit: unit.entered(Light.ON, 8),
    "stopped": Supervision.stopped,
}


@pytest.mark.parametrize("before", ["ready", "running", "waiting"])
@given(events=st.lists(st.sampled_from(sorted(EVENTS)), max_size=20))
def test_Z7_what_is_stopped_ends_at_once_and_for_good(before: str, events: list[str]) -> None:
    unit = {"ready": BEGIN, "running": running(), "waiting": fail(running())}[before].stopped()
    for event in events:
        assert unit.mode is Mode.ENDED
        unit = EVENTS[event](unit)
    assert unit.mode is Mode.ENDED


@given(events=st.lists(st.sampled_from(sorted(EVENTS)), max_size=60))
def test_Z7_no_order_of_events_makes_a_busy_loop(events: list[str]) -> None:
    """After a failure a unit runs again only when its time is over or when it was woken."""
    unit, may_run = BEGIN, True
    for event in events:
        before, unit = unit, EVENTS[event](unit)
        if before.mode is not Mode.RUNNING and event in ("failed", "rested", "returned"):
            unit = before  # these end a run, and there is none
            continue
        if event in ("failed", "rested") and not before.woken:
            may_run = False
        if event in ("elapsed", "woke", "returned"):
            may_run = True
        if unit.mode in (Mode.READY, Mode.RUNNING) and before.mode is not Mode.RUNNING:
            assert may_run
        if unit.mode is Mode.WAITING:
            assert unit.delay_ms is None or unit.delay_ms >= BACKOFF_MS_MIN


def test_Z6_the_document_of_a_problem_has_its_four_fields() -> None:
    problem = Problem.of(ZeroDivisionError("nobody thought of this"), 7)
    document = msgspec.to_builtins(problem)
    assert list(document) == ["code", "message", "hint", "at"]
    assert (document["code"], document["at"]) == ("internal", 7)
    assert document["message"] == "ZeroDivisionError: nobody thought of this"
