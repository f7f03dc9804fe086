"""How a node stands with its broker, and what follows when one of the two has gone back in time.

    reconnecting ─► active ◄─► idle      it works; idle after half a minute of silence
         ▲             │         │
         └─────────────┴─────────┘       the line broke: tried again, after a moment
    stopped                              this node ends, or a person has to put something right

A **cursor** is the place up to which a node has everything that its broker may show it. It counts
in the broker's epochs. An epoch begins at a **base**, the last seq that the broker still had then.
So what a node knows to have stood above that base in an older epoch is what the broker forgot, and
the node brings it again.

This module decides what follows; `node/sync` does it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from holdfast.rules.backoff import RetryPlan, backoff_ms, longest_ms
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    Broken,
    EpochMismatch,
    FeatureParamBelowFloor,
    FeatureParamInvalid,
    FeatureUnavailable,
    HoldfastError,
    NotAllowed,
    NotAMember,
    NotFound,
    NotTrusted,
    OutboxAgeAboveWindow,
    OutcomeUnknown,
    OverLimit,
    StoreClosed,
    TooMany,
    UnknownMesh,
)
from holdfast.rules.limits import EPOCH_LEAP_MAX, EPOCHS_MAX, SYNC_IDLE_MS


class SyncState(StrEnum):
    """Where the connection to a broker stands."""

    ACTIVE = "active"
    IDLE = "idle"
    RECONNECTING = "reconnecting"
    STOPPED = "stopped"


# --- where to go on ------------------------------------------------------------------------------


class Cursor(NamedTuple):
    """Everything up to a seq of an epoch is here. Epoch 0: nothing was ever read."""

    epoch: int
    seq: int


class LostAtBroker(NamedTuple):
    """What stood at above < seq <= upto in an epoch is no longer at the broker."""

    epoch: int
    above: int
    upto: int | None = None
    certain: bool = True
    """False: the broker may have got it again since, and have forgotten its id in its time."""


class Move(msgspec.Struct, frozen=True):
    """The cursor has to be put elsewhere, after what the broker lost was put back."""

    cursor: Cursor
    lost: tuple[LostAtBroker, ...] = ()
    own: bool = False
    """This node may have lost what it pushed itself: the broker has to send that, too."""


def check_place(cursor: Cursor, epoch: int, bases: Sequence[tuple[int, int]], last: int) -> None:
    """Refuses a place that no broker comes to: a node that believed it would count in that epoch
    from then on, and no honest broker would ever catch up.
    """
    numbers = [number for number, _ in bases]
    if not numbers or numbers[-1] != epoch or any(b <= a for a, b in pairwise([0, *numbers])):
        raise BadAnswer(f"the broker counts in epoch {epoch} and names others out of order")
    if bases[-1][1] > last:
        raise BadAnswer(f"the broker ends at seq {last}, and its epoch began at {bases[-1][1]}")
    if len(numbers) > EPOCHS_MAX:
        raise BadAnswer(f"the broker names {len(numbers)} epochs; the most is {EPOCHS_MAX}")
    if epoch - cursor.epoch > EPOCH_LEAP_MAX:
        raise EpochMismatch(
            f"the broker counts in epoch {epoch}, and epoch {cursor.epoch} was read from it last; "
            f"no more than {EPOCH_LEAP_MAX} can have begun since",
            hint="look at it: holdfast broker status; leave it if it is not the one that it was",
        )


def epoch_moved(
    cursor: Cursor,
    epoch: int,
    bases: Sequence[tuple[int, int]],
    last: int,
    held: Collection[int],
) -> Move | None:
    """What to do about the place where a broker says that a mesh stands: its epoch, every epoch
    with its base, its last seq. `held` are the epochs in which this node knows where something
    stood. None: go on from the cursor.

    A broker that counts in a lower epoch than the one that was read has gone back without knowing
    it. It would give seqs away a second time, so nothing is sent to it until it begins a new one.
    One that only lacks the last seqs of its epoch begins a new one when it learns our cursor.
    """
    if cursor.epoch == 0:
        return Move(Cursor(epoch, 0))
    if epoch < cursor.epoch:
        raise EpochMismatch(
            f"the broker counts in epoch {epoch}, and epoch {cursor.epoch} was read from it before",
            hint="it went back in time unseen; run there, until it is ahead: "
            "holdfast broker new-epoch",
        )
    if epoch == cursor.epoch:
        return None
    known, counted = dict(bases), _that_counted(bases)
    # Of the present one it may hear while this is looked at.
    ours = {number for number in held if number <= cursor.epoch} | {cursor.epoch}
    if cursor.epoch not in counted:
        return _from_another_branch(ours, epoch, counted)
    floor = min([last, *(base for number, base in bases if cursor.epoch < number <= epoch)])
    lost = [
        LostAtBroker(number, floor, None if before > _FAR else before)
        for number, before in _floors(cursor.epoch, known)
        if floor < before and number in ours
    ]
    return Move(Cursor(epoch, min(cursor.seq, floor)), tuple(lost), own=cursor.seq > floor)


def _that_counted(bases: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The epochs in which the broker gave out a seq, and the present one. An operator who begins
    epochs until a restored broker is ahead passes by the numbers of those that others were in: what
    they have read in such an epoch the broker has never given out.
    """
    after = {number: base for (number, _), (_, base) in pairwise(bases)}
    return {number: base for number, base in bases if after.get(number) != base}


def _from_another_branch(held: Collection[int], epoch: int, known: dict[int, int]) -> Move:
    """The broker has never been in our epoch: it was restored from a copy that is older than that
    epoch's beginning, and newer than what the epoch began from. Nobody can say up to where the two
    histories are one, so all of it is read again, and all that may be missing there is brought.
    """
    lost = [
        LostAtBroker(number, _lowest_after(number, known) if number in known else 0, certain=False)
        for number in sorted(held, reverse=True)
    ]
    return Move(Cursor(epoch, 0), tuple(lost), own=True)


def _lowest_after(epoch: int, bases: dict[int, int]) -> int:
    return min((base for later, base in bases.items() if later > epoch), default=0)


_FAR: Final = 2**62
"""No seq is as high as this."""


def _floors(epoch: int, known: dict[int, int]) -> list[tuple[int, int]]:
    """For each epoch up to this one: what lies above was put back already when a later one began.
    Of the last one nothing was. Epochs that are missing here were never part of this history.
    """
    found, floor = [(epoch, _FAR + 1)], known[epoch]
    for number in sorted(known, reverse=True):
        if number < epoch:
            found.append((number, floor))
            floor = min(floor, known[number])
    return found


def is_gap(cursor: Cursor, epoch: int, after: int) -> bool:
    """Does a page begin beyond the cursor? Before it is fine: what is known is met as known."""
    return epoch == cursor.epoch and after > cursor.seq


def is_forged(known: bool, its_epoch: int, our_epoch: int) -> bool:
    """May an envelope in our own name not be ours?

    One that we do not know is ours if it is of an epoch of our log before the present one: it was
    lost when this node was restored. In the present epoch we know all that we ever wrote, so its
    seq is one that we gave, or will give, to something else.
    """
    return not known and its_epoch >= our_epoch


# --- answers to what was pushed ------------------------------------------------------------------


OUT_CODES: Final = frozenset({NotAMember.code, UnknownMesh.code})
"""Refusals of this node in its mesh, whatever it asks for."""


class Meaning(StrEnum):
    """What an answer means for the row that was pushed."""

    DONE = "done"
    AGAIN = "again"
    """Nothing is wrong with it: it goes again as soon as the epoch is taken up."""
    LATER = "later"
    """The broker is busy, or its store fails: the mesh waits, and no attempt is counted."""
    OUT = "out"
    """The broker refuses this node, and not the row: the row waits until that is put right."""
    REFUSED = "refused"


def meaning_of(status: int, code: str) -> Meaning:
    if status in (200, 201):
        return Meaning.DONE
    if code == EpochMismatch.code:
        return Meaning.AGAIN
    if status == TooMany.http_status or status >= OutcomeUnknown.http_status:
        # It says nothing about the row: a bad envelope is found before the store is asked.
        return Meaning.LATER
    if code in OUT_CODES:
        return Meaning.OUT
    return Meaning.REFUSED


# --- states --------------------------------------------------------------------------------------


SyncPlan = RetryPlan[SyncState]
"""What follows from an error of a connection to a broker."""


_FOR_PEOPLE: Final = (
    FeatureUnavailable,
    FeatureParamInvalid,
    FeatureParamBelowFloor,
    OutboxAgeAboveWindow,
    NotTrusted,
    NotAllowed,
    NotAMember,
    NotFound,
    BadInput,
    OverLimit,
    EpochMismatch,
    Broken,
    StoreClosed,
)
"""Asking again gets the same answer until a person changes something, here or there."""


def after_error(error: Exception, attempts: int, jitter: float) -> SyncPlan:
    """What to do after a connection ended with an error; `attempts` counts the failures in a row
    before this one. It is always tried again, however rarely.
    """
    if isinstance(error, HoldfastError) and isinstance(error, _FOR_PEOPLE):
        return SyncPlan(SyncState.STOPPED, longest_ms(jitter))
    return SyncPlan(SyncState.RECONNECTING, backoff_ms(attempts + 1, jitter))


def settled(state: SyncState, silent_ms: int, waiting: bool) -> SyncState:
    """Active or idle, by how long nothing has happened and whether something waits to be sent."""
    if state not in (SyncState.ACTIVE, SyncState.IDLE):
        return state
    quiet = silent_ms >= SYNC_IDLE_MS and not waiting
    return SyncState.IDLE if quiet else SyncState.ACTIVE


def status_name(kind: str, paused: bool, state: SyncState | None, trouble: str = "") -> str:
    """One word for how a mesh stands: what `clock` and `status` say."""
    if kind == "personal":
        return "local"
    if paused:
        return "paused"
    if trouble:
        return trouble
    if state is None or state is SyncState.RECONNECTING:
        return "offline"
    return str(state)
