"""What has happened since somebody looked, by kind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.rules.limits import HEARTBEAT_MS, SECOND_MS

if TYPE_CHECKING:
    from holdfast.broker.http.context import BrokerApi
    from holdfast.node.http.context import NodeApi

_SETTLED_S: Final = 2.0


class Changes:
    """Counts what happens, and wakes those who wait for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], Collection[str]] = {}
        self._rung: set[str] = set()
        self.closing = False

    def tell(self, kind: str) -> None:
        """Something of a kind has happened; from any thread, however often."""
        if kind in self._rung:
            return
        self._rung.add(kind)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.note, kind)

    def note(self, kind: str) -> None:
        """The same, in the loop."""
        self._rung.discard(kind)
        self._numbers[kind] += 1
        for future, kinds in self._waiting.items():
            if kind in kinds and not future.done():
                future.set_result(None)

    def seen(self, kinds: Collection[str]) -> int:
        """A number that grows whenever something of these kinds happens."""
        return sum(self._numbers[kind] for kind in kinds)

    async def wait(self, kinds: Collection[str], seen: int) -> None:
        """Returns when something of these kinds has happened since that number was seen, or when
        the service is closing.
        """
        while not self.closing and self.seen(kinds) == seen:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting[future] = kinds
            try:
                await future
            finally:
                del self._waiting[future]

    def close(self) -> None:
        self.closing = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


async def follow_node(api: NodeApi, changes: Changes) -> None:
    """Tells what happens in a node, until it closes. Its log watch is woken by commits of this
    process and of others, and by what is in no log.
    """
    watch = api.log_watch
    api.engine.store.on_commit(lambda: changes.tell("store"))
    head, notice = watch.head, watch.last_notice
    while not watch.closing:
        await watch.wait(head, HEARTBEAT_MS / SECOND_MS, after=notice)
        if watch.head != head:
            head = watch.head
            changes.note("log")
            changes.note("store")
        for news in watch.news(notice):
            notice = news.number
            changes.note(news.kind)
        notice = max(notice, watch.last_notice)


async def follow_broker(api: BrokerApi, changes: Changes) -> None:
    """Tells what happens in a broker, and once more a while after it: its figures are counted at
    most so often (`settled`).
    """
    api.store.on_news(lambda mesh, seq: changes.note("store"))  # called in the loop
    seen = changes.seen(("store",))
    while not changes.closing:
        await changes.wait(("store",), seen)
        seen = changes.seen(("store",))
        await asyncio.sleep(_SETTLED_S)
        changes.note("settled")
