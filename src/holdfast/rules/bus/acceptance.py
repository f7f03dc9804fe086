"""Which messages of one sender are taken in: the last of the checks of an arrival.

The signature, the payload id and the recipient were found right before. Here the number and the
nonce decide whether the message is a replay, and its id whether its sender sends it for the second
time. A store runs this inside the transaction that keeps the outcome; it never decides by itself.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from holdfast.rules.bus.mesh_store import ArrivalVerdict, SignedArrival
from holdfast.rules.bus.message import BusMessage
from holdfast.rules.bus.replay import Window, is_above
from holdfast.rules.limits import BUS_ID_MARGIN_MS, BUS_TTL_MS_MAX, BUS_WINDOW

_NEW: Final = ArrivalVerdict.NEW
_DUPLICATE: Final = ArrivalVerdict.DUPLICATE
_REPLAY: Final = ArrivalVerdict.REPLAY


class Acceptance(NamedTuple):
    """What becomes of the messages of a batch, and of their sender's mark."""

    verdicts: list[ArrivalVerdict]
    """One for each, in their order."""
    window: Window
    """The mark after the batch; the one before it if all were replays."""
    new: list[SignedArrival]
    """The messages that have not come before."""
    nonces: list[bytes]
    """The nonces to remember: of all that were no replays."""


def judge_arrivals(
    before: Window,
    arrivals: Sequence[SignedArrival],
    nonces: Container[bytes],
    ids: Container[bytes],
    *,
    window: bool,
) -> Acceptance:
    """Judges messages of one sender in the order in which they came. `nonces` and `ids` are the
    ones that the store knows; a message also knows those before it in this batch.
    """
    verdicts: list[ArrivalVerdict] = []
    new: list[SignedArrival] = []
    fresh_nonces: dict[bytes, None] = {}
    fresh_ids: set[bytes] = set()
    mark = before
    taken: list[int] = []
    highest = before.highest
    for arrival in arrivals:
        sequence, nonce = arrival.sequence, arrival.nonce
        if nonce in fresh_nonces or nonce in nonces:
            verdicts.append(_REPLAY)
            continue
        if window:
            after = mark.take(sequence)
            if after is None:
                verdicts.append(_REPLAY)
                continue
            mark = after
        elif is_above(highest, sequence):
            highest = sequence
            taken.append(sequence)
        else:
            verdicts.append(_REPLAY)
            continue
        fresh_nonces[nonce] = None
        id = arrival.message.id
        if id in fresh_ids or id in ids:
            verdicts.append(_DUPLICATE)
        else:
            fresh_ids.add(id)
            new.append(arrival)
            verdicts.append(_NEW)
    return Acceptance(verdicts, _moved(mark, taken), new, list(fresh_nonces))


def known_until(message: BusMessage, now_ms: int) -> int:
    """Until when the id of a message must stay known: as long as its sender may send it again. A
    sender gives a message up when its time has run out, and never keeps one for longer than
    BUS_TTL_MS_MAX. One that the sender does not keep comes again only while it waits for an answer.
    """
    if message.ttl_ms is not None:
        return now_ms + message.ttl_ms + BUS_ID_MARGIN_MS
    return now_ms + BUS_ID_MARGIN_MS + (BUS_TTL_MS_MAX if message.durable else 0)


def _moved(window: Window, taken: Sequence[int]) -> Window:
    """The window after rising numbers have come: as `Window.take` for each, in one step."""
    if not taken:
        return window
    highest = taken[-1]
    ahead = highest - window.highest
    seen = (window.seen << ahead) & ((1 << BUS_WINDOW) - 1) if ahead < BUS_WINDOW else 0
    for sequence in reversed(taken):
        below = highest - sequence
        if below >= BUS_WINDOW:
            break
        seen |= 1 << below
    return Window(highest, seen)
