"""JSON from outside, provided that every parser reads the same value from it.

JSON parsers disagree on repeated keys, on NaN and on half surrogate pairs, and some guess
encodings. This module refuses what two parsers would read differently, before a node stores it for
ever: a body that came over HTTP, and a value that somebody typed.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final, NoReturn

from holdfast.rules.errors import BadInput

_KEY_CHARS_SHOWN: Final = 80


def strict_json(raw: bytes, what: str = "the body") -> Any:
    """The value; BadInput, which names `what`, if parsers would not agree on it."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{what} is not UTF-8") from None
    try:
        value = _read(text)
    except RecursionError:
        raise BadInput(f"{what} is nested too deeply") from None
    except ValueError as error:  # also for numbers of thousands of digits
        raise BadInput(f"{what} is not JSON: {error}") from None
    if "\\ud" in text or "\\uD" in text:
        _refuse_half_pairs(value, what)
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    keys = sorted(key for key, _ in pairs)
    twice = next(one for one, other in pairwise(keys) if one == other)
    raise BadInput(
        f"the key {twice[:_KEY_CHARS_SHOWN]!r} stands twice in one object",
        hint="give each key one value",
    )


def _no_constant(name: str) -> NoReturn:
    raise BadInput(f"{name} is not JSON", hint="send null or a text instead")


_read: Final = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_constant).decode


def _refuse_half_pairs(value: Any, what: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadInput(f"{what} contains half of a surrogate pair, which is not text") from None
