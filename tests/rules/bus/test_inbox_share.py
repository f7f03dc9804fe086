"""How much of the inbox one peer may fill."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast.rules.bus.acceptance import InboxShare
from holdfast.rules.errors import BusInboxFull

EVE, BEN, CAT = b"e" * 32, b"b" * 32, b"c" * 32


def fill(share: InboxShare, sender: bytes, size: int = 0) -> int:
    """How many messages of a sender are taken, one by one."""
    for taken in range(1_000_000):
        try:
            share.take(sender, 1, size)
        except BusInboxFull:
            return taken
    raise AssertionError("the inbox has no end")


def test_B4_one_flood_fills_half_of_the_inbox_and_two_a_third_each() -> None:
    share = InboxShare(99, 1 << 30)
    assert fill(share, EVE) == 49 + 1  # the last one is when it leaves as much as it has
    share = InboxShare(99, 1 << 30)
    more = True
    while more:
        before = share.count
        for sender in (EVE, BEN):
            with suppress(BusInboxFull):
                share.take(sender, 1, 0)
        more = share.count > before
    assert share.count in (66, 67)
    share.take(CAT, 30, 0)


def test_B4_large_bodies_are_bounded_as_well() -> None:
    share = InboxShare(1000, 100)
    assert fill(share, EVE, 10) == 5
    share.take(BEN, 1, 50)
    with pytest.raises(BusInboxFull):
        share.take(BEN, 1, 1)
    share.give_back(EVE, 5, 50)
    share.take(EVE, 1, 25)


def test_B4_a_batch_is_never_too_large_for_an_empty_inbox() -> None:
    share = InboxShare(10, 100)
    share.take(EVE, 10, 5000)
    with pytest.raises(BusInboxFull):
        share.take(EVE, 1, 0)
    share.give_back(EVE, 10, 5000)
    share.take(EVE, 10, 5000)


def test_B4_what_an_earlier_life_left_counts() -> None:
    share = InboxShare(10, 100)
    share.fill([(EVE, 5, 10), (BEN, 1, 5)])
    assert (share.count, share.bytes) == (6, 15)
    with pytest.raises(BusInboxFull):
        share.take(EVE, 1, 0)
    share.take(CAT, 2, 0)
    share.give_back(EVE, 5, 7)  # bodies may have been sealed meanwhile: nothing is left behind
    assert (share.count, share.bytes) == (3, 5)
