"""No transaction of a broker is long because a mesh is large.

Each piece of work is done twice, the second time on a mesh with four times as much; the longest
transaction, counted in steps of SQLite, must stay what it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from holdfast.broker.upkeep import sweep_all
from holdfast.rules import limits
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import (
    KEEP_MS,
    NOW,
    TEAM,
    accept,
    arriving,
    queued,
    sqlite_store,
    topic,
    with_team,
)
from support.growth import counted_work

_PIECE: Final = 50
_SMALL: Final = 6 * _PIECE
_TIMES: Final = 4


async def remove_a_mesh(store: BrokerStore) -> None:
    await store.mesh_remove(TEAM)
    swept = await sweep_all(store, NOW)
    assert swept.removed >= _SMALL - 1
    assert (await store.counts())["ready"] == 0


async def sweep_what_is_old(store: BrokerStore) -> None:
    swept = await sweep_all(store, NOW + 100 * KEEP_MS)
    assert min(swept.messages, swept.dedupe) >= _SMALL // 3 - 1 > _PIECE


@pytest.mark.parametrize("work", [remove_a_mesh, sweep_what_is_old])
def test_D7_the_longest_transaction_does_not_grow_with_the_mesh(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[BrokerStore], Awaitable[None]],
) -> None:
    monkeypatch.setattr(limits, "SWEEP_ROWS", _PIECE)
    longest: list[int] = []

    async def main(rows: int) -> None:
        async with sqlite_store(tmp_path / str(rows)) as store:
            await with_team(store)
            made = (arriving, topic, queued)
            await accept(store, *(made[n % 3](n) for n in range(1, rows)))
            meter.longest = 0
            await work(store)
            longest.append(meter.longest)

    for rows in (_SMALL, _TIMES * _SMALL):
        with counted_work() as meter:
            asyncio.run(main(rows))
    assert 0 < longest[1] < 1.5 * longest[0], longest
