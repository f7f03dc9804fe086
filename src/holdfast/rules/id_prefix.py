"""The beginning of an id, as people type it: which ids it may mean.

Ids in one table lie in order, so all that begin alike are one range of its index. People take the
first digits of what a list shows; they need as many as tell the ids of one table apart. Programs
give whole ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.rules.errors import AmbiguousId
from holdfast.rules.ids import ID_BYTES
from holdfast.rules.limits import CANDIDATES_MAX

_DIGITS: Final = 2 * ID_BYTES
_SHORTEST: Final = 4
"""So many characters are shown at least where a shorter beginning would do."""
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_PREFIX: Final = re.compile(r"[0-9a-f]+")


class IdSpan(NamedTuple):
    """Every id from the first to the last, both included."""

    first: bytes
    last: bytes


def prefix_span(text: str) -> IdSpan | None:
    """The ids that begin with a text; None if none can. Case and dashes do not matter."""
    digits = text.replace("-", "").lower()
    if not _PREFIX.fullmatch(digits) or len(digits) > _DIGITS:
        return None
    return IdSpan(
        bytes.fromhex(digits.ljust(_DIGITS, "0")), bytes.fromhex(digits.ljust(_DIGITS, "f"))
    )


def is_whole(text: str) -> bool:
    """Whether a text has as many digits as an id: it needs no search."""
    return len(text.replace("-", "")) >= _DIGITS


def as_number(text: str) -> int | None:
    """The number that a text may be. Ids of version 7 begin with a zero for centuries to come, so
    digits after a zero are the beginning of one.
    """
    return int(text) if _NUMBER.fullmatch(text) else None


def shortest_apart(ids: Sequence[str]) -> list[str]:
    """The shortest beginning of each id, in canonical text, that no other one of them has."""
    ordered = sorted(set(ids))
    needed = {}
    for place, id in enumerate(ordered):
        beside = ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]
        length = max([_common(id, other) + 1 for other in beside], default=0)
        needed[id] = id[: max(length, _SHORTEST)].rstrip("-")
    return [needed[id] for id in ids]


def ambiguous(given: str, ids: Sequence[str], words: Callable[[str], str]) -> AmbiguousId:
    """The refusal of a beginning that several ids have, with the words that tell each apart."""
    shown = ids[:CANDIDATES_MAX]
    more = "more than " if len(ids) > CANDIDATES_MAX else ""
    return AmbiguousId(
        f"{given!r} is the beginning of {more}{len(shown)} ids",
        hint=f"write as much as tells them apart, as {' or '.join(shortest_apart(shown)[:2])}",
        candidates=tuple((id, words(id)) for id in shown),
    )


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
