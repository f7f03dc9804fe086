"""The console: how large the first page is and what it costs at a million rows, and what a hundred
open consoles cost a daemon when nothing happens.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple
from urllib.parse import urlencode

from bench._zones import cpu_s
from bench.starting import LARGE, fill

OPEN = 100
PAGES = 100
QUIET_S = 20
PAGE_BYTES, PAGE_MS = 100_000, 50
OPEN_MB, OPEN_CORE = 100, 0.05


class Console(NamedTuple):
    address: str
    pid: int
    cookie: str


def run() -> Iterator[tuple[str, float, str]]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        fill(folder / "home", LARGE)
        with _console(folder / "home") as console:
            yield from _first_page(console)
            yield from _open(console)
    finally:
        shutil.rmtree(folder)


def _first_page(console: Console) -> Iterator[tuple[str, float, str]]:
    page = _get(console, "/")
    sizes = [len(page)]
    for part in page.decode().split('"/static/')[1:]:
        sizes.append(len(_get(console, f"/static/{part.partition(chr(34))[0]}")))
    print(f"  the first page: {len(page):,} bytes, with all it loads {sum(sizes):,}")
    yield "first page with all that it loads, to 100 kB", sum(sizes) / PAGE_BYTES, "<= 1"
    sleep(5)  # the rows are counted beside it
    before, took = cpu_s(console.pid), []
    for _ in range(PAGES):
        begun = perf_counter()
        _get(console, "/")
        took.append((perf_counter() - begun) * 1000)
    each = (cpu_s(console.pid) - before) * 1000 / PAGES
    print(f"  server time {each:.1f} ms; from outside p50 {statistics.median(took):.1f} ms")
    yield "server time of the first page at 1,000,000 rows, to 50 ms", each / PAGE_MS, "<= 1"


def _open(console: Console) -> Iterator[tuple[str, float, str]]:
    before = _memory_mb(console.pid)
    with ExitStack() as lines:
        for _ in range(OPEN):
            host, _, port = console.address.removeprefix("http://").partition(":")
            line = lines.enter_context(socket.create_connection((host, int(port))))
            asked = f"GET /live?at=%2F HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {console.cookie}"
            line.sendall(f"{asked}\r\n\r\n".encode())
            assert line.recv(12) == b"HTTP/1.1 200"
        sleep(2)
        used = cpu_s(console.pid)
        sleep(QUIET_S)
        core = (cpu_s(console.pid) - used) / QUIET_S
        more = _memory_mb(console.pid) - before
    print(f"  {OPEN} open consoles: {more:.1f} MB more, {core:.2%} of a core")
    yield f"memory of {OPEN} open consoles, to 100 MB", more / OPEN_MB, "<= 1"
    yield f"what {OPEN} open consoles cost while nothing happens, to 5 %", core / OPEN_CORE, "<= 1"


@contextmanager
def _console(home: Path) -> Iterator[Console]:
    words = [sys.executable, "-m", "holdfast", "up", "--home", str(home), "--tcp", "127.0.0.1:0"]
    with subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE) as daemon:
        try:
            assert daemon.stdout is not None
            said = json.loads(daemon.stdout.readline())
            listening: list[str] = said["listening"]
            address = next(one for one in listening if one.startswith("http://"))
            shown = subprocess.run(
                [sys.executable, "-m", "holdfast", "console", "--no-browser", "--home", str(home)],
                capture_output=True,
                text=True,
                check=True,
            )
            code = (shown.stdout + shown.stderr).partition("#code=")[2].split()[0]
            yield Console(address, daemon.pid, _log_in(address, code))
        finally:
            daemon.terminate()


def _log_in(address: str, code: str) -> str:
    form = urlencode({"code": code, "next": "/"}).encode()
    kind = "application/x-www-form-urlencoded"
    with closing(http.client.HTTPConnection(address.removeprefix("http://"))) as line:
        line.request("POST", "/login", form, {"Origin": address, "Content-Type": kind})
        return str(line.getresponse().getheader("Set-Cookie")).partition(";")[0]


def _get(console: Console, path: str) -> bytes:
    with closing(http.client.HTTPConnection(console.address.removeprefix("http://"))) as line:
        line.request("GET", path, headers={"Cookie": console.cookie, "Accept": "text/html"})
        answer = line.getresponse()
        assert answer.status == 200, path
        return answer.read()


def _memory_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6
