"""Who uses a key: one process after the other, or several at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.links.key_lives import KeyLives
from holdfast.rules.limits import BUS_COPIED_MS, BUS_LIVES_BACK, BUS_LIVES_KEPT


def _life(number: int) -> bytes:
    return number.to_bytes(16)


@given(st.lists(st.booleans(), max_size=40))
def test_B6_restarts_and_new_links_of_one_process_raise_no_doubt(restarts: list[bool]) -> None:
    lives, number = KeyLives(), 1
    for now, is_restart in enumerate(restarts):
        number += is_restart
        assert not lives.is_doubtful(_life(number), now)
        lives = lives.came(_life(number), now)
        assert len(lives.lives) <= BUS_LIVES_KEPT
    assert not lives.is_copied(len(restarts))


def test_B6_a_life_that_comes_back_is_asked_about_and_proves_it_when_it_happens_in_turn() -> None:
    lives, one, two = KeyLives(), _life(1), _life(2)
    lives = lives.came(one, 0).came(two, 1)
    assert lives.is_doubtful(one, 2)
    assert not lives.is_doubtful(_life(3), 2), "a restart"
    for turn in range(1, BUS_LIVES_BACK):
        lives = lives.came(one if turn % 2 else two, turn)
        assert not lives.is_copied(turn), "what was said may have been on its way"
    lives = lives.came(one if lives.last == two else two, 9)
    assert lives.is_copied(9)
    assert lives.is_doubtful(_life(3), 9), "a third one"
    assert not lives.is_copied(10 + BUS_COPIED_MS), "nothing more was seen of it"


def test_B6_lives_that_come_back_once_in_a_long_while_prove_nothing() -> None:
    lives = KeyLives().came(_life(1), 0).came(_life(2), 0)
    for turn in range(1, 9):
        now = turn * (BUS_COPIED_MS + 1)
        lives = lives.came(_life(1 + (turn + 1) % 2), now)
        assert not lives.is_copied(now)


def test_B6_a_peer_that_says_no_life_is_taken_as_before() -> None:
    lives = KeyLives().came(b"", 0)
    assert lives == KeyLives()
    assert not lives.came(_life(1), 1).proved(2).is_doubtful(b"", 2)
