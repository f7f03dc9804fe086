"""How full a node is, and what that means for writes.

    ok ──80 %──▶ high ──95 %, or too little room──▶ full
    full ──93 %, and room again──▶ high ──78 %──▶ ok

At `high` the node warns. At `full` it refuses what adds data, while confirming, retiring, deleting,
sweeping and reading go on: they make room again. A level is left a little below where it was
entered.

Room is what the file system has free and what the database holds in pages that it can use again: a
database that forgets does not get smaller, it gets room inside.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.rules.limits import (
    DISK_FREE_MIN_BYTES,
    DISK_FULL_PERCENT,
    DISK_HIGH_PERCENT,
    DISK_SLACK_BYTES,
    DISK_SLACK_PERCENT,
)

Level = Literal["ok", "high", "full"]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Where the levels begin."""

    high_percent: int = DISK_HIGH_PERCENT
    full_percent: int = DISK_FULL_PERCENT
    room_bytes_min: int = DISK_FREE_MIN_BYTES
    slack_percent: int = DISK_SLACK_PERCENT
    slack_bytes: int = DISK_SLACK_BYTES


DEFAULT_BOUNDS = Bounds()


class Pressure(msgspec.Struct, frozen=True):
    """How full a node is: 0.0 is empty, 1.0 is full to the last byte."""

    fill: float
    level: Level
    used: int
    """Bytes that the home uses."""
    room: int
    """Bytes that the home may still grow by."""


def pressure(
    used: int,
    free: int,
    limit: int | None = None,
    before: Level = "ok",
    bounds: Bounds = DEFAULT_BOUNDS,
) -> Pressure:
    """The level now, given the one before. `limit` is the most that the settings allow the home.

    A limit beyond what the disk can hold hides nothing: the smaller room of the two counts.
    """
    used, free = max(used, 0), max(free, 0)
    room = free if limit is None else min(free, max(limit - used, 0))
    fill = used / (used + room) if used + room else 1.0
    if _holds("full", fill, free, before, bounds):
        level: Level = "full"
    elif _holds("high", fill, free, before, bounds):
        level = "high"
    else:
        level = "ok"
    return Pressure(fill, level, used, room)


def _holds(level: Level, fill: float, free: int, before: Level, bounds: Bounds) -> bool:
    """Whether this level is reached, or not left yet."""
    inside = before in ("full", level)
    percent = bounds.full_percent if level == "full" else bounds.high_percent
    if fill * 100 >= percent - (bounds.slack_percent if inside else 0):
        return True
    # A small home on a disk that others fill: its share says nothing, the free bytes do. The
    # warning comes at twice the floor. A limit from the settings has no floor: a small one would
    # always be full.
    floor = bounds.room_bytes_min * (1 if level == "full" else 2)
    return floor > 0 and free < floor + (bounds.slack_bytes if inside else 0)
