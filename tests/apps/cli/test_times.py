"""Times, spans and sizes from the command line: one that is out of range is refused in words."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.cli.times import iso, parse_as_of, parse_size, parse_span, parse_time
from holdfast.rules.errors import BadInput


@pytest.mark.parametrize(
    "text",
    ["0001-01-01T00:00:00+14:00", "1969-12-31", "10000-01-01", "9999-12-31T24:01", "2399", "now"],
)
def test_U2_a_time_outside_of_what_is_kept_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_time(text)


@pytest.mark.parametrize("text", ["2399-01-01", "9999-12-31T23:59:59-14:00", "1970-01-01"])
def test_U2_a_far_time_is_taken_and_shown(text: str) -> None:
    assert iso(parse_time(text))


@pytest.mark.parametrize("text", ["9" * 400 + "d", "99999999999d", "9" * 20])
def test_U2_a_span_or_size_beyond_all_bounds_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_span(text + ("" if text.endswith("d") else "ms"))
    with pytest.raises(BadInput):
        parse_size(text.replace("d", "TiB"))


@given(st.text(max_size=30) | st.from_regex(r"[0-9:TZ+-]{1,30}", fullmatch=True))
def test_U2_any_text_is_a_time_a_span_a_size_or_refused(text: str) -> None:
    for parse in (parse_time, parse_as_of, parse_span, parse_size):
        with suppress(BadInput):
            parse(text)
