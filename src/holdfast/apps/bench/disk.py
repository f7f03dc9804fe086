"""What a disk takes to keep a page. Nothing durable is faster than that."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

from holdfast.apps.bench import figures
from holdfast.apps.bench.figures import Figure
from holdfast.rules.limits import MIB

_PAGE: Final = 4096
_SHARE_OF_SYNCS: Final = 0.7
_WRITTEN_MAX: Final = 64 * MIB


def measure(folder: Path, seconds: float) -> Iterator[tuple[Figure, float]]:
    """By a file in the folder, which belongs to the caller."""
    path = folder / "disk"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        times_ms = sorted(_syncs(fd, seconds * _SHARE_OF_SYNCS))
        yield figures.SYNC, statistics.median(times_ms)
        yield figures.SYNC_LATE, times_ms[int(len(times_ms) * 0.99)]
        yield figures.WRITTEN, _written(fd, seconds * (1 - _SHARE_OF_SYNCS))
    finally:
        os.close(fd)
        path.unlink()


def _syncs(fd: int, seconds: float) -> Iterator[float]:
    sync = getattr(os, "fdatasync", os.fsync)
    page = os.urandom(_PAGE)
    os.write(fd, page)
    os.fsync(fd)
    ends = perf_counter() + seconds
    while True:
        os.pwrite(fd, page, 0)
        begun = perf_counter()
        sync(fd)
        yield (perf_counter() - begun) * 1000
        if perf_counter() > ends:
            return


def _written(fd: int, seconds: float) -> float:
    """MB a second, with what the sync at the end takes."""
    part = os.urandom(MIB)
    begun, done = perf_counter(), 0
    while done < _WRITTEN_MAX and perf_counter() - begun < seconds:
        done += os.pwrite(fd, part, done)
    os.fsync(fd)
    return done / 1e6 / (perf_counter() - begun)
