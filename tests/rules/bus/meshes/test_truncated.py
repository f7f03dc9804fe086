"""Who is asked for a snapshot of what no neighbour has any more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.meshes.coverage import NOTHING, StreamName, cover_all, ranges_of
from holdfast.rules.bus.meshes.truncated import (
    StreamOffer,
    choose_snapshots,
    claimed,
    only_by_snapshot,
)
from holdfast.rules.frontier import Frontier

ANA, BOB = (StreamName("team", name, 1) for name in ("ana", "bob"))
OTHER = StreamName("other", "ana", 1)


def test_B4_a_snapshot_stands_for_what_was_covered_and_truncated() -> None:
    offer = StreamOffer(Frontier(3, ((5, 8), (9, 20))), 6)
    assert claimed(offer) == [(1, 4), (5, 7)]
    assert claimed(StreamOffer(Frontier(3), 0)) == []
    assert claimed(StreamOffer(NOTHING, 6)) == []


def test_B4_what_somebody_still_has_is_no_reason_for_a_snapshot() -> None:
    truncated, whole = StreamOffer(Frontier(9), 6), StreamOffer(Frontier(4), 0)
    assert only_by_snapshot(NOTHING, [truncated]) == [(1, 7)]
    assert only_by_snapshot(NOTHING, [truncated, whole]) == [(5, 7)]
    assert only_by_snapshot(Frontier(6), [truncated, whole]) == []
    assert (
        choose_snapshots({}, {"a": {ANA: truncated}, "b": {ANA: StreamOffer(Frontier(7), 0)}}) == []
    )


def test_B4_one_is_asked_for_each_mesh_and_it_is_the_one_that_brings_most() -> None:
    some = {ANA: StreamOffer(Frontier(9), 5), OTHER: StreamOffer(Frontier(9), 9)}
    more = {ANA: StreamOffer(Frontier(9), 4), BOB: StreamOffer(Frontier(40), 30)}
    found = choose_snapshots({ANA: Frontier(2)}, {"a": some, "b": more})
    assert [(one.link, one.mesh) for one in found] == [("b", "team"), ("a", "other")]
    assert found[0].claims == {ANA: more[ANA], BOB: more[BOB]}
    assert [one.mesh for one in choose_snapshots({}, {"a": some, "b": more}, {"team"})] == ["other"]
    # Where a node lacks nothing, nothing is claimed.
    found = choose_snapshots({ANA: Frontier(5)}, {"b": more})
    assert list(found[0].claims) == [BOB]


numbers = st.sets(st.integers(1, 24), max_size=16)


@given(numbers, st.lists(st.tuples(numbers, st.integers(0, 24)), max_size=3))
def test_B4_lost_is_what_was_there_and_is_nowhere_as_an_entry(
    mine: set[int], offers: list[tuple[set[int], int]]
) -> None:
    """The same by sets of numbers."""
    had = {n for covered, floor in offers for n in covered if n <= floor}
    there = {n for covered, floor in offers for n in covered if n > floor}
    found = only_by_snapshot(
        _frontier(mine), [StreamOffer(_frontier(covered), floor) for covered, floor in offers]
    )
    assert {n for start, end in found for n in range(start, end)} == had - there - mine


def _frontier(seqs: set[int]) -> Frontier:
    found = cover_all(NOTHING, [(n, n + 1) for n in sorted(seqs)])
    assert {n for start, end in ranges_of(found) for n in range(start, end)} == seqs
    return found
