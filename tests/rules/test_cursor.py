"""Where a reader goes on, and when a log cannot go on there."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rules.cursor import LogCursor, resolve_since
from holdfast.rules.errors import BadInput, EpochChanged, PastEnd, Truncated

LOG = {"epoch": 2, "first": 5, "head": 9}


@pytest.mark.parametrize(
    ("since", "offset"),
    [
        (None, 9),
        ("start", 4),
        (4, 4),
        (7, 7),
        ("7", 7),
        ("2:7", 7),
        (LogCursor(2, 9), 9),
        ((2, 4), 4),
        (str(LogCursor(2, 8)), 8),
    ],
)
def test_Z4_a_reader_goes_on_after_a_cursor_an_offset_or_from_the_start(
    since: Any, offset: int
) -> None:
    assert resolve_since(since, **LOG) == LogCursor(2, offset)


def test_Z5_what_is_gone_is_told_with_the_first_offset_there_is() -> None:
    for since in (3, 0, "2:3"):
        with pytest.raises(Truncated, match="the log begins at 5") as gone:
            resolve_since(since, **LOG)
        assert gone.value.first_available == 5
        assert gone.value.hint.endswith("after 2:4")


def test_Z4_past_the_end_is_an_error() -> None:
    with pytest.raises(PastEnd, match="at 9"):
        resolve_since(10, **LOG)


def test_S13_a_cursor_of_another_epoch_is_refused_also_where_its_offset_is_there() -> None:
    """The log has gone back in between: what stands there now is not what was read."""
    for since in ("1:7", LogCursor(3, 7)):
        with pytest.raises(EpochChanged) as changed:
            resolve_since(since, **LOG)
        assert changed.value.epoch == 2


@pytest.mark.parametrize(
    "since",
    ["", "x", ":", "1:", ":1", "1:2:3", "-1", "٣", "9" * 5000, -1, 1.5, True, (1,), (1, "2"), b"1"],
)
def test_U1_what_is_no_place_is_refused(since: Any) -> None:
    with pytest.raises(BadInput, match="no place in a log"):
        resolve_since(since, **LOG)
