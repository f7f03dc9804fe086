"""Groups that follow each other closely, and who is woken by them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from holdfast.broker.accept import Acceptor, RetentionPolicy
from holdfast.broker.counters import BrokerCounts
from holdfast.broker.verdicts import Outcome
from holdfast.broker.wakeups import Wakeups
from holdfast.rules import limits
from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.rules.errors import DiskFull, HoldfastError, OutcomeUnknown, StoreClosed
from holdfast.storage.broker.sqlite.store import SqliteBrokerStore
from holdfast.storage.broker.sqlite.threaded import ThreadedBrokerStore
from support.broker_stores import ANA, BOB, NOW, TEAM, arriving, with_team

PATIENCE_S = 30
KEEPING = RetentionPolicy(keep_ms=10**9, dedupe_ms=10**10)


class Listening:
    """A connection that follows the mesh and counts how often it was woken."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.woken = 0

    def topics(self, mesh: str) -> Collection[str] | None:
        return ()

    def wake(self, mesh: str, *, urgent: bool) -> None:
        self.woken += 1

    def wake_queue(self, mesh: str, queue: str) -> None:
        raise AssertionError("nobody takes from a queue here")


class Full(SqliteBrokerStore):
    """A real store whose disk is full for the first group, and which notes what it was given."""

    fails = 0
    groups: list[int]

    async def accept(
        self, batch: Sequence[PushedEnvelope], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> Sequence[AcceptResult]:
        self.groups.append(len(batch))
        if len(self.groups) <= self.fails:
            raise DiskFull("the disk is full")
        return await super().accept(batch, now_ms, keep_ms=keep_ms, dedupe_ms=dedupe_ms)

    async def known(
        self, mesh: str, asked: Sequence[tuple[bytes, bytes]]
    ) -> list[AcceptResult | None]:
        raise ZeroDivisionError("a bug in the store")


class Counter:
    """A counter on a real store in its threads."""

    def __init__(self, folder: Path, fails: int = 0, rate_per_s: float = 10**9) -> None:
        self.inner = Full(folder)
        self.inner.fails, self.inner.groups = fails, []
        self.store = ThreadedBrokerStore(self.inner)
        self.hub = Wakeups(alone=True)
        self.accepting = Acceptor(
            self.store,
            KEEPING,
            clock=lambda: NOW,
            ticks=monotonic,
            counts=BrokerCounts(),
            wakeups=self.hub,
            rate_per_s=rate_per_s,
        )

    async def __aenter__(self) -> Counter:
        await self.store.open(NOW)
        await with_team(self.store)
        self.store.on_news(self.hub.news)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.accepting.close()
        await self.store.close()


def seqs_of(outcomes: Sequence[Outcome]) -> list[int]:
    return [one.seq for one in outcomes if isinstance(one, AcceptResult)]


def test_D2_groups_that_wait_in_the_store_are_numbered_in_their_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with Counter(tmp_path) as counter:
            told: list[Sequence[Outcome]] = []
            for begin in range(0, 300, 3):
                counter.accepting.take([arriving(begin + n) for n in range(3)], told.append)
                await asyncio.sleep(0)
            await counter.accepting.close()
            assert [seq for one in told for seq in seqs_of(one)] == list(range(1, 301))
            assert len(counter.inner.groups) > 1, "they were not one group"

    asyncio.run(story())


def test_D2_an_id_in_two_groups_under_way_is_created_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with Counter(tmp_path) as counter:
            first = asyncio.ensure_future(counter.accepting.hand_in([arriving(1)]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # the first group is in the store's hands
            again = asyncio.ensure_future(counter.accepting.hand_in([arriving(1), arriving(2)]))
            both = [*await first, *await again]
            verdicts = [one.verdict for one in both if isinstance(one, AcceptResult)]
            assert verdicts == [
                AcceptVerdict.CREATED,
                AcceptVerdict.DUPLICATE,
                AcceptVerdict.CREATED,
            ]

    asyncio.run(story())


class Coming:
    """Envelopes that come one in each turn of the loop, and wait to be brought."""

    def __init__(self, accepting: Acceptor) -> None:
        self.accepting = accepting
        self.there: list[PushedEnvelope] = []
        self.told: list[Sequence[Outcome]] = []
        self._number = 0

    @property
    def waits(self) -> int:
        return len(self.there)

    def come(self, many: int = 1) -> None:
        if not self.there:
            self.accepting.expect(self)
        for _ in range(many):
            self._number += 1
            self.there.append(arriving(self._number))

    def bring(self) -> None:
        there, self.there = self.there, []
        self.accepting.take(there, self.told.append)

    async def answered(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while sum(map(len, self.told)) < self._number:
                await asyncio.sleep(0)


def test_D2_what_comes_turn_by_turn_is_one_group_up_to_as_many_as_before(tmp_path: Path) -> None:
    async def story() -> None:
        async with Counter(tmp_path) as counter:
            coming = Coming(counter.accepting)
            coming.come(4)
            await coming.answered()
            for _ in range(4):
                coming.come()
                await asyncio.sleep(0)
            await coming.answered()
            assert counter.inner.groups == [4, 4], "four came together: four are waited for"
            coming.come()
            await asyncio.sleep(0)
            coming.come()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not coming.there, "a turn brought nothing: nobody waits any longer"
            await coming.answered()
            assert counter.inner.groups == [4, 4, 2]
            coming.come()
            await asyncio.sleep(0)
            assert coming.there, "it was one of two"
            await coming.answered()
            coming.come()
            await asyncio.sleep(0)
            assert not coming.there, "and now it is one of one"
            await coming.answered()

    asyncio.run(story())


def test_S16_what_is_expected_is_brought_before_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with Counter(tmp_path) as counter:
            coming = Coming(counter.accepting)
            coming.come(4)
            await coming.answered()
            coming.come(2)
            assert counter.accepting.busy
            async with asyncio.timeout(PATIENCE_S):
                await counter.accepting.close()
            assert [seqs_of(one) for one in coming.told] == [[1, 2, 3, 4], [5, 6]]
            assert not counter.accepting.busy

    asyncio.run(story())


def test_D4_a_group_that_fails_is_answered_by_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with Counter(tmp_path, fails=1) as counter:
            first = asyncio.ensure_future(counter.accepting.hand_in([arriving(1)]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            second = asyncio.ensure_future(counter.accepting.hand_in([arriving(2)]))
            assert [type(one) for one in await first] == [DiskFull]
            assert seqs_of(await second) == [1], "and the refused one took no number"

    asyncio.run(story())


def test_D2_what_is_larger_than_a_group_is_answered_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ACCEPT_GROUP_BYTES", 150)
    monkeypatch.setattr(limits, "ACCEPT_GROUP_MAX", 4)

    async def story() -> None:
        async with Counter(tmp_path) as counter:
            small = [arriving(n, raw=b"x" * 10) for n in range(9)]
            large = [arriving(100 + n, raw=b"x" * 100) for n in range(4)]
            answers = await asyncio.gather(
                counter.accepting.hand_in(small), counter.accepting.hand_in(large)
            )
            assert [seqs_of(one) for one in answers] == [list(range(1, 10)), [10, 11, 12, 13]]
            assert counter.inner.groups == [4, 4, 3, 2], "the third is filled up by the large ones"

    asyncio.run(story())


def test_D2_a_counter_that_closes_answers_what_it_has_and_refuses_the_rest(tmp_path: Path) -> None:
    async def story() -> None:
        async with Counter(tmp_path) as counter:
            taken = asyncio.ensure_future(counter.accepting.hand_in([arriving(1)]))
            await asyncio.sleep(0)
            await counter.accepting.close()
            assert not counter.accepting.busy
            assert seqs_of(await taken) == [1]
            (refused,) = await counter.accepting.hand_in([arriving(2)])
            assert isinstance(refused, StoreClosed)

    asyncio.run(story())


def test_D2_who_is_over_its_rate_has_an_answer_also_if_the_store_has_a_fault(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with Counter(tmp_path, rate_per_s=1) as counter:
            batch = [arriving(n) for n in range(5)]
            answers = await asyncio.wait_for(counter.accepting.hand_in(batch), 60)
            assert seqs_of(answers) == [1, 2]
            assert [type(one) for one in answers[2:]] == [OutcomeUnknown] * 3

    asyncio.run(story())


def test_D5_who_is_not_concerned_is_not_woken_by_groups_that_overlap(tmp_path: Path) -> None:
    async def story() -> None:
        async with Counter(tmp_path) as counter:
            ana, bob = Listening(ANA), Listening(BOB)
            counter.hub.follow(TEAM, ana, 0)
            counter.hub.follow(TEAM, bob, 0)
            await counter.accepting.hand_in([arriving(1)])  # from here on the hub knows the seq
            ana.woken = bob.woken = 0
            told: list[Sequence[Outcome]] = []
            for n in range(20):
                counter.accepting.take([arriving(10 + n, "dm", ANA.hex())], told.append)
                await asyncio.sleep(0)
            await counter.accepting.close()
            assert not any(isinstance(one, HoldfastError) for each in told for one in each)
            assert ana.woken >= 1
            assert bob.woken == 0

    asyncio.run(story())


def test_D5_news_of_another_process_wait_only_for_the_groups_that_were_under_way() -> None:
    hub, ana = Wakeups(alone=False), Listening(ANA)
    hub.follow(TEAM, ana, 7)
    first = hub.begin_group()
    hub.news(TEAM, 9)
    second = hub.begin_group()
    assert ana.woken == 0, "it may be of the group that is under way"
    hub.end_group(first)
    assert ana.woken == 1, "what came before the second group began is not of it"
    hub.news(TEAM, 9)
    hub.end_group(second)
    assert ana.woken == 1
    hub.news(TEAM, 10)
    assert ana.woken == 2


def test_D5_news_of_two_groups_wait_each_for_its_own() -> None:
    """What the third group has written is not told to all when the second ends."""
    hub, bob = Wakeups(alone=True), Listening(BOB)
    hub.follow(TEAM, bob, 1)
    groups = {hub.begin_group(): 2, hub.begin_group(): 3}
    hub.news(TEAM, 2)
    groups[hub.begin_group()] = 4
    hub.news(TEAM, 4)
    for group, seq in groups.items():
        accepted = AcceptResult(verdict=AcceptVerdict.CREATED, seq=seq)
        hub.accepted([arriving(seq, "dm", ANA.hex())], [accepted])
        hub.end_group(group)
    assert bob.woken == 0


def test_D5_a_mesh_is_wanted_while_anybody_follows_it_or_takes_from_its_queues() -> None:
    told: list[tuple[str, bool]] = []
    hub = Wakeups(alone=False, wanted=lambda mesh, on: told.append((mesh, on)))
    ana, bob = Listening(ANA), Listening(BOB)
    hub.follow(TEAM, ana)
    hub.follow(TEAM, bob)
    hub.take_from(TEAM, "jobs", bob)
    hub.unfollow(TEAM, ana)
    hub.unfollow(TEAM, bob)
    assert told == [(TEAM, True)]
    hub.take_from(TEAM, "more", bob)
    hub.leave_queue(TEAM, "jobs", bob)
    assert told == [(TEAM, True)]
    hub.leave_queue(TEAM, "more", bob)
    assert told == [(TEAM, True), (TEAM, False)]
    hub.leave_queue(TEAM, "more", bob)
    hub.unfollow(TEAM, bob)
    hub.take_from("other", "jobs", ana)
    assert told[2:] == [("other", True)]


def test_D4_a_group_that_is_written_in_the_loop_is_answered_behind_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small one is handed in when the large one has come back and is not answered yet."""
    done = Acceptor._done
    told: list[list[int]] = []
    both = asyncio.Event()

    def tell(outcomes: Sequence[Outcome]) -> None:
        told.append(seqs_of(outcomes))
        if len(told) == 2:
            both.set()

    def with_another(self: Acceptor, *given: Any) -> None:
        if not told:
            self.take([arriving(1000)], tell)
        done(self, *given)

    monkeypatch.setattr(Acceptor, "_done", with_another)

    async def story() -> None:
        async with Counter(tmp_path) as counter:
            counter.inner._quick._in_a_row = 10**6
            counter.store.may_hold_up_the_loop(lambda: True)
            many = limits.ACCEPT_AT_ONCE_MAX + 1
            counter.accepting.take([arriving(n) for n in range(many)], tell)
            await both.wait()
            assert counter.inner.groups == [many, 1]
            assert told == [list(range(1, many + 1)), [many + 1]]

    asyncio.run(story())
