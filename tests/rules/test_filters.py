"""Which entries of a log a reader is given."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bodies import OPS
from holdfast.rules.errors import BadInput, BadKey, BadPeerId, OverLimit
from holdfast.rules.filters import CLASSES, EVERYTHING, TERMS_MAX, Filter

FACT = ("team", "fact.append", "sky", "bob", "")


def test_Z6_no_filter_lets_everything_pass() -> None:
    assert EVERYTHING.passes(*FACT)
    assert EVERYTHING.passes("m", "of.a.later.version", "é", "ana", "zoe")
    assert EVERYTHING.wanted_ops is None


@pytest.mark.parametrize(
    ("filter", "passes"),
    [
        (Filter(meshes=("team",)), True),
        (Filter(meshes=("other", "team")), True),
        (Filter(meshes=("teams",)), False),
        (Filter(subjects=("s",)), True),
        (Filter(subjects=("sk", "x")), True),
        (Filter(subjects=("sky/",)), False),
        (Filter(subjects=("S",)), False),
        (Filter(classes=("facts",)), True),
        (Filter(classes=("state",)), False),
        (Filter(ops=("fact.append", "state.set")), True),
        (Filter(ops=("state.set",)), False),
        (Filter(classes=("facts",), ops=("fact.append",)), True),
        (Filter(classes=("state",), ops=("fact.append",)), False),
        (Filter(origins=("bob",)), True),
        (Filter(origins=("ana",)), False),
        (Filter(beyond="ana"), True),
        (Filter(beyond="bob"), False),
        (Filter(meshes=("team",), origins=("ana",)), False),
        (Filter(meshes=("team",), subjects=("s",), classes=("facts",), origins=("bob",)), True),
    ],
)
def test_Z6_every_term_narrows(filter: Filter, passes: bool) -> None:
    assert filter.passes(*FACT) is passes


def test_Z6_what_came_through_a_zone_is_not_sent_back_to_it() -> None:
    back = Filter(beyond="zoe")
    assert back.passes("m", "fact.append", "s", "ana", "")
    assert back.passes("m", "fact.append", "s", "ana", "bob")
    assert not back.passes("m", "fact.append", "s", "ana", "zoe")
    assert not back.passes("m", "fact.append", "s", "zoe", "")
    assert not back.passes("m", "fact.append", "s", "zoe", "ana")


def test_Z8_messages_are_left_out_where_nobody_asked_for_them() -> None:
    state_only = Filter(without_messages=True)
    assert not state_only.passes("m", "message.send", "topic/news", "ana", "")
    assert state_only.passes("m", "state.set", "topic/news", "ana", "")
    assert Filter().passes("m", "message.send", "topic/news", "ana", "")
    assert Filter(classes=("messages",)).passes("m", "message.send", "topic/news", "ana", "")


def test_Z6_the_data_classes_share_out_the_ops_that_are_known() -> None:
    assert set().union(*CLASSES.values()) == OPS
    assert sum(map(len, CLASSES.values())) == len(OPS), "none is of two classes"
    assert CLASSES["facts"] == {"fact.append"}
    for name, ops in CLASSES.items():
        assert Filter(classes=(name,)).wanted_ops == ops
        assert not Filter(classes=(name,)).passes("m", "later.op", "k", "bob", "")


@pytest.mark.parametrize(
    ("filter", "error"),
    [
        (Filter(meshes=("No",)), BadInput),
        (Filter(subjects=("",)), BadKey),
        (Filter(subjects=("a\0",)), BadKey),
        (Filter(origins=(" bob",)), BadPeerId),
        (Filter(beyond="\x1f"), BadPeerId),
        (Filter(classes=("everything",)), BadInput),
        (Filter(ops=("state.sets",)), BadInput),
        (Filter(classes=("state",), ops=("fact.append",)), BadInput),
        (Filter(meshes=tuple(f"m{n}" for n in range(TERMS_MAX + 1))), OverLimit),
        (Filter(origins=tuple(f"o{n}" for n in range(TERMS_MAX + 1))), OverLimit),
    ],
)
def test_Z6_a_filter_that_says_nothing_sensible_is_refused(
    filter: Filter, error: type[BadInput]
) -> None:
    with pytest.raises(error):
        filter.check()


def test_Z6_a_good_filter_is_what_was_given() -> None:
    filter = Filter(meshes=("a",), subjects=("s",), classes=("facts",), origins=("é",), beyond="z")
    assert filter.check() is filter
    assert msgspec.json.decode(msgspec.json.encode(filter), type=Filter) == filter
    assert msgspec.json.encode(EVERYTHING) == b"{}"


_few = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=2).map(tuple)


@given(_few, _few, _few, st.sampled_from(["a", "b", "ab"]), st.sampled_from(["a", "b", "ab"]))
def test_Z6_a_filter_passes_what_passes_each_of_its_terms_alone(
    meshes: tuple[str, ...],
    subjects: tuple[str, ...],
    origins: tuple[str, ...],
    mesh: str,
    other: str,
) -> None:
    whole = Filter(meshes=meshes, subjects=subjects, origins=origins)
    alone = (Filter(meshes=meshes), Filter(subjects=subjects), Filter(origins=origins))
    entry = (mesh, "fact.append", other, other, "")
    assert whole.passes(*entry) is all(term.passes(*entry) for term in alone)
