"""Counts of many rows: pages do not wait for them, and counting costs a bounded part of a core."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.apps.web import counted as module
from holdfast.apps.web.counted import KIND, Counted
from holdfast.apps.web.live.changes import Changes
from holdfast.rules import limits
from holdfast.rules.errors import NotGranted
from support.daemon import PATIENCE_S


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def test_U5_a_page_does_not_wait_for_a_long_count_and_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CONSOLE_PATIENCE_MS", 1)
    assert limits.CONSOLE_PATIENCE_MS > 1

    async def work() -> None:
        changes, ready, asked = Changes(), asyncio.Event(), []
        found = Counted(changes)

        async def count() -> int:
            asked.append(1)
            await ready.wait()
            return 7

        seen = changes.seen((KIND,))
        many = [found.latest("team", count) for _ in range(20)]
        assert await asyncio.gather(*many) == [None] * 20
        ready.set()
        await changes.wait((KIND,), seen)
        assert await found.latest("team", count) == 7
        assert len(asked) == 1
        await found.close()

    run(work())


def test_U5_after_a_count_there_is_a_pause_and_then_the_last_change_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        changes = Changes()
        found = Counted(changes)
        rows = [1]

        async def count() -> int:
            return len(rows)

        assert await found.latest("team", count) == 1
        rows.append(2)
        assert await found.latest("team", count) == 1
        monkeypatch.setattr(module, "_PAUSE_S_MIN", 0)
        seen = changes.seen((KIND,))
        await changes.wait((KIND,), seen)
        assert await found.latest("team", count) == 2
        await found.close()

    run(work())


def test_U5_what_may_not_be_counted_is_nothing_and_many_make_room() -> None:
    async def work() -> None:
        found = Counted(Changes())

        async def refused() -> int:
            raise NotGranted("not for you")

        async def one() -> int:
            return 1

        assert await found.latest("secret", refused) is None
        for number in range(limits.CONSOLE_COUNTS_MAX + 5):
            assert await found.latest(number, one) == 1
        assert len(found._known) == limits.CONSOLE_COUNTS_MAX
        await found.close()

    run(work())
