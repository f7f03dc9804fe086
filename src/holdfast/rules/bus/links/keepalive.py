"""Whether the peer at the other end of a link is still there.

Any byte is a sign of life. A link that has heard nothing for a while asks for one; if none comes in
time, the link is dead, whatever the network says: a cable that was pulled out says nothing at all.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.rules.limits import BUS_PING_MS, BUS_PONG_MS_MAX, SECOND_MS

_PING_S = BUS_PING_MS / SECOND_MS
_PONG_S = BUS_PONG_MS_MAX / SECOND_MS
_EARLY_S = 1 / SECOND_MS
"""By how much a timer may be early; without it the rest would be waited for again and again."""


class LifeCheck(NamedTuple):
    """What a link does now, and when it looks again."""

    ask: bool = False
    dead: bool = False
    again_s: float = 0.0


def life_check(now: float, heard: float, asked: float | None) -> LifeCheck:
    """`heard`: when the last bytes came; `asked`: when a sign of life was asked for and nothing
    came since; all in seconds of one clock.
    """
    if asked is None or heard > asked:
        silent = now - heard
        if silent < _PING_S - _EARLY_S:
            return LifeCheck(again_s=_PING_S - silent)
        return LifeCheck(ask=True, again_s=_PONG_S)
    waited = now - asked
    return (
        LifeCheck(dead=True)
        if waited >= _PONG_S - _EARLY_S
        else LifeCheck(again_s=_PONG_S - waited)
    )
