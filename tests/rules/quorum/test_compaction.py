"""How much of a log goes, and what stays for members that lack it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.quorum.compaction import LogLimits, LogSizes, compact_to
from holdfast.rules.quorum.raft.messages import RaftEntry

LIMITS = LogLimits(
    tail_entries=10,
    tail_bytes=1000,
    held_entries=50,
    held_bytes=5000,
    step_entries=5,
    step_bytes=500,
)


def entries(*sizes: int) -> list[RaftEntry]:
    return [RaftEntry(1, "data", bytes(size)) for size in sizes]


def sized(count: int, size: int = 1) -> LogSizes:
    sizes = LogSizes(0)
    sizes.put(1, entries(*[size] * count))
    return sizes


def test_Q4_a_log_keeps_a_tail_that_all_voters_have() -> None:
    assert compact_to(LIMITS, sized(30), boundary=0, safe=30, matched=[30, 29]) == 20
    assert compact_to(LIMITS, sized(30), boundary=16, safe=30, matched=[30]) == 16, "too little"
    assert compact_to(LIMITS, sized(30), boundary=15, safe=30, matched=()) == 20


def test_Q4_what_was_not_folded_here_never_goes() -> None:
    assert compact_to(LIMITS, sized(99), boundary=0, safe=7, matched=[99]) == 7
    assert compact_to(LIMITS, sized(99), boundary=0, safe=0, matched=[99]) == 0


def test_Q4_a_leader_keeps_what_a_voter_lacks_but_not_for_ever() -> None:
    assert compact_to(LIMITS, sized(30), boundary=0, safe=30, matched=[30, 8]) == 8
    assert compact_to(LIMITS, sized(60), boundary=0, safe=60, matched=[60, 0]) == 10
    assert compact_to(LIMITS, sized(20, 1000), boundary=0, safe=20, matched=[20, 0]) == 15


def test_Q4_a_tail_is_bounded_in_bytes_too() -> None:
    assert compact_to(LIMITS, sized(9, 400), boundary=0, safe=9, matched=()) == 7
    few = LogSizes(0)
    few.put(1, entries(600, 600, 600))
    assert compact_to(LIMITS, few, boundary=0, safe=3, matched=()) == 2, "by bytes alone"


@given(
    st.lists(
        st.tuples(st.sampled_from(("put", "cut", "drop")), st.integers(0, 12), st.integers(0, 400)),
        max_size=30,
    )
)
def test_Q4_sizes_are_those_of_the_entries_that_are_there(
    steps: list[tuple[str, int, int]],
) -> None:
    sizes, there, last = LogSizes(0), dict[int, int](), 0
    for step, by, size in steps:
        if step == "put":
            first = max(1, last + 1 - by)
            sizes.put(first, entries(size, size + 1))
            there = {at: one for at, one in there.items() if at < first}
            there |= {first: size, first + 1: size + 1}
            last = first + 1
        elif step == "cut" and last - by >= 1:
            last -= by
            sizes.cut(last + 1)
            there = {at: one for at, one in there.items() if at <= last}
        elif step == "drop" and last - by >= 0:
            sizes.drop(last - by)
            there = {at: one for at, one in there.items() if at > last - by}
        known = sizes.between(0, last)
        assert known <= sum(there.values()), "forgotten ones count as nothing"
        assert last - sizes.floor(10, 1 << 40) <= 10
        floor = sizes.floor(1 << 40, 300)
        assert sizes.between(floor, last) <= 300
