"""Whether the peer at the other end of a link is still there.

Any byte is a sign of life. A link that has heard nothing for a while asks for one; if none comes in
time, the link is dead, whatever the network says: a cable that was pulled out says nothing at all.

Time in which this process stood still itself counts against nobody. A loop that was held up calls
its timers perhaps before it reads what came meanwhile, and perhaps even the question has not left.
So a link that waits looks again and again; by how much a look is late, the peer has longer, and a
late look is not the last one.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.rules.limits import (
    BUS_LATE_MS,
    BUS_LIFE_LOOK_MS,
    BUS_PING_MS,
    BUS_PONG_MS_MAX,
    SECOND_MS,
)

_PING_S = BUS_PING_MS / SECOND_MS
_PONG_S = BUS_PONG_MS_MAX / SECOND_MS
_LOOK_S = BUS_LIFE_LOOK_MS / SECOND_MS
_LATE_S = BUS_LATE_MS / SECOND_MS
_EARLY_S = 1 / SECOND_MS
"""By how much a timer may be early; without it the rest would be waited for again and again."""


class LifeCheck(NamedTuple):
    """What a link does now, and when it looks again."""

    ask: bool = False
    dead: bool = False
    again_s: float = 0.0
    asked: float | None = None
    """From when on the peer has time to answer a question that was asked before."""


def life_check(now: float, heard: float, asked: float | None, due: float) -> LifeCheck:
    """`heard`: when the last bytes came; `asked`: from when on the peer has time for a sign of
    life, None if something came since it was asked for one; `due`: when this look was to be; all
    in seconds of one clock.
    """
    if asked is None:
        silent = now - heard
        if silent < _PING_S - _EARLY_S:
            return LifeCheck(again_s=_PING_S - silent)
        return LifeCheck(ask=True, again_s=_LOOK_S)
    late = now - due
    if late < _LATE_S:
        left = _PONG_S - (now - asked)
        again_s = min(left, _LOOK_S)
    else:
        asked += late
        # There is a turn in which bytes are read between two looks, however late both are.
        left = _PONG_S + _LOOK_S - (now - asked)
        again_s = _LOOK_S
    return LifeCheck(dead=True) if left <= _EARLY_S else LifeCheck(again_s=again_s, asked=asked)
