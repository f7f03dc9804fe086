"""Reads by `holdfast.connect`, beside the same requests by bare clients on one kept connection.

The daemon is a process of its own. The rivals send the same bytes to the same route and decode the
answer with the standard library: `http.client`, as programs do, and a bare socket, which reads
nothing but the length of the body. Rounds alternate, so that a busy machine slows all alike.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import holdfast

ROUNDS = 7
READS = 1500
ROWS = 5000
PATIENCE_S = 60
PATH = "/v1/meshes/team/state/build"
VALUE = {"status": "green", "step": 12345, "note": "x" * 200}


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._place = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._place)


def run() -> Iterator[tuple[str, float, str]]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        home = Path(folder) / "home"
        with holdfast.open(home, peer="ana", create=True, sync="normal") as node:
            team = node.create_mesh("team")
            team.state.set("build", VALUE)
            for number in range(ROWS):
                team.memory.set(f"k{number:05}", number)
        command = [sys.executable, "-m", "holdfast", "up", "--json", "--home", str(home)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
            assert daemon.stdout is not None
            said = json.loads(daemon.stdout.readline())
            try:
                yield from _rows(said["listening"][0])
            finally:
                daemon.terminate()


def _rows(address: str) -> Iterator[tuple[str, float, str]]:
    place = address.removeprefix("unix:")
    rates: dict[str, list[float]] = {}
    with holdfast.connect(address) as node:
        team = node.mesh("team")
        standard, bare = _Unix(place), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bare.connect(place)
        for _ in range(ROUNDS):
            for name, read in (
                ("connect, state.get", lambda: team.state.get("build")),
                ("http.client", lambda: _standard(standard)),
                ("bare socket", lambda: _bare(bare)),
            ):
                rates.setdefault(name, []).append(_rate(read))
            begun = perf_counter()
            assert sum(1 for _ in team.memory.list()) == ROWS
            rates.setdefault("connect, rows of memory.list", []).append(
                ROWS / (perf_counter() - begun)
            )
        standard.close()
        bare.close()
    for name, found in rates.items():
        print(f"  {name:40} {statistics.median(found):>10,.0f} reads/s")
    ours = rates["connect, state.get"]
    print(f"  to a bare socket, which checks nothing: {_paired(ours, rates['bare socket']):.2f}")
    yield "state.get by connect, to http.client", _paired(ours, rates["http.client"]), ">= 0.8"


def _rate(read: Callable[[], object]) -> float:
    begun = perf_counter()
    for _ in range(READS):
        assert read() == VALUE
    return READS / (perf_counter() - begun)


def _standard(connection: http.client.HTTPConnection) -> object:
    connection.request("GET", PATH)
    return json.loads(connection.getresponse().read())["value"]


def _bare(line: socket.socket) -> object:
    line.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    got = line.recv(65536)
    while b"\r\n\r\n" not in got:
        got += line.recv(65536)
    head, _, body = got.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
    while len(body) < size:
        body += line.recv(65536)
    return json.loads(body)["value"]


def _paired(ours: list[float], rival: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, rival, strict=True))
