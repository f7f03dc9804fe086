"""Which homes are taken for copies."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.home_copy import HomeNote, HomePlace, place_of

HERE = HomeNote(host="h1", boot="b1", device=7, inode=42)


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({}, "same"),
        ({"boot": "b2"}, "same"),
        ({"boot": "b2", "device": 8}, "same"),  # devices are numbered anew at each boot
        ({"device": 8}, "copied"),  # another file system, where the number happens to be the same
        ({"inode": 43}, "copied"),
        ({"inode": 43, "boot": "b2"}, "copied"),
        ({"host": "h2"}, "other_host"),
        ({"host": "h2", "inode": 43}, "other_host"),
        ({"host": None}, "same"),  # a container without a machine id
        ({"host": None, "inode": 43}, "copied"),
        ({"boot": None, "device": 8}, "same"),
    ],
)
def test_S1_a_copied_home_is_told_from_one_that_stayed(
    changed: dict[str, object], place: str
) -> None:
    found = msgspec.structs.replace(HERE, **changed)
    assert place_of(HERE, found) == place
    if "host" in changed and changed["host"] is None:
        assert place_of(found, HERE) == place, "either side may not know its host"
    assert place_of(HERE, found).suspicious == (place in ("copied", "other_host"))


def test_S1_a_home_without_a_note_is_new() -> None:
    assert place_of(None, HERE) is HomePlace.NEW
    assert not HomePlace.NEW.suspicious
