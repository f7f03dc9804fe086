"""A home with something of everything in it, and ways to harm it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.node.library.node import Mesh, Node, open_node
from holdfast.rules.vectors import Model

MESH = "team"
MODEL = Model(provider="local", name="tiny", version="1", dim=3)
LARGE = bytes(range(256)) * 512
"""Content that is kept as a blob."""
PAGE = 4096


def make_home(folder: Path, peer: str = "ana") -> Node:
    node = open_node(folder, peer=peer, create=True, sync="normal")
    node.create_mesh(MESH)
    return node


def team(node: Node) -> Mesh:
    return node.mesh(MESH)


def fill(mesh: Mesh, rows: int = 5) -> None:
    """Every family, with deletions, ends and a file of each kind."""
    for number in range(rows):
        mesh.state.set(f"key-{number}", {"n": number, "text": "x" * 300})
        mesh.memory.set(f"thing-{number}", [number], tags=("a", "b"))
        mesh.vectors.store(
            f"vector-{number}",
            [number, 1.0, 2.0],
            model=MODEL,
            content=f"content {number}",
            metadata={"n": number},
        )
        mesh.files.share(f"small-{number}.txt", f"text {number}".encode())
        mesh.tasks.create(f"task {number}", description="to do")
        mesh.facts.append(f"subject-{number}", "is", number, meta={"from": "test"})
    mesh.files.share("large.bin", LARGE)
    mesh.state.set("gone", 1)
    mesh.state.delete("gone")
    mesh.memory.set("gone", 1)
    mesh.memory.forget("gone")
    tasks = [task.task for task in mesh.tasks.list()]
    mesh.tasks.claim(tasks[0])
    mesh.tasks.claim(tasks[1])
    mesh.tasks.complete(tasks[1])
    mesh.tasks.cancel(tasks[2])


def overwrite(path: Path, page: int, content: bytes) -> None:
    """Damages a database that nobody has open; pages count from 1."""
    with open(path, "r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(content)


def garbage(seed: int) -> bytes:
    return random.Random(seed).randbytes(PAGE)


_CALLS = ("replace", "rename", "link", "unlink", "fsync", "mkdir")


def crash_at_each_step(prepare: Callable[[], Any], work: Callable[[], Any]) -> int:
    """Runs `work` again and again in a process of its own that dies at its 1st, 2nd, … step.

    A step is a call that changes a file system beyond the content of one file. `prepare` runs
    before each try; it also judges what the last one left. Returns how many steps there were.
    """
    for steps in count(1):
        prepare()
        pid = os.fork()
        if pid == 0:
            _die_at(steps)
            try:
                work()
            except BaseException:
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == 0:
            return steps - 1
        assert status == 9, "it died by the crash, not of an error"
    raise AssertionError("never reached")


def _die_at(steps: int) -> None:
    left = count(steps - 1, -1)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(left) == 0:
                os._exit(9)
            return real(*args, **kwargs)

        return call

    for name in _CALLS:
        setattr(os, name, counted(getattr(os, name)))


def fail_at_each_step(
    patch: Callable[[str, Callable[..., Any]], None], error: OSError
) -> Callable[[int], None]:
    """Arms one failure: `arm(n)` makes the n-th step from now on raise."""
    left = [0]

    def armed(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise error
            return real(*args, **kwargs)

        return call

    for name in _CALLS:
        patch(name, armed(getattr(os, name)))

    def arm(steps: int) -> None:
        left[0] = steps

    return arm
