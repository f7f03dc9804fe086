"""Which numbers of a peer are new, and at which number a sender goes on.

A peer numbers its messages when it writes them to a link, from one counter for all its recipients.
So on one link numbers only grow, and a **strict mark** per key, the highest number so far, refuses
everything that came before. Where one peer's messages come by several carriers, they may overtake
each other by a little: then a **window** below the highest number remembers which ones have come.

Marks accept gaps: a sender that was killed has skipped the rest of its block of numbers. A sender
whose store went back in time is told the highest number that the other side has seen, and leaps
past it. A leap is bounded, or a liar could wear the counter out.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.rules.bus.signed_envelope import SEQUENCE_MAX
from holdfast.rules.errors import BadSequence
from holdfast.rules.limits import BUS_LEAP_MAX, BUS_NONCES_KEPT, BUS_WINDOW


def is_above(last: int | None, sequence: int) -> bool:
    """The strict mark: whether a number is above all that came before."""
    return 1 <= sequence <= SEQUENCE_MAX and (last is None or sequence > last)


class Window(NamedTuple):
    """What has come of one peer: the highest number, and which of the ones below it have come. Bit
    `n` stands for the number `n` below the highest.
    """

    highest: int = 0
    seen: int = 0

    def take(self, sequence: int, size: int = BUS_WINDOW) -> Window | None:
        """The window after this number; None if it has come, or is too far behind to say."""
        if not 1 <= sequence <= SEQUENCE_MAX:
            return None
        ahead = sequence - self.highest
        if ahead > 0:
            kept = (self.seen << ahead) & ((1 << size) - 1) if ahead < size else 0
            return Window(sequence, kept | 1)
        if -ahead >= size or self.seen >> -ahead & 1:
            return None
        return Window(self.highest, self.seen | 1 << -ahead)

    @classmethod
    def strict(cls, last: int) -> Window:
        """The window of a peer of which only a strict mark is known: all up to it has come."""
        return cls(last, (1 << BUS_WINDOW) - 1) if last else cls()


def check_nonces_kept(capacity: int) -> int:
    """A store must remember nonces for longer than a window reaches back: then no nonce is
    forgotten whose message could still be taken for new.
    """
    if capacity <= BUS_WINDOW:
        raise BadSequence(
            f"{capacity} nonces are too few to remember",
            hint=f"keep more than {BUS_WINDOW}; usual are {BUS_NONCES_KEPT}",
        )
    return capacity


def leap_past(next_sequence: int, seen: int, most: int = BUS_LEAP_MAX) -> int:
    """The number to go on at when the other side has seen numbers of ours up to `seen`. Raises
    BadSequence if that is further than any accident explains.
    """
    if seen < next_sequence:
        return next_sequence
    if seen - next_sequence >= most or seen >= SEQUENCE_MAX - BUS_LEAP_MAX:
        raise BadSequence(
            f"the peer says that it has seen number {seen} of this one, which is at "
            f"{next_sequence}",
            hint="block it if it lies; if this home was put back, give it a new key: "
            "holdfast peer rotate",
        )
    return seen + 1
