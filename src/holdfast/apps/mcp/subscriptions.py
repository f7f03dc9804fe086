"""Following resources in both protocols.

In the protocol of today a client opens a stream of what it wants to hear of. In the one before, a
session names resources one by one and is told on the channel that it has anyway. Here each session
has one task that tells it, and what it was not told yet stands there once however often it changes:
a client that does not read costs no more than the names that it follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import ListenHandler, ResourceUpdated, ServerEvent

from holdfast.apps.mcp.feed import ResourceFeed
from holdfast.apps.mcp.places import place_at

MayStill = Callable[[str], bool]
"""Whether who follows may still read a mesh."""


class AgentSubscriptions:
    """Who follows what."""

    def __init__(self, feed: ResourceFeed) -> None:
        self._feed = feed
        self._streams: set[ListenHandler] = set()
        self._sessions: dict[int, _ToldSession] = {}

    async def listen(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: types.SubscriptionsListenRequestParams,
        may_still: MayStill,
    ) -> types.SubscriptionsListenResult:
        """One stream, for as long as its client reads it."""
        stream = _Stream(may_still)
        handler = ListenHandler(stream, max_subscriptions=1)
        self._streams.add(handler)
        uris = params.notifications.resource_subscriptions or []
        leave = await self._feed.follow(uris, stream.tell) if uris else None
        try:
            return await handler(ctx, params)
        finally:
            if leave is not None:
                leave()
            self._streams.discard(handler)

    async def subscribe(
        self, ctx: ServerRequestContext[Any, Any], uri: str, may_still: MayStill
    ) -> None:
        connection = ctx.session._connection
        session = self._sessions.get(id(connection))
        if session is None:
            session = self._sessions[id(connection)] = _ToldSession(ctx.session, may_still)
            connection.exit_stack.callback(self._end, id(connection))
        if uri not in session.follows:
            session.follows[uri] = lambda: None  # at once, so that two calls follow it once
            try:
                session.follows[uri] = await self._feed.follow([uri], session.tell)
            except BaseException:
                session.follows.pop(uri, None)
                raise

    def unsubscribe(self, ctx: ServerRequestContext[Any, Any], uri: str) -> None:
        session = self._sessions.get(id(ctx.session._connection))
        if session is not None and uri in session.follows:
            session.follows.pop(uri)()

    def close(self) -> None:
        """Ends every stream, so that its client knows that it was ended on purpose."""
        for stream in list(self._streams):
            stream.close()
        for number in list(self._sessions):
            self._end(number)

    def _end(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            session.close()


class _Stream:
    """The bus of one stream, as the SDK's handler wants it."""

    def __init__(self, may_still: MayStill) -> None:
        self._may_still = may_still
        self._listener: Callable[[ServerEvent], None] = lambda event: None

    async def publish(self, event: ServerEvent) -> None:
        self._listener(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        self._listener = listener
        return lambda: None

    def tell(self, uri: str) -> None:
        if self._may_still(place_at(uri).mesh):
            self._listener(ResourceUpdated(uri=uri))


class _ToldSession:
    """One session of the older protocol, and what it was not told yet."""

    def __init__(self, session: ServerSession, may_still: MayStill) -> None:
        self._session, self._may_still = session, may_still
        self.follows: dict[str, Callable[[], None]] = {}
        self._news: dict[str, None] = {}
        self._rung = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def tell(self, uri: str) -> None:
        if self._may_still(place_at(uri).mesh):
            self._news[uri] = None
            self._rung.set()

    def close(self) -> None:
        for leave in self.follows.values():
            leave()
        self.follows.clear()
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            news, self._news = self._news, {}
            for uri in news:
                await self._session.send_resource_updated(uri)
