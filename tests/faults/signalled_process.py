"""A program whose signal handler raises in the middle of reads and writes, many times: run as a
process, since the signals are real.

    python signalled_process.py HOME SEED ROUNDS

After each interrupt another connection must be able to write, the next call must work, and the log
must hold what was answered. It ends with the number of interrupts that came, or with an error.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from random import Random
from types import FrameType

import apsw

from holdfast.node.library.node import open_node

CALLS = 60
LONGEST_S = 0.0015


class Alarm(Exception):
    pass


class Bell:
    """A handler that raises once for each time that it is armed."""

    armed = False
    came = 0

    def ring(self, number: int, frame: FrameType | None) -> None:
        if self.armed:
            self.armed = False
            self.came += 1
            raise Alarm


def main(home: str, seed: int, rounds: int) -> None:
    chance = Random(seed)
    node = open_node(home, sync="normal")
    mesh = node.mesh("team")
    other = apsw.Connection(str(Path(home) / "data.db"))
    other.set_busy_timeout(0)
    bell = Bell()
    signal.signal(signal.SIGALRM, bell.ring)
    for n in range(rounds):
        before, answered = node.log.head().offset, 0
        try:
            bell.armed = True
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, LONGEST_S))
            for _ in range(CALLS):
                mesh.state.set("k", n)
                answered += 1
                mesh.state.get("k")
            bell.armed = False
        except Alarm:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        assert node.log.head().offset >= before + answered, "an answered write is gone"
        mesh.state.set("k", -n)
        assert mesh.state.get("k") == -n
    node.close()
    print(bell.came)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
