"""The Lamport clock of a mesh.

A local event takes `value + 1`; a merged one sets the clock to `max(value, theirs) + 1`, but its
row keeps the stamp of its origin. The store performs the tick as one UPDATE in the transaction of
the row it stamps; this module states the rule and refuses stamps that would wear the clock out.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.rules.errors import BadStamp
from holdfast.rules.limits import LAMPORT_LEAP_MAX, LAMPORT_MAX


def tick(value: int, incoming: int = 0) -> int:
    """The clock after an event: a local one by default, a merged one with its stamp."""
    return max(value, incoming) + 1


def check_incoming(value: int, incoming: int) -> int:
    """Raises BadStamp for a stamp that no honest clock can show."""
    if isinstance(incoming, bool) or not isinstance(incoming, int):
        raise BadStamp(f"the lamport is {type(incoming).__name__}, not an integer")
    if not 1 <= incoming < LAMPORT_MAX:
        raise BadStamp(f"the stamp's lamport {incoming} is not a positive 63-bit integer")
    if incoming - value > LAMPORT_LEAP_MAX:
        raise BadStamp(
            f"the stamp's lamport {incoming} is over 2^48 ahead of this mesh's clock at {value}"
        )
    return incoming


def merge_run(value: int, lamports: Sequence[int]) -> int:
    """The clock after many merged events in a row; raises BadStamp if one of the stamps is
    absurd.
    """
    for incoming in lamports:
        # The rule spelt out: this runs once per entry that is pulled.
        sane = type(incoming) is int and 0 < incoming < LAMPORT_MAX
        if not sane or incoming - value > LAMPORT_LEAP_MAX:
            check_incoming(value, incoming)
        value = (value if value > incoming else incoming) + 1
    return value


def worn_out(mesh: str) -> BadStamp:
    """The error for a clock at its end, which only tens of thousands of hostile leaps can cause."""
    return BadStamp(
        f"the clock of mesh {mesh!r} has no number left",
        hint="export the mesh and import it into a new one: that stamps everything anew",
    )
