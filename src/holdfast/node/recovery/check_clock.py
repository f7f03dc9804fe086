"""The doctor's look at clocks: the stamps of the meshes, and a wall clock that was wrong."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.node.recovery.checks import Check, warn
from holdfast.rules.lamport import ceiling
from holdfast.rules.limits import CLOCK_STEP_MS, DAY_MS, HOUR_MS
from holdfast.storage.ports import Reader

Checks = Iterator[Check]


def check_stamps(reader: Reader, now_ms: int) -> Checks:
    """Warns of meshes whose clock is near or above what other nodes take."""
    top = ceiling(now_ms)
    for mesh in reader.mesh_list():
        if mesh.lamport > top:
            yield warn(
                "clock",
                f"the clock of {mesh.slug} is at {mesh.lamport}, above {top}: its members go on, "
                "but a new node or broker refuses what they write",
                "if this machine's date is in the past, set it; else export the mesh and import it "
                "into a new one, which stamps everything anew",
            )
        elif mesh.lamport > top // 2:
            yield warn(
                "clock",
                f"the clock of {mesh.slug} is at {mesh.lamport}, of {top} that other nodes take "
                "today: somebody has moved it",
                "see who in `holdfast peer list`, and remove that member; nothing is lost so far",
            )


def check_wall_clock(reader: Reader, now_ms: int) -> Checks:
    """Warns of entries from the future, and of times when the clock was ahead."""
    newest = reader.log_get(reader.log_bounds()[1])
    if newest is not None and newest.recorded_at > now_ms + CLOCK_STEP_MS:
        yield warn(
            "clock",
            f"the newest entry, {newest.offset}, was recorded {_span(newest.recorded_at - now_ms)} "
            "in the future: the clock was ahead then, or is behind now",
            "check this machine's date; the next change puts the log right, and the entry counts "
            "as recorded by then",
        )
    for turn in reader.log_turns():
        if turn.high_ms > now_ms:
            yield warn(
                "clock",
                f"the clock was {_span(turn.high_ms - turn.low_ms)} ahead before offset "
                f"{turn.offset}",
                "nothing: what was recorded then counts as recorded when the clock was set right",
            )


def _span(ms: int) -> str:
    return f"{ms // DAY_MS} days" if ms >= 2 * DAY_MS else f"{max(1, ms // HOUR_MS)} hours"
