"""Run the measurements and print one table.

Speed is measured here and never asserted: a slow machine ends with exit code 0 like a fast one, and
whoever reads the table judges it by the disk's own figure at the top.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import apsw

ANCHOR_SYNCS = 300
ANCHOR_BYTES = 4096

Measure = Callable[[], Iterable[tuple[str, float, str]]]


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    ratio: str
    target: str
    verdict: str


def main(arguments: list[str]) -> int:
    known = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(
            f"no such bench: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr
        )
        return 2
    print_machine()
    rows: list[Row] = []
    for name in arguments or known:
        print(f"\n{name} …", flush=True)
        rows += measured(name)
    print_table(rows)
    return 0


def measured(name: str) -> list[Row]:
    """The rows of one file. One that breaks leaves a row that says so, and the others still run."""
    rows: list[Row] = []
    try:
        run: Measure = importlib.import_module(f"bench.{name}").run
        for what, ratio, target in run():
            rows.append(Row(what, f"{ratio:.2f}", target, verdict(ratio, target)))
            print(f"  {what}: {ratio:.2f}", flush=True)
    except Exception:
        traceback.print_exc()
        rows.append(Row(name, "-", "-", "BROKE, see above"))
    return rows


def verdict(ratio: float, target: str) -> str:
    read = re.match(r"\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?)", target)
    if read is None:
        return "-"
    bound = float(read[2])
    met = {">=": ratio >= bound, "<=": ratio <= bound, ">": ratio > bound, "<": ratio < bound}[
        read[1]
    ]
    return "met" if met else "MISSED"


def print_machine() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kind = f"{platform.system()} {platform.machine()}"
    print(f"machine  {kind}, {cores} cores, load {os.getloadavg()[0]:.1f}")
    print(f"python   {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}")
    times_ms = sorted(sync_times_ms())
    median, p99 = statistics.median(times_ms), times_ms[int(len(times_ms) * 0.99)]
    print(f"disk     sync of one page in place: median {median:.3f} ms, p99 {p99:.3f} ms")


def sync_times_ms() -> list[float]:
    """What the disk under the temporary folder takes to keep a page: nothing durable is faster."""
    sync = getattr(os, "fdatasync", os.fsync)
    page = os.urandom(ANCHOR_BYTES)
    times_ms = []
    with tempfile.TemporaryFile() as file:
        file.write(page)
        file.flush()
        os.fsync(file.fileno())
        for _ in range(ANCHOR_SYNCS):
            os.pwrite(file.fileno(), page, 0)
            started = time.perf_counter()
            sync(file.fileno())
            times_ms.append((time.perf_counter() - started) * 1000)
    return times_ms


def print_table(rows: list[Row]) -> None:
    table = [Row("what", "ratio", "target", "verdict"), *rows]
    wide = [max(len(getattr(row, field)) for row in table) for field in ("what", "ratio", "target")]
    print()
    for row in table:
        print(
            f"{row.what:{wide[0]}}  {row.ratio:>{wide[1]}}  {row.target:{wide[2]}}  {row.verdict}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
