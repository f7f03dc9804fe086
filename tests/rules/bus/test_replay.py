"""Which numbers are new: the strict mark and the window beside a plain set, and bounded leaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.replay import Window, check_nonces_kept, is_above, leap_past
from holdfast.rules.bus.signed_envelope import SEQUENCE_MAX
from holdfast.rules.errors import BadSequence
from holdfast.rules.limits import BUS_LEAP_MAX, BUS_NONCES_KEPT, BUS_WINDOW

numbers = st.lists(st.integers(-2, 40) | st.integers(SEQUENCE_MAX - 3, SEQUENCE_MAX + 3))


class PlainSet:
    """Remembers everything: new is what never came and is less than `size` below the highest."""

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, set[int]()

    def take(self, sequence: int) -> bool:
        highest = max(self.seen, default=0)
        new = (
            1 <= sequence <= SEQUENCE_MAX
            and sequence not in self.seen
            and sequence > highest - self.size
        )
        if new:
            self.seen.add(sequence)
        return new


@given(numbers, st.integers(1, 12))
def test_B1_a_window_says_what_a_set_of_all_numbers_says(given_: list[int], size: int) -> None:
    window, plain = Window(), PlainSet(size)
    for sequence in given_:
        after = window.take(sequence, size)
        assert (after is not None) == plain.take(sequence), (window, sequence)
        window = after or window
    assert window.highest == max(plain.seen, default=0)
    assert window.seen < 1 << size, "a window does not grow"


@given(numbers)
def test_B1_the_strict_mark_is_a_window_of_one(given_: list[int]) -> None:
    window, last = Window(), None
    for sequence in given_:
        after = window.take(sequence, 1)
        assert (after is not None) == is_above(last, sequence)
        if after is not None:
            window, last = after, sequence


@given(st.integers(0, SEQUENCE_MAX), st.data())
def test_B1_a_window_made_of_a_mark_takes_nothing_up_to_the_mark(
    last: int, data: st.DataObject
) -> None:
    window = Window.strict(last)
    near = st.integers(max(0, last - 2 * BUS_WINDOW), last) | st.integers(0, last)
    assert window.take(data.draw(near)) is None
    if last < SEQUENCE_MAX:
        taken = window.take(last + 1)
        assert taken is not None
        assert taken.take(last) is None


def test_B1_a_message_that_was_overtaken_by_too_many_is_refused() -> None:
    window = Window().take(BUS_WINDOW + 1)
    assert window is not None
    assert window.take(1) is None
    assert window.take(2) is not None


@given(st.integers(1, SEQUENCE_MAX), st.integers(0, SEQUENCE_MAX))
def test_B3_a_sender_goes_on_above_what_the_other_side_has_seen_or_does_not_believe_it(
    next_sequence: int, seen: int
) -> None:
    try:
        after = leap_past(next_sequence, seen)
    except BadSequence:
        assert seen - next_sequence >= BUS_LEAP_MAX or seen >= SEQUENCE_MAX - BUS_LEAP_MAX
        return
    assert after == max(next_sequence, seen + 1)
    assert after - next_sequence <= BUS_LEAP_MAX
    assert after <= SEQUENCE_MAX


def test_B3_leaps_are_bounded_and_cannot_wear_the_counter_out() -> None:
    assert leap_past(10, 9) == 10
    assert leap_past(10, 10) == 11
    assert leap_past(10, 10 + BUS_LEAP_MAX - 1) == 10 + BUS_LEAP_MAX
    with pytest.raises(BadSequence, match="has seen number"):
        leap_past(10, 10 + BUS_LEAP_MAX)
    with pytest.raises(BadSequence):
        leap_past(SEQUENCE_MAX - 5, SEQUENCE_MAX - 2)
    # A liar on every link of a year of minutes still leaves most of the numbers.
    assert 365 * 24 * 60 * BUS_LEAP_MAX > SEQUENCE_MAX > 1000 * BUS_LEAP_MAX


def test_B2_nonces_are_remembered_for_longer_than_a_window_reaches() -> None:
    assert check_nonces_kept(BUS_NONCES_KEPT) == BUS_NONCES_KEPT
    assert check_nonces_kept(BUS_WINDOW + 1)
    for few in (BUS_WINDOW, 0, -1):
        with pytest.raises(BadSequence):
            check_nonces_kept(few)
