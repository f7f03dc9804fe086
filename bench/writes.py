"""Durable writes through the public library, beside bare apsw inserting the same rows.

Ours does what every write does: check, fingerprint, dedupe id, stamp, envelope, log entry, state
row, ledger check. The rival writes the resulting rows ready made: log and state rows, and the
mesh's clock once a commit, in transactions of the same number of writes. Rounds alternate, so that
a busy machine slows both.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import holdfast
from holdfast.service.clock import SystemClock
from holdfast.storage.sqlite.yardstick.bare_writes import BareWrites

ROUNDS = 5
WRITERS = 64
GROUPED = 32_000
SINGLE_FULL = 2_000
SINGLE_NORMAL = 8_000
VALUE = {"status": "green", "step": 12345, "note": "x" * 200}


def run() -> Iterator[tuple[str, float, str]]:
    many, bare_many, one_async = [], [], []
    full, bare_full, normal, bare_normal = [], [], [], []
    for _ in range(ROUNDS):
        many.append(in_fresh_home(lambda home: ours_async(home, WRITERS, GROUPED, "full")))
        bare_many.append(in_fresh_home(lambda home: bare(home, WRITERS, GROUPED, "full")))
        one_async.append(in_fresh_home(lambda home: ours_async(home, 1, SINGLE_FULL, "full")))
        full.append(in_fresh_home(lambda home: ours_sync(home, SINGLE_FULL, "full")))
        bare_full.append(in_fresh_home(lambda home: bare(home, 1, SINGLE_FULL, "full")))
        normal.append(in_fresh_home(lambda home: ours_sync(home, SINGLE_NORMAL, "normal")))
        bare_normal.append(in_fresh_home(lambda home: bare(home, 1, SINGLE_NORMAL, "normal")))
    for name, rates in (
        ("64 coroutines, FULL", many),
        ("bare apsw, groups of 64, FULL", bare_many),
        ("1 coroutine, FULL", one_async),
        ("1 thread, FULL", full),
        ("bare apsw, 1 write a commit, FULL", bare_full),
        ("1 thread, NORMAL", normal),
        ("bare apsw, 1 write a commit, NORMAL", bare_normal),
    ):
        print(f"  {name:40} {statistics.median(rates):>10,.0f} writes/s")
    yield "64 async writers, FULL, to bare apsw in groups of 64", paired(many, bare_many), ">= 0.5"
    yield "64 async writers, FULL, to one async writer", paired(many, one_async), ">= 5"
    yield "one writer, FULL, to bare apsw", paired(full, bare_full), ">= 0.8"
    yield "one writer, NORMAL, to bare apsw", paired(normal, bare_normal), ">= 0.5"


def paired(ours: list[float], rival: list[float]) -> float:
    """The median of the rounds' own ratios: drift of the machine cancels within a round."""
    return statistics.median(a / b for a, b in zip(ours, rival, strict=True))


def in_fresh_home(measure: Callable[[Path], float]) -> float:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        return measure(folder / "home")
    finally:
        shutil.rmtree(folder)


def ours_async(home: Path, writers: int, count: int, sync: str) -> float:
    async def measure() -> float:
        async with holdfast.aopen(home, peer="ana", create=True, sync=sync) as node:
            state = (await node.mesh("team", create=True)).state

            async def writer(number: int) -> None:
                for turn in range(count // writers):
                    await state.set(f"key-{number}-{turn}", VALUE)

            begun = perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(writers):
                    group.create_task(writer(number))
            return count / (perf_counter() - begun)

    return asyncio.run(measure())


def ours_sync(home: Path, count: int, sync: str) -> float:
    with holdfast.open(home, peer="ana", create=True, sync=sync) as node:
        state = node.mesh("team", create=True).state
        begun = perf_counter()
        for turn in range(count):
            state.set(f"key-0-{turn}", VALUE)
        return count / (perf_counter() - begun)


def bare(home: Path, group: int, count: int, sync: str) -> float:
    """The same rows as ours, taken from a write of ours, by plain statements."""
    with holdfast.open(home, peer="ana", create=True, sync="normal") as node:
        node.mesh("team", create=True).state.set("key-0-0", VALUE)
    writes, new_id = BareWrites(home / "data.db", sync=sync), SystemClock().new_id
    rows = [
        (new_id(), f"key-{number}-{turn}")
        for turn in range(count // group)
        for number in range(group)
    ]
    begun = perf_counter()
    for start in range(0, len(rows), group):
        writes.commit(rows[start : start + group])
    rate = len(rows) / (perf_counter() - begun)
    writes.close()
    return rate
