"""From lines of a watch to entries: each once, in order, none missing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import QuorumSetBack, Truncated
from holdfast.rules.etcd.entry import START, HeldKey, OrderPoint, StoredEntry, pack
from holdfast.rules.etcd.following import (
    FollowProgress,
    GapSeen,
    check_end,
    check_listed,
    on_events,
)
from holdfast.rules.etcd.keys import OrderKeys
from holdfast.rules.ids import uuid7

KEYS = OrderKeys("team")


def _written(number: int, revision: int | None = None) -> list[HeldKey]:
    """The events of one append."""
    at = revision or 10 * number
    entry = StoredEntry(1, 1, 1, "ana", "entry", b"f", b"%d" % number)
    id = uuid7(1_800_000_000_000 - number, bytes(10))
    return [HeldKey(KEYS.entry(id), pack(entry), at, 1), HeldKey(KEYS.last, b"", at, number)]


EVENTS = [event for number in range(1, 8) for event in _written(number)]


@given(st.lists(st.integers(0, len(EVENTS)), max_size=8))
def test_Q9_however_the_lines_are_cut_the_entries_come_once_and_in_order(cuts: list[int]) -> None:
    """Also where a line ends between what was written together."""
    places = [0, *sorted(cuts), len(EVENTS)]
    progress, seen = FollowProgress(START), list[bytes]()
    for begin, end in pairwise(places):
        more = end % 2 == 1
        # A new watch may bring again what came already.
        line = EVENTS[max(0, begin - 2 * (begin % 2 == 0)) : end]
        progress, entries = on_events(KEYS, progress, line, more=more)
        seen += [entry.body for entry in entries]
        assert all(entry.point.position == 10 * entry.point.number for entry in entries)
    assert seen == [b"%d" % number for number in range(1, 8)]
    assert progress == FollowProgress(OrderPoint(70, 7))
    assert progress.resume_at == 71


def test_Q9_a_revision_is_not_shown_before_all_of_it_has_come() -> None:
    progress, entries = on_events(KEYS, FollowProgress(START), EVENTS[:3], more=True)
    assert [entry.body for entry in entries] == [b"1"]
    assert progress.resume_at == 11
    progress, entries = on_events(KEYS, progress, EVENTS[3:4], more=False)
    assert [entry.body for entry in entries] == [b"2"]


@pytest.mark.parametrize(
    "events",
    [
        _written(2),
        [*_written(1), *_written(3)],
        _written(1)[:1],
        _written(1)[1:],
        [*_written(2, 30), *_written(1, 20)],
        [*_written(1), *_written(1, 20)],
    ],
)
def test_Q9_a_watch_that_leaves_something_out_is_not_believed(events: list[HeldKey]) -> None:
    with pytest.raises(GapSeen):
        on_events(KEYS, FollowProgress(START), events, more=False)


def test_Q9_after_a_listing_the_watch_begins_behind_what_was_listed() -> None:
    """Not behind the last entry, which may be older than the compaction."""
    assert FollowProgress(OrderPoint(70, 7), covered=200).resume_at == 201
    progress, _ = on_events(
        KEYS, FollowProgress(OrderPoint(70, 7), covered=200), _written(8, 205), more=False
    )
    assert progress.resume_at == 206


def test_Q9_a_follower_knows_when_it_cannot_go_on() -> None:
    seen = OrderPoint(70, 7)
    check_end(seen, seen, 70)
    check_end(seen, OrderPoint(90, 8), 0)
    for end in (OrderPoint(60, 7), OrderPoint(90, 6), START):
        with pytest.raises(QuorumSetBack):
            check_end(seen, end, 0)
    with pytest.raises(Truncated) as gone:
        check_end(seen, OrderPoint(90, 8), 80)
    assert gone.value.first_available == 81
    check_listed(seen, 1, OrderPoint(90, 8))
    with pytest.raises(QuorumSetBack):
        check_listed(seen, 2, OrderPoint(90, 8))
