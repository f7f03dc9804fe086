"""What the processes of a load and their files take up, and whether that grows.

The first third of a load is for getting there: caches fill, threads start, files reach the size
that is then used again and again, and the broker is killed and restarted. Of the other two thirds
the medians are compared: a median does not see a burst or a sweep that came late, and a leak moves
it by what is lost in a third of the time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from holdfast.rules.limits import KIB, MIB, SERVER_THREADS, WAL_BYTES_MAX

Sample = Mapping[str, float]


class Bound(NamedTuple):
    """By how much a level may rise from the middle third to the last."""

    flat: float
    share: float = 0.0
    """Of what it was."""


BOUNDS: Final[dict[str, Bound]] = {
    # Memory of its own: pages of a mapped file are the system's to drop.
    "anon": Bound(7 * MIB, 0.05),
    "fds": Bound(8),
    # A pool starts a thread only when all others are busy; it has a fixed end.
    "threads": Bound(SERVER_THREADS),
    # What grows without end is by two thirds larger in the last third than in the middle one.
    "database": Bound(4 * MIB, 0.25),
    "blobs": Bound(40, 0.25),
    "kept": Bound(1000, 0.3),
    "outbox": Bound(1000, 0.3),
    "inbox": Bound(500, 0.3),
    "messages": Bound(1000, 0.3),
    "dedupe": Bound(3000, 0.3),
    "objects": Bound(40, 0.25),
    "snapshots": Bound(2),
    "wal": Bound(WAL_BYTES_MAX, 0.0),
}
LOOKS_MIN: Final = 9


def of_process(pid: int) -> dict[str, float]:
    """As the system sees it; nothing if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return {
            "rss": int(status["VmRSS"].split()[0]) * KIB,
            "anon": int(status["RssAnon"].split()[0]) * KIB,
            "fds": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(status["Threads"]),
            "cpu": sum(map(int, _stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK"),
        }
    except (
        FileNotFoundError,
        ProcessLookupError,
        KeyError,
    ):  # KeyError: it has ended, and its parent has not waited for it
        return {}


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def of_folder(folder: Path, database: str) -> dict[str, float]:
    blobs = sum(len(files) for _, _, files in os.walk(folder / "blobs"))
    return {
        "database": _size(folder / database),
        "wal": _size(folder / f"{database}-wal"),
        "blobs": blobs,
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def growth(who: str, samples: Sequence[Sample]) -> list[str]:
    """What rose by more than it may, in words; nothing if all is level."""
    third = len(samples) // 3
    if len(samples) < LOOKS_MIN:
        return [f"{who}: {len(samples)} looks are too few to tell anything"]
    found = []
    for what, bound in BOUNDS.items():
        if what not in samples[-1]:
            continue
        before = level(samples[third : 2 * third], what)
        after = level(samples[2 * third :], what)
        if after - before > bound.flat + bound.share * before:
            found.append(f"{who}: {what} rose from {before:,.0f} to {after:,.0f}")
    return found


def level(samples: Sequence[Sample], what: str) -> float:
    return median(sample[what] for sample in samples if what in sample)


def table(who: str, samples: Sequence[Sample]) -> list[str]:
    """The figures of one process, for people."""
    third = len(samples) // 3
    parts = samples[:third], samples[third : 2 * third], samples[2 * third :]
    head = f"{who:12}" + "".join(f"{word:>16}" for word in ("first", "middle", "last", "highest"))
    lines = [head]
    for what in samples[-1]:
        if what not in ("rss", *BOUNDS) or not all(any(what in s for s in p) for p in parts):
            continue
        highest = max(sample[what] for sample in samples if what in sample)
        figures = [*(level(part, what) for part in parts), highest]
        lines.append(f"  {what:10}" + "".join(f"{figure:16,.0f}" for figure in figures))
    return lines
