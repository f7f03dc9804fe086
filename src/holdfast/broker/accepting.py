"""Accepting in groups: what waits shares one transaction, and each gets its own answer.

The next group begins when the last one has returned. So one envelope alone waits for nobody, and
the more there are the larger the groups become: the disk is flushed once for all of them.

Limits hold for new work only. When a member is over its rate, or too much waits already, the store
is asked what it knows: a retry of what was accepted before gets its answer, the rest a refusal that
has written nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from holdfast.broker.counts import BrokerCounts
from holdfast.broker.hub import Hub
from holdfast.broker.rates import Rates
from holdfast.rules import limits
from holdfast.rules.desk import Accepted, Arriving, Verdict
from holdfast.rules.errors import HoldfastError, OutcomeUnknown, StoreClosed, TooMany
from holdfast.storage.desk import Desk

log = logging.getLogger("holdfast")

Outcome = Accepted | HoldfastError
"""What became of one: the store's answer, or why there is none."""
Told = Callable[[Sequence[Arriving], Sequence[Accepted]], None]

_KNOWN: Final = (Verdict.DUPLICATE, Verdict.REUSED)


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """How long things are kept."""

    keep_ms: int
    dedupe_ms: int | None
    """None: ids are remembered for ever."""


class Counter(Protocol):
    """Where envelopes are handed in."""

    async def hand_in(self, batch: Sequence[Arriving]) -> list[Outcome]:
        """In the order of the batch. All are of one sender and one mesh."""


class AtOnce:
    """Accepts each batch by itself: for a store that never makes anybody wait."""

    def __init__(
        self, desk: Desk, keeping: Keeping, clock: Callable[[], int], told: Told | None = None
    ) -> None:
        self._desk, self._keeping, self._clock, self._told = desk, keeping, clock, told

    async def hand_in(self, batch: Sequence[Arriving]) -> list[Outcome]:
        keeping = self._keeping
        try:
            answers = await self._desk.accept(
                batch, self._clock(), keep_ms=keeping.keep_ms, dedupe_ms=keeping.dedupe_ms
            )
        except HoldfastError as error:
            return [error] * len(batch)
        if self._told is not None:
            self._told(batch, answers)
        return list(answers)


class _Waiting:
    """One batch that waits, perhaps partly answered."""

    __slots__ = ("answers", "batch", "begun", "done")

    def __init__(self, batch: Sequence[Arriving], done: asyncio.Future[list[Outcome]]) -> None:
        self.batch = batch
        self.begun = 0
        self.answers: list[Outcome] = []
        self.done = done

    def settle(self, answers: Sequence[Outcome]) -> None:
        self.answers.extend(answers)
        if len(self.answers) == len(self.batch) and not self.done.done():
            self.done.set_result(self.answers)


class Accepting:
    """The counter of a broker that serves many connections."""

    def __init__(
        self,
        desk: Desk,
        keeping: Keeping,
        *,
        clock: Callable[[], int],
        ticks: Callable[[], float],
        counts: BrokerCounts,
        hub: Hub,
        rate_per_s: float = limits.ACCEPT_RATE_PER_S,
    ) -> None:
        """`clock` is wall-clock time in ms; `ticks` are seconds that never go back."""
        self._desk, self._keeping = desk, keeping
        self._clock, self._ticks = clock, ticks
        self._counts, self._hub = counts, hub
        self._rates = Rates(rate_per_s)
        self._queue: deque[_Waiting] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self.rows = 0
        self.bytes = 0
        """What waits now."""

    @property
    def busy(self) -> bool:
        return self._runner is not None

    async def hand_in(self, batch: Sequence[Arriving]) -> list[Outcome]:
        if self._closed:
            raise StoreClosed("this broker is stopping", hint="ask again when it is back")
        if not batch:
            return []
        if self._is_full():
            return await self._known_only(batch, "this broker has too much to do")
        passed = self._rates.take(batch[0].sender, len(batch), self._ticks())
        if passed == len(batch):
            return await self._enqueue(batch)
        # Together, so that what passes waits no longer for what does not.
        first, rest = await asyncio.gather(
            self._enqueue(batch[:passed]),
            self._known_only(batch[passed:], "this member hands in more than it may"),
        )
        return [*first, *rest]

    def hand_in_one(self, one: Arriving) -> asyncio.Future[list[Outcome]]:
        """The same for one, without a task where nothing is in its way."""
        if self._closed or self._is_full() or not self._rates.take(one.sender, 1, self._ticks()):
            return asyncio.ensure_future(self.hand_in([one]))
        return self._queue_up([one])

    async def close(self) -> None:
        """Takes no more, and returns when all that waits has its answer."""
        self._closed = True
        if self._runner is not None:
            await self._runner

    def _is_full(self) -> bool:
        return self.rows >= limits.ACCEPT_WAITING_MAX or self.bytes >= limits.ACCEPT_WAITING_BYTES

    async def _known_only(self, batch: Sequence[Arriving], why: str) -> list[Outcome]:
        try:
            known = await self._desk.known(
                batch[0].mesh, [(one.id, one.fingerprint) for one in batch]
            )
            if any(known) and await self._desk.member_get(batch[0].mesh, batch[0].sender) is None:
                # What is known is told to members only.
                stranger = Accepted(verdict=Verdict.NOT_A_MEMBER)
                known = [stranger if answer is not None else None for answer in known]
        except HoldfastError as error:
            return [error] * len(batch)
        refusal = TooMany(why)
        found: list[Outcome] = []
        for one, answer in zip(batch, known, strict=True):
            if answer is None:
                self._counts.refused[refusal.code] += 1
                found.append(refusal)
            else:
                self._counts.answered(one, answer)
                found.append(answer)
        return found

    async def _enqueue(self, batch: Sequence[Arriving]) -> list[Outcome]:
        return await self._queue_up(batch) if batch else []

    def _queue_up(self, batch: Sequence[Arriving]) -> asyncio.Future[list[Outcome]]:
        # Whoever hangs up cannot take back what was handed in: others share its transaction.
        loop = asyncio.get_running_loop()
        waiting = _Waiting(batch, loop.create_future())
        self._queue.append(waiting)
        self.rows += len(batch)
        self.bytes += sum(len(one.raw) for one in batch)
        if self._runner is None:
            # A task begins with the next turn: all that arrives in this one joins the group.
            self._runner = loop.create_task(self._run())
        return waiting.done

    async def _run(self) -> None:
        try:
            while self._queue:
                parts, group = self._next_group()
                answers = await self._accept(group)
                self.rows -= len(group)
                self.bytes -= sum(len(one.raw) for one in group)
                at = 0
                for waiting, count in parts:
                    waiting.settle(answers[at : at + count])
                    at += count
        finally:
            self._runner = None

    def _next_group(self) -> tuple[list[tuple[_Waiting, int]], list[Arriving]]:
        parts: list[tuple[_Waiting, int]] = []
        group: list[Arriving] = []
        room = limits.ACCEPT_GROUP_BYTES
        while self._queue and room > 0 and len(group) < limits.ACCEPT_GROUP_MAX:
            waiting = self._queue[0]
            begun = end = waiting.begun
            most = min(len(waiting.batch), begun + limits.ACCEPT_GROUP_MAX - len(group))
            while end < most and room > 0:
                room -= len(waiting.batch[end].raw)
                end += 1
            group.extend(waiting.batch[begun:end])
            parts.append((waiting, end - begun))
            waiting.begun = end
            if end == len(waiting.batch):
                self._queue.popleft()
        return parts, group

    async def _accept(self, group: Sequence[Arriving]) -> Sequence[Outcome]:
        self._counts.groups += 1
        keeping = self._keeping
        self._hub.hold()
        try:
            answers = await self._desk.accept(
                group, self._clock(), keep_ms=keeping.keep_ms, dedupe_ms=keeping.dedupe_ms
            )
            self._hub.accepted(group, answers)
        except HoldfastError as error:
            log.warning("a group of %d was not accepted: %s", len(group), error.message)
            return [error] * len(group)
        except Exception:
            log.exception("a fault of ours while %d envelopes were accepted", len(group))
            return [OutcomeUnknown("the broker does not know what became of it")] * len(group)
        finally:
            self._hub.release()
        again: dict[bytes, int] = {}
        for one, answer in zip(group, answers, strict=True):
            self._counts.answered(one, answer)
            if answer.verdict in _KNOWN:
                again[one.sender] = again.get(one.sender, 0) + 1
        now = self._ticks()
        for sender, count in again.items():
            self._rates.give_back(sender, count, now)
        return answers
