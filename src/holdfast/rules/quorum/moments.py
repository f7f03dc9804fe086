"""Wall-clock times as the source document writes them: RFC 3339 in UTC, with milliseconds.

They are for people and for the source's routes. Nothing is ordered by them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from holdfast.rules.errors import BadValue
from holdfast.rules.limits import SOURCE_TIME_MS_MAX

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_FORM: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})", re.ASCII
)


def moment_text(at_ms: int) -> str:
    """As JavaScript's `toISOString` writes it."""
    if not 0 <= at_ms < SOURCE_TIME_MS_MAX:
        raise BadValue(f"{at_ms} ms after 1970 is not in the calendar")
    return f"{_second_text(at_ms // 1000)}.{at_ms % 1000:03d}Z"


@lru_cache(maxsize=16)
def _second_text(at_s: int) -> str:
    # Cached, because every confirmed read says when it was, and many are of one second.
    at = _EPOCH + timedelta(seconds=at_s)
    return f"{at:%Y-%m-%dT%H:%M:%S}"


def parse_moment(text: str) -> int:
    """The milliseconds after 1970 of a time; finer digits are dropped."""
    if not isinstance(text, str) or _FORM.fullmatch(text) is None:
        raise BadValue(f"{text!r} is not a time", hint="write it as 2026-05-17T08:30:00.000Z")
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadValue(f"{text!r} is not a time: {error}") from None
    found = (at - _EPOCH) // _MILLISECOND
    if not 0 <= found < SOURCE_TIME_MS_MAX:
        raise BadValue(f"{text!r} is before 1970 or after 9999")
    return found
