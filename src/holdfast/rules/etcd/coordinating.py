"""When a node takes over as the coordinator of an order.

Nothing depends on this for safety: whoever takes over raises the epoch, every append compares it,
and two that try at once do so one after the other. A coordinator that nobody replaces costs
patience: leases do not expire meanwhile. Writes go on, because any node may append under the epoch
that there is.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.rules.etcd.entry import OrderState, StoredBeat


class CoordinatorSeen(NamedTuple):
    """The last sign of life of a coordinator."""

    epoch_version: int
    beats: int
    since_ms: int
    """When this node saw it first, by its own monotonic time."""


def seen(
    before: CoordinatorSeen | None, state: OrderState, beats: int, now_ms: int
) -> CoordinatorSeen:
    """What is known after another look."""
    if before is not None and (before.epoch_version, before.beats) == (state.epoch_version, beats):
        return before
    return CoordinatorSeen(state.epoch_version, beats, now_ms)


def is_let_go(state: OrderState, beat: StoredBeat | None) -> bool:
    """Whether an operator wants somebody else to coordinate."""
    return beat is not None and beat.let_go and beat.epoch_version == state.epoch_version


def takes_over(
    me: str,
    state: OrderState,
    beat: StoredBeat | None,
    last: CoordinatorSeen,
    *,
    first: bool,
    now_ms: int,
    lost_ms: int,
) -> bool:
    """Whether a node that does not coordinate should. `first`: it is the first look in this life of
    the node, so an epoch of its own is one of an earlier life.
    """
    if not state.epoch_version:
        return True
    if state.coordinator == me and first:
        return True
    if is_let_go(state, beat):
        assert beat is not None, "else nobody wants anything"
        wanted = beat.to == me if beat.to else state.coordinator != me
        if wanted:
            return True
    return now_ms - last.since_ms >= lost_ms
