"""Keeps long-lived work alive: a link, the connection to a broker, whatever runs until it breaks.

A unit is run, and when it fails, it waits and is run again, until it is stopped. An error is never
the end of it: the error becomes a state that people can see, with the reason. Nothing here polls: a
wait ends when its time is over or when the unit is woken.

    Supervision   how a unit stands and what comes next (`service/supervision.py`, a pure machine)
    UnitStatus    the place where one unit's Supervision is kept, for any thread to see
    ThreadUnit    runs blocking work in a thread of its own   (links: docs/decisions/0015)
    TaskUnit      runs a coroutine on the event loop          (brokers)
    Supervisor    a set of units: begins and stops them as they come to be wanted or not

What the work is, which states it has and what follows from an error is for its owner to say, by a
`BlockingWork` or an `AsyncWork`. To pause a unit, let a run return the state that it rests in, and
wake the unit when it may go on.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from holdfast.rules.backoff import RetryPlan, S
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import SECOND_MS
from holdfast.service.problem import Problem
from holdfast.service.supervision import Mode, Supervision

log = logging.getLogger("holdfast")

V = TypeVar("V")
R = TypeVar("R", bound=StrEnum, covariant=True)
K = TypeVar("K", bound=Hashable)
W = TypeVar("W", bound="AsyncWork[Any]")


class PlannedFailure(Exception):
    """An error whose consequence is known where it is raised."""

    def __init__(self, error: HoldfastError, plan: RetryPlan[Any]) -> None:
        super().__init__(str(error))
        self.error, self.plan = error, plan


class UnitStatus(ABC, Generic[S, V]):
    """How one unit stands. Its work and its driver write it, any thread may read it."""

    def __init__(
        self,
        name: str,
        first: S,
        last: S,
        now_ms: Callable[[], int],
        on_change: Callable[[V], None],
    ) -> None:
        """The unit begins in state `first` and ends in `last`. `on_change` gets a view of every new
        state, in the thread that brought it about: it must be quick.
        """
        self.name = name
        self._last = last
        self._now_ms = now_ms
        self._on_change = on_change
        self._lock = threading.RLock()
        self._supervision = Supervision(state=first, since=now_ms())

    @abstractmethod
    def _view(self) -> V:
        """What `on_change` gets. Called with the lock held."""

    @property
    def supervision(self) -> Supervision[S]:
        return self._supervision

    @property
    def state(self) -> S:
        return self._supervision.state

    @property
    def attempts(self) -> int:
        return self._supervision.attempts

    def enter(self, state: S) -> None:
        now = self._now_ms()
        self.apply(lambda unit: unit.entered(state, now))

    def failed(self, plan: RetryPlan[S], error: Exception) -> None:
        problem = Problem.of(error, self._now_ms())
        self.apply(lambda unit: unit.failed(plan, problem))

    def rest(self, state: S) -> None:
        now = self._now_ms()
        self.apply(lambda unit: unit.rested(state, now))

    def end(self) -> None:
        self.enter(self._last)

    def apply(self, event: Callable[[Supervision[S]], Supervision[S]]) -> Supervision[S]:
        """Lets something happen to the unit, and tells of it if the state is another now."""
        with self._lock:
            before = self._supervision
            after = self._supervision = event(before)
            if after.state is before.state:
                return after
            view = self._view()
        try:
            self._on_change(view)
        except Exception:
            # A listener that fails must not end the work.
            log.exception("telling of %s failed", self.name)
        return after


class Attempt(Protocol[R]):
    """One run of blocking work."""

    def run(self) -> R | None:
        """Works until it is ended or raises. Returns the state that the unit rests in until it is
        woken; None: it may run anew at once.
        """

    def end(self) -> None:
        """Makes `run` return soon, whether it has begun or not. From any thread."""


class _Work(Protocol[S]):
    def plan(self, error: Exception, attempts: int, jitter: float) -> RetryPlan[S]:
        """What follows from an error; `attempts` counts the failures in a row before it."""


class BlockingWork(_Work[S], Protocol[S]):
    """What a `ThreadUnit` runs."""

    def attempt(self) -> Attempt[S]: ...


class AsyncWork(_Work[S], Protocol[S]):
    """What a `TaskUnit` runs."""

    async def run(self) -> S | None:
        """As `Attempt.run`. It is ended by being cancelled."""

    async def end(self) -> None:
        """Finishes what is under way, before `run` is cancelled for good."""


class _Unit(Generic[S]):
    """What both kinds of units share."""

    _signal: threading.Event | asyncio.Event
    """Set when the unit was woken or stopped."""

    def __init__(
        self, status: UnitStatus[S, Any], work: _Work[S], chance: Callable[[], float]
    ) -> None:
        self._status, self._judge, self._chance = status, work, chance

    def wake(self) -> None:
        """Something may have been put right: a unit that waits tries at once."""
        self._status.apply(Supervision.woke)
        self._signal.set()

    def _settle(self, rest_in: S | None) -> None:
        if rest_in is None:
            self._status.apply(Supervision.returned)
        else:
            self._status.rest(rest_in)

    def _fail(self, error: Exception) -> None:
        unit = self._status.supervision
        if unit.mode is Mode.ENDED:
            return
        if isinstance(error, PlannedFailure):
            plan, error = error.plan, error.error
        else:
            plan = self._judge.plan(error, unit.attempts, self._chance())
        self._log(unit, plan, error)
        self._status.failed(plan, error)

    def _log(self, unit: Supervision[S], plan: RetryPlan[S], error: Exception) -> None:
        """Logs each new problem once, and not with every try."""
        name, last = self._status.name, unit.last_error
        if not isinstance(error, HoldfastError):
            log.error("%s met a fault of Holdfast", name, exc_info=error)
        elif unit.attempts == 0 or last is None or last.code != error.code:
            # Nothing of another try: a command that tells this may have ended before it.
            then = "" if plan.delay_ms is not None else "; it waits for you"
            hint = f" ({error.hint})" if error.hint else ""
            log.warning("%s is %s: %s%s%s", name, plan.state, error.message, then, hint)


class ThreadUnit(_Unit[S]):
    """Runs blocking work in a thread of its own. Safe to use from any thread."""

    def __init__(
        self,
        status: UnitStatus[S, Any],
        work: BlockingWork[S],
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(status, work, chance)
        self._work = work
        self._signal: threading.Event = threading.Event()
        self._lock = threading.Lock()
        self._attempt: Attempt[S] | None = None
        name = f"holdfast-{status.name.replace(' ', '-')}"
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def restart(self) -> None:
        """The work is another now: a run that is under way ends, and the unit runs anew."""
        # In this order: a run that ends by itself meanwhile has nothing to say after the wake.
        self._end_attempt()
        self.wake()

    def stop(self) -> None:
        """Ends the unit, wherever it is. Does not wait for that: `join` does."""
        self._status.apply(Supervision.stopped)
        self._signal.set()
        self._end_attempt()

    def join(self, timeout_s: float | None = None) -> bool:
        """True once the thread is gone."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _end_attempt(self) -> None:
        with self._lock:
            attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.end()

    def _loop(self) -> None:
        while True:
            # Cleared before the look: a wake that comes after the look ends the wait.
            self._signal.clear()
            unit = self._status.supervision
            if unit.mode is Mode.ENDED:
                break
            if unit.mode is Mode.READY:
                self._run()
            elif not self._signal.wait(_seconds(unit.delay_ms)):
                self._status.apply(Supervision.elapsed)
        self._status.end()

    def _run(self) -> None:
        attempt = self._work.attempt()
        with self._lock:
            if self._status.apply(Supervision.begun).mode is not Mode.RUNNING:
                return
            self._attempt = attempt
        try:
            rest_in = attempt.run()
        except Exception as error:
            if self._is_over(attempt):
                self._settle(None)  # it was ended: whatever it says of that is no failure
            else:
                self._fail(error)
        else:
            self._settle(None if self._is_over(attempt) else rest_in)

    def _is_over(self, attempt: Attempt[S]) -> bool:
        with self._lock:
            ended = self._attempt is not attempt
            self._attempt = None
        return ended


class TaskUnit(_Unit[S], Generic[S, W]):
    """Runs a coroutine on the event loop, to whose thread all of it belongs."""

    def __init__(
        self, status: UnitStatus[S, Any], work: W, chance: Callable[[], float] = random.random
    ) -> None:
        super().__init__(status, work, chance)
        self.work = work
        self._signal: asyncio.Event = asyncio.Event()
        self._attempt: asyncio.Task[S | None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._loop())

    def stop(self) -> None:
        """Lets the work finish what is under way, then ends the unit. `join` waits for that."""
        self._status.apply(Supervision.stopped)
        self._signal.set()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    async def join(self, timeout_s: float) -> bool:
        """True once the unit has ended. One that has not ended in time is cancelled, wherever it
        is: in its work, or in what its work does to end.
        """
        assert self._closing is not None, "nobody has stopped it"
        done, late = await asyncio.wait({self._closing, self._task}, timeout=timeout_s)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s met a fault of Holdfast", self._status.name, exc_info=error)
        if not late:
            return True
        log.warning("%s did not end in time", self._status.name)
        for task in late:
            task.cancel()
        return False

    async def _close(self) -> None:
        await self.work.end()
        if self._attempt is not None:
            self._attempt.cancel()

    async def _loop(self) -> None:
        while True:
            self._signal.clear()
            unit = self._status.supervision
            if unit.mode is Mode.ENDED:
                break
            if unit.mode is Mode.READY:
                await self._run()
                continue
            try:
                async with asyncio.timeout(_seconds(unit.delay_ms)):
                    await self._signal.wait()
            except TimeoutError:
                self._status.apply(Supervision.elapsed)
        self._status.end()

    async def _run(self) -> None:
        self._status.apply(Supervision.begun)
        self._attempt = asyncio.create_task(self.work.run())
        try:
            self._settle(await self._attempt)
        except asyncio.CancelledError:
            if self._status.supervision.mode is not Mode.ENDED:
                raise  # the unit itself was cancelled
        except Exception as error:
            self._fail(error)


U = TypeVar("U", bound="ThreadUnit[Any] | TaskUnit[Any, Any]")


class UnitChanges(NamedTuple, Generic[U]):
    """The units that were there before, after a look at what is wanted."""

    gone: list[U]
    """Stopped: wait for them with `join`."""
    changed: list[U]
    """Wanted, but not as before."""
    same: list[U]


class Supervisor(Generic[K, U]):
    """A set of units, each under a key. Belongs to one thread at a time."""

    def __init__(self, begin: Callable[[K], U]) -> None:
        """`begin` makes the unit of a key."""
        self._begin = begin
        self.units: dict[K, U] = {}
        self._wanted: dict[K, object] = {}

    def refresh(self, wanted: Mapping[K, object]) -> UnitChanges[U]:
        """Stops the units that are wanted no more and begins those that are new. `wanted` says by
        key what a unit is for: where that is another value than before, the unit has changed.
        """
        gone = [self.units.pop(key) for key in list(self.units) if key not in wanted]
        for unit in gone:
            unit.stop()
        changed, same = [], []
        for key, purpose in wanted.items():
            unit_before = self.units.get(key)
            if unit_before is None:
                self.units[key] = self._begin(key)
            elif self._wanted.get(key) != purpose:
                changed.append(unit_before)
            else:
                same.append(unit_before)
        self._wanted = dict(wanted)
        return UnitChanges(gone, changed, same)

    def stop(self) -> list[U]:
        """Stops all units. Returns them, to be waited for with `join`."""
        return self.refresh({}).gone


def _seconds(delay_ms: int | None) -> float | None:
    return None if delay_ms is None else delay_ms / SECOND_MS
