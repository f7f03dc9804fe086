"""The server for agents: how soon it answers, and how long a read takes.

A client without an SDK of its own asks, so that the figures are the server's: over the pipes of a
process, on a home alone and through a daemon, and over HTTP. Beside each read stands the same read
by `holdfast state get`, for scale: that is what an agent with a shell would do.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import holdfast

STARTS = 7
READS = 500
SESSIONS = 300
START_S = 1.5
READ_MS = 5.0
VERSION = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_READ = {"name": "state_get", "arguments": {"key": "build"}}


def run() -> Iterator[tuple[str, float, str]]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        home = Path(folder) / "home"
        with holdfast.open(home, peer="ana", create=True, sync="normal") as node:
            node.create_mesh("team").state.set("build", {"status": "green", "note": "x" * 200})
        starts = sorted(_start(home) for _ in range(STARTS))
        _print("first answer after the start", starts, "s")
        yield "start to first answer, to 1.5 s", statistics.median(starts) / START_S, "<= 1"
        with _agent(home) as ask:
            alone = _timed(ask)
        _print("a read over stdio, on the home", alone, "ms")
        with _daemon(home) as (address, pid):
            with _agent(home) as ask:
                through = _timed(ask)
            _print("a read over stdio, by a daemon", through, "ms")
            over = _timed(_http(home, address))
            _print("a read over HTTP", over, "ms")
            _sessions(home, address, pid)
        for name, found in (("stdio", alone), ("a daemon", through), ("HTTP", over)):
            yield f"a read by {name}, p50 to 5 ms", statistics.median(found) / READ_MS, "<= 1"
        shell = sorted(_command(home) for _ in range(STARTS))
        _print("holdfast state get", [one * 1000 for one in shell], "ms")


def _print(what: str, found: list[float], unit: str) -> None:
    found = sorted(found)
    most = found[min(len(found) - 1, len(found) * 99 // 100)]
    print(f"  {what:34} p50 {statistics.median(found):8.2f} {unit}   p99 {most:8.2f} {unit}")


Ask = Callable[[str, dict[str, Any]], Any]


@contextmanager
def _agent(home: Path) -> Iterator[Ask]:
    command = [sys.executable, "-m", "holdfast", "mcp", "--home", str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        number = 0

        def ask(method: str, params: dict[str, Any]) -> Any:
            nonlocal number
            number += 1
            server.stdin.write(_request(number, method, params) + b"\n")  # type: ignore[union-attr]
            server.stdin.flush()  # type: ignore[union-attr]
            return json.loads(server.stdout.readline())["result"]  # type: ignore[union-attr]

        try:
            yield ask
        finally:
            server.stdin.close()


def _request(number: int, method: str, params: dict[str, Any]) -> bytes:
    body = {"jsonrpc": "2.0", "id": number, "method": method}
    return json.dumps({**body, "params": {**params, "_meta": _META}}).encode()


def _start(home: Path) -> float:
    begun = perf_counter()
    with _agent(home) as ask:
        assert ask("tools/call", _READ)["structuredContent"]["items"]
        return perf_counter() - begun


def _timed(ask: Ask) -> list[float]:
    """Milliseconds of each read."""
    for _ in range(20):
        ask("tools/call", _READ)
    found = []
    for _ in range(READS):
        begun = perf_counter()
        ask("tools/call", _READ)
        found.append((perf_counter() - begun) * 1000)
    return found


@contextmanager
def _daemon(home: Path) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "holdfast", "up", "--json", "--home", str(home)]
    with subprocess.Popen([*command, "--tcp", "127.0.0.1:0"], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        said = json.loads(daemon.stdout.readline())
        try:
            yield next(one for one in said["listening"] if one.startswith("http:")), said["pid"]
        finally:
            daemon.terminate()


def _token(home: Path) -> str:
    name = f"bench-{perf_counter()}"
    command = [sys.executable, "-m", "holdfast", "token", "add", name, "--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _http(home: Path, address: str) -> Ask:
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    headers = {
        "authorization": f"Bearer {_token(home)}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": VERSION,
    }

    def ask(method: str, params: dict[str, Any]) -> Any:
        named = {"mcp-method": method, "mcp-name": params["name"]}
        connection.request("POST", "/mcp", _request(1, method, params), {**headers, **named})
        return json.loads(connection.getresponse().read())["result"]

    return ask


def _sessions(home: Path, address: str, pid: int) -> None:
    """What sessions of the older protocol cost that do nothing."""
    token = _token(home)
    asked = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked})
    headers = {
        "authorization": f"Bearer {token}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
    }
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    before = _resident(pid)
    for _ in range(SESSIONS):
        connection.request("POST", "/mcp", body, headers)
        connection.getresponse().read()
    each = (_resident(pid) - before) / SESSIONS / 1024
    print(f"  {'an idle session':34} {each:12.0f} kB")


def _resident(pid: int) -> int:
    """Bytes in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _command(home: Path) -> float:
    begun = perf_counter()
    command = [sys.executable, "-m", "holdfast", "state", "get", "build", "--home", str(home)]
    subprocess.run(command, capture_output=True, check=True)
    return perf_counter() - begun
