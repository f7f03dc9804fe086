"""How fast a member may push new envelopes: a token bucket for each member.

A bucket fills at a steady pace up to its brim. Envelopes that turn out to be duplicates are given
back: a retry never counts.
"""

from __future__ import annotations

from typing import Final

_BUCKETS_MAX: Final = 10_000


class Rates:
    """The buckets of all members. Times are seconds of a monotonic clock."""

    def __init__(self, per_s: float, brim: float | None = None) -> None:
        """`brim` is what a full bucket holds; without it twice what comes in a second."""
        self._per_s = per_s
        self.brim = 2 * per_s if brim is None else brim
        self._buckets: dict[bytes, tuple[float, float]] = {}
        """By member: the tokens, and the time at which there were so many."""

    def take(self, member: bytes, wanted: int, now: float) -> int:
        """How many of the wanted envelopes may pass now; they are taken from the bucket."""
        tokens = self._tokens(member, now)
        passed = min(wanted, int(tokens))
        self._put(member, tokens - passed, now)
        return passed

    def left(self, member: bytes, now: float) -> float:
        """How many would pass now."""
        return self._tokens(member, now)

    def give_back(self, member: bytes, count: int, now: float) -> None:
        if count:
            self._put(member, min(self.brim, self._tokens(member, now) + count), now)

    def _tokens(self, member: bytes, now: float) -> float:
        found = self._buckets.get(member)
        if found is None:
            return self.brim
        return min(self.brim, found[0] + max(0.0, now - found[1]) * self._per_s)

    def _put(self, member: bytes, tokens: float, now: float) -> None:
        if len(self._buckets) >= _BUCKETS_MAX and member not in self._buckets:
            # A full bucket need not be kept: a member without one starts with a full bucket.
            self._buckets = {
                key: found
                for key, found in self._buckets.items()
                if found[0] + (now - found[1]) * self._per_s < self.brim
            }
        self._buckets[member] = (tokens, now)
