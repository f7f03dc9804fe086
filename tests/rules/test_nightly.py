"""D7: nightly work comes once a night, whenever a process was started, whatever its clock does."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.limits import DAY_MS, HOUR_MS, NIGHT_HOUR
from holdfast.rules.nightly import is_due, night_of

OFFSETS = st.integers(-12, 14).map(lambda hours: hours * HOUR_MS)
TIMES = st.integers(0, 100_000 * DAY_MS)
NOON = 20_000 * DAY_MS + 12 * HOUR_MS


@given(TIMES, OFFSETS)
def test_D7_a_night_begins_at_its_hour_of_local_time(now: int, offset: int) -> None:
    """Looked at every minute for three days: three nights begin, all at that hour."""
    minutes = range(now, now + 3 * DAY_MS, 60_000)
    began = [
        after
        for before, after in pairwise(minutes)
        if night_of(before, offset) != night_of(after, offset)
    ]
    assert len(began) in (2, 3)
    for at in began:
        assert (at + offset) % DAY_MS // HOUR_MS == NIGHT_HOUR
        assert (at + offset) % HOUR_MS < 60_000


@given(TIMES, OFFSETS, st.integers(0, DAY_MS))
def test_D7_a_process_that_is_started_every_day_still_does_nightly_work(
    now: int, offset: int, runs_for: int
) -> None:
    """What was done in one night is due in the next, however long the process has run."""
    done_in = night_of(now, offset)
    assert not is_due(done_in, now, offset)
    later = now + runs_for
    assert is_due(done_in, later, offset) is (night_of(later, offset) > done_in)
    assert is_due(done_in, now + DAY_MS, offset)
    assert is_due(None, now, offset)


def test_D7_a_clock_that_came_back_is_not_waited_for() -> None:
    far = NOON + 400 * DAY_MS
    assert is_due(night_of(far, 0), NOON, 0)
    assert not is_due(night_of(NOON, 0), NOON + HOUR_MS, 0)
