"""The live parts of one page for one caller, made once for all browsers that show them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import suppress

from holdfast.apps.web.live.changes import Changes
from holdfast.rules.errors import BadToken, HoldfastError, NotAllowed, NotFound
from holdfast.rules.limits import CONSOLE_LIVE_MS, SECOND_MS

log = logging.getLogger("holdfast")

Make = Callable[[], Awaitable[Mapping[str, str]]]
"""Makes the parts, by name."""


class Onlooker:
    """One browser that looks at a page: the parts that it has not been sent yet."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self.news = asyncio.Event()
        self.ended = False
        """Nothing more will come: it may not look any more, or the service is closing."""
        self.left = False
        """The browser has gone."""

    def put(self, parts: Mapping[str, str]) -> None:
        self.parts.update(parts)
        self.news.set()

    def end(self) -> None:
        self.ended = True
        self.news.set()

    def leave(self) -> None:
        self.left = True
        self.news.set()

    def take(self) -> dict[str, str]:
        taken, self.parts = self.parts, {}
        self.news.clear()
        return taken


class Channels:
    """All pages that somebody looks at."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self._channels: dict[Hashable, _Channel] = {}
        self.made = 0
        """How often parts were made, for tests."""

    def join(self, key: Hashable, make: Make, kinds: Collection[str]) -> Onlooker:
        """Somebody looks at the page with this key; the first one starts its channel."""
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = _Channel(self, make, kinds)
            channel.task = asyncio.create_task(channel.run())
        onlooker = Onlooker()
        channel.welcome(onlooker)
        return onlooker

    def leave(self, key: Hashable, onlooker: Onlooker) -> None:
        channel = self._channels.get(key)
        if channel is None or not channel.lose(onlooker):
            return
        if not channel.onlookers and not channel.newcomers:
            del self._channels[key]
            channel.stop()

    def forget(self, channel: _Channel) -> None:
        """It makes nothing more: who comes later gets a new one."""
        for key, found in list(self._channels.items()):
            if found is channel:
                del self._channels[key]

    async def close(self) -> None:
        self.changes.close()
        tasks = [channel.task for channel in self._channels.values() if channel.task is not None]
        for channel in list(self._channels.values()):
            channel.end()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._channels.clear()


class _Channel:
    def __init__(self, channels: Channels, make: Make, kinds: Collection[str]) -> None:
        self._channels, self._make, self._kinds = channels, make, kinds
        self.parts: dict[str, str] = {}
        self.onlookers: set[Onlooker] = set()
        self.newcomers: set[Onlooker] = set()
        """Their pages may be newer than the parts, and than those that are being made: they are
        sent what is made after they came, all of it.
        """
        self._came = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def welcome(self, onlooker: Onlooker) -> None:
        self.newcomers.add(onlooker)
        self._came.set()

    def lose(self, onlooker: Onlooker) -> bool:
        """Whether it was one of these."""
        found = onlooker in self.onlookers or onlooker in self.newcomers
        self.onlookers.discard(onlooker)
        self.newcomers.discard(onlooker)
        return found

    async def run(self) -> None:
        changes = self._channels.changes
        while not changes.closing:
            seen = changes.seen(self._kinds)
            here = self._take_in()
            try:
                made = await self._make()
            except (BadToken, NotAllowed, NotFound):  # what it shows is gone for who looks
                break
            except HoldfastError as error:
                log.info("a live part was not made: %s", error.message)
                made = {}
            except Exception:
                log.exception("a fault of ours in a live part of the console")
                break
            self._channels.made += 1
            self._give(made, here)
            await self._until_news(seen)
            # What happens in this time is shown together.
            await asyncio.sleep(CONSOLE_LIVE_MS / SECOND_MS)
        self._channels.forget(self)
        self.end()

    def _take_in(self) -> set[Onlooker]:
        """Those who came since the last time."""
        here, self.newcomers = self.newcomers, set()
        self.onlookers |= here
        self._came.clear()
        return here

    def _give(self, made: Mapping[str, str], here: set[Onlooker]) -> None:
        fresh = {name: part for name, part in made.items() if self.parts.get(name) != part}
        self.parts.update(fresh)
        for onlooker in self.onlookers:
            if onlooker in here:
                onlooker.put(self.parts)
            elif fresh:
                onlooker.put(fresh)

    async def _until_news(self, seen: int) -> None:
        """Returns when something has happened since, or somebody has come."""
        waits = {
            asyncio.ensure_future(self._channels.changes.wait(self._kinds, seen)),
            asyncio.ensure_future(self._came.wait()),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    def end(self) -> None:
        for onlooker in self.onlookers | self.newcomers:
            onlooker.end()

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
