"""How long it takes to start: commands, completion, and a home with a million rows; how fast a
terminal is fed; and what a scan holds in memory.
"""

from __future__ import annotations

import errno
import os
import pty
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
PRINT_ROUNDS = 3
SMALL, LARGE, PRINTED = 1_000, 1_000_000, 300_000
COMPLETION_TARGET_MS = 100
HOLDFAST = Path(sys.executable).with_name("holdfast")
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
        yield from cold_starts(small)
        yield "completion of a key among 1,000,000, ms to 100", completing(large), "<= 1"
        printed = folder / "printed"
        fill(printed, PRINTED)
        yield "300,000 keys to a terminal, keys a second, to a pipe", printing(printed), ">= 0.5"
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
            f"{series} INSERT INTO state (mesh, key, value, lamport, peer, id, offset, updated_at, "
            "tombstone) SELECT mesh, 'key-' || i, value, lamport, peer, id, offset, updated_at, "
            "tombstone FROM n, (SELECT * FROM state)",
            (rows - 1,),
        )
        connection.execute(
            f"{series} INSERT INTO log (offset, id, mesh, op, entity, origin, lamport, "
            "recorded_at, raw, via) "
            "SELECT offset + i, randomblob(16), mesh, op, 'key-' || i, origin, lamport, "
            "recorded_at, raw, via FROM n, (SELECT * FROM log)",
            (rows - 1,),
        )
    connection.close()


def cold_starts(home: Path) -> Iterator[tuple[str, float, str]]:
    """Commands and a bare Python in turn, so that a busy machine slows all alike."""
    commands: dict[str, tuple[str, ...]] = {
        "get": ("state", "get", "key-1"),
        "list": ("state", "list", "--limit", "10"),
        "set": ("state", "set", "key-1", "1"),
    }
    plain = [sys.executable, "-c", "pass"]
    taken: dict[str, list[float]] = {name: [] for name in ("python", *commands)}
    for _ in range(ROUNDS):
        taken["python"].append(cpu_ms(plain))
        for name, words in commands.items():
            taken[name].append(cpu_ms([HOLDFAST, *words, "--home", home]))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    print("  " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in medians.items()))
    for name, target in (("get", "<= 2.5"), ("list", "<= 6"), ("set", "<= 6")):
        what = f"state {name}, CPU of a cold start, to python -c pass"
        yield what, medians[name] / medians["python"], target


def completing(home: Path) -> float:
    """As a shell asks: what its user waits for, the start of Python included."""
    environ = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_LINE": f"holdfast state get --home {home} key-77777",
    }
    times_ms = []
    for _ in range(ROUNDS):
        begun = perf_counter()
        done = subprocess.run([HOLDFAST], check=True, env=environ, stdout=subprocess.PIPE)
        times_ms.append((perf_counter() - begun) * 1000)
        assert b"=key-77777\n" in done.stdout
    print(f"  completion {statistics.median(times_ms):.0f} ms")
    return statistics.median(times_ms) / COMPLETION_TARGET_MS


def printing(home: Path) -> float:
    """The same list to a pipe and to a terminal, each read as fast as it comes."""
    command: list[str | Path] = [HOLDFAST, "state", "list", "--no-pager", "--home", home]
    ratios = []
    for _ in range(PRINT_ROUNDS):
        piped = drained(command, *os.pipe())
        shown = drained(command, *pty.openpty())
        ratios.append(piped / shown)
        print(f"  300,000 keys: pipe {piped:.2f} s, terminal {shown:.2f} s")
    return statistics.median(ratios)


def drained(command: Sequence[str | Path], here: int, there: int) -> float:
    """Seconds until a command that writes to `there` has ended and `here` was read to its end."""
    begun = perf_counter()
    process = subprocess.Popen(command, stdout=there, stdin=subprocess.DEVNULL)
    os.close(there)
    try:
        while os.read(here, 1 << 20):
            pass
    except OSError as error:  # so a terminal says that nobody writes to it any more
        if error.errno != errno.EIO:
            raise
    finally:
        os.close(here)
    assert process.wait() == 0
    return perf_counter() - begun


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
