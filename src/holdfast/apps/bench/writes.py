"""Writes, reads and a watch of throw-away homes, and bare SQLite beside them.

Every round measures each side for a slice of the time, one after the other: what else the machine
does slows both, and the median of the rounds' own ratios tells of us alone.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Final, TypeVar

import holdfast
from holdfast.apps.bench import figures
from holdfast.apps.bench.figures import Figure
from holdfast.service.clock import SystemClock
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.yardstick.bare_writes import BareWrites

T = TypeVar("T")

WRITERS: Final = 64
ROUNDS: Final = 3
_SLICES: Final = 4 * ROUNDS + 3
"""Of the whole time: two sides of two ratios in each round, the reads, and two for the watch."""
_MESH: Final = "bench"
_VALUE: Final = {"status": "green", "step": 12345, "note": "x" * 200}
_KEYS: Final = 100
_WATCHED_MAX: Final = 500
_PAUSE_S: Final = 0.003
"""Between two watched writes, so that each wakes a watcher that waits."""
_PATIENCE_S: Final = 30.0


def measure(folder: Path, seconds: float) -> Iterator[tuple[Figure, float]]:
    """In homes below the folder, which belongs to the caller."""
    slice_s = seconds / _SLICES
    ones, bare_ones, many, bare_many = [], [], [], []
    for _ in range(ROUNDS):
        ones.append(_in_home(folder, lambda home: one_by_one(home, slice_s)))
        bare_ones.append(_in_home(folder, lambda home: bare(home, 1, slice_s)))
        many.append(_in_home(folder, lambda home: in_flight(home, slice_s)))
        bare_many.append(_in_home(folder, lambda home: bare(home, WRITERS, slice_s)))
    yield figures.ONE, statistics.median(ones)
    yield figures.ONE_TO_BARE, _paired(ones, bare_ones)
    yield figures.MANY, statistics.median(many)
    yield figures.MANY_TO_BARE, _paired(many, bare_many)
    yield figures.READS, _in_home(folder, lambda home: reads(home, slice_s))
    late = _in_home(folder, lambda home: watched(home, 2 * slice_s))
    yield figures.WATCHED, late[int(len(late) * 0.99)]


def _paired(ours: list[float], bare: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, bare, strict=True))


def _in_home(folder: Path, measure: Callable[[Path], T]) -> T:
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        return measure(place / "home")
    finally:
        shutil.rmtree(place)


def one_by_one(home: Path, seconds: float) -> float:
    """Durable writes a second of one thread."""
    with holdfast.open(home, peer="bench", create=True, sync="full") as node:
        state = node.create_mesh(_MESH).state
        begun, done = perf_counter(), 0
        while (spent := perf_counter() - begun) < seconds:
            state.set(f"key-{done}", _VALUE)
            done += 1
        return done / spent


def in_flight(home: Path, seconds: float) -> float:
    """The same of 64 coroutines, whose writes share commits."""

    async def run() -> float:
        async with holdfast.aopen(home, peer="bench", create=True, sync="full") as node:
            state = (await node.create_mesh(_MESH)).state
            begun = perf_counter()

            async def writer(number: int) -> int:
                done = 0
                while perf_counter() - begun < seconds:
                    await state.set(f"key-{number}-{done}", _VALUE)
                    done += 1
                return done

            done = await asyncio.gather(*(writer(number) for number in range(WRITERS)))
            return sum(done) / (perf_counter() - begun)

    return asyncio.run(run())


def bare(home: Path, group: int, seconds: float) -> float:
    """Rows a second by plain statements, so many in each durable commit."""
    with holdfast.open(home, peer="bench", create=True, sync="normal") as node:
        node.create_mesh(_MESH).state.set("key", _VALUE)
    writes, new_id = BareWrites(HomePaths(home).database, sync="full"), SystemClock().new_id
    try:
        done, spent = 0, 0.0
        while spent < seconds:
            rows = [(new_id(), f"key-{done + number}") for number in range(group)]
            begun = perf_counter()
            writes.commit(rows)
            spent += perf_counter() - begun
            done += group
        return done / spent
    finally:
        writes.close()


def reads(home: Path, seconds: float) -> float:
    """Values read in a second by one thread."""
    with holdfast.open(home, peer="bench", create=True, sync="normal") as node:
        state = node.create_mesh(_MESH).state
        for number in range(_KEYS):
            state.set(f"key-{number}", _VALUE)
        begun, done = perf_counter(), 0
        while (spent := perf_counter() - begun) < seconds:
            state.get(f"key-{done % _KEYS}")
            done += 1
        return done / spent


def watched(home: Path, seconds: float) -> list[float]:
    """Milliseconds from the return of a write to its change in a watch of another thread, sorted. A
    change that was there before the write returned counts as 0.
    """
    seen: dict[str, float] = {}
    told: dict[str, float] = {}
    with holdfast.open(home, peer="bench", create=True, sync="full") as node:
        state = node.create_mesh(_MESH).state
        with state.watch() as watch:

            def look() -> None:
                for change in watch:
                    seen[change.key] = perf_counter()

            thread = threading.Thread(target=look, name="holdfast-bench")
            thread.start()
            pause, ends = threading.Event(), perf_counter() + seconds
            while len(told) < _WATCHED_MAX and perf_counter() < ends:
                key = f"key-{len(told)}"
                state.set(key, _VALUE)
                told[key] = perf_counter()
                pause.wait(_PAUSE_S)
            patience = perf_counter() + _PATIENCE_S
            while len(seen) < len(told) and perf_counter() < patience:
                pause.wait(_PAUSE_S)
        thread.join(_PATIENCE_S)
    return sorted(max(0.0, (seen[key] - at) * 1000) for key, at in told.items() if key in seen)
