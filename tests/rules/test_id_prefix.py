"""What the beginning of an id may mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.id_prefix import as_number, is_whole, prefix_span, shortest_apart
from holdfast.rules.ids import id_text

IDS = st.binary(min_size=16, max_size=16)


@given(IDS, IDS, st.integers(1, 36))
def test_U2_a_span_holds_exactly_the_ids_that_begin_so(one: bytes, other: bytes, many: int) -> None:
    begin = id_text(one)[:many]
    span = prefix_span(begin)
    assert span is not None
    assert span.first <= one <= span.last
    begins = id_text(other).replace("-", "").startswith(begin.replace("-", ""))
    assert (span.first <= other <= span.last) is begins


@pytest.mark.parametrize("text", ["", "-", "x", "0x1", "1 2", "é", "٣", "a" * 33])
def test_U2_what_begins_no_id_has_no_span(text: str) -> None:
    assert prefix_span(text) is None


def test_U2_digits_after_a_zero_are_an_id_and_others_a_number_first() -> None:
    assert [as_number(text) for text in ("1", "17", "999999999")] == [1, 17, 999_999_999]
    assert [as_number(text) for text in ("0", "0193", "1a", "-1", "", "٣", "1" * 10)] == [None] * 7


@given(st.lists(IDS, min_size=1, max_size=9, unique=True))
def test_U2_what_is_proposed_tells_ids_apart(raw: list[bytes]) -> None:
    ids = [id_text(one) for one in raw]
    for id, shown in zip(ids, shortest_apart(ids), strict=True):
        span = prefix_span(shown)
        assert span is not None
        assert [one for one in ids if one.startswith(shown)] == [id]


def test_U2_an_id_that_is_whole_needs_no_search() -> None:
    id = id_text(b"\x01" * 16)
    assert is_whole(id)
    assert is_whole(id.replace("-", ""))
    assert not is_whole(id[:35])
