"""A reader may declare for how long the log waits for it."""

from __future__ import annotations

import pytest

from holdfast.node.library.node import Node
from holdfast.rules.errors import BadInput, BadStamp, UnknownConsumer
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.storage.ports import Transaction
from support.nodes import store_of, team
from support.source import HandClock

DAY_MS = 24 * 3600 * 1000


def test_Z5_a_reader_that_is_absent_for_longer_than_it_declared_is_retired(
    node: Node, clock: HandClock
) -> None:
    node.log.add_consumer("patient")
    node.log.add_consumer("brief", retire_ms=7 * DAY_MS)
    for number in range(3):
        team(node).state.set("k", number)
    clock.advance(6 * DAY_MS)
    node.log.confirm("brief", 1)
    clock.advance(7 * DAY_MS - 1000)
    assert node.sweep().consumers == (), "not longer than declared"
    clock.advance(2000)
    assert node.sweep().consumers == ("brief",)
    assert [reader.name for reader in node.log.consumers()] == ["patient"]
    with pytest.raises(UnknownConsumer):
        node.log.fetch("brief")


def test_Z5_what_a_retired_reader_held_back_may_go(node: Node, clock: HandClock) -> None:
    node.log.add_consumer("brief", retire_ms=DAY_MS)
    for number in range(3):
        team(node).state.set("k", number)
    clock.advance(91 * DAY_MS)
    swept = node.sweep()
    assert (swept.consumers, swept.log_entries) == (("brief",), 2), "all but the last entry"


@pytest.mark.parametrize("wait", [0, -1])
def test_Z5_a_reader_cannot_declare_no_time_at_all(node: Node, wait: int) -> None:
    with pytest.raises(BadInput):
        node.log.add_consumer("x", retire_ms=wait)


def wear_out(tx: Transaction) -> None:
    tx.clock_raise("team", LAMPORT_MAX)


def test_S4_a_clock_at_its_end_says_so_and_writes_nothing(node: Node) -> None:
    store_of(node).write(wear_out)
    with pytest.raises(BadStamp, match="no number left"):
        team(node).state.set("k", 1)
    assert team(node).state.get("k") is None
