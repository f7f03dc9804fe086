"""Leaf hashes: what is wrong with an entry, and when its bytes can be told."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules import compiled
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.leaf import DERIVED, damage_of, is_that_entry, leaf_of, leaves_of, restored
from support.envelopes import make_id, state_set

RAW = state_set("k", 1, id=make_id(1), lamport=3)
OTHER = state_set("k", 2, id=make_id(2), lamport=4)


def fields(**changes: Any) -> dict[str, Any]:
    envelope = decode_trusted(RAW)
    columns = {name: getattr(envelope, name) for name in DERIVED}
    return {**columns, "raw": RAW, "leaf": leaf_of(RAW), **changes}


def test_S12_the_leaf_of_nothing_is_that_of_rfc_6962() -> None:
    assert leaf_of(b"").hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"


def test_S12_an_entry_in_order_has_no_damage() -> None:
    assert damage_of(fields()) is None
    assert damage_of(fields(leaf=None)) is None
    assert restored(fields()) == RAW


HOSTILE = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.booleans(), st.just(OTHER)
)


@given(st.sampled_from([*DERIVED, "raw", "leaf"]), HOSTILE)
def test_S12_whatever_stands_in_a_column_damage_is_told_and_nothing_raises(
    name: str, value: Any
) -> None:
    harmed = fields(**{name: value})
    same = type(value) is type(fields()[name]) and value == fields()[name]
    if name == "leaf" and value is None:
        same = True  # as an entry from before hashes
    assert (damage_of(harmed) is None) == same
    assert restored(harmed, search=False) in (RAW, None)
    if name not in ("raw", "leaf"):
        assert restored(harmed) == RAW, "the bytes tell the columns"
    is_that_entry(harmed, OTHER)


@settings(max_examples=12)
@given(st.data())
def test_S12_one_changed_byte_is_found_again(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(RAW) - 1))
    changed = RAW[:at] + bytes((RAW[at] ^ data.draw(st.integers(1, 255)),)) + RAW[at + 1 :]
    harmed = fields(raw=changed)
    assert damage_of(harmed) is not None
    assert restored(harmed) == RAW
    assert restored(harmed, search=False) is None
    assert is_that_entry(harmed, RAW)
    assert not is_that_entry(harmed, OTHER)


@pytest.mark.parametrize("bits", [1, 17, 40])
def test_S12_a_hash_that_was_harmed_itself_does_not_cost_the_entry(bits: int) -> None:
    leaf = (int.from_bytes(leaf_of(RAW)) ^ ((1 << bits) - 1)).to_bytes(32)
    assert damage_of(fields(leaf=leaf)) is not None
    assert restored(fields(leaf=leaf), search=False) == RAW
    assert restored(fields(leaf=leaf_of(OTHER)), search=False) is None


def test_S12_a_large_entry_is_not_searched() -> None:
    large = state_set("k", "x" * 100_000, id=make_id(1), lamport=3)
    harmed = fields(raw=large[:-1] + b"\0", leaf=leaf_of(large))
    assert restored(harmed) is None


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_S12_hashes_of_joined_entries_are_those_of_each_both_ways(raws: list[bytes]) -> None:
    joined, ends = b"".join(raws), list(accumulate(map(len, raws)))
    wanted = b"".join(map(leaf_of, raws))
    assert leaves_of(joined, ends) == wanted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "part", None)
        assert leaves_of(joined, ends) == wanted


@pytest.mark.skipif(compiled.part is None, reason="there is no compiled part")
def test_S12_the_compiled_part_hashes_nothing_beyond_what_it_was_given() -> None:
    for ends in ([5], [3, 2], [-1], [2, 2**40]):
        with pytest.raises(ValueError, match="an entry ends"):
            leaves_of(b"abcd", ends)
