"""The log for its readers: ranges, consumers, confirmations, truncation."""

from __future__ import annotations

import pytest

from holdfast.node.library.node import Node
from holdfast.node.log.log import Head
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BadKey,
    BadValue,
    IdReused,
    OverLimit,
    PastEnd,
    Truncated,
    UnknownConsumer,
)
from holdfast.rules.limits import CHUNK_ROWS, CONSUMER_NAME_BYTES_MAX, FETCH_ROWS_MAX
from holdfast.rules.rows import Entry
from support.nodes import Nodes, team
from support.source import HandClock

ID = "018bcfe5-6800-7000-8000-0000000000aa"
NOW = Ttl(log_ms=0)
"""Everything is old enough."""


def fill(node: Node, count: int) -> None:
    for n in range(count):
        team(node).facts.append("s", "n", n)


def offsets(entries: list[Entry]) -> list[int]:
    return [entry.offset for entry in entries]


def forget(node: Node, clock: HandClock) -> int:
    clock.advance(1)
    return node.sweep(NOW).log_entries


# --- append and read ------------------------------------------------------------------------------


def test_Z1_a_fact_is_put_if_its_id_is_absent(node: Node) -> None:
    facts = team(node).facts
    first = facts.append("sky", "is", "blue", id=ID)
    facts.append("sea", "is", "deep")
    again = facts.append("sky", "is", "blue", id=ID)
    assert (again.offset, again.duplicate) == (first.offset, True)
    for other in (("sky", "is", "grey"), ("sky", "was", "blue"), ("sun", "is", "blue")):
        with pytest.raises(IdReused):
            facts.append(*other, id=ID)
    with pytest.raises(IdReused):
        facts.append("sky", "is", "blue", id=ID, meta={"by": "me"})
    assert node.log.head() == Head(1, 1, 2)


def test_Z1_a_fact_is_known_after_its_entry_is_gone(node: Node, clock: HandClock) -> None:
    facts = team(node).facts
    first = facts.append("sky", "is", "blue", id=ID)
    fill(node, 2)
    assert forget(node, clock) == 2
    again = facts.append("sky", "is", "blue", id=ID)
    assert (again.offset, again.duplicate) == (first.offset, True)
    with pytest.raises(IdReused):
        facts.append("sky", "is", "grey", id=ID)
    assert node.log.head().offset == 3


def test_Z3_a_range_is_read_again_and_again_without_moving_anything(node: Node) -> None:
    fill(node, 7)
    node.log.add_consumer("reader")
    for _ in range(2):
        assert offsets(list(node.log.range(2, 5))) == [2, 3, 4]
        assert offsets(list(node.log.range())) == list(range(1, 8))
        assert offsets(list(node.log.range(6))) == [6, 7]
        assert offsets(list(node.log.range(6, 99))) == [6, 7]
        assert list(node.log.range(8)) == []
        assert list(node.log.range(3, 3)) == []
    (reader,) = node.log.consumers()
    assert (reader.frontier, reader.lag) == (0, 7)
    for start, end in ((0, 3), (-1, None), (5, 4)):
        with pytest.raises(BadInput):
            node.log.range(start, end)


@pytest.mark.parametrize("count", [CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_Z3_a_range_is_whole_at_the_edges_of_its_pages(node: Node, count: int) -> None:
    from support.envelopes import fact_append

    node.apply([fact_append("s", "n", n, lamport=n + 1) for n in range(count)])
    assert offsets(list(node.log.range())) == list(range(1, count + 1))
    assert offsets(node.log.tail(3)) == [count - 2, count - 1, count]
    assert len(node.log.tail(10_000)) == count


def test_Z3_an_empty_log_has_an_empty_range(node: Node) -> None:
    assert list(node.log.range()) == []
    assert node.log.tail() == []
    assert node.log.head() == Head(1, 1, 0)


# --- consumers ------------------------------------------------------------------------------------


def test_Z4_a_consumer_begins_where_it_is_told(node: Node) -> None:
    fill(node, 4)
    log = node.log
    log.add_consumer("all")
    log.add_consumer("none", start="now")
    log.add_consumer("some", start=3)
    log.add_consumer("next", start=5)
    assert offsets(log.fetch("all")) == [1, 2, 3, 4]
    assert log.fetch("none") == []
    assert offsets(log.fetch("some")) == [3, 4]
    assert log.fetch("next") == []
    fill(node, 1)
    assert offsets(log.fetch("none")) == offsets(log.fetch("next")) == [5]
    assert {c.name: c.lag for c in log.consumers()} == {"all": 5, "next": 1, "none": 1, "some": 3}


def test_Z4_a_consumer_is_registered_once_under_a_name(node: Node) -> None:
    node.log.add_consumer("reader")
    with pytest.raises(AlreadyExists):
        node.log.add_consumer("reader", start="now")
    for name in ("", "a\0", "x" * (CONSUMER_NAME_BYTES_MAX + 1)):
        with pytest.raises((BadKey, OverLimit)):
            node.log.add_consumer(name)
    with pytest.raises(PastEnd):
        node.log.add_consumer("late", start=2)
    with pytest.raises(BadInput):
        node.log.add_consumer("odd", start="middle")
    assert [c.name for c in node.log.consumers()] == ["reader"]


def test_Z4_a_fetch_gives_the_same_again_until_it_is_confirmed(node: Node) -> None:
    fill(node, 5)
    node.log.add_consumer("reader")
    assert offsets(node.log.fetch("reader", 2)) == [1, 2]
    assert offsets(node.log.fetch("reader", 2)) == [1, 2]
    assert node.log.confirm("reader", 2).frontier == 2
    assert offsets(node.log.fetch("reader", 2)) == [3, 4]
    node.log.confirm("reader", 5)
    assert node.log.fetch("reader") == []
    for limit in (0, -1, FETCH_ROWS_MAX + 1):
        with pytest.raises(OverLimit):
            node.log.fetch("reader", limit)


def test_Z4_a_confirmation_is_cumulative_and_never_goes_back(node: Node) -> None:
    fill(node, 5)
    node.log.add_consumer("reader")
    assert node.log.confirm("reader", 3).frontier == 3
    for back in (0, 1, 3):
        assert node.log.confirm("reader", back).frontier == 3
    assert node.log.confirm("reader", 5).lag == 0


def test_Z4_a_confirmation_past_the_end_is_an_error(node: Node) -> None:
    node.log.add_consumer("reader")
    with pytest.raises(PastEnd):
        node.log.confirm("reader", 1)
    fill(node, 2)
    with pytest.raises(PastEnd):
        node.log.confirm("reader", 3)
    with pytest.raises(PastEnd):
        node.log.confirm("reader", ranges=[(1, 2), (2, 5)])
    assert node.log.consumers()[0].frontier == 0, "all of it or nothing"


def test_Z4_a_confirmation_may_be_selective(node: Node) -> None:
    fill(node, 9)
    log = node.log
    log.add_consumer("reader")
    seen = log.confirm("reader", ranges=[(2, 4), (6, 8)])
    assert (seen.frontier, seen.beyond, seen.lag) == (0, ((2, 4), (6, 8)), 5)
    assert offsets(log.fetch("reader")) == [1, 4, 5, 8, 9]
    assert offsets(log.fetch("reader", 3)) == [1, 4, 5]
    assert log.confirm("reader", ranges=[(1, 2)]).frontier == 3
    seen = log.confirm("reader", 5)
    assert (seen.frontier, seen.beyond, seen.lag) == (7, (), 2)
    assert log.confirm("reader", ranges=[]).frontier == 7


def test_Z4_a_confirmation_says_what_it_means(node: Node) -> None:
    fill(node, 3)
    node.log.add_consumer("reader")
    with pytest.raises(BadInput):
        node.log.confirm("reader")
    with pytest.raises(BadInput):
        node.log.confirm("reader", 1, ranges=[(1, 2)])
    for wrong in ([(0, 2)], [(3, 2)]):
        with pytest.raises(BadValue):
            node.log.confirm("reader", ranges=wrong)
    with pytest.raises(BadValue):
        node.log.confirm("reader", -1)


def test_Z4_a_consumer_survives_a_restart(nodes: Nodes, clock: HandClock) -> None:
    node = nodes.open()
    fill(node, 5)
    node.log.add_consumer("reader")
    clock.advance(5)
    node.log.confirm("reader", ranges=[(1, 3), (4, 5)])
    before = node.log.consumers()
    assert before[0].seen_at == before[0].created_at + 5
    node = nodes.reopen(node)
    assert node.log.consumers() == before
    assert offsets(node.log.fetch("reader")) == [3, 5]


@pytest.mark.parametrize("call", ["fetch", "confirm", "retire"])
def test_Z4_an_unknown_consumer_is_a_typed_error(node: Node, call: str) -> None:
    args = ("nobody", 0) if call == "confirm" else ("nobody",)
    with pytest.raises(UnknownConsumer):
        getattr(node.log, call)(*args)


# --- truncation -----------------------------------------------------------------------------------


def test_Z5_the_log_waits_for_its_slowest_consumer(node: Node, clock: HandClock) -> None:
    fill(node, 8)
    node.log.add_consumer("fast")
    node.log.add_consumer("slow")
    node.log.confirm("fast", 8)
    node.log.confirm("slow", ranges=[(1, 4), (6, 9)])
    assert forget(node, clock) == 3, "only the contiguous prefix counts"
    assert node.log.head() == Head(1, 4, 8)
    assert offsets(node.log.fetch("slow")) == [4, 5]
    node.log.confirm("slow", 8)
    assert forget(node, clock) == 4, "the last entry stays"
    assert node.log.head() == Head(1, 8, 8)


def test_Z5_the_log_is_kept_for_its_time_whoever_has_read_it(node: Node, clock: HandClock) -> None:
    fill(node, 3)
    clock.advance(1000)
    fill(node, 3)
    node.log.add_consumer("reader")
    node.log.confirm("reader", 6)
    assert node.sweep(Ttl(log_ms=1001)).log_entries == 0
    assert node.sweep(Ttl(log_ms=1000)).log_entries == 3
    assert node.log.head().first == 4
    assert node.sweep().log_entries == 0, "ninety days by default"
    clock.advance(90 * 24 * 3600 * 1000 + 1)
    assert node.sweep().log_entries == 2


def test_Z5_a_clock_that_jumps_back_forgets_nothing_early(node: Node, clock: HandClock) -> None:
    fill(node, 2)
    clock.advance(-10_000)
    fill(node, 2)
    assert node.sweep(Ttl(log_ms=0)).log_entries == 0, "recorded in what is now the future"
    clock.advance(10_001)
    assert node.sweep(Ttl(log_ms=0)).log_entries == 3


def test_Z5_what_is_gone_is_never_skipped_silently(node: Node, clock: HandClock) -> None:
    fill(node, 6)
    reading = node.log.range(2)
    assert forget(node, clock) == 5
    for ask in (
        lambda: list(node.log.range()),
        lambda: list(node.log.range(5, 7)),
        lambda: node.log.add_consumer("late", start=3),
        lambda: list(reading),
    ):
        with pytest.raises(Truncated) as gone:
            ask()
        assert gone.value.first_available == 6
    assert offsets(list(node.log.range(6))) == [6]
    node.log.add_consumer("fresh")
    assert offsets(node.log.fetch("fresh")) == [6], "from the first that is there"


def test_Z5_a_retired_consumer_holds_nothing_back(node: Node, clock: HandClock) -> None:
    fill(node, 4)
    node.log.add_consumer("gone")
    assert forget(node, clock) == 0
    node.log.retire("gone")
    assert forget(node, clock) == 3
    with pytest.raises(UnknownConsumer):
        node.log.fetch("gone")
    with pytest.raises(Truncated):
        node.log.add_consumer("gone", start=1)


def test_Z5_offsets_go_on_after_truncation_and_restart(nodes: Nodes, clock: HandClock) -> None:
    node = nodes.open()
    fill(node, 4)
    forget(node, clock)
    node = nodes.reopen(node)
    fill(node, 1)
    assert node.log.head() == Head(1, 4, 5)
