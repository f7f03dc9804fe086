"""S17, Z5, D8: what may be forgotten, and how old a waiting message may become."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadValue, FeatureParamBelowFloor, OutboxAgeAboveWindow, Refused
from holdfast.rules.limits import DAY_MS
from holdfast.rules.retention import (
    may_forget,
    oldest_kept_ms,
    outbox_max_age_hours,
    truncate_below,
)

NOW = 1_800_000_000_000
TTL = 90 * DAY_MS


def forgets(
    *, written_at_ms: int = 0, now_ms: int = NOW, offset: int = 5, frontiers: Any = ()
) -> bool:
    return may_forget(
        written_at_ms=written_at_ms,
        now_ms=now_ms,
        ttl_ms=TTL,
        offset=offset,
        frontiers=frontiers,
    )


# --- single rows -------------------------------------------------------------------------------


def test_S17_a_row_is_forgotten_when_it_is_old_and_everyone_has_confirmed_it() -> None:
    assert forgets(frontiers=[5, 9])
    assert forgets(frontiers=iter([5, 9]))


def test_S17_an_old_row_that_one_consumer_has_not_confirmed_stays() -> None:
    assert not forgets(frontiers=[9, 4])
    assert not forgets(frontiers=[0])


def test_S17_age_alone_decides_where_nobody_reads() -> None:
    assert forgets(frontiers=[])


def test_S17_a_confirmed_row_stays_until_its_last_millisecond() -> None:
    assert not forgets(written_at_ms=NOW - TTL + 1)
    assert forgets(written_at_ms=NOW - TTL)


@pytest.mark.parametrize("ahead", [1, TTL, 10 * TTL])
def test_S17_a_row_from_the_future_is_never_old_enough(ahead: int) -> None:
    assert not forgets(written_at_ms=NOW + ahead, frontiers=[9])


def test_S17_a_clock_that_jumps_back_keeps_rows_until_it_has_caught_up() -> None:
    assert forgets(written_at_ms=NOW - TTL)
    assert not forgets(written_at_ms=NOW - TTL, now_ms=NOW - 2 * TTL)


def test_S17_a_clock_that_jumps_forwards_cannot_pass_a_frontier() -> None:
    assert not forgets(written_at_ms=NOW, now_ms=NOW + 1000 * TTL, frontiers=[4])


@given(st.integers(), st.integers(), st.integers(0, 10**13))
def test_S17_the_bound_for_SQL_and_the_decision_on_a_row_are_one(
    written: int, now: int, ttl: int
) -> None:
    old = may_forget(written_at_ms=written, now_ms=now, ttl_ms=ttl, offset=1, frontiers=())
    assert old == (written < oldest_kept_ms(now_ms=now, ttl_ms=ttl))
    assert old == (now - written >= ttl)
    assert not (old and written > now)


def test_S17_a_negative_time_to_live_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="negative"):
        oldest_kept_ms(now_ms=NOW, ttl_ms=-1)


# --- the log -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "first", "frontiers", "by_age", "keep"),
    [
        (10, 1, [7], 11, 8),
        (10, 1, [7, 3], 11, 4),
        (10, 1, [7], 5, 5),
        (10, 1, [0], 11, 1),
        (10, 1, [], 6, 6),
        (10, 1, [], 11, 10),
        (10, 1, [10], 11, 10),
        (10, 4, [1], 11, 4),
        (10, 4, [], 2, 4),
        (10, 10, [10], 11, 10),
        (0, 1, [], 1, 1),
        (0, 1, [0], 1, 1),
    ],
    ids=[
        "up to the frontier",
        "up to the slowest frontier",
        "never past the age bound",
        "nothing confirmed",
        "nobody reads",
        "nobody reads and all is old: the last entry stays",
        "all confirmed and old: the last entry stays",
        "a frontier below what is gone",
        "an age bound below what is gone",
        "one entry",
        "an empty log",
        "an empty log with a consumer",
    ],
)
def test_Z5_truncation_keeps_what_somebody_needs(
    head: int, first: int, frontiers: list[int], by_age: int, keep: int
) -> None:
    found = truncate_below(
        head=head, first=first, frontiers=iter(frontiers), oldest_kept_offset_by_age=by_age
    )
    assert found == keep


@given(
    times=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    now=st.integers(0, 40),
    ttl=st.integers(0, 20),
    frontiers=st.lists(st.integers(0, 20), max_size=3),
    gone=st.integers(0, 19),
)
def test_Z5_every_truncated_entry_was_one_that_might_be_forgotten(
    times: list[int], now: int, ttl: int, frontiers: list[int], gone: int
) -> None:
    """With times in any order, as received entries and clock jumps leave them."""
    head = len(times)
    first = min(gone, head - 1) + 1
    frontiers = [min(frontier, head) for frontier in frontiers]
    bound = oldest_kept_ms(now_ms=now, ttl_ms=ttl)
    held = range(first, head + 1)
    young = [offset for offset in held if times[offset - 1] >= bound]
    keep = truncate_below(
        head=head,
        first=first,
        frontiers=frontiers,
        oldest_kept_offset_by_age=min(young, default=head + 1),
    )
    assert first <= keep <= head

    def forgettable(offset: int) -> bool:
        return may_forget(
            written_at_ms=times[offset - 1],
            now_ms=now,
            ttl_ms=ttl,
            offset=offset,
            frontiers=frontiers,
        )

    assert all(forgettable(offset) for offset in range(first, keep))
    # And no more is kept than must be.
    assert keep == head or not forgettable(keep)


# --- the outbox --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "hours"),
    [
        (3, 72),
        (4, 72),
        (5, 96),
        (7, 144),
        (10, 216),
        (11, 237),
        (30, 648),
        (35, 756),
        (365, 7884),
    ],
)
def test_D8_the_outbox_age_follows_the_dedupe_window(days: int, hours: int) -> None:
    assert outbox_max_age_hours("retention_scoped", days) == hours


@given(st.integers(3, 10**6))
def test_D8_the_margin_is_an_exact_tenth_rounded_up_and_a_day_at_least(days: int) -> None:
    margin = max(24, ceil(Fraction(days * 24, 10)))
    hours = outbox_max_age_hours("retention_scoped", days)
    assert hours == max(72, days * 24 - margin)
    assert hours <= days * 24


@pytest.mark.parametrize("days", [2, 1, 0, -1])
@pytest.mark.parametrize("override", [None, 10])
def test_D8_a_retention_below_three_days_is_refused(days: int, override: int | None) -> None:
    with pytest.raises(FeatureParamBelowFloor, match="at least 3") as caught:
        outbox_max_age_hours("retention_scoped", days, override)
    assert caught.value.code == "feature_param_below_floor"
    assert isinstance(caught.value, Refused)
    assert caught.value.hint


def test_D8_an_override_inside_the_window_is_taken() -> None:
    assert outbox_max_age_hours("retention_scoped", 30, 719) == 719
    assert outbox_max_age_hours("retention_scoped", 30, 1) == 1
    assert outbox_max_age_hours("retention_scoped", 3, 71) == 71


@pytest.mark.parametrize(("days", "override"), [(30, 720), (3, 72), (3, 10_000)])
def test_D8_an_override_past_the_window_is_refused(days: int, override: int) -> None:
    with pytest.raises(OutboxAgeAboveWindow, match=f"{override} hours") as caught:
        outbox_max_age_hours("retention_scoped", days, override)
    assert caught.value.code == "outbox_max_age_above_dedupe_window"
    assert isinstance(caught.value, Refused)
    assert str(days * 24 - 1) in caught.value.hint


@pytest.mark.parametrize("days", [None, 1, 30])
def test_D8_permanent_memory_has_a_default_and_a_cap(days: int | None) -> None:
    assert outbox_max_age_hours("permanent", days) == 168
    assert outbox_max_age_hours("permanent", days, 24) == 24
    assert outbox_max_age_hours("permanent", days, 720) == 720
    assert outbox_max_age_hours("permanent", days, 721) == 720


@pytest.mark.parametrize("override", [0, -5])
@pytest.mark.parametrize("mode", ["permanent", "retention_scoped"])
def test_D8_an_override_that_lets_nothing_live_is_refused(mode: Any, override: int) -> None:
    with pytest.raises(BadValue, match="would send nothing"):
        outbox_max_age_hours(mode, 30, override)


def test_D8_a_window_without_its_length_is_refused() -> None:
    with pytest.raises(BadValue, match="dedupe_retention_days"):
        outbox_max_age_hours("retention_scoped", None)


def test_D8_an_unknown_mode_is_refused() -> None:
    mode: Any = "forever"
    with pytest.raises(BadValue, match="forever"):
        outbox_max_age_hours(mode, 30)
