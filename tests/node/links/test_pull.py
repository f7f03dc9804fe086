"""How one pull on demand is judged by what its link shows."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.node.links.pull import PullStanding, PullTicket, follow_pull
from holdfast.node.links.status import LinkStatus
from holdfast.rules.errors import NotGranted
from holdfast.rules.links import LinkState
from holdfast.service.problem import Problem

OLD = Problem("not_granted", "not yet", "", 10)


def link(**facts: Any) -> LinkStatus:
    return LinkStatus(name="bob", zone="bob", url="https://bob:1", since=1, **facts)


def standing(now: LinkStatus, before: LinkStatus | None = None) -> PullStanding:
    return PullStanding.of(PullTicket(2, 5, before or link(epoch=2, cursor=1)), now)


@pytest.mark.parametrize(
    ("epoch", "cursor", "done"), [(2, 4, False), (2, 5, True), (2, 6, True), (1, 9, False)]
)
def test_Z2_a_pull_is_done_at_its_goal_in_the_epoch_of_its_goal(
    epoch: int, cursor: int, done: bool
) -> None:
    assert standing(link(epoch=epoch, cursor=cursor)).done is done


def test_Z2_what_was_wrong_before_a_pull_says_nothing_of_it() -> None:
    refused = link(epoch=2, state=LinkState.REFUSED, attempts=3, last_error=OLD)
    assert not standing(refused, before=refused).over
    again = link(epoch=2, state=LinkState.REFUSED, attempts=4, last_error=OLD)
    assert standing(again, before=refused).trouble is OLD


def test_Z2_a_pull_waits_while_its_link_tries_again_and_raises_what_needs_somebody() -> None:
    tries = link(epoch=2, state=LinkState.WAITING, attempts=1, last_error=OLD)
    assert not standing(tries).over
    looks = [standing(tries), standing(link(epoch=2, attempts=1, last_error=OLD, state="refused"))]
    with pytest.raises(NotGranted, match="not yet"):
        follow_pull(lambda ticket: looks.pop(0), by_daemon=True)
    assert not looks


def test_Z2_a_pull_counts_what_came_since_it_began() -> None:
    before = link(epoch=2, cursor=1, new=7, bytes=70)
    done = link(epoch=2, cursor=5, new=11, bytes=100)
    found = follow_pull(lambda ticket: standing(done, before), by_daemon=True)
    assert (found.before, found.cursor, found.new, found.bytes) == (1, 5, 4, 30)
    # A daemon that has begun anew counts from zero.
    anew = follow_pull(lambda ticket: standing(link(epoch=2, cursor=5), before), by_daemon=True)
    assert anew.new == 0
