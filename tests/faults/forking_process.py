"""A program that forks in every way while it has a home open and writes to it from a thread.

    python forking_process.py HOME OTHER CHILDREN     the parent
    python forking_process.py HOME                    a third process, which only writes

Each prints the keys of the writes that were answered, one per line. What a child finds wrong goes
to its exit code.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import holdfast
from holdfast.node.library.node import Mesh, Node

WRITES = 60
STOP = threading.Event()


def keep_writing(mesh: Mesh, name: str, answered: list[str]) -> None:
    number = 0
    while not STOP.is_set():
        mesh.state.set(f"{name}-{number}", number)
        answered.append(f"{name}-{number}")
        number += 1


def write_some(home: str, name: str) -> list[str]:
    """What a process that was not forked, or forked before, does: it opens the home and writes."""
    answered = []
    with holdfast.open(home, sync="normal") as node:
        mesh = node.mesh("team")
        for number in range(WRITES):
            mesh.state.set(f"{name}-{number}", number)
            answered.append(f"{name}-{number}")
    return answered


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except holdfast.errors.ProcessForked as error:
        hint = error.hint
    else:
        hint = "it was not refused"
    for way in ("spawn", "forkserver"):
        assert way in hint, hint


def in_a_child(node: Node, mesh: Mesh, anode: object, home: str, other: str) -> None:
    """Everything that was inherited refuses; another home works in full."""
    refused(lambda: mesh.state.set("child", 1))
    refused(lambda: mesh.state.get("child"))
    refused(lambda: list(mesh.state.list()))
    refused(lambda: mesh.files.share("f", b"content" * 100_000))
    refused(lambda: mesh.send("hello", topic="t"))
    refused(node.log.head)
    refused(node.sweep)
    refused(node.meshes)
    refused(lambda: asyncio.run(anode.mesh("team")))  # type: ignore[attr-defined]
    refused(lambda: asyncio.run(anode.log.head()))  # type: ignore[attr-defined]
    refused(lambda: holdfast.open(home))
    name = str(os.getpid())
    with holdfast.open(f"{other}/{name}", peer="bob", create=True, sync="normal") as mine:
        team = mine.create_mesh("team")
        team.state.set("k", name)
        assert team.state.get("k") == name
    node.close()
    gc.collect()


def wait_for(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"a child ended with {status}"


def main(home: str, other: str, children: int) -> None:
    node = holdfast.open(home, sync="normal")
    mesh = node.mesh("team")

    async def make() -> object:
        return await holdfast.aopen(home, sync="normal")

    anode = asyncio.run(make())
    answered: list[str] = []
    threads = [
        threading.Thread(target=keep_writing, args=(mesh, f"parent{n}", answered)) for n in (0, 1)
    ]
    third = subprocess.Popen(
        [sys.executable, __file__, home], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    for thread in threads:
        thread.start()
    act = (node, mesh, anode, home, other)
    for n in range(children):
        pid = os.fork()
        if pid == 0:
            in_a_child(*act)
            if n % 2:
                os._exit(0)
            sys.exit(0)  # with all that an interpreter does at its end
        wait_for(pid)
    fork = multiprocessing.get_context("fork").Process(target=in_a_child, args=act)
    fork.start()
    fork.join()
    assert fork.exitcode == 0, fork.exitcode
    for way in ("spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            answered += pool.apply(write_some, (home, way))
    subprocess.run([sys.executable, "-c", "pass"], preexec_fn=lambda: in_a_child(*act), check=True)
    STOP.set()
    for thread in threads:
        thread.join()
    out, _ = third.communicate("stop\n")
    assert third.returncode == 0
    answered += out.split()
    mesh.state.set("last", "of the parent")
    node.close()
    print("\n".join(answered))


def write_until_told(home: str) -> None:
    answered: list[str] = []
    with holdfast.open(home, sync="normal") as node:
        name = f"third{os.getpid()}"
        thread = threading.Thread(target=keep_writing, args=(node.mesh("team"), name, answered))
        thread.start()
        sys.stdin.readline()
        STOP.set()
        thread.join()
    print("\n".join(answered))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        write_until_told(sys.argv[1])
