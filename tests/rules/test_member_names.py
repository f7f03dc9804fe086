"""A member is meant by its name, or by its key in any spelling."""

from __future__ import annotations

import pytest

from holdfast.rules.errors import AmbiguousId
from holdfast.rules.keys import card_of, text_of
from holdfast.rules.member_names import key_text, meant_key, whole_key

BOB, EVE, TWIN = bytes(range(32)), bytes(range(1, 33)), bytes((*range(31), 99))
KNOWN = [("bob", BOB), ("eve", EVE), (text_of(EVE)[:6], BOB)]


@pytest.mark.parametrize(
    "named",
    ["bob", text_of(BOB), BOB.hex(), card_of("any:name", BOB), text_of(BOB)[:5], BOB.hex()[:8]],
)
def test_B6_a_member_is_meant_by_its_name_or_its_key_in_any_spelling(named: str) -> None:
    assert meant_key(named, KNOWN) == BOB


def test_B6_a_name_goes_before_a_key_that_begins_so() -> None:
    assert meant_key(text_of(EVE)[:6], KNOWN) == BOB
    assert meant_key(text_of(EVE)[:7], KNOWN) == EVE


@pytest.mark.parametrize("named", ["", "bo", "carl", text_of(TWIN), "z" * 64, text_of(BOB)[:3]])
def test_B6_what_no_member_has_means_nobody(named: str) -> None:
    assert meant_key(named, KNOWN) is None


def test_B6_a_beginning_that_two_keys_have_is_refused_with_both() -> None:
    with pytest.raises(AmbiguousId) as refused:
        meant_key(text_of(BOB)[:8], [*KNOWN, ("twin", TWIN)])
    assert {id for id, _ in refused.value.candidates} == {text_of(BOB), text_of(TWIN)}
    with pytest.raises(AmbiguousId):
        meant_key("bob", [*KNOWN, ("bob", TWIN)])


def test_B6_every_spelling_becomes_that_of_a_card() -> None:
    for named in (text_of(BOB), BOB.hex(), card_of("bob", BOB)):
        assert key_text(named) == text_of(BOB)
        assert whole_key(named) == BOB
    assert key_text("bob") == "bob"
