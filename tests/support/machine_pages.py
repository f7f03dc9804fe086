"""Pages whose commands are typed on several machines (`netns.py`), each with a home of its own.

    ana$ invite=$(holdfast mesh invite team)
    bo$ holdfast mesh join $invite

A variable stands for what a reader carries from one machine to another. Each machine has a process
that types there, as `support.pages` does. Daemons that it started end with it, and it ends when the
test does, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.service.instance_lock import daemon_note
from holdfast.storage.files.home import HomePaths
from support.netns import Namespace
from support.pages import TAKEN, Block, Step, Story

_PARENT_DEATH = 1


class StoryOnMachines(Story):
    """Runs what a page says is typed on a machine, and nothing else of it."""

    def __init__(self, name: str, folder: Path, machines: dict[str, Namespace]) -> None:
        super().__init__(name, folder)
        self._carried: dict[str, str] = {}
        self._terminals = {who: _terminal(folder, who, one) for who, one in machines.items()}

    def run(self, block: Block) -> int:
        return super().run(block) if block.language == "console" else 0

    def is_for_me(self, step: Step) -> bool:
        return bool(step.machine)

    def _run(self, step: Step) -> str:
        terminal = self._terminals[step.machine]
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        terminal.stdin.write(json.dumps([step.command, self._carried]) + "\n")
        terminal.stdin.flush()
        line = terminal.stdout.readline()
        assert line, f"the terminal of {step.machine} has ended"
        printed, self.code, taken = json.loads(line)
        self._carried |= taken
        return str(printed)


def _terminal(folder: Path, who: str, machine: Namespace) -> subprocess.Popen[str]:
    tests = Path(__file__).parents[1]
    argv = [sys.executable, "-m", "support.machine_pages", str(folder / who)]
    environment = {**os.environ, "PYTHONPATH": str(tests), "HOLDFAST_HOME": str(folder / who)}
    pipe = subprocess.PIPE
    return machine.popen(argv, stdin=pipe, stdout=pipe, cwd=folder, env=environment)


def main(home: str) -> None:
    # Whoever started it is gone when the input ends: then there is something to do first.
    ctypes.CDLL(None).prctl(_PARENT_DEATH, 0, 0, 0, 0)
    story = Story("page", Path(home))
    try:
        for line in sys.stdin:
            command, carried = json.loads(line)
            story.variables.update(carried)
            printed = story.type(command)
            name = found["name"] if (found := TAKEN.fullmatch(command)) else None
            taken = {} if name is None else {name: story.variables[name]}
            print(json.dumps([printed, story.code, taken]), flush=True)
    finally:
        note = daemon_note(HomePaths(Path(home)))
        if note is not None:
            os.kill(note.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
