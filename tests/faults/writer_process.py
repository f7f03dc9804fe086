"""A process that writes through the public library until it is killed.

    python writer_process.py HOME --threads 4 --seed 7
    python writer_process.py HOME --tasks 20 --seed 7
    python writer_process.py HOME --threads 1 --die-at "commit: before" 3

Every acknowledged id goes to standard output at once, as one line. With `--die-at` the process
kills itself when it passes a named point for the n-th time: the points are laid around real
functions here, in the child, so that the library has no hooks for it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import holdfast
from holdfast.node.home import opening
from holdfast.node.library import aio
from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import HoldfastError
from holdfast.storage import group_commit
from holdfast.storage.files import blobs, durable
from holdfast.storage.sqlite import log, meshes, migrations, store

MESH = "team"
PEER = "ana"
MODEL = holdfast.Model(provider="test", name="tiny", dim=2)
LARGE = tuple(bytes([n]) * 70_000 for n in range(4))

# Where death may wait: a name, whose attribute, and which side of the call.
POINTS: dict[str, tuple[Any, str]] = {
    "begin": (store.SqliteEngine, "begin"),
    "savepoint": (store.SqliteEngine, "savepoint"),
    "tick": (meshes.MeshWrites, "tick"),
    "log append": (log.LogWrites, "log_append"),
    "commit": (store.SqliteEngine, "commit"),
    "answer": (group_commit, "deliver"),
    "draft": (durable.Draft, "__init__"),
    "draft write": (durable.Draft, "write"),
    "publish": (durable.Draft, "publish"),
    "folder sync": (durable, "fsync_dir"),
    "blob": (blobs.FileBlobs, "put"),
    "unlink": (blobs.FileBlobs, "unlink"),
    "truncate": (log.LogWrites, "log_truncate"),
    "migration": (migrations, "_apply"),
    "identify": (opening, "_identify"),
    "last sweep": (opening.Opened, "_last_sweep"),
    "mark": (opening.Opened, "_mark"),
    "checkpoint": (store.SqliteStore, "_close"),
}


def tell(id: str) -> None:
    # One write of less than a page: lines of several threads do not mix.
    os.write(1, f"{id}\n".encode())


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


def one_write(node: Node, rng: random.Random) -> str:
    """Something of every family; returns the id that was acknowledged."""
    mesh = node.mesh(MESH)
    key = rng.choice("abcdef")
    makers: list[Callable[[], Any]] = [
        lambda: mesh.state.set(key, rng.random()).id,
        lambda: mesh.memory.set(key, {"n": rng.random()}, tags=[key]).id,
        lambda: mesh.vectors.store(key, [rng.random(), 1.0], model=MODEL, content=key).id,
        lambda: mesh.files.share(f"{key}.bin", rng.choice(LARGE)).id,
        lambda: mesh.files.share(f"{key}.txt", key.encode()).id,
        lambda: mesh.files.delete(f"{key}.bin").id,
        lambda: mesh.state.delete(key).id,
        lambda: mesh.tasks.create(f"task {key}").task,
        lambda: mesh.facts.append(key, "is", rng.random()).id,
    ]
    while True:
        try:
            return str(rng.choice(makers)())
        except holdfast.Refused:
            continue  # nothing there to delete


def write_in_threads(node: Node, threads: int, seed: int, writes: int) -> None:
    def work(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for turn in range(writes):
            tell(one_write(node, rng))
            if number == 0 and turn % 10 == 9:
                node.sweep(Ttl(log_ms=0, tombstone_ms=0, blob_ms=0))

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


async def write_in_tasks(home: str, tasks: int, seed: int, writes: int) -> None:
    async with aio.aopen(home, peer=PEER, create=True) as node:
        mesh = await node.mesh(MESH, create=True)

        async def work(number: int) -> None:
            rng = random.Random(f"{seed} {number}")
            for _ in range(writes):
                key = rng.choice("abcdef")
                if rng.random() < 0.1:
                    tell((await mesh.files.share(f"{key}.bin", rng.choice(LARGE))).id)
                else:
                    tell((await mesh.state.set(key, rng.random())).id)

        async with asyncio.TaskGroup() as group:
            for number in range(tasks):
                group.create_task(work(number))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--writes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--die-at", nargs=2, metavar=("POINT", "NTH"))
    given = parser.parse_args()
    if given.die_at:
        lay(given.die_at[0], int(given.die_at[1]))
    try:
        if given.tasks:
            asyncio.run(write_in_tasks(given.home, given.tasks, given.seed, given.writes))
        else:
            with holdfast.open(given.home, peer=PEER, create=True) as node:
                node.mesh(MESH, create=True)
                write_in_threads(node, given.threads, given.seed, given.writes)
    except HoldfastError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
