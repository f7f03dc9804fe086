"""The process that has the Raft logs open is killed, again and again. What it had told stays true,
and it is still a voter.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.quorum_logs import opened
from support.seeds import seeds

pytestmark = pytest.mark.faults

PROGRAM = Path(__file__).with_name("quorum_log_process.py")
KILLS = 3
Told = dict[str, tuple[int, int, int, int]]


def life(home: Path, lines: int, told: Told) -> None:
    """Runs the process until it has told so much, kills it, and notes what it told last."""
    environ = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])}
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(home)], stdout=subprocess.PIPE, env=environ, text=True
    ) as child:
        assert child.stdout is not None
        got = [child.stdout.readline() for _ in range(lines)]
        os.kill(child.pid, signal.SIGKILL)
        got += child.stdout.read().splitlines(keepends=True)
    for line in got:
        if line.endswith("\n"):
            scope, *numbers = line.split()
            written, term, vote, last = map(int, numbers)
            told[scope] = (written, term, vote, last)


@pytest.mark.parametrize("seed", seeds(1))
def test_Q3_a_killed_process_leaves_what_it_told_and_is_still_a_voter(
    tmp_path: Path, seed: int
) -> None:
    rng, told = random.Random(seed), Told()
    for _ in range(KILLS):
        life(tmp_path, rng.randrange(20, 120), told)
        log = opened(tmp_path)
        for scope, (written, term, vote, last) in told.items():
            head = log.head(scope)
            assert log.group(scope).standing == "voter", log.group(scope).reason
            assert head.written in (written, written + 1), "one may be done and not told"
            assert (head.term, head.last) >= (term, last)
            assert head.term > term or head.vote == vote
            entries = log.entries(scope, head.first, head.last + 1, 1 << 30)
            assert [e.index for e in entries] == list(range(head.first, head.last + 1))
        log.close()
    assert set(told) == {"one", "two"}
