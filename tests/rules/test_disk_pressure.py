"""How full a node is: announced ahead, refused at the end, and never fluttering between."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.disk_pressure import Bounds, Level, Pressure, pressure
from holdfast.rules.limits import DISK_FREE_MIN_BYTES, MIB

GIB = 1024 * MIB
SHARE = Bounds(room_bytes_min=0)
"""Only the share counts: for disks that are small in a test."""

sizes = st.integers(0, 2**50)
levels: st.SearchStrategy[Level] = st.sampled_from(get_args(Level))
RANK = {"ok": 0, "high": 1, "full": 2}


def at(percent: float, before: Level = "ok") -> Level:
    used = round(percent * GIB)
    return pressure(used, 100 * GIB - used, None, before, SHARE).level


@pytest.mark.parametrize(
    ("percent", "level"),
    [(0, "ok"), (79.9, "ok"), (80, "high"), (94.9, "high"), (95, "full"), (100, "full")],
)
def test_Z7_the_level_rises_with_the_share_that_is_used(percent: float, level: Level) -> None:
    assert at(percent) == level


@pytest.mark.parametrize(
    ("percent", "before", "level"),
    [
        (93.1, "full", "full"),
        (92.9, "full", "high"),
        (78.1, "high", "high"),
        (77.9, "high", "ok"),
        (78.1, "full", "high"),
        (77.9, "full", "ok"),
        (94.9, "high", "high"),
    ],
)
def test_Z7_a_level_is_left_a_little_below_where_it_was_entered(
    percent: float, before: Level, level: Level
) -> None:
    assert at(percent, before) == level


def test_Z7_too_little_room_is_announced_and_then_full_however_small_the_home_is() -> None:
    floor = DISK_FREE_MIN_BYTES
    assert pressure(MIB, 2 * floor).level == "ok"
    assert pressure(MIB, 2 * floor - 1).level == "high"
    assert pressure(MIB, floor).level == "high"
    assert pressure(MIB, floor - 1).level == "full"
    assert pressure(MIB, floor, before="full").level == "full", "not left yet"
    assert pressure(MIB, floor + 16 * MIB, before="full").level == "high"


def test_Z7_a_limit_of_the_owner_counts_even_on_an_empty_disk() -> None:
    assert pressure(79 * MIB, 500 * GIB, 100 * MIB).level == "ok"
    assert pressure(80 * MIB, 500 * GIB, 100 * MIB).level == "high"
    assert pressure(95 * MIB, 500 * GIB, 100 * MIB) == Pressure(0.95, "full", 95 * MIB, 5 * MIB)
    assert pressure(500 * MIB, 500 * GIB, 100 * MIB).fill == 1.0


def test_Z7_a_limit_beyond_the_disk_hides_nothing() -> None:
    assert pressure(96 * GIB, 4 * GIB, 1000 * GIB).level == "full"


def test_Z7_a_disk_without_anything_is_full() -> None:
    assert pressure(0, 0) == Pressure(1.0, "full", 0, 0)


@given(sizes, sizes, st.none() | sizes, levels)
def test_Z7_looking_twice_at_the_same_disk_finds_the_same(
    used: int, free: int, limit: int | None, before: Level
) -> None:
    once = pressure(used, free, limit, before)
    assert pressure(used, free, limit, once.level) == once
    assert 0.0 <= once.fill <= 1.0


@given(sizes, sizes, st.none() | sizes, levels, st.integers(0, 2**40))
def test_Z7_more_used_and_less_free_is_never_a_lower_level(
    used: int, free: int, limit: int | None, before: Level, more: int
) -> None:
    less, later = (
        pressure(used, free, limit, before),
        pressure(used + more, free - more, limit, before),
    )
    assert RANK[later.level] >= RANK[less.level]


@given(sizes, sizes, st.none() | sizes, levels, levels)
def test_Z7_the_level_before_only_ever_holds_a_level_up(
    used: int, free: int, limit: int | None, one: Level, other: Level
) -> None:
    low, high = sorted((one, other), key=RANK.__getitem__)
    from_low, from_high = (pressure(used, free, limit, before) for before in (low, high))
    assert RANK[from_low.level] <= RANK[from_high.level]
