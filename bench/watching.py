"""How soon a watcher sees a write of its machine: from the moment at which the write returns to the
moment at which the watch has yielded it.

The writer waits between writes for as long as a person would not notice, so that each write wakes a
watcher that sleeps. A write that is seen before it returns counts as 0. After each write a process
that does nothing else gets a bare datagram: on a machine that has other work to do, its wait for
the processor is that of the watchers too.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import holdfast

WRITES = 500
PAUSE_S = 0.005
TARGET_MS = 5.0

WRITER = f"""
import socket, sys, time, holdfast
with holdfast.open(sys.argv[1]) as node, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bare:
    team = node.mesh("team")
    for number in range({WRITES}):
        team.state.set("k", number)
        now = time.monotonic_ns()
        print(now, flush=False)
        bare.sendto(str(now).encode(), sys.argv[2])
        time.sleep({PAUSE_S})
"""

BARE = f"""
import socket, sys, time
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bare:
    bare.bind(sys.argv[1])
    print("bound", flush=True)
    for _ in range({WRITES}):
        sent = int(bare.recv(99))
        print(time.monotonic_ns() - sent)
"""


def run() -> Iterator[tuple[str, float, str]]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        home = folder / "home"
        with holdfast.open(home, peer="ana", create=True) as node:
            node.create_mesh("team")
        for who, watch in (("thread", in_thread), ("coroutine", in_coroutine)):
            with _Bare(folder / who) as bare:
                late = watch(home, bare.path)
            p99, anchor = _p99(late), _p99(bare.late)
            print(
                f"  {who}: p50 {statistics.median(late):.2f} ms, p99 {p99:.2f} ms; bare datagram: "
                f"p50 {statistics.median(bare.late):.2f} ms, p99 {anchor:.2f} ms"
            )
            yield (
                f"a {who} sees a write of another process, p99 to 5 ms or a bare datagram's",
                p99 / max(TARGET_MS, anchor),
                "<= 1",
            )
    finally:
        shutil.rmtree(folder)


def in_thread(home: Path, bare: Path) -> list[float]:
    with holdfast.open(home) as node, node.mesh("team").state.watch() as watch:
        writer = _writer(home, bare)
        seen = [time.monotonic_ns() for _ in zip(range(WRITES), watch, strict=False)]
        return _late(writer, seen)


def in_coroutine(home: Path, bare: Path) -> list[float]:
    async def main() -> list[float]:
        async with holdfast.aopen(home) as node:
            team = await node.mesh("team")
            async with team.state.watch() as watch:
                writer, seen = _writer(home, bare), []
                async for _ in watch:
                    seen.append(time.monotonic_ns())
                    if len(seen) == WRITES:
                        break
            return _late(writer, seen)

    return asyncio.run(main())


class _Bare:
    """A process that is sent a bare datagram after each write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.late: list[float] = []

    def __enter__(self) -> _Bare:
        words = [sys.executable, "-c", BARE, str(self.path)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "bound\n"
        return self

    def __exit__(self, *error: object) -> None:
        self.late = [int(line) / 1e6 for line in self._process.communicate()[0].split()]


def _writer(home: Path, bare: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITER, str(home), str(bare)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def _late(writer: subprocess.Popen[str], seen: list[int]) -> list[float]:
    returned = [int(line) for line in writer.communicate()[0].split()]
    return [max(0, at - told) / 1e6 for told, at in zip(returned, seen, strict=True)]


def _p99(late: list[float]) -> float:
    return statistics.quantiles(late, n=100)[98]
