"""What a consumer of a log has confirmed.

Most consumers confirm in order, and then a frontier is one number: everything up to it is
confirmed. A consumer that works in parallel confirms ranges out of order; those wait beyond the
prefix until the hole before them is filled, and then they melt into it. Only the prefix decides
what may be forgotten.

Offsets count from 1. Ranges are half-open, [start, end).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from holdfast.rules.errors import BadValue, OverLimit, PastEnd, StoreCorrupt
from holdfast.rules.limits import FRONTIER_RANGES_MAX

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Frontier:
    """Every offset up to `prefix` is confirmed, and so is every offset in `ranges`.

    Invariant: ranges are not empty, sorted, apart from each other and from the prefix by one
    unconfirmed offset at least. So each set of offsets has one form only, and equal sets are
    equal values.
    """

    prefix: int = 0
    ranges: tuple[Range, ...] = ()

    def __post_init__(self) -> None:
        assert _is_normal(self.prefix, self.ranges), f"not a frontier: {self.prefix} {self.ranges}"

    @property
    def last(self) -> int:
        """The highest confirmed offset, or the prefix if nothing is confirmed beyond it."""
        return self.ranges[-1][1] - 1 if self.ranges else self.prefix

    def covers(self, offset: int) -> bool:
        if offset <= self.prefix:
            return True
        at = bisect_right(self.ranges, offset, key=_start)
        return at > 0 and offset < self.ranges[at - 1][1]

    def confirm_range(self, start: int, end: int) -> Frontier:
        """The frontier with the offsets of [start, end) confirmed too."""
        _check_range(start, end)
        if start == end or end - 1 <= self.prefix:
            return self
        if start <= self.prefix + 1:
            return self._with_prefix(end - 1)
        # Ranges that overlap or touch [start, end) become one with it.
        low = bisect_left(self.ranges, start, key=_end)
        high = bisect_right(self.ranges, end, key=_start)
        if low < high:
            start = min(start, self.ranges[low][0])
            end = max(end, self.ranges[high - 1][1])
        ranges = (*self.ranges[:low], (start, end), *self.ranges[high:])
        if len(ranges) > FRONTIER_RANGES_MAX:
            raise OverLimit(
                f"{FRONTIER_RANGES_MAX} separate ranges are confirmed already",
                hint=f"confirm what lies between them first, from offset {self.prefix + 1} on",
            )
        return Frontier(self.prefix, ranges)

    def holes(self, head: int) -> list[Range]:
        """The unconfirmed ranges of a log whose last offset is `head`, in order."""
        holes: list[Range] = []
        start = self.prefix + 1
        for confirmed_start, confirmed_end in self.ranges:
            if confirmed_start > head:
                break
            holes.append((start, confirmed_start))
            start = confirmed_end
        if start <= head:
            holes.append((start, head + 1))
        return holes

    def encode(self) -> str:
        """As text for a column: `12`, or `12;15-18,20-21` with half-open ranges."""
        if not self.ranges:
            return str(self.prefix)
        return f"{self.prefix};" + ",".join(f"{start}-{end}" for start, end in self.ranges)

    @staticmethod
    def decode(text: str) -> Frontier:
        """The frontier that `encode` turned into this text."""
        head, _, tail = text.partition(";")
        try:
            prefix = int(head)
            pairs = [part.split("-") for part in tail.split(",")] if tail else []
            ranges = tuple((int(start), int(end)) for start, end in pairs)
        except ValueError as error:
            raise _unreadable(text) from error
        if not _is_normal(prefix, ranges):
            raise _unreadable(text)
        frontier = Frontier(prefix, ranges)
        # int() also takes blanks, signs, underscores and foreign digits, which encode never writes.
        if frontier.encode() != text:
            raise _unreadable(text)
        return frontier

    def _with_prefix(self, prefix: int) -> Frontier:
        """Move the prefix forward, over every range that it then reaches."""
        reached = bisect_right(self.ranges, prefix + 1, key=_start)
        if reached:
            prefix = max(prefix, self.ranges[reached - 1][1] - 1)
        return Frontier(prefix, self.ranges[reached:])


def check_confirm(frontier: Frontier, start: int, end: int, head: int) -> None:
    """Raises if [start, end) is beyond the end of a log, whose last offset is `head`.

    A frontier that is ahead of the log is refused too: then the log went back in time (an older
    copy was restored), and it will give offsets that this consumer confirmed to other entries.
    """
    _check_range(start, end)
    if frontier.last > head:
        raise PastEnd(
            f"offset {frontier.last} is confirmed already, but the log ends at {head}",
            hint="the log is older than its consumer: retire the consumer and register it anew",
        )
    if end - 1 > head:
        raise PastEnd(
            f"cannot confirm offset {end - 1}: the log ends at {head}",
            hint="confirm only what was fetched",
        )


def _start(item: Range) -> int:
    return item[0]


def _end(item: Range) -> int:
    return item[1]


def _check_range(start: int, end: int) -> None:
    if start < 1:
        raise BadValue(f"the range [{start}, {end}) starts before offset 1, the first of any log")
    if end < start:
        raise BadValue(f"the range [{start}, {end}) ends before it starts")


def _is_normal(prefix: int, ranges: tuple[Range, ...]) -> bool:
    reached = prefix + 1
    for start, end in ranges:
        if not reached < start < end:
            return False
        reached = end
    return prefix >= 0


def _unreadable(text: str) -> StoreCorrupt:
    return StoreCorrupt(f"a stored frontier cannot be read: {text[:80]!r}")
