"""Accepting in groups: what waits shares one transaction, and each gets its own answer.

The next group begins when the last one has returned, or waits in the store for that if the store
likes to have it at hand. So one envelope alone waits for nobody, and the more there are the larger
the groups become: the disk is flushed once for all of them.

Limits hold for new work only. When a member is over its rate, or too much waits already, the store
is asked what it knows: a retry of what was accepted before gets its answer, the rest a refusal that
has written nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from holdfast.broker.counters import BrokerCounts
from holdfast.broker.rate_limit import Rates
from holdfast.broker.stamp_check import is_high, refused_stamps
from holdfast.broker.verdicts import Outcome
from holdfast.broker.wakeups import Wakeups
from holdfast.rules import limits
from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.rules.errors import HoldfastError, OutcomeUnknown, StoreClosed, TooMany
from holdfast.rules.fingerprint import PREFIX_BYTES
from holdfast.rules.ids import id_text
from holdfast.rules.push_columns import Parts, beside, byte_count
from holdfast.storage.broker.port import BrokerStore

log = logging.getLogger("holdfast")

Answered = Callable[[Sequence[Outcome]], None]
"""Gets the outcomes of a batch, in its order."""

_KNOWN: Final = (AcceptVerdict.DUPLICATE, AcceptVerdict.REUSED)


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long a broker keeps envelopes, and remembers their ids."""

    keep_ms: int
    dedupe_ms: int | None
    """None: ids are remembered for ever."""


class Source(Protocol):
    """Where envelopes wait, one by one and not read yet, for the next group."""

    @property
    def waits(self) -> int:
        """How many."""

    def bring(self) -> None:
        """Reads them, or some, and hands them in by `Acceptor.take`."""


class _Waiting:
    """One batch that waits; a part of it may be in a group already, or answered."""

    __slots__ = ("answered", "answers", "batch", "begun")

    def __init__(self, batch: Sequence[PushedEnvelope], answered: Answered) -> None:
        self.batch = batch
        self.begun = 0
        self.answers: list[Outcome] = []
        self.answered = answered

    def settle(self, answers: Sequence[Outcome]) -> None:
        if len(answers) == len(self.batch):
            self.answered(answers)
            return
        self.answers.extend(answers)
        if len(self.answers) == len(self.batch):
            self.answered(self.answers)


class _Begun(NamedTuple):
    """A group that the store has."""

    whose: list[_Waiting]
    group: Parts[PushedEnvelope]
    number: int
    """Of the group, as the wake-ups count them."""
    begun: float


class Acceptor:
    """Accepts the batches of all connections of one broker process."""

    def __init__(
        self,
        store: BrokerStore,
        retention: RetentionPolicy,
        *,
        clock: Callable[[], int],
        ticks: Callable[[], float],
        counts: BrokerCounts,
        wakeups: Wakeups,
        rate_per_s: float = limits.ACCEPT_RATE_PER_S,
    ) -> None:
        """`clock` is wall-clock time in ms; `ticks` are seconds that never go back."""
        self._store, self._retention = store, retention
        self._clock, self._ticks = clock, ticks
        self._counts, self._wakeups = counts, wakeups
        self._rates = Rates(rate_per_s)
        self._queue: deque[_Waiting] = deque()
        self._expected: list[Source] = []
        self._seen = self._brought = 0
        """How much was expected at the last look, and how much was brought for the last group."""
        self._under_way = 0
        self._woken = False
        self._owing = False
        """A group has come back, and its answers come before those of the next."""
        self._closed = False
        self._idle: asyncio.Future[None] | None = None
        self._looking: set[asyncio.Task[None]] = set()
        self.rows = 0
        self.bytes = 0
        """How much waits for its outcome now."""
        self.took_s = inf
        """How long the last group took in the store, its wait for the group before included."""

    @property
    def busy(self) -> bool:
        return self._under_way > 0 or bool(self._queue or self._expected)

    async def hand_in(self, batch: Sequence[PushedEnvelope]) -> Sequence[Outcome]:
        """Accepts a batch of one sender and one mesh; returns the outcomes in its order."""
        done: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()
        self.take(batch, lambda answers: None if done.done() else done.set_result(answers))
        return await done

    def take(self, batch: Sequence[PushedEnvelope], answered: Answered) -> None:
        """The same without a task: `answered` is called once, perhaps before this returns. A member
        that hangs up cannot take its batch back: others share the transaction.
        """
        if self._closed:
            closed = StoreClosed("this broker is stopping", hint="ask again when it is back")
            answered([closed] * len(batch))
        elif not batch:
            answered([])
        elif is_high(batch, self._clock()):
            self._look(self._take_high(batch, answered))
        else:
            self._take_sane(batch, answered)

    def expect(self, source: Source) -> None:
        """Lets a source bring what waits there when the next group begins, once. So what comes one
        by one is read together.
        """
        self._expected.append(source)
        self._wake()

    def _take_sane(self, batch: Sequence[PushedEnvelope], answered: Answered) -> None:
        if self._is_full():
            self._take_some(batch, 0, "this broker has too much to do", answered)
        else:
            passed = self._rates.take(batch[0].sender, len(batch), self._ticks())
            if passed == len(batch):
                self._queue_up(batch, answered)
            else:
                self._take_some(batch, passed, "this member hands in more than it may", answered)

    async def close(self) -> None:
        """Takes no more, and returns when all that waits has its answer."""
        while self._expected:
            self._bring()
        self._closed = True
        if self.busy:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await self._idle

    def _is_full(self) -> bool:
        return self.rows >= limits.ACCEPT_WAITING_MAX or self.bytes >= limits.ACCEPT_WAITING_BYTES

    def _take_some(
        self, batch: Sequence[PushedEnvelope], passed: int, why: str, answered: Answered
    ) -> None:
        """Accepts the first `passed`. Of the others, those that were accepted before get their
        answer, and the rest a refusal.
        """

        async def both() -> None:
            # Together, so that what passes waits no longer for what does not.
            first: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()
            if passed:
                self._queue_up(batch[:passed], first.set_result)
            else:
                first.set_result([])
            rest = await self._known_only(batch[passed:], TooMany(why))
            answered([*await first, *rest])

        self._look(both())

    def _look(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _take_high(self, batch: Sequence[PushedEnvelope], answered: Answered) -> None:
        """Accepts what the clock of the mesh allows. Of the others, those that were accepted before
        get their answer, and the rest a refusal.
        """
        refused: dict[int, HoldfastError]
        try:
            refused = {**await refused_stamps(self._store, batch, self._clock())}
        except HoldfastError as error:
            refused = dict.fromkeys(range(len(batch)), error)
        answers: dict[int, Outcome] = {}
        for at, why in refused.items():
            answers[at] = (await self._known_only([batch[at]], why))[0]
        rest = [at for at in range(len(batch)) if at not in refused]
        done: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()
        if rest:
            self._take_sane([batch[at] for at in rest], done.set_result)
        else:
            done.set_result([])
        answers.update(zip(rest, await done, strict=True))
        answered([answers[at] for at in range(len(batch))])

    async def _known_only(
        self, batch: Sequence[PushedEnvelope], refusal: HoldfastError
    ) -> list[Outcome]:
        try:
            known = await self._store.known(
                batch[0].mesh, [(one.id, one.fingerprint) for one in batch]
            )
            if any(known) and await self._store.member_get(batch[0].mesh, batch[0].sender) is None:
                # Only a member may learn what is known.
                stranger = AcceptResult(verdict=AcceptVerdict.NOT_A_MEMBER)
                known = [stranger if answer is not None else None for answer in known]
        except HoldfastError as error:
            return [error] * len(batch)
        except Exception:
            # The sender must get an answer, and nobody else looks at this task.
            log.exception("a fault of ours while %d ids were looked up", len(batch))
            return [OutcomeUnknown("the broker does not know what became of it")] * len(batch)
        found: list[Outcome] = []
        for one, answer in zip(batch, known, strict=True):
            if answer is None:
                self._counts.refused[refusal.code] += 1
                found.append(refusal)
            else:
                self._counts.answered([one], [answer])
                found.append(answer)
        return found

    def _queue_up(self, batch: Sequence[PushedEnvelope], answered: Answered) -> None:
        self._queue.append(_Waiting(batch, answered))
        self.rows += len(batch)
        self.bytes += byte_count(batch)
        self._wake()

    def _wake(self) -> None:
        if not self._woken and self._under_way < self._store.groups_max:
            # With the next turn: all that arrives in this one joins the group.
            self._woken = True
            asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        """Begins groups, as many as the store takes at a time."""
        self._woken = self._grows()
        if self._woken:
            asyncio.get_running_loop().call_soon(self._go)
            return
        while self._under_way < self._store.groups_max:
            self._bring()
            if not self._queue:
                return
            self._begin_group()

    def _grows(self) -> bool:
        """Whether to wait for one more turn of the loop, since the last one has brought something,
        and as much as for the last group has not come yet. A group of many takes hardly longer than
        one of few, and who got answers together asks again together. One alone waits for nobody.
        """
        if self._queue:
            return False
        seen, self._seen = self._seen, sum([source.waits for source in self._expected])
        return seen < self._seen < self._brought

    def _bring(self) -> None:
        if not self._expected:
            return
        expected, self._expected = self._expected, []
        self._brought, self._seen = sum([source.waits for source in expected]), 0
        woken, self._woken = self._woken, True  # what is brought needs no turn of its own
        for source in expected:
            source.bring()
        self._woken = woken

    def _begin_group(self) -> None:
        whose, group = self._next_group()
        self._under_way += 1
        self._counts.groups += 1
        one = _Begun(whose, group, self._wakeups.begin_group(), self._ticks())
        work = asyncio.ensure_future(self._begin(group))
        if work.done() and not self._owing:  # it was written in this thread
            self._returned(one)
            self._answer(one, work)
        else:
            work.add_done_callback(partial(self._done, one))

    def _begin(self, group: Sequence[PushedEnvelope]) -> Awaitable[Sequence[AcceptResult]]:
        retention = self._retention
        try:
            return self._store.accept(
                group, self._clock(), keep_ms=retention.keep_ms, dedupe_ms=retention.dedupe_ms
            )
        except HoldfastError as error:
            failed: asyncio.Future[Sequence[AcceptResult]] = (
                asyncio.get_running_loop().create_future()
            )
            failed.set_exception(error)
            return failed

    def _done(self, one: _Begun, work: asyncio.Future[Sequence[AcceptResult]]) -> None:
        self._returned(one)
        self._owing = True
        self._go()  # first: the store writes while we answer
        self._owing = False
        self._answer(one, work)

    def _returned(self, one: _Begun) -> None:
        self._under_way -= 1
        self.took_s = self._ticks() - one.begun
        self.rows -= len(one.group)
        self.bytes -= byte_count(one.group)

    def _answer(self, one: _Begun, work: asyncio.Future[Sequence[AcceptResult]]) -> None:
        answers = self._outcomes(one.group, work)
        self._wakeups.end_group(one.number)
        for waiting, (_, outcomes) in zip(one.whose, beside(one.group, answers), strict=True):
            waiting.settle(outcomes)
        if self._idle is not None and not self.busy and not self._idle.done():
            self._idle.set_result(None)

    def _next_group(self) -> tuple[list[_Waiting], Parts[PushedEnvelope]]:
        """Envelopes that are accepted together, and whose each part of them is."""
        whose: list[_Waiting] = []
        parts: list[Sequence[PushedEnvelope]] = []
        room, rows = limits.ACCEPT_GROUP_BYTES, limits.ACCEPT_GROUP_MAX
        while self._queue and room > 0 and rows > 0:
            waiting = self._queue[0]
            part = waiting.batch[waiting.begun : waiting.begun + rows]
            size = byte_count(part)
            if size > room:
                part, size = _fitting(part, room)
            room -= size
            rows -= len(part)
            whose.append(waiting)
            parts.append(part)
            waiting.begun += len(part)
            if waiting.begun == len(waiting.batch):
                self._queue.popleft()
        return whose, Parts(parts)

    def _outcomes(
        self, group: Sequence[PushedEnvelope], work: asyncio.Future[Sequence[AcceptResult]]
    ) -> Sequence[Outcome]:
        try:
            answers = work.result()
            self._wakeups.accepted(group, answers)
        except HoldfastError as error:
            log.warning("a group of %d was not accepted: %s", len(group), error.message)
            return [error] * len(group)
        except asyncio.CancelledError:
            return [OutcomeUnknown("the broker stopped while it was accepted")] * len(group)
        except Exception:
            log.exception("a fault of ours while %d envelopes were accepted", len(group))
            return [OutcomeUnknown("the broker does not know what became of it")] * len(group)
        again: dict[bytes, int] = {}
        others = self._counts.answered(group, answers)
        _tell_conflicts(others)
        for one, answer in others:
            if answer.verdict in _KNOWN:
                again[one.sender] = again.get(one.sender, 0) + 1
        now = self._ticks()
        for sender, count in again.items():
            self._rates.give_back(sender, count, now)
        return answers


def _tell_conflicts(others: Sequence[tuple[PushedEnvelope, AcceptResult]]) -> None:
    """A reused id is a mistake of a member, or something worse: said aloud, without any content."""
    reused = [pair for pair in others if pair[1].verdict is AcceptVerdict.REUSED]
    for one, answer in reused[: limits.CONFLICTS_TOLD_MAX]:
        log.warning(
            "%s: member %s sent another request under the id %s: its fingerprint begins with %s, "
            "that of the accepted one with %s",
            *(one.mesh, one.sender.hex()[:16], id_text(one.id)),
            *(one.fingerprint[:PREFIX_BYTES].hex(), answer.fingerprint[:PREFIX_BYTES].hex()),
        )
    if len(reused) > limits.CONFLICTS_TOLD_MAX:
        log.warning("%d more of such ids came with it", len(reused) - limits.CONFLICTS_TOLD_MAX)


def _fitting(batch: Sequence[PushedEnvelope], room: int) -> tuple[Sequence[PushedEnvelope], int]:
    """The envelopes of a batch that fill `room`, and their size; the last may exceed it."""
    size = 0
    for at, one in enumerate(batch, 1):
        size += len(one.raw)
        if size >= room:
            return batch[:at], size
    return batch, size
