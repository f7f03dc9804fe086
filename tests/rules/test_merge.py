"""How the versions of a family become rows."""

from __future__ import annotations

from holdfast.rules.bodies import OPS, family_of
from holdfast.rules.merge import DELETES, MERGES, version_of
from holdfast.rules.order import Version
from support.envelopes import envelope, make_id


def test_S6_every_family_says_how_it_merges() -> None:
    assert set(MERGES) == {family_of(op) for op in OPS} | {"entity"}
    assert DELETES < OPS


def test_S5_the_version_of_an_envelope_is_its_origins() -> None:
    made = envelope("state.delete", "k", origin="bob", lamport=9, id=make_id(4))
    assert version_of(made) == Version(9, "bob", make_id(4))
