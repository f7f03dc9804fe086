"""Model identities and packed vectors: what is the same, and what is refused."""

from __future__ import annotations

import ctypes
import math
import struct
from array import array
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadVector, OverLimit
from holdfast.rules.limits import SEARCH_LIMIT_MAX, VECTOR_DIM_MAX, VECTOR_NORM_MAX
from holdfast.rules.vectors import (
    Model,
    check_limit,
    check_packed,
    distance,
    pack,
    table_name,
    unpack,
)

MODEL = {"provider": "voyage-ai", "name": "voyage-3-large", "version": "1.0", "dim": 1024}

floats32 = st.floats(width=32, min_value=-1e6, max_value=1e6)


def model(**fields: Any) -> Model:
    return Model(**{**MODEL, **fields})


# --- identity ----------------------------------------------------------------------------------


def test_S8_the_fingerprint_is_the_hash_of_the_five_fields() -> None:
    expected = sha256(b"voyage-ai:voyage-3-large:1.0:1024:float32").hexdigest()[:16]
    assert model().fingerprint == expected
    assert model().fingerprint == "98306826e5eb51fa"  # on every machine, in every version


def test_S8_a_version_that_nobody_told_is_called_unknown() -> None:
    named = Model(provider="custom", name="m", dim=3)
    assert named == Model(provider="custom", name="m", version="unknown", dim=3)


@pytest.mark.parametrize(
    "other",
    [{"provider": "openai"}, {"name": "voyage-3"}, {"version": "1.1"}, {"dim": 1023}],
)
def test_S8_any_field_makes_another_model(other: dict[str, Any]) -> None:
    assert model(**other).fingerprint != model().fingerprint


@given(st.lists(st.text("ab", max_size=2), min_size=3, max_size=6))
def test_S8_no_two_identities_join_to_the_same_text(parts: list[str]) -> None:
    """The same text with colons, cut into the three free fields at any two of them."""
    made = set()
    for first, second in combinations(range(1, len(parts)), 2):
        fields = parts[:first], parts[first:second], parts[second:]
        made.add(_accepted(*(":".join(field) for field in fields)))
    assert len(made - {None}) <= 1


def _accepted(provider: str, name: str, version: str) -> Model | None:
    try:
        return Model(provider=provider, name=name, version=version, dim=8)
    except BadVector:
        return None


def test_S8_the_name_may_hold_a_colon_as_registries_write_them() -> None:
    assert model(name="nomic-embed-text:v1.5").name == "nomic-embed-text:v1.5"


@pytest.mark.parametrize(
    "bad",
    [
        {"provider": "a:b"},
        {"version": "1:0"},
        {"provider": ""},
        {"name": ""},
        {"version": ""},
        {"name": " padded"},
        {"name": "nul\0"},
        {"name": "line\nbreak"},
        {"name": "half\ud800"},
        {"name": "cafe\u0301"},
        {"name": "x" * 257},
        {"name": 7},
        {"dim": 0},
        {"dim": -1},
        {"dim": VECTOR_DIM_MAX + 1},
        {"dim": True},
        {"dim": 3.0},
        {"dim": "3"},
        {"quantization": "int4"},
        {"quantization": "binary", "dim": 12},
        {"quantization": "float64"},
    ],
)
def test_S8_an_identity_that_could_be_mistaken_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadVector):
        model(**bad)


def test_S8_other_quantizations_are_refused_with_a_way_out() -> None:
    with pytest.raises(BadVector) as told:
        model(quantization="int4")
    assert told.value.hint == "use one of: float32, int8, binary"


def test_S8_a_table_is_named_after_its_fingerprint() -> None:
    assert table_name("0123456789abcdef") == "vectors_0123456789abcdef"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "0123456789abcde",
        "0123456789abcdef0",
        "0123456789ABCDEF",
        "0123456789abcdeg",
        "0123456789abcdef\n",
        "0123456789abcde;",
        "x; DROP TABLE vector_model; --",
    ],
)
def test_S8_nothing_but_a_fingerprint_becomes_a_table_name(bad: str) -> None:
    with pytest.raises(BadVector):
        table_name(bad)


# --- packed vectors ----------------------------------------------------------------------------


@given(st.lists(floats32, min_size=1, max_size=40))
def test_S8_a_vector_comes_back_as_it_went_in(values: list[float]) -> None:
    packed = pack(values, len(values))
    assert packed == struct.pack(f"<{len(values)}f", *values)
    assert unpack(packed) == values


def _ways() -> Iterable[tuple[str, Any]]:
    values = [1.0, -2.5, 0.0, 3.25]
    yield "list", values
    yield "tuple", tuple(values)
    yield "generator", (value for value in values)
    yield "ints and floats", [1, -2.5, 0, 3.25]
    yield "fractions", [Fraction(1), Fraction(-5, 2), Fraction(0), Fraction(13, 4)]
    yield "array of floats", array("f", values)
    yield "array of doubles", array("d", values)
    yield "memory of floats", memoryview(array("f", values))
    yield "every second float", memoryview(array("f", [1.0, 9.0, -2.5, 9.0, 0.0, 9.0, 3.25]))[::2]
    yield "swapped floats", (ctypes.c_float.__ctype_be__ * 4)(*values)
    packed = struct.pack("<4f", *values)
    yield "bytes", packed
    yield "bytearray", bytearray(packed)
    yield "memory of bytes", memoryview(packed)


@pytest.mark.parametrize(("_what", "embedding"), list(_ways()))
def test_S8_every_way_to_hand_a_vector_in_packs_the_same(_what: str, embedding: Any) -> None:
    assert pack(embedding, 4) == struct.pack("<4f", 1.0, -2.5, 0.0, 3.25)


def test_S8_an_array_of_small_integers_is_numbers_and_not_packed_bytes() -> None:
    assert unpack(pack(array("B", [1, 2, 3, 4]), 4)) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "embedding",
    [[], [1.0], [1.0] * 3, [1.0] * 5, b"", bytes(15), bytes(17), array("f", [1.0] * 3), ()],
)
def test_S8_a_wrong_dimension_is_refused(embedding: Any) -> None:
    with pytest.raises(BadVector):
        pack(embedding, 4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39, -1e39, 10**400])
@pytest.mark.parametrize("other", [0.0, math.inf])
def test_S8_nan_and_infinity_are_refused_also_after_rounding_to_float32(
    bad: float, other: float
) -> None:
    with pytest.raises(BadVector):
        pack([other, bad], 2)


def test_S8_nan_in_packed_bytes_is_refused() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(BadVector):
            pack(struct.pack("<2f", 1.0, bad), 2)
        with pytest.raises(BadVector):
            check_packed(struct.pack("<2f", 1.0, bad), 2)


@pytest.mark.parametrize(
    "embedding",
    ["text", ["1", "2"], [None, 1.0], [True, 1.0], [1j, 1.0], 7, None, [Decimal(1), 1.0]],
)
def test_S8_what_is_not_numbers_is_refused(embedding: Any) -> None:
    with pytest.raises(BadVector):
        pack(embedding, 2)


def test_S8_a_table_of_vectors_is_not_one_vector() -> None:
    two_by_two = memoryview(array("f", [1.0] * 4)).cast("B").cast("f", (2, 2))
    with pytest.raises(BadVector):
        pack(two_by_two, 4)


def test_S8_a_vector_whose_squared_distance_would_overflow_is_refused() -> None:
    pack([VECTOR_NORM_MAX * 0.99], 1)
    with pytest.raises(BadVector):
        pack([VECTOR_NORM_MAX * 1.01], 1)


@given(st.lists(st.tuples(floats32, floats32), min_size=1, max_size=20))
def test_S8_the_distance_is_euclidean(pairs: list[tuple[float, float]]) -> None:
    one, other = zip(*pairs, strict=True)
    dim = len(pairs)
    assert distance(pack(one, dim), pack(other, dim)) == math.dist(one, other)


@pytest.mark.parametrize("limit", [0, -1, SEARCH_LIMIT_MAX + 1])
def test_S8_a_limit_out_of_bounds_is_refused(limit: int) -> None:
    check_limit(1)
    check_limit(SEARCH_LIMIT_MAX)
    with pytest.raises(OverLimit):
        check_limit(limit)
