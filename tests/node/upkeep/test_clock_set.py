"""A wall clock that was set: what was recorded then, and what a sweep makes of it."""

from __future__ import annotations

import pytest

from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.limits import DAY_MS, HOUR_MS
from support.nodes import Nodes, blob_names, store_of, team
from support.source import HandClock
from support.stores import outbox_row

YEAR = 400 * DAY_MS
SHORT = Ttl(log_ms=DAY_MS, tombstone_ms=DAY_MS, blob_ms=DAY_MS, unread_ms=DAY_MS)


def value_at(node: Node, at_ms: int) -> object:
    return next((one.value for one in team(node).state.as_of("k", at_ms=at_ms)), None)


def test_S19_a_clock_that_was_ahead_once_does_not_hide_what_came_after(
    node: Node, clock: HandClock
) -> None:
    team(node).state.set("k", "before")
    clock.advance(YEAR)
    team(node).state.set("other", "leap")
    clock.advance(HOUR_MS - YEAR)
    assert value_at(node, clock.now_ms()) == "before"
    team(node).state.set("k", "after")
    assert value_at(node, clock.now_ms()) == "after"
    clock.advance(HOUR_MS)
    assert value_at(node, clock.now_ms() - HOUR_MS) == "after"
    assert value_at(node, clock.now_ms() - HOUR_MS - 1) == "before"


def test_S17_one_entry_from_the_future_holds_back_neither_the_log_nor_blobs(
    node: Node, clock: HandClock
) -> None:
    """The outsiders' home: 1 of 222 entries went, and 0 of 199 blobs."""
    mesh = team(node)
    mesh.files.share("first", bytes(70_000))
    clock.advance(YEAR)
    mesh.files.delete("first")
    clock.advance(-YEAR)
    for number in range(20):
        mesh.files.share(f"f{number}", bytes([number + 1]) * 70_000)
        mesh.files.delete(f"f{number}")
    clock.advance(3 * DAY_MS)
    swept = node.sweep(SHORT)
    assert (swept.log_entries, swept.blobs) == (41, 21), "all but the last entry"
    assert blob_names(node) == set()


def test_S17_what_was_written_while_the_clock_was_behind_is_not_old(
    node: Node, clock: HandClock
) -> None:
    team(node).state.set("k", 1)
    clock.advance(-YEAR)
    team(node).state.set("k", 2)
    team(node).state.delete("k")
    clock.advance(YEAR + HOUR_MS)
    team(node).state.set("other", 3)
    assert node.sweep(SHORT).log_entries == 0
    assert node.sweep(SHORT).tombstones == 0
    clock.advance(2 * DAY_MS)
    assert node.sweep(SHORT).log_entries == 3


@pytest.mark.parametrize("wrong", [YEAR, -YEAR], ids=["ahead", "behind"])
def test_Z5_a_reader_that_was_seen_by_a_wrong_clock_is_retired_neither_early_nor_never(
    node: Node, clock: HandClock, wrong: int
) -> None:
    node.log.add_consumer("brief", retire_ms=7 * DAY_MS)
    team(node).state.set("k", 1)
    team(node).state.set("k", 2)
    clock.advance(wrong)
    team(node).state.set("k", 3)
    node.log.confirm("brief", 3)
    clock.advance(HOUR_MS - wrong)
    team(node).state.set("k", 4)
    assert node.sweep().consumers == ()
    clock.advance(8 * DAY_MS)
    assert node.sweep().consumers == ("brief",)


def test_D11_an_item_does_not_wait_for_a_time_of_a_wrong_clock(nodes: Nodes) -> None:
    node = nodes.open()
    store = store_of(node)
    now = nodes.clock.now_ms()
    rows = [outbox_row(1, not_before=now + YEAR), outbox_row(2, not_before=now + 1000)]
    store.write(lambda tx: tx.outbox_add(rows))
    lane = outbox_row(1).lane
    with store.read() as tx:
        assert [row.number for row in tx.outbox_due(lane, now, 9)] == [1]
        assert [row.number for row in tx.outbox_due(lane, now + 1000, 9)] == [1, 2]
