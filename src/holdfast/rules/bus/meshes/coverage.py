"""What a node has of a stream, and what another node has that it lacks.

A stream is what one origin wrote to one mesh in one epoch of its log. The origin counts it without
gaps, but nobody may rely on finding every number: messages take numbers and are for few, filters
and snapshots leave entries out, and truncation forgets them. So a node keeps what it *covers*: the
numbers of which it has, or had, all that it may have. An epoch need not begin at 1; its base is the
number before its first one, and only its origin can tell it.

Numbers count from 1, ranges are half-open. Nothing here ever claims a number that is not covered:
where a bound makes it drop something, it claims less, and that is at worst asked for again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.rules.errors import BadAnswer, OverLimit
from holdfast.rules.frontier import Frontier, Range
from holdfast.rules.limits import (
    BUS_KNOWN_RANGES_MAX,
    BUS_STREAMS_MAX,
    FRONTIER_RANGES_MAX,
    LAMPORT_MAX,
)

NOTHING = Frontier()


class StreamName(NamedTuple):
    """Which stream of a mesh."""

    mesh: str
    origin: str
    epoch: int


def cover(frontier: Frontier, start: int, end: int) -> Frontier:
    """The frontier with [start, end) covered too; of more ranges than it can hold the highest are
    not claimed.
    """
    try:
        return frontier.confirm_range(start, end)
    except OverLimit:
        kept = frontier.ranges[: FRONTIER_RANGES_MAX // 2]
        shorter = Frontier(frontier.prefix, kept)
        return shorter if start > shorter.last + 1 else shorter.confirm_range(start, end)


def cover_all(frontier: Frontier, ranges: Sequence[Range]) -> Frontier:
    """The frontier with all these ranges covered too, however they are ordered; of more than it can
    hold the highest are not claimed. Takes one pass: a peer decides how many there are.
    """
    if len(ranges) == 1:
        return cover(frontier, *ranges[0])
    prefix, apart = frontier.prefix, list[Range]()
    for start, end in sorted([*frontier.ranges, *ranges]):
        if start <= prefix + 1:
            prefix = max(prefix, end - 1)
        elif apart and start <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end))
        elif start < end:
            apart.append((start, end))
    return Frontier(prefix, tuple(apart[:FRONTIER_RANGES_MAX]))


def united(one: Frontier, other: Frontier) -> Frontier:
    """What at least one of them covers."""
    return cover_all(one, ranges_of(other))


def ranges_of(frontier: Frontier, above: int = 0) -> list[Range]:
    """What it covers beyond a number, as ranges."""
    ranges = [] if frontier.prefix <= above else [(above + 1, frontier.prefix + 1)]
    for start, end in frontier.ranges:
        if end - 1 > above:
            ranges.append((max(start, above + 1), end))
    return ranges


def without(ranges: Sequence[Range], taken: Frontier) -> list[Range]:
    """The parts of some ranges that a frontier does not cover. Ranges are sorted and apart."""
    left: list[Range] = []
    at, held = 0, taken.ranges
    for start, end in ranges:
        start = max(start, taken.prefix + 1)
        while start < end:
            while at < len(held) and held[at][1] <= start:
                at += 1
            if at == len(held) or held[at][0] >= end:
                left.append((start, end))
                break
            if held[at][0] > start:
                left.append((start, held[at][0]))
            start = held[at][1]
    return left


def lacking(mine: Frontier, theirs: Frontier, gone: int = 0) -> list[Range]:
    """What they cover and I do not; what they have truncated, up to `gone`, is not to be had."""
    return without(ranges_of(theirs, gone), mine)


def told(frontier: Frontier, most: int, after: int = 0) -> Frontier:
    """What a word says of it: the prefix, and the first `most` ranges that reach beyond a number
    which an earlier word has come to.
    """
    first = bisect_right(frontier.ranges, after, key=lambda one: one[1] - 1) if after else 0
    if not first and len(frontier.ranges) <= most:
        return frontier
    return Frontier(frontier.prefix, frontier.ranges[first : first + most])


def read_told(prefix: int, ranges: Sequence[Range]) -> Frontier:
    """The frontier that a peer told. Raises BadAnswer if it is none."""
    reached = prefix
    for start, end in ranges:
        if not reached < start < end < LAMPORT_MAX:
            raise BadAnswer("a peer told ranges of a stream that are out of order")
        reached = end
    return cover_all(Frontier(prefix), ranges)


def read_ranges(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Ranges that a peer asked for. Raises BadAnswer if they are none, or out of order."""
    reached = 0
    for start, end in ranges:
        if not reached < start < end < LAMPORT_MAX:
            raise BadAnswer("a peer asked for ranges of a stream that are out of order")
        reached = end
    if not reached:
        raise BadAnswer("a peer asked for nothing of a stream")
    return tuple(ranges)


class BoundedCoverage(dict[StreamName, Frontier]):
    """What the peer of a link is known to have of each stream, by `put`. What would be too much to
    remember is forgotten, the highest first: at worst it is sent or asked for again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ranges = 0

    def put(self, name: StreamName, has: Frontier) -> None:
        self.forget(name)
        self[name] = kept = told(has, max(0, BUS_KNOWN_RANGES_MAX - self._ranges))
        self._ranges += len(kept.ranges)

    def forget(self, name: StreamName) -> None:
        self._ranges -= len(self.pop(name, NOTHING).ranges)


class StreamNumbers:
    """Small numbers for the streams that one side of a link speaks of: a name travels once."""

    __slots__ = ("_names", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[StreamName, int] = {}
        self._names: list[StreamName] = []

    def give(self, name: StreamName) -> tuple[int, bool]:
        """The number of a stream, and whether it is new on this link."""
        number = self._numbers.get(name)
        if number is not None:
            return number, False
        self._numbers[name] = number = len(self._names)
        self._names.append(name)
        return number, True

    def learn(self, number: int, name: StreamName) -> None:
        """A peer gave this number. Raises BadAnswer if it does not count on."""
        if number != len(self._names) or name in self._numbers:
            raise BadAnswer("a peer gave a stream a number out of order")
        if number >= BUS_STREAMS_MAX:
            raise OverLimit(f"a peer told of more than {BUS_STREAMS_MAX} streams")
        self.give(name)

    def has_room(self, name: StreamName) -> bool:
        """Whether the stream has a number, or may get one: the other side learns no more."""
        return name in self._numbers or len(self._names) < BUS_STREAMS_MAX

    def name(self, number: int) -> StreamName:
        """Raises BadAnswer for a number that was not given."""
        if not 0 <= number < len(self._names):
            raise BadAnswer("a peer spoke of a stream that it had not named")
        return self._names[number]
