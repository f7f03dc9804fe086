"""Which columns of a table a terminal has room for, and how wide each of them is.

Ids are never cut: people copy them. Other columns give way, the widest first, names less than the
rest. Where that is not enough the last of them are left out, and the caller says which.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

IDS: Final = frozenset(("id", "task", "number", "seq", "handle", "client_message_id"))
"""Fields that are copied into the next command, and worth nothing if a part is missing."""
WHOLE: Final = frozenset(("blocked_by", "failing", "sha256", "fingerprint"))
"""These too are shown whole or not at all; so are times. But there are commands without them."""
NAMES: Final = frozenset(
    ("key", "name", "peer", "path", "consumer", "token", "mesh", "queue", "lane", "stream", "zone")
)
"""Names that people gave; they can be long, and are cut late."""
GAP: Final = 2
_SHORT: Final = 8
"""No column is cut to less; a number or a word of a state fits."""
_NAME: Final = 24
"""No name is cut to less."""


class Fitted(NamedTuple):
    """The columns that are shown, by their place, each with its width; and those left out."""

    widths: dict[int, int]
    left_out: tuple[int, ...]


def room() -> int:
    """How many columns the terminal has."""
    import shutil  # here, because a list for a pipe does not ask

    return shutil.get_terminal_size().columns


def width(text: str) -> int:
    """Columns on a screen: east Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def cut(text: str, most: int) -> str:
    """As much of a text as fits, with a mark where something is missing."""
    if width(text) <= most:
        return text
    shown = text[:most]
    while width(shown) > most - 1:
        shown = shown[:-1]
    return f"{shown}…"


def fit(fields: Sequence[str], wanted: Sequence[int], room: int) -> Fitted:
    """The widths of columns that want so much, in a room that may have less."""
    shown = list(range(len(fields)))
    least = [_least(name, want) for name, want in zip(fields, wanted, strict=True)]
    left_out: list[int] = []
    while len(shown) > 1 and _total(least[place] for place in shown) > room:
        # The last column that nobody copies goes first, then names, then ids; one stays.
        gone = max(shown, key=lambda place: (_rank(fields[place]), place))
        shown.remove(gone)
        left_out.append(gone)
    widths = {place: wanted[place] for place in shown}
    while (over := _total(widths.values()) - room) > 0:
        loose = [place for place in shown if widths[place] > least[place]]
        if not loose:
            break
        widest = max(loose, key=lambda place: widths[place])
        others = max((widths[place] for place in loose if place != widest), default=0)
        floor = max(least[widest], min(others, widths[widest] - 1))
        widths[widest] = max(floor, widths[widest] - over)
    return Fitted(widths, tuple(sorted(left_out)))


def _least(name: str, wanted: int) -> int:
    if name in IDS or name in WHOLE or name.endswith("_at"):
        return wanted
    return min(wanted, _NAME if name in NAMES else _SHORT)


def _rank(name: str) -> int:
    """What gives way first has the highest."""
    return 0 if name in IDS else 1 if name in NAMES else 2


def _total(widths: Iterable[int]) -> int:
    listed = list(widths)
    return sum(listed) + GAP * max(0, len(listed) - 1)
