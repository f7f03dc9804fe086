"""Parts as server-sent events: a message holds elements that htmx puts in their places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.apps.web.live.channel import Channels, Onlooker
from holdfast.rules.limits import HEARTBEAT_MS, SECOND_MS
from holdfast.transport.http_protocol import ENDED

EVENTS: Final = "text/event-stream"
_BEAT: Final = b": still here\n\n"
_RETRY: Final = b"retry: 1000\n\n"
_GONE: Final = b"event: gone\ndata: gone\n\n"
"""The script of the page then loads it anew, which leads to the login."""


class LiveParts(Response):
    """The answer that stays open. When the browser goes it ends at once, and not with what it would
    have been sent next: who only looks at quiet pages would be kept for long.
    """

    media_type = EVENTS

    def __init__(
        self,
        onlooker: Onlooker,
        sending: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        leave: Callable[[], None],
    ) -> None:
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._onlooker, self._sending, self._leave = onlooker, sending, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = asyncio.ensure_future(self._watch(receive, scope[ENDED]))
        begin = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(begin)
            async for part in self._sending:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            if not self._onlooker.left:
                await send({"type": "http.response.body", "body": b""})
        finally:
            watching.cancel()
            await self._sending.aclose()
            # A generator that was never begun does not run its `finally` when it is closed.
            self._leave()

    async def _watch(self, receive: Receive, has_ended: Callable[[], bool]) -> None:
        """A browser that sends no more has gone, though others might still read."""
        while (await receive())["type"] != "http.disconnect" and not has_ended():
            pass
        self._onlooker.leave()


async def stream(
    channels: Channels,
    key: Hashable,
    onlooker: Onlooker,
    may_look: Callable[[], bool],
    dress: Callable[[str], str],
) -> AsyncGenerator[bytes, None]:
    """Parts as they come, until the browser goes, may look no more, or the service closes. `dress`
    puts into a part what is of this session alone.
    """
    try:
        yield _RETRY
        while not onlooker.left:
            try:
                async with asyncio.timeout(HEARTBEAT_MS / SECOND_MS):
                    await onlooker.news.wait()
            except TimeoutError:
                if may_look():
                    yield _BEAT
                    continue
            if onlooker.left:
                return
            if not may_look():
                yield _GONE
                return
            if parts := onlooker.take():
                yield message(parts, dress)
            if onlooker.ended:
                if not channels.changes.closing:
                    yield _GONE
                return
    finally:
        channels.leave(key, onlooker)


def message(parts: Mapping[str, str], dress: Callable[[str], str]) -> bytes:
    """One event with parts."""
    html = "".join(
        f'<hx-partial hx-target="#live-{name}" hx-swap="innerMorph">{dress(part)}</hx-partial>'
        for name, part in parts.items()
    )
    lines = html.replace("\r", "\n").split("\n")
    return ("".join(f"data: {line}\n" for line in lines) + "\n").encode()
