"""Which name a mistyped one may have meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.limits import NEAREST_CHARS_MAX
from holdfast.rules.nearest import nearest

KNOWN = ["build", "built", "deploy/prod", "deploy/stage", "größe", "Team", "a", "zone-one"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("biuld", "build"),
        ("buil", "build"),
        ("builldd", "build"),
        ("buildd", "build"),
        ("deploy/porduction", None),
        ("deploy/prdo", "deploy/prod"),
        ("DEPLOY/PROD", "deploy/prod"),
        ("team", "Team"),
        ("taem", "Team"),
        ("grösse", "größe"),
        ("zone-obe", "zone-one"),
        ("b", None),
        ("", None),
        ("x" * (NEAREST_CHARS_MAX + 1), None),
        ("something else", None),
    ],
)
def test_U2_the_nearest_name_is_a_few_slips_away(given: str, meant: str | None) -> None:
    assert nearest(given, KNOWN) == meant


@given(st.text("abc-", min_size=5, max_size=9), st.integers(0, 8), st.sampled_from("xyz"))
def test_U2_one_slip_is_always_found(name: str, at: int, letter: str) -> None:
    at %= len(name)
    swapped = name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :]
    slips = {
        name[:at] + name[at + 1 :],
        name[:at] + letter + name[at:],
        name[:at] + letter + name[at + 1 :],
        swapped,
    } - {name}
    assert {nearest(slip, [name]) for slip in slips} == {name}
