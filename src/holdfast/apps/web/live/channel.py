"""The live parts of one page for one caller, made once for all browsers that show them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import suppress
from time import monotonic

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
        self.is_new = True
        """It was sent nothing yet."""
        self.ended = False
        """Nothing more will come: it may not look any more, or the service is closing."""
        self.left = False
        """The browser has gone."""

    def put(self, parts: Mapping[str, str]) -> None:
        self.is_new = False
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
        """Somebody looks at the page with this key; the first one starts its channel. He has the
        page as it was a moment ago, which may be newer than the parts that were made last, and than
        those that are being made: he is sent what is made from now on.
        """
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = _Channel(self, make, kinds)
            channel.task = asyncio.create_task(channel.run())
        onlooker = Onlooker()
        channel.onlookers.add(onlooker)
        channel.newcomers.set()
        return onlooker

    def leave(self, key: Hashable, onlooker: Onlooker) -> None:
        channel = self._channels.get(key)
        if channel is None or onlooker not in channel.onlookers:
            return
        channel.onlookers.discard(onlooker)
        if not channel.onlookers:
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
        self.newcomers = asyncio.Event()
        """Somebody has come since parts were begun to be made."""
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        changes = self._channels.changes
        while not changes.closing:
            seen = changes.seen(self._kinds)
            self.newcomers.clear()
            came = {one for one in self.onlookers if one.is_new}
            try:
                made = await self._make()
            except (BadToken, NotAllowed, NotFound):  # what it shows is gone for who looks
                break
            except HoldfastError as error:
                log.info("a live part was not made: %s", error.message)
                made, came = {}, set()
            except Exception:
                log.exception("a fault of ours in a live part of the console")
                break
            self._channels.made += 1
            fresh = {name: part for name, part in made.items() if self.parts.get(name) != part}
            self.parts.update(fresh)
            for onlooker in self.onlookers:
                if onlooker in came:
                    onlooker.put(self.parts)
                elif fresh and not onlooker.is_new:
                    onlooker.put(fresh)
            made_at = monotonic()
            await self._cause(seen)
            # What happens in this time is shown together. Who comes to a quiet page does not wait.
            begin = made_at if changes.seen(self._kinds) == seen else monotonic()
            await asyncio.sleep(begin + CONSOLE_LIVE_MS / SECOND_MS - monotonic())
        self._channels.forget(self)
        self.end()

    async def _cause(self, seen: int) -> None:
        """Waits until something has changed, or somebody has come."""
        changed = asyncio.ensure_future(self._channels.changes.wait(self._kinds, seen))
        came = asyncio.ensure_future(self.newcomers.wait())
        try:
            await asyncio.wait({changed, came}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            came.cancel()

    def end(self) -> None:
        for onlooker in self.onlookers:
            onlooker.end()

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
