"""Z4: what a consumer has confirmed, against a plain set of offsets."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadValue, OverLimit, PastEnd, StoreCorrupt
from holdfast.rules.frontier import Frontier, check_confirm
from holdfast.rules.limits import FRONTIER_RANGES_MAX

HEAD = 40


def of(base: int, *ranges: tuple[int, int]) -> Frontier:
    frontier = Frontier(base)
    for start, end in ranges:
        frontier = frontier.confirm_range(start, end)
    return frontier


def test_Z4_a_confirmation_through_an_offset_is_cumulative() -> None:
    assert Frontier().confirm_range(1, 4) == Frontier(3)
    assert Frontier(3).confirm_range(1, 8).prefix == 7


@pytest.mark.parametrize("offset", [0, 4, 5])
def test_Z4_confirming_backwards_is_a_no_op(offset: int) -> None:
    frontier = of(5, (8, 10))
    assert frontier.confirm_range(1, offset + 1) is frontier


def test_Z4_an_empty_range_confirms_nothing() -> None:
    frontier = Frontier(2)
    assert frontier.confirm_range(3, 3) is frontier
    assert frontier.confirm_range(9, 9) is frontier


def test_Z4_the_frontier_waits_for_the_hole_before_a_range() -> None:
    frontier = of(0, (3, 5))
    assert frontier == Frontier(0, ((3, 5),))
    assert frontier.confirm_range(2, 3) == Frontier(0, ((2, 5),))
    assert frontier.confirm_range(1, 2) == Frontier(1, ((3, 5),))
    assert frontier.confirm_range(1, 2).confirm_range(2, 3) == Frontier(4)
    assert frontier.confirm_range(1, 3) == Frontier(4)
    assert frontier.confirm_range(1, 4) == Frontier(4)
    assert frontier.confirm_range(1, 10) == Frontier(9)


def test_Z4_ranges_that_touch_or_overlap_become_one() -> None:
    frontier = of(0, (10, 12), (20, 22), (30, 32))
    assert frontier.ranges == ((10, 12), (20, 22), (30, 32))
    assert frontier.confirm_range(12, 20).ranges == ((10, 22), (30, 32))
    assert frontier.confirm_range(11, 31).ranges == ((10, 32),)
    assert frontier.confirm_range(5, 40).ranges == ((5, 40),)
    assert frontier.confirm_range(20, 21) == frontier
    assert frontier.confirm_range(14, 16).ranges == ((10, 12), (14, 16), (20, 22), (30, 32))


def test_Z4_holes_are_what_is_left_to_confirm() -> None:
    frontier = of(4, (6, 8), (12, 13))
    assert frontier.holes(20) == [(5, 6), (8, 12), (13, 21)]
    assert frontier.holes(12) == [(5, 6), (8, 12)]
    assert frontier.holes(9) == [(5, 6), (8, 10)]
    assert frontier.holes(7) == [(5, 6)]
    assert frontier.holes(5) == [(5, 6)]
    assert frontier.holes(4) == []
    assert Frontier().holes(0) == []


def test_Z4_the_last_confirmed_offset_lies_beyond_the_holes() -> None:
    assert of(4, (6, 8), (12, 13)).last == 12
    assert Frontier(4).last == 4


STEPS = st.lists(
    st.tuples(st.just("through"), st.integers(-2, HEAD), st.just(0))
    | st.tuples(st.just("range"), st.integers(1, HEAD), st.integers(0, 8)),
    max_size=25,
)


@given(st.integers(0, 10), STEPS)
def test_Z4_a_frontier_is_the_set_of_its_confirmed_offsets(
    base: int, steps: list[tuple[str, int, int]]
) -> None:
    frontier, model = Frontier(base), set(range(1, base + 1))
    for verb, offset, length in steps:
        before = frontier
        if verb == "through":
            frontier = frontier.confirm_range(1, max(offset, 0) + 1)
            model |= set(range(1, offset + 1))
        else:
            frontier = frontier.confirm_range(offset, offset + length)
            model |= set(range(offset, offset + length))
        assert frontier.prefix >= before.prefix
        check_against(frontier, model)


def check_against(frontier: Frontier, model: set[int]) -> None:
    everything = range(1, HEAD + 12)
    assert {offset for offset in everything if frontier.covers(offset)} == model
    missing = [offset for offset in everything if offset not in model]
    assert frontier.prefix == min(missing) - 1
    assert frontier.last == max(model, default=0)
    for head in (0, HEAD // 2, HEAD, HEAD + 11):
        holes = [offset for start, end in frontier.holes(head) for offset in range(start, end)]
        assert holes == [offset for offset in missing if offset <= head]
    # One set, one form: no two ranges touch.
    confirmed = [(frontier.prefix + 1, frontier.prefix + 1), *frontier.ranges]
    pairs = zip(confirmed, frontier.ranges, strict=False)
    assert all(end < start for (_, end), (start, _) in pairs)
    assert Frontier.decode(frontier.encode()) == frontier


@given(st.permutations(range(1, 13)))
def test_Z4_the_order_of_confirmations_does_not_matter(offsets: list[int]) -> None:
    assert of(0, *((offset, offset + 1) for offset in offsets)) == Frontier(12)


@pytest.mark.parametrize(
    ("frontier", "text"),
    [
        (Frontier(), "0"),
        (Frontier(12), "12"),
        (Frontier(12, ((15, 18), (20, 21))), "12;15-18,20-21"),
        (Frontier(2**62), str(2**62)),
    ],
)
def test_Z4_a_frontier_is_stored_as_short_text(frontier: Frontier, text: str) -> None:
    assert frontier.encode() == text
    assert Frontier.decode(text) == frontier


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "+1",
        " 1",
        "1\n",
        "01",
        "1_0",
        "\u0661",
        "1.0",
        "1;",
        ";3-4",
        "1;3",
        "1;3-4-5",
        "1;3-4,",
        "1;3-4;6-7",
        "1;2-3",
        "1;1-3",
        "5;3-4",
        "1;3-3",
        "1;4-3",
        "1;3-5,5-6",
        "1;3-5,4-6",
        "1;6-7,3-4",
        "1;3 -4",
        "9" * 5000,
    ],
)
def test_Z4_text_that_no_frontier_has_written_is_refused(text: str) -> None:
    with pytest.raises(StoreCorrupt, match="stored frontier"):
        Frontier.decode(text)


@given(st.text(alphabet="0123456789;,- ", max_size=16))
def test_Z4_decoding_gives_the_one_frontier_of_the_text_or_a_clean_refusal(text: str) -> None:
    with suppress(StoreCorrupt):
        assert Frontier.decode(text).encode() == text


def test_Z4_confirming_up_to_the_end_is_fine() -> None:
    check_confirm(Frontier(), 1, 11, head=10)
    check_confirm(Frontier(10), 1, 3, head=10)
    check_confirm(Frontier(10), 11, 11, head=10)
    check_confirm(Frontier(), 1, 1, head=0)


@pytest.mark.parametrize(("start", "end"), [(1, 12), (11, 12), (50, 60), (12, 12)])
def test_Z4_confirming_past_the_end_is_an_error(start: int, end: int) -> None:
    with pytest.raises(PastEnd, match="the log ends at 10"):
        check_confirm(Frontier(), start, end, head=10)


@pytest.mark.parametrize("frontier", [Frontier(11), Frontier(0, ((11, 12),))])
def test_Z4_a_consumer_that_is_ahead_of_its_log_is_noticed(frontier: Frontier) -> None:
    with pytest.raises(PastEnd, match="offset 11 is confirmed already, but the log ends at 10"):
        check_confirm(frontier, 1, 2, head=10)


@pytest.mark.parametrize(("start", "end"), [(0, 3), (-4, -2), (0, 0), (5, 4)])
def test_Z4_a_range_that_is_none_is_refused(start: int, end: int) -> None:
    with pytest.raises(BadValue, match="range"):
        check_confirm(Frontier(9), start, end, head=10)
    with pytest.raises(BadValue, match="range"):
        Frontier(9).confirm_range(start, end)


def test_Z4_a_consumer_may_leave_so_many_holes_and_no_more() -> None:
    full = Frontier(0, tuple((at, at + 1) for at in range(2, 2 + 2 * FRONTIER_RANGES_MAX, 2)))
    past = full.last + 2
    with pytest.raises(OverLimit, match="separate ranges") as caught:
        full.confirm_range(past, past + 1)
    assert "from offset 1 on" in caught.value.hint
    # What fills a hole or extends a range still goes through.
    assert full.confirm_range(full.last + 1, full.last + 2).last == full.last + 1
    assert len(full.confirm_range(1, 2).confirm_range(past, past + 1).ranges) == FRONTIER_RANGES_MAX


def test_Z4_a_frontier_cannot_be_changed_or_made_wrong() -> None:
    frontier: Any = Frontier(3)
    with pytest.raises(FrozenInstanceError):
        frontier.prefix = 4
    for prefix, ranges in [(-1, ()), (3, ((4, 5),)), (3, ((5, 5),)), (3, ((8, 9), (6, 7)))]:
        with pytest.raises(AssertionError, match="not a frontier"):
            Frontier(prefix, ranges)
