"""Two changes of one JSON value, merged where they do not meet.

Objects are merged field by field, however deep. Everything else (texts, numbers, lists) is one
thing: if both sides changed it, and differently, no rule knows which is meant: a person decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_MISSING: Final = object()
"""There is no such field, which is not the same as null."""


class Merged(NamedTuple):
    """What came of it."""

    value: Any
    clashes: tuple[str, ...]
    """The paths at which both sides changed something differently; `.` is the whole value."""


def merge(base: Any, theirs: Any, ours: Any) -> Merged:
    """The value with the changes of both sides since `base`. At a clash it has ours."""
    clashes: list[str] = []
    value = _merged(base, theirs, ours, "", clashes)
    return Merged(value, tuple(clashes))


def _merged(base: Any, theirs: Any, ours: Any, path: str, clashes: list[str]) -> Any:
    if _same(ours, theirs) or _same(theirs, base):
        return ours
    if _same(ours, base):
        return theirs
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        before = base if isinstance(base, Mapping) else {}
        fields = {}
        # In the order of ours, with what only they have at the end.
        for name in dict.fromkeys([*ours, *theirs]):
            old, other, own = (side.get(name, _MISSING) for side in (before, theirs, ours))
            field = _merged(old, other, own, f"{path}.{name}", clashes)
            if field is not _MISSING:
                fields[name] = field
        return fields
    clashes.append(path or ".")
    return ours


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, and 1 is not 1.0, as a reader of the text sees it."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
