"""Tells linked peers what we listen to, serve and pass on: a change at once, and what changes
shortly after it together.

An announcement says all of it, so of several only the last one counts. Programs that subscribe and
unsubscribe in a row, or a peer whose wishes change what we tell all others, cost each link one
frame in so long, and nothing if it comes out as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from holdfast.bus.context import BusContext
from holdfast.bus.ports import Link
from holdfast.protocol.bus_frames import FrameKind, InterestFrame, Stream, told
from holdfast.rules.errors import PeerUnreachable
from holdfast.rules.limits import BUS_ANNOUNCE_MS, SECOND_MS

_INTERVAL_S = BUS_ANNOUNCE_MS / SECOND_MS


class Announcing:
    """What was announced to whom, and when."""

    def __init__(
        self,
        context: BusContext,
        links: Callable[[], Iterable[Link]],
        interest: Callable[[Link], InterestFrame],
    ) -> None:
        """`interest` is what a peer is to know now."""
        self._context, self._links, self._interest = context, links, interest
        self._told: dict[Link, tuple[float, bytes]] = {}
        """By link: when it was told something last, and what."""
        self._waiting: asyncio.Handle | None = None
        """Tells all links, at the end of this turn of the loop or later."""

    def announce(self) -> None:
        """Something is different now. What else changes in this turn of the loop goes with it."""
        if self._waiting is None and not self._context.is_closed:
            self._waiting = self._context.loop.call_soon(self._tell_all)

    def tell(self, link: Link) -> None:
        """Tells one peer at once, whatever it was told before."""
        body = told(FrameKind.INTEREST, self._interest(link))
        _, before = self._told.get(link, (0.0, None))
        if body == before:
            return
        self._told[link] = self._context.loop.time(), body
        with suppress(PeerUnreachable):  # then it is told on the next link
            link.send(FrameKind.INTEREST, Stream.CONTROL, body)

    def link_down(self, link: Link) -> None:
        self._told.pop(link, None)

    def _tell_all(self) -> None:
        self._waiting = None
        if self._context.is_closed:
            return
        now, later = self._context.loop.time(), list[float]()
        for link in self._links():
            at, _ = self._told.get(link, (now - _INTERVAL_S, b""))
            if at + _INTERVAL_S <= now:
                self.tell(link)
            else:
                later.append(at + _INTERVAL_S)
        if later:
            self._waiting = self._context.loop.call_at(min(later), self._tell_all)
