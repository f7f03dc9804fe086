"""Which topics a subscription listens to.

A topic is words with dots between them: `builds.linux.done`. In a pattern `*` stands for one word
and `>`, as the last word, for all the rest, which is one word at least: `builds.*`, `builds.>`.
A pattern that is `>` alone takes everything, messages without a topic too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from holdfast.rules.bus.signed_envelope import check_bus_name
from holdfast.rules.errors import BadInput

EVERYTHING: Final = ">"
_ONE: Final = "*"


def check_topic(topic: str) -> str:
    """The topic of a message to be sent. Raises BadInput for one that is a pattern."""
    words = check_bus_name(topic, "topic").split(".")
    if "" in words or _ONE in words or EVERYTHING in words:
        raise BadInput(
            f"{topic!r} is no topic", hint="use words with dots between them, as in builds.done"
        )
    return topic


def check_pattern(pattern: str) -> str:
    words = check_bus_name(pattern, "pattern").split(".")
    if "" in words or EVERYTHING in words[:-1]:
        raise BadInput(
            f"{pattern!r} is no pattern of topics",
            hint="use builds.* for one word, builds.> for all that begin so, > for everything",
        )
    return pattern


@lru_cache(maxsize=4096)
def takes(pattern: str, topic: str) -> bool:
    """Whether a subscription with this pattern gets messages of this topic."""
    if pattern == EVERYTHING:
        return True
    wanted, words = pattern.split("."), topic.split(".")
    if wanted[-1] == EVERYTHING:
        wanted.pop()
        if len(words) <= len(wanted):
            return False
        words = words[: len(wanted)]
    return len(wanted) == len(words) and all(
        want in (word, _ONE) and bool(word) for want, word in zip(wanted, words, strict=True)
    )
