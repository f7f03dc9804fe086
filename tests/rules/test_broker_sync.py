"""How a node stands with its broker: where it goes on, what it brings again, what it tries when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.backoff import Allowance
from holdfast.rules.broker_sync import (
    Cursor,
    LostAtBroker,
    Meaning,
    Move,
    SyncState,
    after_error,
    check_place,
    epoch_moved,
    is_forged,
    is_gap,
    meaning_of,
    settled,
    status_name,
)
from holdfast.rules.errors import (
    BadAnswer,
    EpochMismatch,
    FeatureParamBelowFloor,
    FeatureParamInvalid,
    FeatureUnavailable,
    NotAMember,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.limits import BACKOFF_MS_MAX, EPOCH_LEAP_MAX, EPOCHS_MAX, SYNC_IDLE_MS

HELD = range(1, 10)
"""This node knows of something in each of these epochs."""


def test_D6_a_broker_that_only_grew_is_read_on_from_the_cursor() -> None:
    assert epoch_moved(Cursor(3, 40), 3, [(1, 0), (2, 10), (3, 20)], 99, HELD) is None
    assert epoch_moved(Cursor(3, 40), 3, [(3, 20)], 40, HELD) is None


def test_D6_a_broker_that_ends_before_our_cursor_is_told_of_it() -> None:
    """It begins a new epoch then, and only that one has a base to count by."""
    assert epoch_moved(Cursor(3, 40), 3, [(3, 20)], 30, HELD) is None


def test_D6_a_first_look_begins_at_the_beginning() -> None:
    assert epoch_moved(Cursor(0, 0), 2, [(1, 0), (2, 10)], 50, HELD) == Move(Cursor(2, 0))


def test_D6_what_stood_above_the_base_of_a_new_epoch_is_brought_again() -> None:
    move = epoch_moved(Cursor(1, 100), 2, [(1, 0), (2, 60)], 60, HELD)
    assert move == Move(Cursor(2, 60), (LostAtBroker(1, 60),), own=True)


def test_D6_a_cursor_below_the_base_stays_where_it_is_and_pushes_above_it_are_brought() -> None:
    """Acks may tell of a higher seq than the cursor: what we pushed ourselves is not fed back."""
    move = epoch_moved(Cursor(1, 40), 2, [(1, 0), (2, 60)], 80, HELD)
    assert move == Move(Cursor(2, 40), (LostAtBroker(1, 60),), own=False)


def test_D6_several_epochs_that_were_slept_through_count_by_the_lowest_base() -> None:
    move = epoch_moved(Cursor(1, 100), 4, [(1, 0), (2, 90), (3, 50), (4, 70)], 75, HELD)
    assert move is not None
    assert move.cursor == Cursor(4, 50)
    assert move.lost == (LostAtBroker(1, 50),)


def test_D6_an_older_backup_than_last_time_takes_what_an_earlier_epoch_had_kept() -> None:
    """(1, 80) outlived epoch 2, whose base was 100; the base of epoch 3 is below it."""
    move = epoch_moved(Cursor(2, 150), 3, [(1, 0), (2, 100), (3, 50)], 50, HELD)
    assert move is not None
    assert move.lost == (LostAtBroker(2, 50), LostAtBroker(1, 50, 100))


def test_D6_what_was_put_back_for_an_earlier_epoch_is_not_put_back_again() -> None:
    move = epoch_moved(Cursor(2, 150), 3, [(1, 0), (2, 100), (3, 120)], 120, HELD)
    assert move is not None
    assert move.lost == (LostAtBroker(2, 120),)


def test_D6_a_lower_epoch_is_not_spoken_with() -> None:
    with pytest.raises(EpochMismatch, match="epoch 2"):
        epoch_moved(Cursor(3, 5), 2, [(1, 0), (2, 3)], 9, HELD)


def test_D6_a_copy_from_another_branch_is_read_anew_and_gets_all_that_it_may_lack() -> None:
    """Epoch 3 began from a copy with 8 changes; then one with 29 of epoch 2 took its place."""
    move = epoch_moved(Cursor(3, 20), 4, [(1, 0), (2, 10), (4, 29)], 29, HELD)
    assert move is not None
    assert move.cursor == Cursor(4, 0)
    assert move.own
    assert [lost[:2] for lost in move.lost] == [(3, 0), (2, 29), (1, 10)]
    assert not any(lost.certain for lost in move.lost), "what was put back before may be there"


def test_D6_an_epoch_that_the_broker_only_passed_by_is_not_the_one_that_was_read() -> None:
    """Its operator began epochs until it was ahead; nothing was ever accepted in epoch 2."""
    move = epoch_moved(Cursor(2, 16), 3, [(1, 0), (2, 20), (3, 20)], 20, HELD)
    assert move is not None
    assert move.cursor == Cursor(3, 0)
    assert move.own
    assert move.lost == (LostAtBroker(2, 0, certain=False), LostAtBroker(1, 20, certain=False))


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=5),
    st.integers(1, 5),
    st.integers(0, 30),
)
def test_D6_whatever_a_broker_forgot_is_in_what_is_put_back(
    bases: list[int], known: int, cursor: int
) -> None:
    """A model: an entry (epoch, seq) is still there if no later epoch began below its seq."""
    epochs = [(1, 0), *((number, base) for number, base in enumerate(bases, 2))]
    last_epoch = epochs[-1][0]
    known = min(known, last_epoch - 1)
    move = epoch_moved(Cursor(known, cursor), last_epoch, epochs, 40, HELD)
    assert move is not None
    for epoch in range(1, known + 1):
        for seq in range(1, 41):
            gone_before = any(seq > base for n, base in epochs if epoch < n <= known)
            gone_now = any(seq > base for n, base in epochs if known < n)
            put_back = any(
                lost.epoch == epoch and seq > lost.above and (lost.upto is None or seq <= lost.upto)
                for lost in move.lost
            )
            if epochs[known - 1][1] != epochs[known][1]:
                assert put_back == (gone_now and not gone_before)
            else:  # the broker has given out nothing in our epoch: it may be another one
                assert put_back or not gone_now or gone_before
    assert all(move.cursor.seq <= base for n, base in epochs if n > known)


def test_D6_only_what_begins_behind_the_cursor_is_a_gap() -> None:
    assert is_gap(Cursor(1, 10), 1, 11)
    assert not is_gap(Cursor(1, 10), 1, 10)
    assert not is_gap(Cursor(1, 10), 1, 3)


def test_D13_an_envelope_in_our_name_is_ours_if_an_older_log_of_ours_wrote_it() -> None:
    assert not is_forged(known=True, its_epoch=2, our_epoch=2)
    assert not is_forged(known=False, its_epoch=1, our_epoch=2)
    assert is_forged(known=False, its_epoch=2, our_epoch=2)
    assert is_forged(known=False, its_epoch=3, our_epoch=2)


@pytest.mark.parametrize(
    ("status", "code", "meaning"),
    [
        (201, "", Meaning.DONE),
        (200, "", Meaning.DONE),
        (409, "epoch_mismatch", Meaning.AGAIN),
        (409, "idempotency_key_reused", Meaning.REFUSED),
        (404, "unknown_destination", Meaning.REFUSED),
        (403, "not_granted", Meaning.REFUSED),
        (403, "not_a_member", Meaning.OUT),
        (404, "unknown_mesh", Meaning.OUT),
        (429, "too_many", Meaning.LATER),
        (503, "store_closed", Meaning.LATER),
        (507, "disk_full", Meaning.LATER),
        (500, "broken", Meaning.LATER),
        (500, "outcome_unknown", Meaning.LATER),
    ],
)
def test_D12_an_answer_means_one_thing(status: int, code: str, meaning: Meaning) -> None:
    assert meaning_of(status, code) is meaning


@pytest.mark.parametrize(
    "error",
    [
        FeatureUnavailable("x"),
        FeatureParamInvalid("x"),
        FeatureParamBelowFloor("x"),
        ZoneNotTrusted("x"),
        NotAMember("x"),
        EpochMismatch("x"),
    ],
)
def test_D9_what_a_person_must_put_right_stops_and_is_looked_at_rarely(error: Exception) -> None:
    plan = after_error(error, 0, 0.5)
    assert plan.state is SyncState.STOPPED
    assert plan.delay_ms is not None
    assert plan.delay_ms >= BACKOFF_MS_MAX // 2


@pytest.mark.parametrize("error", [Unreachable("x"), BadAnswer("x"), RuntimeError("x")])
def test_D14_what_may_pass_is_tried_again_soon_and_then_less_often(error: Exception) -> None:
    first, later = after_error(error, 0, 0.9), after_error(error, 9, 0.9)
    assert first.state is later.state is SyncState.RECONNECTING
    assert first.delay_ms is not None
    assert later.delay_ms is not None
    assert first.delay_ms < later.delay_ms <= BACKOFF_MS_MAX


def test_D14_a_silent_connection_with_nothing_to_send_is_idle() -> None:
    assert settled(SyncState.ACTIVE, SYNC_IDLE_MS, waiting=False) is SyncState.IDLE
    assert settled(SyncState.ACTIVE, SYNC_IDLE_MS, waiting=True) is SyncState.ACTIVE
    assert settled(SyncState.IDLE, 0, waiting=False) is SyncState.ACTIVE
    assert settled(SyncState.RECONNECTING, 0, waiting=True) is SyncState.RECONNECTING
    assert settled(SyncState.STOPPED, SYNC_IDLE_MS, waiting=False) is SyncState.STOPPED


def test_S15_one_word_says_how_a_mesh_stands() -> None:
    assert status_name("personal", False, None) == "local"
    assert status_name("shared_owner", True, SyncState.ACTIVE) == "paused"
    assert status_name("shared_owner", False, None) == "offline"
    assert status_name("shared_guest", False, SyncState.RECONNECTING) == "offline"
    assert status_name("shared_guest", False, SyncState.IDLE) == "idle"
    assert (
        status_name("shared_guest", False, SyncState.ACTIVE, "needs_snapshot") == "needs_snapshot"
    )


# --- a broker that lies --------------------------------------------------------------------------


def test_D6_what_follows_from_a_place_costs_as_much_as_is_held_and_named() -> None:
    """A broker may name any number; what is looked at are the epochs that this node knows."""
    far = 2**62
    move = epoch_moved(Cursor(far, 3), far + 1, [(far + 1, 0)], 0, [1, 7, far])
    assert move is not None
    assert [lost.epoch for lost in move.lost] == [far, 7, 1]
    bases = [(1, 0), (3, 1), (far, 2), (far + 1, 1)]
    move = epoch_moved(Cursor(far, 3), far + 1, bases, 2, [1])
    assert move is not None
    assert [lost.epoch for lost in move.lost] == [far], "of epoch 1 nothing was left above"


@pytest.mark.parametrize(
    ("epoch", "bases", "last"),
    [
        (2, [], 9),
        (2, [(1, 0), (3, 4)], 9),
        (3, [(1, 0), (3, 4), (3, 5)], 9),
        (3, [(2, 0), (1, 4), (3, 5)], 9),
        (1, [(0, 0), (1, 0)], 9),
        (2, [(1, 0), (2, 10)], 9),
        (EPOCHS_MAX + 1, [(number, 0) for number in range(1, EPOCHS_MAX + 2)], 9),
    ],
    ids=str,
)
def test_D6_a_place_that_no_broker_comes_to_is_refused(
    epoch: int, bases: list[tuple[int, int]], last: int
) -> None:
    with pytest.raises(BadAnswer):
        check_place(Cursor(1, 0), epoch, bases, last)


def test_D6_a_leap_over_more_epochs_than_can_have_been_is_refused() -> None:
    bases = [(1, 0), (EPOCH_LEAP_MAX + 3, 5)]
    check_place(Cursor(3, 0), EPOCH_LEAP_MAX + 3, bases, 5)
    with pytest.raises(EpochMismatch, match="can have begun"):
        check_place(Cursor(2, 0), EPOCH_LEAP_MAX + 3, bases, 5)


def test_D14_what_is_allowed_comes_back_with_time_and_no_faster() -> None:
    left: Allowance | None = Allowance(3, 100)
    for _ in range(3):
        assert left is not None
        left = left.spend(1000)
    assert left is not None
    assert left.spend(1099) is None
    more = left.spend(1100)
    assert more is not None
    assert more.spend(1199) is None
    assert more.spend(1200) is not None
    later = more.spend(100_000)
    assert later is not None
    assert later.spent == 1, "and never more than `most`"
