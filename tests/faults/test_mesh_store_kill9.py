"""The process that has the store of the bus open is killed, again and again. What it had told stays
true: every message is there once, numbers only grow, and what was captured is refused.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.rules.bus.mesh_store import ArrivalVerdict
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from support.mesh_stores import ANA, signed_arrival, waiting_for
from support.seeds import seeds

pytestmark = pytest.mark.faults

PROGRAM = Path(__file__).with_name("mesh_store_process.py")
KILLS = 3


def life(folder: Path, first: int, lines: int) -> list[tuple[str, int]]:
    """Runs the process until it has told so much, kills it, and returns all that it told."""
    environ = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])}
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), str(first)],
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
    ) as child:
        assert child.stdout is not None
        told = [child.stdout.readline().split() for _ in range(lines)]
        os.kill(child.pid, signal.SIGKILL)
        told += [line.split() for line in child.stdout.read().splitlines()]
    return [(line[0], int(line[1])) for line in told if len(line) == 3]


async def check(folder: Path, told: list[tuple[str, int]]) -> int:
    """Looks at what is left; returns the number at which the next life goes on."""
    store = await SqliteMeshStore.open(folder / "bus.db")
    inbox = [row.message.id for row in await store.pending_inbox(0, 100_000)]
    assert len(inbox) == len(set(inbox)), "a message came twice"
    arrived = [n + at for what, n in told if what == "arrived" for at in range(3)]
    assert {signed_arrival(n).message.id for n in arrived} <= set(inbox), "one is lost"
    last = await store.last_seq(ANA) or 0
    assert len(inbox) == last, "the mark is past messages that are not there"
    replayed = await store.accept(ANA, [signed_arrival(n) for n in range(1, last + 1)])
    assert set(replayed) <= {ArrivalVerdict.REPLAY}
    waiting = {item.message.id for _, item in await store.due_outbox()}
    for what, number in told:
        if what == "waits":
            assert waiting_for("ben", number).message.id in waiting
    given = [number for what, number in told if what == "given"]
    assert given == sorted(set(given))
    assert (await store.reserve(1)).start > max(given, default=0)
    await store.close()
    return last + 1


@pytest.mark.parametrize("seed", seeds(1))
def test_B4_a_killed_process_leaves_what_it_told(tmp_path: Path, seed: int) -> None:
    rng, told, first = random.Random(seed), list[tuple[str, int]](), 1
    for _ in range(KILLS):
        told += life(tmp_path, first, rng.randrange(1, 30))
        first = asyncio.run(check(tmp_path, told))
