"""How a change reaches every node of a mesh over the bus, about once each.

    origin    pushes what it writes to every neighbour, at once and in its order: a gap before a
              page of its own is asked for
    others    forward nothing. A moment after they got something they tell their neighbours in one
              word what they have (`TellStreams`)
    receiver  that lacks something asks one neighbour that has it (`AskEntries`), and another one if
              nothing comes for a while

What is told covers everything since the last word, so words get rarer as changes get more. What the
other side is known to have, by its word, because it sent it or because it was sent to it, is
neither pushed nor told. All that a neighbour lacks after a break is found in the same way: both
sides tell what they have when a link comes up.

This is a machine: events in, effects out, time handed in as milliseconds that never run backwards.
`node/bus/meshes/exchange.py` runs it, and so does a simulation in its tests.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final, NamedTuple

from holdfast.rules.bus.meshes.coverage import (
    NOTHING,
    BoundedCoverage,
    StreamName,
    cover,
    cover_all,
    lacking,
    ranges_of,
    united,
    without,
)
from holdfast.rules.errors import OverLimit
from holdfast.rules.frontier import Frontier, Range
from holdfast.rules.limits import (
    BUS_ASK_MS,
    BUS_ASK_RANGES_MAX,
    BUS_IN_HAND_RANGES_MAX,
    BUS_STORE_MS,
    BUS_STREAMS_MAX,
    BUS_WORD_MS,
)


class TellStreams(NamedTuple):
    """TellStreams a neighbour what we have of these streams."""

    link: str
    streams: tuple[StreamName, ...]
    whole: bool = False
    """The first word on a link: these are all streams that the neighbour may read."""


class AskEntries(NamedTuple):
    """AskEntries a neighbour for entries."""

    link: str
    stream: StreamName
    ranges: tuple[Range, ...]


class PushEntries(NamedTuple):
    """Send a neighbour what we just wrote."""

    link: str
    stream: StreamName
    ranges: tuple[Range, ...]


Effect = TellStreams | AskEntries | PushEntries

_NEVER: Final = inf


@dataclass(slots=True)
class _Neighbour:
    origin: str
    """The name under which it writes."""
    meshes: frozenset[str]
    """What is shared with it."""
    known: BoundedCoverage = field(default_factory=BoundedCoverage)
    """What it is known to have."""
    gone: dict[StreamName, int] = field(default_factory=dict)
    """Up to where it has truncated."""
    untold: dict[StreamName, None] = field(default_factory=dict)
    """What we have more of than it was told."""


class _Awaited(NamedTuple):
    """Ranges that should come from a neighbour."""

    link: str
    ranges: tuple[Range, ...]
    until: float
    """When others are asked for them too; `_NEVER` once that has happened: it still owes them."""
    asked: bool
    """False: nobody was asked, because the origin pushes them."""


class Spread:
    """One node's part in spreading. Links are named by their driver; names are never used twice."""

    def __init__(
        self, us: str, *, word_ms: float = BUS_WORD_MS, ask_ms: float = BUS_ASK_MS
    ) -> None:
        self._us = us
        self._word_ms, self._ask_ms = word_ms, ask_ms
        self.mine: dict[StreamName, Frontier] = {}
        self._links: dict[str, _Neighbour] = {}
        self._awaited: dict[StreamName, list[_Awaited]] = {}
        self._busy: dict[str, int] = {}
        """How much of it should come from each link."""
        self._due: list[tuple[float, StreamName]] = []
        """A heap: when some of what is awaited of a stream is late. What has come meanwhile is
        still in it: a peer decides how many streams there are, so nothing here looks at all."""
        self._word_at: float | None = None

    # --- what a driver may look at -----------------------------------------------------------

    def known(self, link: str, stream: StreamName) -> Frontier:
        """What a neighbour is known to have."""
        neighbour = self._links.get(link)
        return NOTHING if neighbour is None else neighbour.known.get(stream, NOTHING)

    def known_of(self, link: str) -> dict[StreamName, Frontier]:
        """All that a neighbour is known to have, as of now."""
        neighbour = self._links.get(link)
        return {} if neighbour is None else dict(neighbour.known)

    def next_at(self) -> float | None:
        """When `tick` has something to do."""
        while self._due and not self._late(*self._due[0]):
            heappop(self._due)
        times = [] if self._word_at is None else [self._word_at]
        if self._due:
            times.append(self._due[0][0])
        return min(times, default=None)

    def lacks(self, stream: StreamName) -> list[Range]:
        """What some neighbour has, or had, and we do not."""
        mine, lacks = self.mine.get(stream, NOTHING), NOTHING
        for neighbour in self._links.values():
            lacks = cover_all(lacks, lacking(mine, neighbour.known.get(stream, NOTHING)))
        return ranges_of(lacks)

    # --- events ------------------------------------------------------------------------------

    def link_up(self, link: str, origin: str, meshes: Collection[str]) -> list[Effect]:
        """A neighbour is there, and these meshes are shared with it."""
        self._links[link] = _Neighbour(origin, frozenset(meshes))
        streams = tuple(stream for stream in self.mine if stream.mesh in meshes)
        return [TellStreams(link, streams, True)]

    def link_down(self, link: str, now: float) -> list[Effect]:
        """It is gone: what it was asked for is asked of others."""
        if self._links.pop(link, None) is None:
            return []
        for stream, awaited in list(self._awaited.items()):
            self._set_awaited(stream, [one for one in awaited if one.link != link])
        return [effect for stream in self._streams() for effect in self._want(stream, now)]

    def heard(
        self, link: str, stream: StreamName, has: Frontier, gone: int, now: float
    ) -> list[Effect]:
        """A neighbour told what it has of a stream. Raises OverLimit for too many streams."""
        neighbour = self._links.get(link)
        if neighbour is None or stream.mesh not in neighbour.meshes:
            return []
        if stream not in neighbour.known and len(neighbour.known) >= BUS_STREAMS_MAX:
            raise OverLimit(f"a peer told of more than {BUS_STREAMS_MAX} streams")
        neighbour.known.put(stream, united(has, neighbour.known.get(stream, NOTHING)))
        neighbour.gone[stream] = gone
        return self._want(stream, now)

    def wrote(self, stream: StreamName, has: Frontier) -> list[Effect]:
        """We wrote to a stream of our own, and have this much of it now."""
        before = self.mine.get(stream, NOTHING)
        new = lacking(before, has)
        self.mine[stream] = has
        effects: list[Effect] = []
        for link, neighbour in self._links.items():
            if stream.mesh not in neighbour.meshes:
                continue
            known = neighbour.known.get(stream, NOTHING)
            ranges = without(new, known)
            if ranges:
                neighbour.known.put(stream, cover_all(known, ranges))
                effects.append(PushEntries(link, stream, tuple(ranges)))
        return effects

    def has(
        self, stream: StreamName, has: Frontier, now: float, jitter: float, via: str | None = None
    ) -> list[Effect]:
        """We have this much of a stream now: it came from a neighbour (`via`) or by another way.
        `jitter` is from [0, 1).
        """
        before = self.mine.get(stream)
        if before == has:
            return []
        self.mine[stream] = has
        awaited = self._awaited.get(stream, [])
        left = [
            one._replace(
                ranges=ranges,
                until=max(one.until, now + self._ask_ms) if one.link == via else one.until,
            )
            for one in awaited
            if (ranges := tuple(without(one.ranges, has)))
        ]
        self._set_awaited(stream, left)
        for link, neighbour in self._links.items():
            if stream.mesh not in neighbour.meshes or link == via:
                continue
            if lacking(neighbour.known.get(stream, NOTHING), has):
                neighbour.untold[stream] = None
                if self._word_at is None:
                    self._word_at = now + self._word_ms * (0.5 + jitter)
        return self._want(stream, now)

    def came(self, link: str, stream: StreamName, start: int, end: int, now: float) -> list[Effect]:
        """A neighbour sent these numbers, so it has them. They are being stored: nobody is asked
        for them, unless that takes too long.
        """
        neighbour = self._links.get(link)
        if neighbour is None:
            return []
        self.sent(link, stream, start, end)
        if stream not in self.mine:
            neighbour.gone.setdefault(stream, 0)  # it is new; of all others it tells first
        pushes = neighbour.origin == stream.origin != self._us and stream in neighbour.gone
        if pushes:
            # It has what it wrote before that, too, but pushes it only once: what was lost on the
            # way, or was not taken when it came, is missed now.
            self.sent(link, stream, min(start, neighbour.gone[stream] + 1), end)
        in_hand = cover(NOTHING, start, end)
        left = [
            one._replace(
                ranges=ranges,
                until=max(one.until, now + self._ask_ms) if one.link == link else one.until,
            )
            for one in self._awaited.get(stream, [])
            if (ranges := tuple(without(one.ranges, in_hand)))
        ]
        lacks = tuple(without([(start, end)], self.mine.get(stream, NOTHING)))
        if lacks:
            _take_in_hand(left, _Awaited(link, lacks, now + BUS_STORE_MS, True))
        self._set_awaited(stream, left)
        return self._want(stream, now) if pushes else []

    def sent(self, link: str, stream: StreamName, start: int, end: int) -> None:
        """A neighbour was sent these numbers."""
        neighbour = self._links.get(link)
        if neighbour is not None:
            known = neighbour.known.get(stream, NOTHING)
            neighbour.known.put(stream, cover(known, start, end))

    def refused(self, link: str, stream: StreamName, now: float) -> list[Effect]:
        """A neighbour will not send what it was asked for: others are asked, and it is not, until
        it tells again what it has.
        """
        neighbour = self._links.get(link)
        if neighbour is None:
            return []
        neighbour.known.forget(stream)
        awaited = self._awaited.get(stream, [])
        self._set_awaited(stream, [one for one in awaited if one.link != link])
        return self._want(stream, now)

    def tick(self, now: float) -> list[Effect]:
        """Does what is due."""
        effects: list[Effect] = []
        if self._word_at is not None and self._word_at <= now:
            self._word_at = None
            for link, neighbour in self._links.items():
                streams = tuple(
                    stream
                    for stream in neighbour.untold
                    # What is no longer shared since is nothing to tell of.
                    if lacking(neighbour.known.get(stream, NOTHING), self.mine.get(stream, NOTHING))
                )
                neighbour.untold.clear()
                if streams:
                    effects.append(TellStreams(link, streams))
        while self._due and self._due[0][0] <= now:
            until, stream = heappop(self._due)
            late = self._late(until, stream)
            if late:
                left = [one for one in self._awaited[stream] if one not in late]
                self._set_awaited(stream, left)
                effects += self._want(stream, now, late)
        return effects

    def _late(self, until: float, stream: StreamName) -> list[_Awaited]:
        """What is awaited of a stream until this time."""
        return [one for one in self._awaited.get(stream, ()) if one.until == until]

    # --- asking ------------------------------------------------------------------------------

    def _want(
        self, stream: StreamName, now: float, late: Collection[_Awaited] = ()
    ) -> list[Effect]:
        """Asks for what is lacking and not awaited already. Who was asked and is late still owes
        it, because its line is only slow, or it lies: others are asked, and no clock runs for it.
        """
        owed: dict[str, Frontier] = {}
        awaited: list[_Awaited] = []
        expected = self.mine.get(stream, NOTHING)
        for one in self._awaited.get(stream, ()):
            if one.until == _NEVER:
                owed[one.link] = cover_all(owed.get(one.link, NOTHING), one.ranges)
            else:
                awaited.append(one)
                expected = cover_all(expected, one.ranges)
        for one in late:
            if one.asked:
                owed[one.link] = cover_all(owed.get(one.link, NOTHING), one.ranges)
        effects: list[Effect] = []
        for link in self._by_preference(stream, owed):
            neighbour = self._links[link]
            gone = neighbour.gone.get(stream, 0)
            ranges = lacking(expected, neighbour.known.get(stream, NOTHING), gone)
            ranges = without(ranges, owed.get(link, NOTHING))[:BUS_ASK_RANGES_MAX]
            if not ranges:
                continue
            expected = cover_all(expected, ranges)
            pusher = self._pusher(stream, link)
            if pusher is not None and not late:
                # The origin is a neighbour too and pushes it: its push may only be a little later.
                self._await(awaited, _Awaited(pusher, tuple(ranges), now + self._ask_ms, False))
                continue
            self._await(awaited, _Awaited(link, tuple(ranges), now + self._ask_ms, True))
            effects.append(AskEntries(link, stream, tuple(ranges)))
        still = [_Awaited(link, tuple(ranges_of(has)), _NEVER, True) for link, has in owed.items()]
        self._set_awaited(stream, awaited + still)
        return effects

    def _await(self, awaited: list[_Awaited], more: _Awaited) -> None:
        """Adds what should come. What is awaited from the same link since a moment ago has the
        same clock: so a neighbour that tells of more and more makes no long list.
        """
        for at, one in enumerate(awaited):
            like = (one.link, one.asked) == (more.link, more.asked)
            if like and one.until > more.until - self._ask_ms / 2:
                both = ranges_of(cover_all(cover_all(NOTHING, one.ranges), more.ranges))
                awaited[at] = one._replace(ranges=tuple(both))
                return
        awaited.append(more)

    def _pusher(self, stream: StreamName, asked: str) -> str | None:
        """The link to the origin of a stream, if it is another one than `asked`."""
        for link, neighbour in self._links.items():
            if neighbour.origin == stream.origin and stream.mesh in neighbour.meshes:
                return None if link == asked else link
        return None

    def _by_preference(self, stream: StreamName, slow: Container[str]) -> list[str]:
        """The origin first, then those who were asked for the least; those who are late last."""
        links = [link for link, one in self._links.items() if stream in one.known]
        return sorted(
            links,
            key=lambda link: (
                link in slow,
                self._links[link].origin != stream.origin,
                self._busy.get(link, 0),
            ),
        )

    def _set_awaited(self, stream: StreamName, awaited: list[_Awaited]) -> None:
        before = self._awaited.pop(stream, [])
        for one in before:
            self._busy[one.link] -= 1
            if not self._busy[one.link]:
                del self._busy[one.link]
        for one in awaited:
            self._busy[one.link] = self._busy.get(one.link, 0) + 1
        clocks = [one.until for one in before]
        for one in awaited:
            if one.until not in clocks and one.until != _NEVER:
                clocks.append(one.until)
                heappush(self._due, (one.until, stream))
        if awaited:
            self._awaited[stream] = awaited

    def _streams(self) -> list[StreamName]:
        found: dict[StreamName, None] = {}
        for neighbour in self._links.values():
            found.update(dict.fromkeys(neighbour.known))
        return list(found)


def _take_in_hand(awaited: list[_Awaited], more: _Awaited) -> None:
    """Adds what is being stored to what came over the same link a moment ago. A peer decides how
    many pages wait, and how far they are apart: of more ranges than a few nothing is remembered,
    and they are at worst asked for again.
    """
    for at, one in enumerate(awaited):
        like = one.link == more.link and one.asked and one.until != _NEVER
        if like and one.until > more.until - BUS_STORE_MS / 2:
            both = ranges_of(cover_all(cover_all(NOTHING, one.ranges), more.ranges))
            if len(both) <= BUS_IN_HAND_RANGES_MAX:
                awaited[at] = one._replace(ranges=tuple(both))
            return
    awaited.append(more)
