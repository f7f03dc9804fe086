"""What links decide: credit, signs of life, which of two connections stays, whom to drop."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.links.credit import ReceivingCredit, SendingCredit
from holdfast.rules.bus.links.dial_plan import DialState, after_dial_error, places_told
from holdfast.rules.bus.links.keepalive import life_check
from holdfast.rules.bus.links.link_choice import InboundVerdict, inbound_verdict
from holdfast.rules.bus.links.strangers import whom_to_drop
from holdfast.rules.errors import (
    AnotherConnection,
    BadAnswer,
    BusClosed,
    HoldfastError,
    NotTrusted,
    OverLimit,
    PeerUnreachable,
    TooMany,
)
from holdfast.rules.limits import BACKOFF_MS_MAX, BUS_ADDRESSES_MAX, BUS_BACK_MS, REFUSALS_BRIEF_MAX

LOW, HIGH = b"a", b"b"


@given(st.integers(0, 2**32), st.lists(st.integers(1, 300), min_size=1, max_size=60))
def test_B6_credit_never_sticks_and_bounds_what_a_receiver_holds(
    seed: int, sizes: list[int]
) -> None:
    window, lots = 100, random.Random(seed)
    sender, receiver = SendingCredit(window), ReceivingCredit(window)
    waiting = list(sizes)
    held: list[int] = []
    grants: list[int] = []
    while waiting or held:
        moves = ["take"] * bool(held) + ["grant"] * bool(grants)
        moves += ["send"] * bool(waiting and sender.left)
        assert moves, "a sender with something to send waits for ever"
        match lots.choice(moves):
            case "send":
                size = waiting.pop(0)
                sender.sent(size)
                receiver.received(size)
                held.append(size)
            case "take":
                grant = receiver.taken(held.pop(lots.randrange(len(held))))
                grants += [grant] if grant else []
            case "grant":
                sender.granted(grants.pop(0))
        assert receiver.held == sum(held) < window + max(sizes)


def test_B6_a_sender_that_does_not_wait_is_refused_and_so_is_a_grant_of_what_was_not_sent() -> None:
    receiver = ReceivingCredit(100)
    receiver.received(99)
    receiver.received(400)
    with pytest.raises(OverLimit):
        receiver.received(1)
    assert receiver.held == 499
    assert receiver.taken(499) == 499
    sender = SendingCredit(100)
    sender.sent(10)
    with pytest.raises(BadAnswer):
        sender.granted(11)
    assert (sender.under_way, sender.left) == (10, 90)


def test_B6_a_silent_peer_is_asked_after_15_seconds_and_dead_after_20() -> None:
    assert life_check(14.0, 0.0, None, 14.0).again_s == 1.0
    asked = life_check(15.0, 0.0, None, 15.0)
    assert (asked.ask, asked.again_s) == (True, 1.0)
    waits = life_check(19.5, 0.0, 15.0, 19.5)
    assert (waits.dead, waits.again_s, waits.asked) == (False, 0.5, 15.0)
    assert life_check(20.0, 0.0, 15.0, 20.0).dead
    assert life_check(14.9999999, 0.0, None, 15.0).ask, "a timer that is early must not spin"
    assert life_check(19.9999999, 0.0, 15.0, 20.0).dead
    heard = life_check(20.0, 16.0, None, 20.0)
    assert (heard.dead, heard.ask, heard.again_s) == (False, False, 11.0)


def test_B6_time_in_which_a_link_stood_still_itself_counts_against_no_peer() -> None:
    # Its question may not have left yet: the peer has its five seconds from here.
    held_up = life_check(27.0, 0.0, 15.0, 16.0)
    assert (held_up.dead, held_up.asked, held_up.again_s) == (False, 26.0, 1.0)
    # At the end of the time the answer may be there, unread: there is one more look.
    last = life_check(32.0, 0.0, 15.0, 20.0)
    assert (last.dead, last.asked, last.again_s) == (False, 27.0, 1.0)
    assert life_check(33.0, 0.0, 27.0, 33.0).dead


@given(st.lists(st.sampled_from((0.0, 0.05, 0.5, 3.0, 30.0)), max_size=30))
def test_B6_a_peer_that_is_gone_is_given_up_however_late_a_link_looks(held_up: list[float]) -> None:
    now, awake, wait = 15.0, 0.0, 1.0
    asked: float | None = now
    for late in [*held_up, *[0.0] * 6]:
        now += wait + late
        awake += wait + (late if late < 0.1 else 0.0)
        check = life_check(now, 0.0, asked, now - late)
        if check.dead:
            break
        asked, wait = check.asked, check.again_s
    assert check.dead
    assert 4.99 < awake < 7.11, "it had five seconds in which the process ran, at most two more"


@pytest.mark.parametrize(
    ("own", "settled", "since", "verdict"),
    [
        (HIGH, True, True, "let_in"),
        (LOW, True, False, "wait"),
        (LOW, False, True, "refuse"),
        (LOW, False, False, "let_in"),
    ],
)
def test_B6_the_lower_key_decides_about_a_connection_that_comes_in(
    own: bytes, settled: bool, since: bool, verdict: str
) -> None:
    peer = HIGH if own == LOW else LOW
    found = inbound_verdict(own, peer, dial_settled=settled, dialled_since=since)
    assert found is InboundVerdict(verdict)


def test_B6_the_oldest_of_the_machine_with_most_strangers_makes_room() -> None:
    assert whom_to_drop(["a", "b", "c", "b", "c", "c"]) == 2
    assert whom_to_drop(["a", "b"]) == 0


@pytest.mark.parametrize(
    ("error", "attempts", "state"),
    [
        (PeerUnreachable("away"), 0, DialState.WAITING),
        (AnotherConnection("other"), 0, DialState.WAITING),
        (TooMany("bad"), 0, DialState.WAITING),
        (NotTrusted("no"), 0, DialState.REFUSED),
        (BadAnswer("what"), REFUSALS_BRIEF_MAX, DialState.REFUSED),
    ],
)
def test_B6_a_failed_dial_is_tried_again_and_a_refused_one_rarely(
    error: HoldfastError, attempts: int, state: DialState
) -> None:
    plan = after_dial_error(error, attempts, 0.0)
    assert plan.state is state
    assert plan.delay_ms is not None
    rare = isinstance(error, TooMany) or attempts >= REFUSALS_BRIEF_MAX
    assert (plan.delay_ms >= BACKOFF_MS_MAX // 2) == rare


def test_B6_nobody_dials_for_a_bus_that_is_closed() -> None:
    assert after_dial_error(BusClosed("over"), 0, 0.5).delay_ms is None


def test_B6_who_said_goodbye_a_moment_ago_is_dialled_soon_however_often_it_failed() -> None:
    away = PeerUnreachable("away")
    for attempts in (0, 5, 40):
        plan = after_dial_error(away, attempts, 0.999, is_back_soon=True)
        assert plan.state is DialState.WAITING
        assert plan.delay_ms is not None
        assert plan.delay_ms < BUS_BACK_MS
    usual = after_dial_error(away, 40, 0.999).delay_ms
    assert usual is not None
    assert usual > 10 * BUS_BACK_MS
    refused = after_dial_error(NotTrusted("no"), 40, 0.5, is_back_soon=True)
    assert refused.state is DialState.REFUSED, "a goodbye lets nobody knock at a shut door"


def test_B6_of_told_places_only_those_are_dialled_that_the_teller_can_mean() -> None:
    told = [
        "0.0.0.0:7412",
        "10.0.0.7:1",
        "127.0.0.1:2",
        "[::1]:2",
        "224.0.0.1:2",
        "x",
        "10.0.0.7:0",
    ]
    told += ["host:3", "10.0.0.7:99999", "[fe80::1]:4"]
    assert places_told(told, "10.0.0.9") == ("10.0.0.9:7412", "10.0.0.7:1", "[fe80::1]:4")
    assert places_told(told, "127.0.0.1") == ("127.0.0.1:7412", "127.0.0.1:2", "[::1]:2")
    assert places_told(told, "elsewhere") == ()
    many = [f"10.0.0.{number}:1" for number in range(50)]
    assert len(places_told(many, "10.0.0.9")) == BUS_ADDRESSES_MAX
