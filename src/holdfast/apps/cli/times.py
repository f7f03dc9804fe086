"""Times, spans and sizes as people write and read them."""

from __future__ import annotations

import re
from typing import TypedDict

from holdfast.rules.errors import BadInput

_SPANS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DAYS = {"today": 0, "yesterday": 1}
_SIZES = {
    "": 1,
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}
_EXACT_MAX = 2**53
_SIZE_MAX = 2**63 - 1
"""Beyond it a float no longer names one number."""
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


class PastPoint(TypedDict, total=False):
    """A point in the past of a node, as the keywords of the library name it."""

    offset: int
    lamport: int
    at_ms: int


def iso(ms: int) -> str:
    """Milliseconds since 1970 as UTC."""
    from datetime import UTC, datetime, timedelta

    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"  # a peer's clock may say anything
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """An ISO 8601 time as milliseconds since 1970; UTC unless it says otherwise."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"{text!r} is not a time",
            hint="write it as 2026-11-15T10:00:00Z, 2026-11-15, yesterday or 2h (that long ago)",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    ms = round(moment.timestamp() * 1000)
    if ms < 0:
        raise BadInput(f"{text!r} is before 1970", hint="times begin with 1970 here")
    return ms


def parse_as_of(text: str) -> PastPoint:
    """A point in the past of a node: `offset:N`, `lamport:N` or a time."""
    kind, colon, number = text.partition(":")
    if colon and kind in ("offset", "lamport"):
        if not (number.isascii() and number.isdecimal()):
            raise BadInput(f"{text!r} is not a place in the past", hint=f"write it as {kind}:120")
        return {"offset": int(number)} if kind == "offset" else {"lamport": int(number)}
    return {"at_ms": parse_time(text)}


def parse_span(text: str) -> int:
    """`90s`, `15m`, `7d` in milliseconds."""
    return _scaled(text, _SPANS, "span of time", "write it as 90s, 15m, 12h or 7d", _EXACT_MAX)


def parse_moment(text: str) -> int:
    """A time, a day (`today`, `yesterday`: its beginning, in UTC as all our times) or how long ago
    it was (`2h`, `7d`), as milliseconds since 1970.
    """
    word = text.strip().lower()
    if word in _DAYS:
        from datetime import UTC, datetime, timedelta

        begun = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return round((begun - timedelta(days=_DAYS[word])).timestamp() * 1000)
    from time import time

    now_ms = round(time() * 1000)
    if word == "now":
        return now_ms
    if _NUMBER.fullmatch(word) is None:
        return parse_time(text)
    return max(0, now_ms - parse_span(text))


def parse_size(text: str) -> int:
    """`500MiB`, `2GB`, `4096` in bytes."""
    return _scaled(text, _SIZES, "size", "write it as 500MiB, 2GB or a number of bytes", _SIZE_MAX)


def span(ms: int) -> str:
    """A span in the unit that fits it."""
    for unit in ("d", "h", "m", "s"):
        if ms >= _SPANS[unit]:
            return f"{_short(ms / _SPANS[unit])}{unit}"
    return f"{ms}ms"


def size(count: int) -> str:
    """Bytes in the unit that fits them."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= _SIZES[unit.lower()]:
            return f"{_short(count / _SIZES[unit.lower()])} {unit}"
    return f"{count} bytes"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _scaled(text: str, units: dict[str, int], what: str, hint: str, most: int) -> int:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise BadInput(f"{text!r} is not a {what}", hint=hint)
    value = float(match[1]) * units[match[2].lower()]
    if value > most:
        raise BadInput(f"{text!r} is too large a {what}", hint=hint)
    return round(value)
