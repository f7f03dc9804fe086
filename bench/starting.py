"""How long it takes to start: a command, and a home with a million rows; and what a scan holds in
memory.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import holdfast
from holdfast.storage.sqlite.connection import connect

ROUNDS = 15
SMALL, LARGE = 1_000, 1_000_000
MEMORY_TARGET_MB = 200


def run() -> Iterator[tuple[str, float, str]]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", str(Path(holdfast.__file__).parent)],
            check=True,
        )
        small, large = folder / "small", folder / "large"
        fill(small, SMALL)
        fill(large, LARGE)
        yield "state get, CPU of a cold start, to python -c pass", cold_start(small), "<= 5"
        yield "opening a home, 1,000,000 rows to 1,000 rows", opening(small, large), "<= 1.5"
        for what, code in (("list", SCAN), ("export", EXPORT)):
            peak = peak_mb(code, large)
            print(f"  {what} of 1,000,000 rows: {peak:.0f} MB at most")
            ratio = peak / MEMORY_TARGET_MB
            yield f"memory of a {what} of 1,000,000 rows, to 200 MB", ratio, "<= 1"
    finally:
        shutil.rmtree(folder)


def fill(home: Path, rows: int) -> None:
    """One real write, copied by SQL: a million through the library would only take longer."""
    with holdfast.open(home, peer="ana", create=True, sync="normal") as node:
        node.mesh("team", create=True).state.set("key-0", {"note": "x" * 100})
    connection = connect(home / "data.db", sync="normal")
    series = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
    with connection:
        connection.execute(
            f"{series} INSERT INTO state SELECT mesh, 'key-' || i, value, lamport, peer, id, "
            "offset, updated_at, tombstone FROM n, (SELECT * FROM state)",
            (rows - 1,),
        )
        connection.execute(
            f"{series} INSERT INTO log SELECT offset + i, randomblob(16), mesh, op, 'key-' || i, "
            "origin, lamport, recorded_at, raw, via FROM n, (SELECT * FROM log)",
            (rows - 1,),
        )
    connection.close()


def cold_start(home: Path) -> float:
    holdfast_ = Path(sys.executable).with_name("holdfast")
    command: list[str | Path] = [holdfast_, "state", "get", "key-1", "--home", home]
    plain = [sys.executable, "-c", "pass"]
    ours, base = [], []
    for _ in range(ROUNDS):
        ours.append(cpu_ms(command))
        base.append(cpu_ms(plain))
    print(f"  state get {statistics.median(ours):.1f} ms, python {statistics.median(base):.1f} ms")
    return statistics.median(ours) / statistics.median(base)


def cpu_ms(command: Sequence[str | Path]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used * 1000


def opening(small: Path, large: Path) -> float:
    times: dict[Path, list[float]] = {small: [], large: []}
    for _ in range(ROUNDS):
        for home, taken in times.items():
            begun = perf_counter()
            node = holdfast.open(home)
            taken.append(perf_counter() - begun)
            node.close()
    few, many = (statistics.median(taken) * 1000 for taken in times.values())
    print(f"  opening {few:.2f} ms with 1,000 rows, {many:.2f} ms with 1,000,000")
    return many / few


def peak_mb(code: str, home: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code + PEAK, str(home)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return float(done.stdout) / 1024


# Not ru_maxrss: that one is inherited from the process that started this one.
PEAK = """
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
SCAN = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as node:
    assert sum(1 for _ in node.mesh("team").state.list()) == 1_000_000
"""
EXPORT = """
import sys, holdfast
from holdfast.node.exchange.export import export
with holdfast.open(sys.argv[1]) as node, open("/dev/null", "wb") as out:
    export(node, out)
"""
