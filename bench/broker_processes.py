"""One PostgreSQL behind 1, 2 and 4 processes of a broker, with a member in each of four meshes.

Told is what a message costs: the processor of all processes of the broker, and of all of
PostgreSQL. The numbers of processes take turns, in many short rounds, and ratios are of one round.
A rate would say how many cores this machine has to spare, and the members' own share of them.

Four processes are compared with one twice: with one that has a quarter of their load, a mesh of its
own, which tells whether processes are in each other's way; and with one that has all of it, whose
groups are four times as large and so cheaper, which tells what it costs to use more cores.

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
        self.lone: list[Cost] = []
        """With one member in one mesh."""

    def measure(self) -> None:
        self.costs.append(self._measured(self.members))

    def measure_lone(self) -> None:
        self.lone.append(self._measured(self.members[:1]))

    def _measured(self, members: list[_broker.Member]) -> Cost:
        raws = [member.messages(MESSAGES * MESHES // len(members)) for member in members]
        with ExitStack() as stack:
            pairs = zip(members, raws, strict=True)
            pushing = [stack.enter_context(_broker.Pushing(self._up, *each)) for each in pairs]
            before, begun = self._cpu_s(), perf_counter()
            push(pushing)
            took, after = perf_counter() - begun, self._cpu_s()
        many = MESHES * MESSAGES
        of_broker, of_server = (
            (new - old) / many * 1e6 for new, old in zip(after, before, strict=True)
        )
        return Cost(of_broker, of_server, many / took)

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
                sides[1].measure_lone()
    finally:
        shutil.rmtree(folder)
    for count, side in sides.items():
        yield from told(count, side.costs)
    for count in COUNTS[1:]:
        for what, one in (("one mesh", sides[1].lone), ("all meshes", sides[1].costs)):
            yield compared(count, what, sides[count].costs, one)


def compared(count: int, what: str, costs: list[Cost], one: list[Cost]) -> tuple[str, float, str]:
    ratios = [each.both / other.both for each, other in zip(costs, one, strict=True)]
    print(f"  {count} processes to one with {what}: {min(ratios):.2f} to {max(ratios):.2f}")
    name = f"{count} processes, CPU of broker and PostgreSQL a message, to one with {what}"
    return name, statistics.median(ratios), "<= 1.15" if count == COUNTS[-1] else "-"


def told(count: int, costs: list[Cost]) -> Found:
    broker, server, rate = (statistics.median(column) for column in zip(*costs, strict=True))
    what = f"{MESHES} meshes on PostgreSQL, {WINDOW} in flight each, {count} processes"
    print(f"  {what}: {rate:,.0f}/s on this machine")
    yield f"{what}: µs of the broker's CPU a message", broker, "-"
    yield f"{what}: µs of PostgreSQL's", server, "-"
