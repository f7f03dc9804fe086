"""The inbox and the outbox for coroutines. All of it runs in threads: none of it is a hot path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from holdfast.node.messages.inbox import Inbox, Message, Received
from holdfast.node.messages.outbox import LaneInfo, Outbox, OutboxItem
from holdfast.node.messages.send import Sent
from holdfast.rules.limits import CHUNK_ROWS

T = TypeVar("T")


async def stream(rows: Iterator[T]) -> AsyncIterator[T]:
    """An iterator over pages, read in a thread."""
    while page := await asyncio.to_thread(lambda: list(islice(rows, CHUNK_ROWS))):
        for row in page:
            yield row


class AsyncInbox:
    """Messages that came for us, for coroutines."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def list(self, *, unread: bool = False, after: int = 0) -> AsyncIterator[Received]:
        return stream(self._inbox.list(unread=unread, after=after))

    async def page(self, *, unread: bool, after: int, limit: int) -> Sequence[Received]:
        return await asyncio.to_thread(self._inbox.page, unread=unread, after=after, limit=limit)

    async def get(self, id: str) -> Message:
        return await asyncio.to_thread(self._inbox.get, id)

    async def read(self, id: str) -> Message:
        return await asyncio.to_thread(self._inbox.read, id)

    async def reply(
        self,
        id: str,
        content: bytes | str,
        *,
        content_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
        priority: str = "next",
        new_id: str | None = None,
    ) -> Sent:
        return await asyncio.to_thread(
            self._inbox.reply,
            id,
            content,
            content_type=content_type,
            meta=meta,
            priority=priority,
            new_id=new_id,
        )

    async def counts(self) -> tuple[int, int]:
        return await asyncio.to_thread(self._inbox.counts)


class AsyncOutbox:
    """What this node has to send, for coroutines."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def list(
        self, *, failed: bool = False, lane: str | None = None, after: int = 0
    ) -> AsyncIterator[OutboxItem]:
        return stream(self._outbox.list(failed=failed, lane=lane, after=after))

    async def page(
        self, *, states: Collection[str], lane: str | None, after: int, limit: int
    ) -> Sequence[OutboxItem]:
        return await asyncio.to_thread(
            self._outbox.page, states=states, lane=lane, after=after, limit=limit
        )

    async def get(self, id: str) -> OutboxItem:
        return await asyncio.to_thread(self._outbox.get, id)

    async def lanes(self) -> Sequence[LaneInfo]:
        return await asyncio.to_thread(self._outbox.lanes)

    async def retry(self, id: str) -> OutboxItem:
        return await asyncio.to_thread(self._outbox.retry, id)

    async def drop(self, id: str) -> OutboxItem:
        return await asyncio.to_thread(self._outbox.drop, id)

    async def requeue(self, id: str, *, new_id: str | None = None) -> Sent:
        return await asyncio.to_thread(self._outbox.requeue, id, new_id=new_id)
