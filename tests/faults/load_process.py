"""A process that uses a home through the library while its daemon serves it: writes, and sweeps.

    python load_process.py HOME --seed 7

It says one thing per line: `ready`; `id …` for each write that was acknowledged; `swept N` after
each sweep, with the log entries that went. It obeys one word per line: `quiet` ends the writing
(`quiet` is answered), `empty` sweeps without any regard to age (`emptied N`), and the end of its
input ends it.

Sweeps keep log, ids and blobs for moments where a node keeps them for months: so the log is always
cut close behind its readers. Tombstones are kept: forgetting those this early would rightly refuse
the writes of a zone that is a second behind.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import holdfast
from holdfast.node.library.node import Mesh, Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import StoreBusy
from holdfast.rules.ids import id_text, uuid7

T = TypeVar("T")
MESH = "team"
WRITE_EVERY_S = 0.02
SWEEP_EVERY_S = 0.5
BRIEFLY = Ttl(log_ms=500, dedupe_ms=2_000, blob_ms=500)
"""Nobody asks again for what may have happened, so that ids need not be known for long."""
NOT_AT_ALL = Ttl(log_ms=0, dedupe_ms=0, blob_ms=0)
KEYS = 50
TURNS_PER_TASK = 40


def tell(line: str) -> None:
    # One write of less than a page: lines of several threads do not mix.
    os.write(1, f"{line}\n".encode())


class Neighbour:
    """One who writes and one who sweeps, in threads, until they are told to stop."""

    def __init__(self, node: Node, seed: str) -> None:
        self._node = node
        self._mesh: Mesh = node.mesh(MESH)
        self._rng = random.Random(f"{seed} {node.peer}")
        self._quiet, self._end = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._sweeper = threading.Thread(target=self._sweep, daemon=True)

    def run(self) -> None:
        self._writer.start()
        self._sweeper.start()
        tell("ready")
        for line in sys.stdin:
            if line == "quiet\n":
                self._quiet.set()
                self._writer.join()
                tell("quiet")
            elif line == "empty\n":
                tell(
                    f"emptied {self._until_free(lambda: self._node.sweep(NOT_AT_ALL).log_entries)}"
                )
        self._quiet.set()
        self._end.set()
        self._writer.join()
        self._sweeper.join()

    def _write(self) -> None:
        turn = 0
        while not self._quiet.wait(WRITE_EVERY_S):
            turn += 1
            self._one_of_a_family(turn)

    def _sweep(self) -> None:
        while not self._end.wait(SWEEP_EVERY_S):
            tell(f"swept {self._swept(BRIEFLY)}")

    def _swept(self, ttl: Ttl) -> int:
        return self._until_free(lambda: self._node.sweep(ttl).log_entries)

    def _one_of_a_family(self, turn: int) -> None:
        # Keys of our own: what two zones write at once would be kept in the ledger of conflicts.
        key, rng = f"{self._node.peer}/{turn % KEYS}", self._rng
        mesh = self._mesh
        if turn % TURNS_PER_TASK == 0:
            task = self._acknowledged(lambda id: mesh.tasks.create(f"task {turn}", id=id))
            self._acknowledged(lambda id: mesh.tasks.claim(task, id=id))
            self._acknowledged(lambda id: mesh.tasks.complete(task, id=id))
        elif turn % 5 == 0:
            self._acknowledged(lambda id: mesh.memory.set(key, {"n": rng.random()}, id=id))
        elif turn % 7 == 0 and mesh.state.entry(key) is not None:
            self._acknowledged(lambda id: mesh.state.delete(key, id=id))
        else:
            self._acknowledged(lambda id: mesh.state.set(key, rng.random(), id=id))

    def _acknowledged(self, write: Callable[[str], object]) -> str:
        id = id_text(uuid7(time.time_ns() // 1_000_000, self._rng.randbytes(10)))
        self._until_free(lambda: write(id))
        tell(f"id {id}")
        return id

    def _until_free(self, work: Callable[[], T]) -> T:
        """The daemon writes to the same home: on a slow machine one of the two may have to ask
        again.
        """
        while True:
            try:
                return work()
            except StoreBusy:
                tell("busy")


def die(failed: threading.ExceptHookArgs) -> None:
    """A thread that fails must not leave the others to look as if all were well."""
    threading.__excepthook__(failed)
    os._exit(1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home")
    parser.add_argument("--seed", default="0")
    given = parser.parse_args()
    # That a reader is given up is expected here, again and again.
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    threading.excepthook = die
    with holdfast.open(given.home) as node:
        Neighbour(node, given.seed).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
