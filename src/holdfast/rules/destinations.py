"""Where a message can go, and what goes first.

topic   every subscriber
dm      one member, by key
queue   one of those who take from it, until one has finished with it
"""

from __future__ import annotations

from typing import Final

from holdfast.rules.errors import BadInput, BadValue
from holdfast.rules.names import check_key

KINDS: Final = ("topic", "dm", "queue")
PRIORITIES: Final = ("now", "next", "low")
"""From the first to the last that is served."""
REF_CHARS_MAX: Final = 128
_KEY_DIGITS: Final = 64


def rank(priority: str) -> int:
    """The place of a priority: what has a lower one goes first."""
    return PRIORITIES.index(priority)


def check_destination(kind: str, ref: str) -> tuple[str, str]:
    """A destination as envelopes name it. A member's key is 64 lower-case hex digits."""
    if kind not in KINDS:
        raise BadInput(f"{kind!r} is no destination", hint=f"use one of: {', '.join(KINDS)}")
    check_key(ref, f"name of the {kind}", REF_CHARS_MAX)
    if kind == "dm" and (len(ref) != _KEY_DIGITS or ref.strip("0123456789abcdef")):
        raise BadValue("a dm goes to a member's key: 64 lower-case hex digits")
    return kind, ref


def entity_of(kind: str, ref: str) -> str:
    """What a message to this destination is about, for logs and lanes."""
    return f"{kind}/{ref}"
