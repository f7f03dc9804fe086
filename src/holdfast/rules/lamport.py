"""The Lamport clock of a mesh.

A local event takes `value + 1`; a merged one sets the clock to `max(value, theirs) + 1`, but its
row keeps the stamp of its origin. The store performs the tick as one UPDATE in the transaction of
the row it stamps; this module states the rule and refuses stamps that would wear the clock out.

A clock has 63 bits, and whoever may write could use them up by leaps. So time bounds it: no mesh
gives more than `LAMPORT_PER_MS_MAX` stamps per millisecond since 1970 (`ceiling`), and a stamp
above that is refused. The bound grows with the wall clock and is far above what an honest mesh
reaches, so a node with a wrong clock is not refused: a stamp is a count of events, not a time. A
wall clock that is known to be behind counts as `KNOWN_PAST_MS`.

A stamp that is at most `LAMPORT_STEP_MAX` ahead of our clock always passes. A mesh whose clock is
above the bound already goes on in this way, and its end is out of reach: each step costs an
envelope, and 2^49 of them fit on no disk. Why: docs/decisions/0037-time-bounds-the-stamps.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.rules.errors import BadStamp
from holdfast.rules.limits import (
    KNOWN_PAST_MS,
    LAMPORT_LEAP_MAX,
    LAMPORT_MAX,
    LAMPORT_PER_MS_MAX,
    LAMPORT_STEP_MAX,
)


def tick(value: int, incoming: int = 0) -> int:
    """The clock after an event: a local one by default, a merged one with its stamp."""
    return max(value, incoming) + 1


def ceiling(now_ms: int) -> int:
    """The highest stamp that a mesh can have given by now; `now_ms` is a wall clock's."""
    return min(max(now_ms, KNOWN_PAST_MS) * LAMPORT_PER_MS_MAX, LAMPORT_MAX - 1)


def highest_taken(value: int, now_ms: int) -> int:
    """The highest stamp that a clock at `value` merges now."""
    leap = min(value + LAMPORT_LEAP_MAX, ceiling(now_ms))
    return min(max(value + LAMPORT_STEP_MAX, leap), LAMPORT_MAX - 1)


def check_incoming(value: int, incoming: int, now_ms: int) -> int:
    """Raises BadStamp for a stamp that no honest clock can show."""
    if isinstance(incoming, bool) or not isinstance(incoming, int):
        raise BadStamp(f"the lamport is {type(incoming).__name__}, not an integer")
    if not 1 <= incoming < LAMPORT_MAX:
        raise BadStamp(f"the stamp's lamport {incoming} is not a positive 63-bit integer")
    if incoming <= highest_taken(value, now_ms):
        return incoming
    if incoming - value > LAMPORT_LEAP_MAX:
        raise BadStamp(
            f"the stamp's lamport {incoming} is over 2^48 ahead of this mesh's clock at {value}"
        )
    raise BadStamp(
        f"the stamp's lamport {incoming} is above {ceiling(now_ms)}, more than any mesh can have "
        f"given by now, and this mesh's clock is at {value}",
        hint="if this machine's date is in the past, set it, then retry the quarantine; if it is "
        "right, the sender is damaged or hostile: remove it; nothing was merged",
    )


def merge_run(value: int, lamports: Sequence[int], now_ms: int) -> int:
    """The clock after many merged events in a row; raises BadStamp if one of the stamps is
    absurd.
    """
    for incoming in lamports:
        # The rule spelt out: this runs once per entry that is pulled.
        sane = type(incoming) is int and 0 < incoming < LAMPORT_MAX
        if not sane or incoming - value > LAMPORT_STEP_MAX:
            check_incoming(value, incoming, now_ms)
        value = (value if value > incoming else incoming) + 1
    return value


def after_loss(latest: int, skip: int, now_ms: int) -> int:
    """Where a clock goes on that may have lost stamps above `latest`. It skips them, but not so far
    that other nodes would refuse what this one writes then.
    """
    if latest + skip <= ceiling(now_ms):
        return latest + skip
    return min(latest + LAMPORT_STEP_MAX // 2, LAMPORT_MAX - 1)


def worn_out(mesh: str) -> BadStamp:
    """The error for a clock at its end. Only a version that did not bound leaps by time could get
    there.
    """
    return BadStamp(
        f"the clock of mesh {mesh!r} has no number left",
        hint="export the mesh and import it into a new one: that stamps everything anew",
    )
