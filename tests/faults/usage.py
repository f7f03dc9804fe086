"""What a process and its home take up, looked at once a second, and whether that grows.

A load that goes on and on must reach a level and stay there. The first third of the time is for
getting there: caches fill, threads start, files reach the size that is then used again and again.
Of the other two thirds the medians are compared. A median does not see a burst or a sweep that came
late; a leak moves it by as much as is lost in a third of the time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import monotonic

import msgspec

from holdfast.rules.limits import KIB, MIB
from holdfast.storage.files.durable import TEMPORARY_PREFIX
from holdfast.storage.files.home import HomePaths

LOOK_S = 1.0
LOOKS_MIN = 9
"""Fewer do not make three thirds of which the medians say anything."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one zone."""

    at: float
    """Seconds since the load began."""
    requests: int
    """So many were answered by then."""
    entries: int
    """The end of its log."""
    kept: int
    """So many entries of it are there."""
    rss: int
    anon: int
    """Of that, what no file stands behind: what it allocated."""
    files: int
    threads: int
    wal: int
    database: int
    blobs: int
    drafts: int
    """Objects that are half here."""


class Bound(msgspec.Struct, frozen=True):
    """By how much a level may rise from the middle third to the last one."""

    flat: float
    share: float = 0.0
    """Of what it was."""


BOUNDS: dict[str, Bound] = {
    # Four megabytes of noise were seen on a machine with eight times the work it can do: arenas of
    # the allocator that a thread comes to late, caches of connections. Three kilobytes lost with
    # each call are more than this in twenty seconds (3000 calls in a third of them), and some sixty
    # bytes are in ten minutes.
    "anon": Bound(7 * MIB),
    # A connection per user; a few more for calls that were just dropped.
    "files": Bound(8),
    # The pool starts a thread only when all others are busy; it has a fixed end.
    "threads": Bound(4),
    # A reader that was held up holds the log and what it names, and a file never gets smaller. What
    # grows without end is by two thirds larger in the last third than in the middle one.
    "kept": Bound(3_000, share=0.3),
    "blobs": Bound(60, share=0.3),
    "drafts": Bound(4),
    "database": Bound(8 * MIB, share=0.3),
}


def look(pid: int, home: Path, **counted: float | int) -> Sample:
    """Looks at a process and its home from outside."""
    paths = HomePaths(home)
    said = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    blobs, drafts = _blob_files(paths.blobs)
    return msgspec.convert(
        {
            **counted,
            "rss": int(said["VmRSS"].split()[0]) * KIB,
            "anon": int(said["RssAnon"].split()[0]) * KIB,
            "files": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(said["Threads"]),
            "wal": _size(paths.wal),
            "database": _size(paths.database),
            "blobs": blobs,
            "drafts": drafts,
        },
        Sample,
    )


def _blob_files(folder: Path) -> tuple[int, int]:
    names = [name for _, _, files in os.walk(folder) for name in files]
    drafts = sum(name.startswith(TEMPORARY_PREFIX) for name in names)
    return len(names) - drafts, drafts


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class Watch:
    """Looks once a second, in a thread, for as long as the block lasts."""

    def __init__(self, take: Callable[[float], Sample]) -> None:
        """`take` is told how many seconds have passed."""
        self._take = take
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.samples: list[Sample] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        begun = monotonic()
        try:
            while not self._end.wait(LOOK_S):
                self.samples.append(self._take(monotonic() - begun))
        except BaseException as error:
            self.error = error


def growth(samples: Sequence[Sample]) -> list[str]:
    """What rose by more than it may, in words; nothing if all is level."""
    assert len(samples) >= LOOKS_MIN, f"{len(samples)} looks are too few to tell"
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    requests = _level(last, "requests") - _level(middle, "requests")
    found = []
    for what, bound in BOUNDS.items():
        before, after = _level(middle, what), _level(last, what)
        allowed = bound.flat + bound.share * before
        if after - before > allowed:
            found.append(
                f"{what} rose from {before:,.0f} to {after:,.0f} while {requests:,.0f} requests "
                f"were answered; {allowed:,.0f} more would have been all right"
            )
    return found


def _level(samples: Sequence[Sample], what: str) -> float:
    level: float = median(getattr(sample, what) for sample in samples)
    return level


def describe(samples: Sequence[Sample]) -> str:
    """The figures of a run, for people."""
    third = len(samples) // 3
    lines = [f"{'':10}{'after warm-up':>16}{'middle':>16}{'end':>16}{'highest':>16}"]
    for what in ("rss", "anon", "wal", "database", "kept", "blobs", "drafts", "files", "threads"):
        parts = (samples[third : third + 3], samples[third : 2 * third], samples[2 * third :])
        levels = [_level(part, what) for part in parts]
        highest = max(getattr(sample, what) for sample in samples)
        lines.append(f"{what:10}" + "".join(f"{n:16,.0f}" for n in [*levels, highest]))
    return "\n".join(lines)
