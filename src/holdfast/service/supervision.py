"""How one unit of long-lived work stands, and when it may run: the machine under the supervisor.

    ready ──► running ──► waiting ──► ready …         until it is stopped: ended
      ▲          │           │
      └──────────┴───────────┘  it returns, its time is over, or it is woken

A value of this module never changes. Every event (it began, it failed, it was woken …) makes a new
one. Nothing here reads a clock or waits: `service/supervisor.py` does that, in a thread or on the
event loop. The states that people see belong to the unit: a link has others than a broker.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic

import msgspec

from holdfast.rules.backoff import RetryPlan, S
from holdfast.service.problem import Problem


class Mode(StrEnum):
    """What the supervisor has to do with a unit next."""

    READY = "ready"
    """Run it."""
    RUNNING = "running"
    """Nothing: it runs."""
    WAITING = "waiting"
    """Wait for its time, or for a wake."""
    ENDED = "ended"
    """Let it go. No event leads out of this mode."""


class Supervision(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """One unit at one moment."""

    state: S
    """What people see."""
    since: int
    """When the unit came into this state."""
    attempts: int = 0
    """How many times in a row the unit has failed; 0 after a success."""
    retry_at: int | None = None
    """When it is tried again, for people; None where it runs or waits for somebody."""
    last_error: Problem | None = None
    mode: Mode = Mode.READY
    delay_ms: int | None = None
    """While it waits: how long. None: until it is woken."""
    woken: bool = False
    """It was woken while it ran, and has not worked since: the next wait is left out."""

    def shown(self) -> dict[str, Any]:
        """The part that stands in the status of every kind of unit, by field."""
        return {
            "state": self.state,
            "since": self.since,
            "attempts": self.attempts,
            "retry_at": self.retry_at,
            "last_error": self.last_error,
        }

    # --- what the work says ------------------------------------------------------------------

    def entered(self, state: S, now_ms: int) -> Supervision[S]:
        """The work is in this state now."""
        since = self.since if state is self.state else now_ms
        return msgspec.structs.replace(self, state=state, since=since, retry_at=None)

    def worked(self) -> Supervision[S]:
        """The work succeeded at something: the next failure is the first again."""
        return msgspec.structs.replace(self, attempts=0, woken=False)

    # --- how a run ended ---------------------------------------------------------------------

    def failed(self, plan: RetryPlan[S], problem: Problem) -> Supervision[S]:
        """The run ended with an error, and `plan` says what follows."""
        if self.mode is Mode.ENDED:
            return self
        retry_at = None if plan.delay_ms is None else problem.at + plan.delay_ms
        shown = msgspec.structs.replace(
            self.entered(plan.state, problem.at),
            attempts=self.attempts + 1,
            retry_at=retry_at,
            last_error=problem,
        )
        return shown._waiting(plan.delay_ms)

    def rested(self, state: S, now_ms: int) -> Supervision[S]:
        """The run found that there is nothing to do (the unit is paused): it waits for a wake."""
        return self.entered(state, now_ms)._waiting(None)

    def returned(self) -> Supervision[S]:
        """The run ended because it was asked to: the unit may run anew at once."""
        return self._in(Mode.READY)

    # --- what the supervisor does ------------------------------------------------------------

    def begun(self) -> Supervision[S]:
        """The unit runs, if it may."""
        return self._in(Mode.RUNNING) if self.mode is Mode.READY else self

    def elapsed(self) -> Supervision[S]:
        """The wait is over."""
        return self._in(Mode.READY) if self.mode is Mode.WAITING else self

    def woke(self) -> Supervision[S]:
        """Something has changed: a unit that waits tries at once, one that runs does not wait
        after its next failure.
        """
        if self.mode is Mode.RUNNING:
            return msgspec.structs.replace(self, woken=True)
        return self.elapsed()

    def stopped(self) -> Supervision[S]:
        return msgspec.structs.replace(self, mode=Mode.ENDED, delay_ms=None, woken=False)

    def _waiting(self, delay_ms: int | None) -> Supervision[S]:
        if self.woken:
            return self._in(Mode.READY)
        return msgspec.structs.replace(self._in(Mode.WAITING), delay_ms=delay_ms)

    def _in(self, mode: Mode) -> Supervision[S]:
        if self.mode is Mode.ENDED:
            return self
        return msgspec.structs.replace(self, mode=mode, delay_ms=None, woken=False)
