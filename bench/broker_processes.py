"""One PostgreSQL behind 1, 2 and 4 processes of a broker, with a member in each of four meshes.

Told is what a message costs: the processor of all processes of the broker, and of all of
PostgreSQL. The numbers of processes take turns, in many short rounds, and ratios are of one round.
A rate would say how many cores this machine has to spare, and the members' own share of them.

Sizes come from the environment: PROCESSES_ROUNDS, PROCESSES_MESSAGES (of a member in a round).
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from bench import _broker, _postgres

ROUNDS = int(os.environ.get("PROCESSES_ROUNDS", "5"))
MESSAGES = int(os.environ.get("PROCESSES_MESSAGES", "2048"))
COUNTS = (1, 2, 4)
MESHES = 4
WINDOW = 64

Found = Iterator[tuple[str, float, str]]


class Cost(NamedTuple):
    """µs of the processor for a message."""

    broker: float
    server: float
    rate: float

    @property
    def both(self) -> float:
        return self.broker + self.server


class Side:
    """A broker of so many processes, on a database of its own."""

    def __init__(self, stack: ExitStack, where: str, folder: Path, processes: int) -> None:
        dsn = _postgres.dsn(where, f"hub{processes}")
        self._up = stack.enter_context(
            _broker.up(folder / f"hub-{processes}", dsn, 0, f"--processes={processes}")
        )
        self._server = asyncio.run(_postgres.postmaster(dsn))
        self.members = [_broker.Member(f"ana{n}", f"team{n}") for n in range(MESHES)]
        for member in self.members:
            member.prepare(self._up)
        self.costs: list[Cost] = []

    def measure(self) -> None:
        raws = [member.messages(MESSAGES) for member in self.members]
        with ExitStack() as stack:
            pairs = zip(self.members, raws, strict=True)
            pushing = [stack.enter_context(_broker.Pushing(self._up, *each)) for each in pairs]
            before, begun = self._cpu_s(), perf_counter()
            push(pushing)
            took, after = perf_counter() - begun, self._cpu_s()
        many = MESHES * MESSAGES
        of_broker, of_server = (
            (new - old) / many * 1e6 for new, old in zip(after, before, strict=True)
        )
        self.costs.append(Cost(of_broker, of_server, many / took))

    def _cpu_s(self) -> tuple[float, float]:
        return _postgres.family_cpu_s(self._up.pid), _postgres.family_cpu_s(self._server)


def push(pushing: list[_broker.Pushing]) -> None:
    """All members at once, each with its window in flight."""
    for one in pushing:
        one.begin(WINDOW)
    waiting = list(pushing)
    while waiting:
        for one in select.select(waiting, [], [])[0]:
            if not one.goes_on():
                waiting.remove(one)


def run() -> Found:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        with ExitStack() as stack:
            where = stack.enter_context(_postgres.server())
            _postgres.make(where, *(f"hub{count}" for count in COUNTS))
            sides = {count: Side(stack, where, folder, count) for count in COUNTS}
            for side in sides.values():
                side.measure()  # caches fill
                side.costs.clear()
            for _ in range(ROUNDS):
                for side in sides.values():
                    side.measure()
    finally:
        shutil.rmtree(folder)
    for count, side in sides.items():
        yield from told(count, side.costs, sides[1].costs)


def told(count: int, costs: list[Cost], alone: list[Cost]) -> Found:
    broker, server, rate = (statistics.median(column) for column in zip(*costs, strict=True))
    what = f"{MESHES} meshes on PostgreSQL, {WINDOW} in flight each, {count} processes"
    print(f"  {what}: {rate:,.0f}/s on this machine")
    yield f"{what}: µs of the broker's CPU a message", broker, "-"
    yield f"{what}: µs of PostgreSQL's", server, "-"
    if count > 1:
        ratios = [one.both / other.both for one, other in zip(costs, alone, strict=True)]
        print(f"  ratios {min(ratios):.2f} to {max(ratios):.2f}")
        yield (
            f"{what}: CPU of both a message, to 1 process",
            statistics.median(ratios),
            "<= 1.15" if count == COUNTS[-1] else "-",
        )
