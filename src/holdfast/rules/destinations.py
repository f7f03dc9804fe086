"""Where a message can go, and what goes first.

topic   goes to every member
dm      goes to one member, by its key
queue   goes to one of the members that take from it, until one has finished with it
"""

from __future__ import annotations

from typing import Final, get_args

from holdfast.rules.envelope import Destination, Priority
from holdfast.rules.errors import BadInput, BadValue
from holdfast.rules.names import check_key

KINDS: Final[tuple[Destination, ...]] = get_args(Destination)
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
"""In the order in which they are served."""
_RANKS: Final = {priority: rank for rank, priority in enumerate(PRIORITIES)}
REF_CHARS_MAX: Final = 128
_KEY_DIGITS: Final = 64


def rank(priority: Priority) -> int:
    """The place of a priority in the order: a message with a lower rank goes first."""
    return _RANKS[priority]


def check_priority(priority: str) -> Priority:
    for known in PRIORITIES:
        if priority == known:
            return known
    raise BadInput(f"{priority!r} is no priority", hint=f"use one of: {', '.join(PRIORITIES)}")


def check_destination(kind: str, ref: str) -> tuple[Destination, str]:
    """A destination as envelopes name it; raises if it is none. A member's key is 64 lower-case hex
    digits.
    """
    for known in KINDS:
        if kind == known:
            break
    else:
        raise BadInput(f"{kind!r} is no destination", hint=f"use one of: {', '.join(KINDS)}")
    check_key(ref, "name of the destination", REF_CHARS_MAX)
    if known == "dm" and (len(ref) != _KEY_DIGITS or ref.strip("0123456789abcdef")):
        raise BadValue("a dm goes to a member's key: 64 lower-case hex digits")
    return known, ref


def entity_of(kind: str, ref: str) -> str:
    """The entity of a message to this destination, for logs and lanes."""
    return f"{kind}/{ref}"
