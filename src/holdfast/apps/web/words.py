"""How values are said in the console: times, sizes, counts, states, and values of any length."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from holdfast.rules.limits import CONSOLE_VALUE_CHARS

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STEPS: Final = ((60, "s"), (60, "min"), (24, "h"), (0, "d"))
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
NONE: Final = "\N{EN DASH}"

TONES: Final[dict[str, str]] = {
    **dict.fromkeys(("live", "active", "up", "ok", "ready", "leader", "applied", "done"), "good"),
    **dict.fromkeys(("idle", "follower", "local", "shared", "on the bus"), "calm"),
    **dict.fromkeys(("open", "completed", "cancelled", "closed"), "calm"),
    **dict.fromkeys(
        (
            "catching_up",
            "connecting",
            "reconnecting",
            "starting",
            "claimed",
            "pending",
            "replaying",
        ),
        "busy",
    ),
    **dict.fromkeys(
        ("paused", "offline", "backoff", "away", "low", "needs_snapshot", "suspect", "inflight"),
        "warn",
    ),
    **dict.fromkeys(("stopped", "failed", "dead", "full", "lost", "fail", "down"), "bad"),
}
"""Which tone the word of a state has. One that is not here is calm if it is empty, else a warning:
the code of an error."""


def tone(state: str | None) -> str:
    if not state:
        return "calm"
    return TONES.get(state, "warn")


def iso(ms: int | None) -> str:
    """Milliseconds since 1970, in UTC."""
    if ms is None:
        return NONE
    try:
        moment = _BEGIN + timedelta(milliseconds=ms)
    except (OverflowError, TypeError):
        return f"{ms} ms"  # a peer's clock may say anything
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def ago(ms: int | None, now_ms: int) -> str:
    """How long ago that was."""
    if not isinstance(ms, int):
        return NONE
    passed = (now_ms - ms) // 1000
    if abs(passed) < 5:
        return "just now"
    words = span(abs(passed) * 1000)
    return f"{words} ago" if passed > 0 else f"in {words}"


def span(ms: int) -> str:
    """A span of time, in its largest unit."""
    left = ms // 1000
    for size, unit in _STEPS:
        if not size or left < size:
            return f"{left} {unit}"
        left //= size
    raise AssertionError("the last unit takes everything")


def took(ms: float) -> str:
    """How long something took that may take next to no time."""
    return f"{ms:.1f} ms" if ms >= 0.05 else "under 0.1 ms"


def size(count: int | None) -> str:
    """Bytes, as people say them."""
    if count is None:
        return NONE
    amount = float(count)
    for unit in _SIZES:
        if amount < 1024 or unit == _SIZES[-1]:
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def count(number: int | None) -> str:
    """A number with thin spaces between thousands."""
    return NONE if number is None else f"{number:,}".replace(",", "\N{THIN SPACE}")


def some(number: int, one: str, many: str = "") -> str:
    """`1 key`, `3 keys`."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def state_words(state: str | None) -> str:
    return (state or "unknown").replace("_", " ")


def as_json(value: Any, indent: int = 2) -> str:
    """A value as JSON, for people."""
    text = msgspec.json.encode(value)
    return (msgspec.json.format(text, indent=indent) if indent else text).decode(errors="replace")


def plain(value: Any) -> str:
    """A value in one line: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else as_json(value, indent=0)


def cut(text: str, most: int = CONSOLE_VALUE_CHARS) -> str:
    """The beginning of a text; what is left out is said."""
    if len(text) <= most:
        return text
    return f"{text[:most]}…"


def printable(text: str) -> str:
    """A text in which nothing moves the writing direction or hides: it may come from a stranger."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else f"\\u{ord(char):04x}" for char in text
    )


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "iso": iso,
    "span": span,
    "took": took,
    "size": size,
    "count": count,
    "some": some,
    "tone": tone,
    "words": state_words,
    "json": as_json,
    "plain": plain,
    "cut": cut,
    "printable": printable,
}
