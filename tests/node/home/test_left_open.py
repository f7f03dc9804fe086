"""Programs that end without closing what they have opened: real ones, in the ways that they end."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.node.home import left_open
from holdfast.node.library.node import open_node

BEGIN = """
import asyncio, os, signal, sys, threading, holdfast
def opened():
    return holdfast.open(sys.argv[1], peer="ana", create=True)
"""
WRITE = 'opened().mesh("team", create=True).state.set("k", 1)\n'
HELD = 'node = opened()\nmesh = node.mesh("team", create=True)\nmesh.state.set("k", 1)\n'
COROUTINES = """
async def main():
    global node
    node = await holdfast.aopen(sys.argv[1], peer="ana", create=True)
    mesh = await node.mesh("team", create=True)
    await asyncio.gather(*(mesh.state.set("k", 1) for _ in range(20)))
asyncio.run(main())
"""
FORKS = """
pid = os.fork()
if pid == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
mesh.state.set("after", 99)
"""
LATE = """
def write():
    threading.main_thread().join()
    for n in range(100):
        mesh.state.set("after", n)
threading.Thread(target=write).start()
"""
BUSY = """
ready, went = threading.Event(), threading.Event()
def write():
    while True:
        try:
            mesh.state.set("k", 1)
        except holdfast.errors.StoreClosed:
            return
        ready.set()
threading.Thread(target=write, daemon=True).start()
ready.wait()
"""

ENDS = {
    "the end of the script": (HELD, 0),
    "an exception": (HELD + "raise LookupError\n", 1),
    "an interrupt": (HELD + "os.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n", 1),
    "a family that is held alone": ("state = opened().mesh('team', create=True).state\n", 0),
    "nobody who holds it": (WRITE, 0),
    "coroutines": (COROUTINES, 0),
    "a forked child": (HELD + FORKS, 0),
    "a thread that ends later": (HELD + LATE, 0),
    "a thread that does not end": (HELD + BUSY, 0),
    "an open bus": (HELD + "node.bus.bind(listen='127.0.0.1:0')\n" + LATE, 0),
    "a folder that is gone": (HELD + "import shutil\nshutil.rmtree(sys.argv[1])\n", 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_S16_a_program_that_ends_without_closing_has_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    code, status = ENDS[end]
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code, str(home)], capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    assert "holdfast" not in done.stderr or status != 0, done.stderr
    if not home.exists():
        return
    assert os.listdir(home / "processes") == []
    assert not (home / "data.db-wal").exists()
    with caplog.at_level(logging.WARNING, logger="holdfast"), open_node(home) as node:
        assert [mesh.slug for mesh in node.meshes()] == ["team"]
        if "after" in code:
            assert node.mesh("team").state.get("after") == 99
    assert caplog.records == []


def test_S16_a_home_that_nobody_holds_is_closed_by_the_next_opening(tmp_path: Path) -> None:
    def use() -> int:
        node = open_node(tmp_path / "home", peer="ana", create=True)
        return node.create_mesh("team").state.set("k", 1).offset

    processes = tmp_path / "home" / "processes"
    gc.collect()
    open_node(tmp_path / "first", peer="ana", create=True).close()
    assert not left_open._dropped, "what other tests dropped is closed too"
    assert use() == 1
    gc.collect()
    assert len(os.listdir(processes)) == 1
    assert len(left_open._dropped) == 1
    with open_node(tmp_path / "home") as node:
        assert len(os.listdir(processes)) == 1, "its own sign, and not the one before"
        state = node.mesh("team").state
    gc.collect()
    assert not left_open._dropped
    assert state is not None
    assert os.listdir(processes) == []
