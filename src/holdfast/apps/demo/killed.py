"""A process is killed in the middle of its writes: nothing is lost that was acknowledged."""

from __future__ import annotations

import sys
from typing import Final

from holdfast.apps.demo.stage import DemoStage
from holdfast.rules.errors import StoreFailed

MESH: Final = "notes"
ACKNOWLEDGED: Final = 300

_WRITER: Final = """
import sys, holdfast
try:
    with holdfast.open(sys.argv[1]) as node:
        state = node.mesh(sys.argv[2]).state
        for number in range(1_000_000):
            state.set(f"note-{number}", number)
            print(number, flush=True)
except holdfast.HoldfastError as error:
    sys.exit(f"ana's program: {error.message}")
"""


def play(stage: DemoStage) -> None:
    with stage.node("ana") as ana:
        ana.mesh(MESH, create=True)
    stage.tell(f"ana's program writes; after {ACKNOWLEDGED} acknowledged writes: kill -9")
    acknowledged = _write_until_killed(stage)
    if acknowledged < ACKNOWLEDGED:
        raise StoreFailed(
            f"ana's program ended by itself after {acknowledged} acknowledged writes",
            hint="it said why above; is there room for some megabytes in the folder of the demo?",
        )
    with stage.node("ana") as ana:
        state = ana.mesh(MESH).state
        there = sum(state.get(f"note-{number}") == number for number in range(acknowledged))
    stage.prove(
        there == acknowledged >= ACKNOWLEDGED,
        f"of {acknowledged} acknowledged writes {there} are there after the restart",
    )


def _write_until_killed(stage: DemoStage) -> int:
    """How many writes were acknowledged, to the last line that came out of the process."""
    words = [sys.executable, "-c", _WRITER, str(stage.home("ana")), MESH]
    acknowledged = 0
    with stage.processes.lines(words) as writer:
        for acknowledged, _ in enumerate(writer.lines, start=1):
            if acknowledged == ACKNOWLEDGED:
                writer.process.kill()
    return acknowledged
