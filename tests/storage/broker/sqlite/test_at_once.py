"""A small batch is accepted in the loop's own thread where the disk is quick, and nowhere else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.rules.broker_rows import AcceptResult, PushedEnvelope
from holdfast.rules.errors import DiskFull
from holdfast.rules.limits import (
    ACCEPT_AT_ONCE_BYTES,
    ACCEPT_AT_ONCE_MAX,
    QUICK_COMMIT_MS,
    QUICK_COMMITS,
)
from holdfast.storage.broker.sqlite import SqliteBrokerStore, ThreadedBrokerStore
from holdfast.storage.quick_commits import QuickCommits
from support.broker_stores import DEDUPE_MS, KEEP_MS, NOW, TEAM, accept, arriving, with_team


class Noting(SqliteBrokerStore):
    """A real store that notes which thread accepts."""

    here: list[bool]
    full = False

    async def accept(
        self, batch: Sequence[PushedEnvelope], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> Sequence[AcceptResult]:
        self.here.append(threading.current_thread() is threading.main_thread())
        if self.full:
            raise DiskFull("the disk is full")
        return await super().accept(batch, now_ms, keep_ms=keep_ms, dedupe_ms=dedupe_ms)


class Stopwatch:
    """A clock that runs on by so much with each look at it."""

    def __init__(self) -> None:
        self.step_ms = 0.0
        self._at = 0.0

    def __call__(self) -> float:
        self._at += self.step_ms / 1000
        return self._at


class Quick:
    """A store whose disk was quick so often that it may accept in the loop."""

    def __init__(self, folder: Path, mark_rows: int) -> None:
        self.inner = Noting(folder, sync="off", mark_rows=mark_rows)
        self.watch = Stopwatch()
        self.inner._quick = QuickCommits(self.watch)
        self.inner.here = []
        self.store = ThreadedBrokerStore(self.inner)
        self.few = True
        self.store.may_hold_up_the_loop(lambda: self.few)
        self.number = 0

    async def accept(self, many: int = 1) -> bool:
        """Accepts so many; whether that happened in the loop's thread."""
        batch = [arriving(self.number + n) for n in range(1, many + 1)]
        self.number += many
        answers = await accept(self.store, *batch)
        assert [one.seq for one in answers] == list(range(self.number - many + 1, self.number + 1))
        return self.inner.here[-1]

    def begin(self, number: int) -> Awaitable[Sequence[AcceptResult]]:
        return self.store.accept([arriving(number)], NOW, keep_ms=KEEP_MS, dedupe_ms=DEDUPE_MS)


@asynccontextmanager
async def opened(folder: Path, mark_rows: int = 10_000) -> AsyncIterator[Quick]:
    quick = Quick(folder, mark_rows)
    await quick.store.open(NOW)
    await with_team(quick.store)
    while not await quick.accept():
        assert quick.number <= QUICK_COMMITS
    yield quick
    await quick.store.close()


def run(story: Callable[[Quick], Awaitable[None]], folder: Path, **options: int) -> None:
    async def main() -> None:
        async with opened(folder / "b", **options) as quick:
            await story(quick)

    asyncio.run(main())


def test_D2_a_small_batch_is_accepted_in_the_loop_where_the_disk_is_quick(tmp_path: Path) -> None:
    async def story(quick: Quick) -> None:
        assert await quick.accept()
        assert await quick.accept(ACCEPT_AT_ONCE_MAX)
        done = quick.begin(quick.number + 1)
        assert isinstance(done, asyncio.Future)
        assert done.done(), "before anything else of the loop ran"
        (again,) = await quick.begin(quick.number + 1)
        assert (again.seq, again.verdict.value) == (quick.number + 1, "duplicate")

    run(story, tmp_path)


def test_D2_a_large_batch_and_many_connections_leave_the_loop_alone(tmp_path: Path) -> None:
    async def story(quick: Quick) -> None:
        assert not await quick.accept(ACCEPT_AT_ONCE_MAX + 1)
        large = arriving(9_000, raw=bytes(ACCEPT_AT_ONCE_BYTES + 1))
        await accept(quick.store, large)
        assert not quick.inner.here[-1]
        quick.few = False
        await accept(quick.store, arriving(9_001))
        assert not quick.inner.here[-1]

    run(story, tmp_path)


def test_D2_one_slow_commit_sends_the_next_to_the_thread(tmp_path: Path) -> None:
    async def story(quick: Quick) -> None:
        quick.watch.step_ms = QUICK_COMMIT_MS + 1
        assert await quick.accept(), "nobody knew before"
        quick.watch.step_ms = 0.0
        for _ in range(QUICK_COMMITS):
            assert not await quick.accept()
        assert await quick.accept()

    run(story, tmp_path)


def test_D2_what_was_called_before_is_written_before(tmp_path: Path) -> None:
    async def story(quick: Quick) -> None:
        removed = asyncio.ensure_future(quick.store.mesh_remove(TEAM))
        await asyncio.sleep(0)  # it is called, and perhaps under way
        (answer,) = await quick.begin(quick.number + 1)
        assert await removed
        assert answer.verdict.value == "unknown_mesh"
        assert not quick.inner.here[-1]

    run(story, tmp_path)


def test_D2_marks_are_left_to_the_thread(tmp_path: Path) -> None:
    rows = QUICK_COMMITS + 20

    async def story(quick: Quick) -> None:
        mark = tmp_path / "b" / "broker.mark"
        before = mark.read_bytes()
        while await quick.accept():
            assert mark.read_bytes() == before
            assert quick.number < 2 * rows
        assert quick.number <= rows

    run(story, tmp_path, mark_rows=rows)


def test_D14_news_of_what_is_accepted_in_the_loop_come_before_its_answer(tmp_path: Path) -> None:
    async def story(quick: Quick) -> None:
        told: list[int] = []
        quick.store.on_news(lambda mesh, seq: told.append(seq))
        quick.begin(quick.number + 1)
        assert told == [quick.number + 1]

    run(story, tmp_path)


def test_D2_an_error_in_the_loop_is_that_of_the_batch_alone(tmp_path: Path) -> None:
    async def story(quick: Quick) -> None:
        quick.inner.full = True
        failed = quick.begin(1)
        with pytest.raises(DiskFull):
            await failed
        assert quick.inner.here[-1]
        quick.inner.full = False
        assert await quick.accept()

    run(story, tmp_path)


def test_D2_a_cancelled_call_does_not_keep_the_loop_from_accepting(tmp_path: Path) -> None:
    async def story(quick: Quick) -> None:
        quick.few = False
        calls = [quick.begin(8_000 + n) for n in range(20)]
        for call in calls:
            assert isinstance(call, asyncio.Future)
            call.cancel()
        quick.few = True
        await quick.store.set_mode("retention_scoped", 30)
        await accept(quick.store, arriving(9_000))
        assert quick.inner.here[-1]

    run(story, tmp_path)
