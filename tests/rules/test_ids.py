"""Message ids: UUIDs of version 7 or 8, and nothing else passes for one."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadId
from holdfast.rules.ids import check_id, id_text, id_time_ms, parse_id, uuid7
from holdfast.service.clock import SystemClock

TIMES = st.integers(0, 2**48 - 1)
RANDOM = st.binary(min_size=10, max_size=10)


@given(TIMES, RANDOM)
def test_D3_an_id_says_its_version_its_variant_and_its_time(at: int, random: bytes) -> None:
    raw = uuid7(at, random)
    assert check_id(raw) == raw
    known = uuid.UUID(bytes=raw)
    assert known.version == 7
    assert known.variant == uuid.RFC_4122
    assert id_time_ms(raw) == at
    assert id_text(raw) == str(known)


@given(TIMES, RANDOM)
def test_D3_text_and_bytes_are_one_id(at: int, random: bytes) -> None:
    raw = uuid7(at, random)
    for text in (id_text(raw), id_text(raw).upper(), raw.hex()):
        assert parse_id(text) == raw


@given(TIMES, TIMES, RANDOM, RANDOM)
def test_D3_later_ids_sort_after_earlier_ones(a: int, b: int, ra: bytes, rb: bytes) -> None:
    if a < b:
        assert uuid7(a, ra) < uuid7(b, rb)


def test_D3_randomness_is_kept_but_for_the_six_marks() -> None:
    ones, zeros = uuid7(0, b"\xff" * 10), uuid7(0, b"\0" * 10)
    assert int.from_bytes(ones) ^ int.from_bytes(zeros) == (2**12 - 1) << 64 | (2**62 - 1)


GOOD = "018bcfe5-6800-7000-8000-000000000001"


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "nonsense", GOOD[:-1], GOOD + "0", GOOD.replace("7000", "4000")),
        *(GOOD.replace("8000", "c000"), GOOD.replace("8000", "0000"), "{" + GOOD + "}"),
        *(" " + GOOD, GOOD + "\n", GOOD.replace("-", " "), "urn:uuid:" + GOOD, "\uff10" * 32),
        *("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    ],
)
def test_D3_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadId):
        parse_id(text)


@pytest.mark.parametrize("given", [None, 7, b"\0" * 16, uuid.UUID(GOOD)])
def test_D3_an_id_is_given_as_text(given: object) -> None:
    with pytest.raises(BadId):
        parse_id(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, 15, 17])
def test_D3_an_id_has_sixteen_bytes(length: int) -> None:
    with pytest.raises(BadId):
        check_id(uuid7(0, b"\0" * 10)[:1] * length)


def test_D3_the_real_source_mints_ids_that_grow() -> None:
    source = SystemClock()
    minted = [source.new_id() for _ in range(2000)]
    assert minted == sorted(minted)
    assert len(set(minted)) == 2000
    for raw in minted[:5]:
        check_id(raw)
        assert abs(id_time_ms(raw) - source.now_ms()) < 60_000
