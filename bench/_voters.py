"""Three nodes that vote, each in a process of its own, on loopback, every sync a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import holdfast
from bench._voter import MESH
from bench._zones import cpu_s

NAMES = ("ana", "ben", "cleo")
PATIENCE_S = 60.0


class Voter:
    """One of the processes."""

    def __init__(self, home: Path, profile: Path | None = None) -> None:
        self.name = home.name
        with holdfast.open(home, peer=self.name, create=True, sync="normal") as node:
            node.create_mesh(MESH if self.name == NAMES[0] else "own")
        command = [sys.executable, "-m", "bench._voter", str(home)]
        self._process = subprocess.Popen(
            command + ([] if profile is None else [str(profile)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, do: str, **asked: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps({"do": do, **asked}), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **asked: Any) -> dict[str, Any]:
        self.begin(do, **asked)
        return self.answer()

    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """Lets it end by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()


@contextmanager
def voters(folder: Path, profiles: Path | None = None) -> Iterator[list[Voter]]:
    """Three that vote already."""
    nodes: list[Voter] = []
    try:
        for name in NAMES:
            profile = None if profiles is None else profiles / name
            nodes.append(Voter(folder / name, profile))
        first, *others = nodes
        invites = first.ask("share", others=len(others))["invites"]
        for node, invite in zip(others, invites, strict=True):
            node.ask("join", invite=invite)
        first.ask("init", voters=[node.name for node in others])
        until(lambda: len(first.ask("status")["voters"]) == len(NAMES))
        yield nodes
    finally:
        for node in nodes:
            node.close()


def leader_of(nodes: Sequence[Voter]) -> Voter:
    """The one that coordinates; waits until there is one."""
    found: list[Voter] = []

    def is_led() -> bool:
        found.extend(node for node in nodes if node.ask("status")["part"] == "coordinator")
        return bool(found)

    until(is_led)
    return found[0]


def spent(nodes: Sequence[Voter]) -> Mapping[str, float]:
    """CPU of each, by name."""
    return {node.name: node.cpu_s() for node in nodes}


def until(what: Any) -> None:
    give_up = monotonic() + PATIENCE_S
    while not what():
        if monotonic() > give_up:
            raise RuntimeError("it does not come to an end")
        sleep(0.02)


def cores() -> int:
    return len(os.sched_getaffinity(0))
