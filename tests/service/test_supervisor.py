"""Units in threads and on the loop, under one supervisor: they fail, wait, rest and end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from queue import SimpleQueue
from typing import Any

import pytest

from holdfast.rules.backoff import RetryPlan
from holdfast.rules.errors import OverLimit, Unreachable
from holdfast.service.supervision import Mode, Supervision
from holdfast.service.supervisor import (
    PlannedFailure,
    Supervisor,
    TaskUnit,
    ThreadUnit,
    UnitStatus,
)

PATIENCE_S = 20
FOR_EVER_MS = 3_600_000


class Light(StrEnum):
    ON = "on"
    OFF = "off"
    BROKEN = "broken"
    FULL = "full"
    ENDED = "ended"


class Lamp(UnitStatus[Light, Supervision[Light]]):
    """A status that remembers each new state, and lets tests wait for one."""

    def __init__(self, name: str = "lamp a") -> None:
        self.seen: list[Light] = []
        self._moved = threading.Condition()
        super().__init__(name, Light.OFF, Light.ENDED, lambda: 1000, self._note)

    def _view(self) -> Supervision[Light]:
        return self.supervision

    def _note(self, unit: Supervision[Light]) -> None:
        with self._moved:
            self.seen.append(unit.state)
            self._moved.notify_all()

    def until(self, state: Light) -> None:
        with self._moved:
            assert self._moved.wait_for(lambda: state in self.seen, PATIENCE_S), self.seen
            self.seen.clear()


class Work:
    """Does in each run what it was told, in order; then it shines until it is ended."""

    def __init__(self, lamp: Lamp, *script: Any, delay_ms: int | None = FOR_EVER_MS) -> None:
        self.lamp, self.script, self.delay_ms = lamp, list(script), delay_ms
        self.attempts: list[int] = []
        self.made: SimpleQueue[Run] = SimpleQueue()

    def attempt(self) -> Run:
        run = Run(self)
        self.made.put(run)
        return run

    def plan(self, error: Exception, attempts: int, jitter: float) -> RetryPlan[Light]:
        self.attempts.append(attempts)
        return RetryPlan(Light.BROKEN, self.delay_ms)

    def step(self) -> Light | None:
        """What the next run comes to, where that is not to shine."""
        following = self.script.pop(0) if self.script else None
        if isinstance(following, Exception):
            raise following
        assert following is None or isinstance(following, Light)
        return following


class Run:
    def __init__(self, work: Work) -> None:
        self._work, self._over = work, threading.Event()

    def run(self) -> Light | None:
        rest_in = self._work.step()
        if rest_in is None:
            self._work.lamp.enter(Light.ON)
            assert self._over.wait(PATIENCE_S)
            raise Unreachable("the line was cut, because we were ended")
        return rest_in

    def end(self) -> None:
        self._over.set()


Start = Callable[..., tuple[ThreadUnit[Light], Lamp, Work]]


@pytest.fixture
def start() -> Iterator[Start]:
    units: list[ThreadUnit[Light]] = []

    def make(*script: Any, **settings: Any) -> tuple[ThreadUnit[Light], Lamp, Work]:
        lamp = Lamp()
        work = Work(lamp, *script, **settings)
        units.append(ThreadUnit(lamp, work, lambda: 0.0))
        return units[-1], lamp, work

    yield make
    for unit in units:
        unit.stop()
        assert unit.join(PATIENCE_S)


# --- in threads -----------------------------------------------------------------------------------


def test_Z7_work_that_fails_is_tried_again_by_itself(start: Start) -> None:
    _, lamp, work = start(Unreachable("a"), Unreachable("b"), delay_ms=1)
    lamp.until(Light.ON)
    assert work.attempts == [0, 1]


def test_Z6_a_wake_ends_a_wait_of_an_hour(start: Start) -> None:
    unit, lamp, _ = start(Unreachable("away"))
    lamp.until(Light.BROKEN)
    assert lamp.supervision.retry_at == 1000 + FOR_EVER_MS
    unit.wake()
    lamp.until(Light.ON)
    assert lamp.supervision.retry_at is None


def test_Z6_work_that_rests_goes_on_when_it_is_woken(start: Start) -> None:
    unit, lamp, work = start(Light.FULL)
    lamp.until(Light.FULL)
    assert lamp.supervision.delay_ms is None
    assert lamp.supervision.last_error is None
    unit.wake()
    lamp.until(Light.ON)
    assert work.attempts == []


def test_Z6_a_restart_ends_the_run_and_is_no_failure(start: Start) -> None:
    unit, lamp, work = start()
    lamp.until(Light.ON)
    work.script.append(Light.FULL)
    unit.restart()
    lamp.until(Light.FULL)
    assert work.attempts == []
    unit.restart()  # it rests: the same as a wake
    lamp.until(Light.ON)
    assert lamp.supervision.last_error is None


def test_Z7_whatever_it_does_a_unit_that_is_stopped_ends(start: Start) -> None:
    for script, state in (((), Light.ON), ((Unreachable("x"),), Light.BROKEN)):
        unit, lamp, _ = start(*script)
        lamp.until(state)
        unit.stop()
        assert unit.join(PATIENCE_S)
        assert lamp.state is Light.ENDED
        unit.wake()
        assert lamp.supervision.mode is Mode.ENDED


def test_Z6_an_error_may_bring_its_plan_along(start: Start) -> None:
    planned = PlannedFailure(OverLimit("no more room"), RetryPlan(Light.FULL, None))
    _, lamp, work = start(planned)
    lamp.until(Light.FULL)
    last_error = lamp.supervision.last_error
    assert last_error is not None
    assert (last_error.code, last_error.message) == (OverLimit.code, "no more room")
    assert work.attempts == []


def test_Z6_each_new_problem_is_logged_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    away = [Unreachable("away")] * 3
    _, lamp, _ = start(*away, OverLimit("too much"), delay_ms=1)
    lamp.until(Light.ON)
    logged = [record.getMessage() for record in caplog.records]
    assert [("away" in text, "too much" in text) for text in logged] == [
        (True, False),
        (False, True),
    ]
    assert "lamp a is broken" in logged[0]
    assert "it waits for you" not in logged[0]


def test_Z6_a_listener_that_fails_does_not_end_the_unit(start: Start) -> None:
    unit, lamp, _ = start(Unreachable("away"))
    lamp.until(Light.BROKEN)

    def burst(view: Supervision[Light]) -> None:
        lamp._note(view)
        raise ZeroDivisionError("not listening")

    lamp._on_change = burst
    unit.wake()
    lamp.until(Light.ON)


# --- on the loop ----------------------------------------------------------------------------------


class LoopWork:
    """The same as a coroutine."""

    def __init__(self, lamp: Lamp, *script: Any, delay_ms: int | None = FOR_EVER_MS) -> None:
        self._work = Work(lamp, *script, delay_ms=delay_ms)
        self.plan = self._work.plan
        self.attempts = self._work.attempts
        self.lamp = lamp
        self.state_at_end: Light | None = None

    async def run(self) -> Light | None:
        rest_in = self._work.step()
        if rest_in is None:
            self.lamp.enter(Light.ON)
            await asyncio.get_running_loop().create_future()
        return rest_in

    async def end(self) -> None:
        self.state_at_end = self.lamp.state


async def until(lamp: Lamp, state: Light) -> None:
    await asyncio.to_thread(lamp.until, state)


def test_D14_a_coroutine_is_supervised_as_a_thread_is() -> None:
    async def main() -> None:
        lamp = Lamp("lamp b")
        work = LoopWork(lamp, Unreachable("away"), Unreachable("away"), Light.FULL)
        unit = TaskUnit(lamp, work, lambda: 0.0)
        await until(lamp, Light.BROKEN)
        unit.wake()
        async with asyncio.timeout(PATIENCE_S):
            while lamp.attempts < 2:
                await asyncio.sleep(0)
        assert lamp.supervision.mode is Mode.WAITING
        unit.wake()
        await until(lamp, Light.FULL)
        unit.wake()
        await until(lamp, Light.ON)
        assert work.attempts == [0, 1]
        unit.stop()
        assert await unit.join(PATIENCE_S)
        assert work.state_at_end is Light.ON
        assert lamp.state is Light.ENDED

    asyncio.run(main())


def test_D14_a_coroutine_that_waits_ends_at_once_when_it_is_stopped() -> None:
    async def main() -> None:
        lamp = Lamp()
        unit = TaskUnit(lamp, LoopWork(lamp, Unreachable("away")))
        await until(lamp, Light.BROKEN)
        unit.stop()
        assert await unit.join(PATIENCE_S)

    asyncio.run(main())


def test_D14_a_coroutine_that_does_not_end_is_left(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(LoopWork):
        async def run(self) -> Light | None:
            try:
                return await super().run()
            except asyncio.CancelledError:
                await asyncio.sleep(PATIENCE_S)
                return None

    async def main() -> None:
        lamp = Lamp()
        unit = TaskUnit(lamp, Stubborn(lamp))
        await until(lamp, Light.ON)
        unit.stop()
        assert not await unit.join(0.01)

    asyncio.run(main())
    assert "lamp a did not end in time" in caplog.text


def test_D14_a_coroutine_whose_goodbye_does_not_end_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As that of a connection to a broker that does not read."""

    class Lingering(LoopWork):
        async def end(self) -> None:
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        lamp = Lamp()
        unit = TaskUnit(lamp, Lingering(lamp))
        await until(lamp, Light.ON)
        unit.stop()
        async with asyncio.timeout(PATIENCE_S):
            assert not await unit.join(0.01)
        await until(lamp, Light.ENDED)

    asyncio.run(main())
    assert "lamp a did not end in time" in caplog.text


# --- a set of units -------------------------------------------------------------------------------


def test_Z6_units_come_and_go_as_they_are_wanted() -> None:
    lamps: dict[str, Lamp] = {}

    def begin(name: str) -> ThreadUnit[Light]:
        lamps[name] = Lamp(f"lamp {name}")
        return ThreadUnit(lamps[name], Work(lamps[name]))

    supervisor: Supervisor[str, ThreadUnit[Light]] = Supervisor(begin)
    assert supervisor.refresh({"a": 1, "b": 1}) == ([], [], [])
    a, b = supervisor.units["a"], supervisor.units["b"]
    assert supervisor.refresh({"a": 1, "b": 2, "c": 1}) == ([], [b], [a])
    assert supervisor.refresh({"b": 2, "c": 1}).gone == [a]
    assert a.join(PATIENCE_S)
    assert lamps["a"].state is Light.ENDED
    assert all(unit.join(PATIENCE_S) for unit in supervisor.stop())
    assert supervisor.units == {}
