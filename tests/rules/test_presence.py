"""What a peer says of itself, as far as others show it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rules.bodies import encode_value
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import PRESENCE_NAME_BYTES_MAX, PRESENCE_TEXT_BYTES_MAX
from holdfast.rules.presence import KEY, Introduction, checked_presence, presence_of
from support.stores import memory_row


def said(value: Any, **fields: Any) -> Introduction:
    return presence_of(memory_row("bo", KEY, 1, value=encode_value(value), **fields))


def test_S21_presence_comes_back_as_it_was_said() -> None:
    whole = Introduction("Bo é 雪", "away", "Mends the roof.")
    assert said(whole.document()) == whole
    assert said(Introduction(status="in").document()) == Introduction(status="in")
    assert Introduction().document() == {}
    assert presence_of(None) == said({"status": "in"}, tombstone=True) == Introduction()


@pytest.mark.parametrize("value", [None, 7, "away", ["away"], {"status": 7}, {"other": "x"}])
def test_S21_a_presence_of_another_shape_says_nothing(value: object) -> None:
    assert said(value) == Introduction()


@pytest.mark.parametrize(
    "text", ["a" * (PRESENCE_NAME_BYTES_MAX + 1), "a\x1b[31m", "a\nb", "\u202e"]
)
def test_S21_a_text_that_cannot_be_shown_is_refused_here_and_ignored_there(text: str) -> None:
    with pytest.raises(BadInput, match="status"):
        checked_presence(Introduction(status=text))
    assert said({"status": text, "summary": "fine"}) == Introduction(summary="fine")


def test_S21_the_longest_texts_are_good() -> None:
    longest = Introduction(
        "é" * (PRESENCE_NAME_BYTES_MAX // 2),
        "a" * PRESENCE_NAME_BYTES_MAX,
        "b" * PRESENCE_TEXT_BYTES_MAX,
    )
    assert said(checked_presence(longest).document()) == longest
    with pytest.raises(BadInput):
        checked_presence(Introduction(longest.display_name + "é"))
