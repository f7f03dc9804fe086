"""A process that hands envelopes to a broker's store until it is killed.

    python broker_store_process.py FOLDER --seed 7
    python broker_store_process.py FOLDER --seed 7 --die-at "commit: before" 3

The numbers of what was answered go to standard output at once, one line for each group. Some
groups repeat what came before, as whoever lost an answer does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.storage.broker.sqlite import SqliteBrokerStore, ThreadedBrokerStore, database
from support.broker_stores import NOW, accept, arriving, queued, topic, with_team

POINTS: dict[str, tuple[Any, str]] = {
    "commit": (SqliteBrokerStore, "_commit"),
    "mark": (database, "write_mark"),
    "insert": (SqliteBrokerStore, "_judge"),
}


def lay(point: str, nth: int) -> None:
    """Lets the process die when it passes the point for the n-th time."""
    name, _, side = point.partition(": ")
    owner, attribute = POINTS[name]
    real = getattr(owner, attribute)
    passed = count(1)

    def around(*args: Any, **kwargs: Any) -> Any:
        fatal = next(passed) == nth
        if fatal and side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, around)


def tell(numbers: list[int], answers: list[AcceptResult]) -> None:
    assert all(
        one.verdict in (AcceptVerdict.CREATED, AcceptVerdict.DUPLICATE) for one in answers
    ), answers
    pairs = " ".join(f"{number}:{one.seq}" for number, one in zip(numbers, answers, strict=True))
    os.write(1, f"{pairs}\n".encode())


async def hand_in(store: ThreadedBrokerStore, rng: random.Random, first: int) -> None:
    makers: tuple[Callable[[int], PushedEnvelope], ...] = (arriving, topic, queued)
    number = first
    while True:
        size = rng.choice((1, 3, 20, 200))
        numbers = list(range(number, number + size))
        number += size
        # Repeats of what is known, and of what the last life may have written.
        numbers += [rng.randrange(number) for _ in range(3)]
        tell(numbers, await accept(store, *(makers[n % 3](n) for n in numbers)))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--die-at", nargs=2, metavar=("POINT", "NTH"))
    given = parser.parse_args()
    store = ThreadedBrokerStore(SqliteBrokerStore(given.folder, mark_rows=50))
    await store.open(NOW)
    await with_team(store)
    if given.die_at:
        lay(given.die_at[0], int(given.die_at[1]))
    await hand_in(store, random.Random(given.seed), given.first)


if __name__ == "__main__":
    asyncio.run(main())
