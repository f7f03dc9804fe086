"""What happens when two versions of one thing meet."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.envelope import Base
from holdfast.rules.merge import MergeVerdict, last_writer_wins, version_of
from holdfast.rules.order import Version, is_newer, order_key
from support.envelopes import envelope, make_id


def v(lamport: int, peer: str, number: int = 1) -> Version:
    return Version(lamport, peer, make_id(number))


def base(version: Version) -> Base:
    return Base(version.lamport, version.peer)


def test_S18_the_first_version_meets_nothing() -> None:
    assert last_writer_wins(v(1, "a"), None, None, None) is MergeVerdict.FIRST


def test_S18_replacing_what_one_saw_is_a_succession() -> None:
    old, new = v(1, "a"), v(2, "b")
    assert last_writer_wins(new, base(old), old, None) is MergeVerdict.SUCCEEDS


def test_S18_winning_over_what_one_did_not_see_discards_it() -> None:
    old, new = v(1, "a"), v(2, "b")
    assert last_writer_wins(new, None, old, None) is MergeVerdict.OVERRIDES
    assert last_writer_wins(new, Base(1, "c"), old, None) is MergeVerdict.OVERRIDES
    assert last_writer_wins(new, Base(0, "a"), old, None) is MergeVerdict.OVERRIDES


def test_S18_an_ancestor_that_comes_late_loses_nothing() -> None:
    old, new = v(1, "a"), v(2, "b")
    assert last_writer_wins(old, None, new, base(old)) is MergeVerdict.PRECEDES


def test_S18_a_loser_is_discarded() -> None:
    assert last_writer_wins(v(1, "a"), None, v(2, "b"), None) is MergeVerdict.LOSES
    assert last_writer_wins(v(1, "a"), None, v(2, "b"), Base(1, "c")) is MergeVerdict.LOSES


def test_S18_a_peer_has_seen_its_own_writes() -> None:
    old, new = v(1, "a"), v(5, "a")
    assert last_writer_wins(new, None, old, None) is MergeVerdict.SUCCEEDS
    assert last_writer_wins(old, None, new, None) is MergeVerdict.PRECEDES


@pytest.mark.parametrize(
    ("verdict", "applies", "discards"),
    [
        (MergeVerdict.FIRST, True, False),
        (MergeVerdict.SUCCEEDS, True, False),
        (MergeVerdict.OVERRIDES, True, True),
        (MergeVerdict.PRECEDES, False, False),
        (MergeVerdict.LOSES, False, True),
    ],
)
def test_S18_a_verdict_says_what_is_written_and_what_is_lost(
    verdict: MergeVerdict, applies: bool, discards: bool
) -> None:
    assert (verdict.applies, verdict.discards) == (applies, discards)


_peers = st.sampled_from(["a", "z", "é", "\uffff", "\U00010000"])
_bases = st.one_of(st.none(), st.builds(Base, st.integers(1, 4), _peers))
_writes = st.tuples(
    st.builds(v, st.integers(1, 4), _peers, st.integers(1, 2)),
    _bases,
)


@given(st.lists(_writes, min_size=1, max_size=4, unique_by=lambda write: write[0]))
def test_S6_any_order_of_delivery_ends_with_the_highest_version(
    writes: list[tuple[Version, Base | None]],
) -> None:
    ends = set()
    for order in permutations(writes):
        current: Version | None = None
        current_base: Base | None = None
        for version, its_base in (*order, order[0]):  # one of them twice
            if last_writer_wins(version, its_base, current, current_base).applies:
                current, current_base = version, its_base
        ends.add(current)
    assert ends == {max((version for version, _ in writes), key=order_key)}


def test_S6_whatever_a_writer_saw_the_higher_version_applies() -> None:
    versions = [v(n, peer) for n, peer in product((1, 2), ("a", "b"))]
    for one, other in permutations(versions, 2):
        for mine, theirs in product((None, base(other)), (None, base(one))):
            assert last_writer_wins(one, mine, other, theirs).applies == is_newer(one, other)


def test_S5_the_version_of_an_envelope_is_its_origins() -> None:
    made = envelope("state.delete", "k", origin="bob", lamport=9, id=make_id(4))
    assert version_of(made) == Version(9, "bob", make_id(4))
