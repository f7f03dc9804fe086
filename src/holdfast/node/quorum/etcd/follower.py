"""All entries of an order from a point on, in order, each once.

A watch brings them as they are committed. It ends when its member does; then the next one goes on
at another member, from the last entry that was seen. It also may fall silent: so a follower that
has heard nothing for a while reads where the order ends, and leaves a watch that does not bring it
there.

Where a watch cannot begin, because the history was compacted, and where it skips an entry, the
follower lists instead: all keys at one revision, of which those are new that were written after the
last entry that was seen. Then it watches from the revision after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from heapq import nsmallest
from typing import Final, NamedTuple

import msgspec

from holdfast.node.quorum.etcd import transactions
from holdfast.node.quorum.etcd.engine import EtcdEngine
from holdfast.protocol.etcd_json import (
    RANGE,
    TXN,
    RangeAnswer,
    RangeRequest,
    TxnAnswer,
    WatchAnswer,
    WatchCreate,
    WatchRequest,
)
from holdfast.rules.errors import Truncated, Unreachable
from holdfast.rules.etcd.endpoints import pause_ms
from holdfast.rules.etcd.entry import HeldKey, OrderedEntry, OrderPoint, ordered_entry
from holdfast.rules.etcd.following import (
    FollowProgress,
    GapSeen,
    check_end,
    check_listed,
    on_events,
)
from holdfast.rules.limits import (
    ETCD_FETCH_MAX,
    ETCD_LISTED_MAX,
    ETCD_PAGE_KEYS,
    ETCD_QUIET_MS,
    SECOND_MS,
)
from holdfast.transport.etcd_gateway import EtcdGateway

PATIENCE_MS: Final = 10 * SECOND_MS
_WORKED_S: Final = 1.0
"""A watch that lasted longer has worked; one that ends at once is a failure like the last."""
_LISTINGS_MAX: Final = 5
Entries = tuple[OrderedEntry, ...]
Piece = AsyncGenerator[Entries, None]


class _Compacted(Exception):
    """A watch cannot begin where the follower is."""


class _Listing(NamedTuple):
    """What is new at one revision."""

    revision: int
    found: list[tuple[int, bytes]]
    """The revisions and keys of the next entries, in order."""
    is_all: bool


class OrderFollower:
    """One node's way through an order."""

    def __init__(
        self,
        gateway: EtcdGateway,
        order: EtcdEngine,
        after: OrderPoint,
        *,
        quiet_ms: int = ETCD_QUIET_MS,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        """`patience_ms` is how long it tries to reach the etcd before it raises."""
        self._gateway, self._order, self._keys = gateway, order, order.keys
        self._progress = FollowProgress(after)
        self._quiet_s = quiet_ms / SECOND_MS
        self._patience_ms = patience_ms
        self.listings = 0
        """How often it had to list."""

    @property
    def seen(self) -> OrderPoint:
        return self._progress.seen

    async def pieces(self) -> Piece:
        """Entries as they are committed, some at a time. It goes on until it is closed, or raises:
        Unreachable, Truncated (a snapshot is needed), QuorumSetBack.
        """
        failures, since = 0, asyncio.get_running_loop().time()
        await self._check_end()
        while True:
            begun = asyncio.get_running_loop().time()
            try:
                async with aclosing(self._watched()) as watched:
                    async for entries in watched:
                        yield entries
            except (_Compacted, GapSeen):
                async with aclosing(self._listed()) as listed:
                    async for entries in listed:
                        yield entries
            except Unreachable:
                now = asyncio.get_running_loop().time()
                failures = 1 if now - begun > _WORKED_S else failures + 1
                since = now if failures == 1 else since
                if now - since > self._patience_ms / SECOND_MS:
                    raise
                await asyncio.sleep(pause_ms(failures, len(self._gateway.members)) / SECOND_MS)

    # --- by a watch ----------------------------------------------------------------------------

    async def _watched(self) -> Piece:
        """What one watch brings."""
        self._progress = msgspec.structs.replace(self._progress, waiting=())
        create = WatchCreate(
            key=self._keys.entries,
            range_end=self._keys.watched_end,
            start_revision=str(self._progress.resume_at),
            filters=("NODELETE",),
            fragment=True,
        )
        lines = self._gateway.watch(WatchRequest(create_request=create))
        async with aclosing(lines), aclosing(self._not_silent(lines)) as answers:
            async for answer in answers:
                if answer.compact_revision:
                    raise _Compacted
                events = [event.kv.held for event in answer.events if event.type == "PUT"]
                self._progress, entries = on_events(
                    self._keys, self._progress, events, more=answer.fragment
                )
                if entries:
                    yield entries

    async def _not_silent(
        self, lines: AsyncGenerator[WatchAnswer, None]
    ) -> AsyncGenerator[WatchAnswer, None]:
        """The same lines; raises Unreachable if they leave out what the order has."""
        while True:
            coming = asyncio.ensure_future(_next(lines))
            try:
                while not coming.done():
                    await asyncio.wait({coming}, timeout=self._quiet_s)
                    if not coming.done() and await self._is_behind():
                        # What was just committed may be on its way.
                        await asyncio.wait({coming}, timeout=self._quiet_s)
                        if not coming.done():
                            self._gateway.suspect()
                            raise Unreachable("a watch of the etcd has fallen silent")
                yield coming.result()
            finally:
                coming.cancel()
                await asyncio.wait({coming})

    async def _is_behind(self) -> bool:
        return await self._check_end() > self.seen.position

    async def _check_end(self) -> int:
        seen = self.seen
        end = await self._order.end(timeout_ms=self._patience_ms)
        check_end(seen, end.point, end.state.floor)
        return end.point.position

    # --- by a listing --------------------------------------------------------------------------

    async def _listed(self) -> Piece:
        """Everything from the last entry that was seen to the end of the order, as it is now."""
        for _ in range(_LISTINGS_MAX):
            self.listings += 1
            await self._check_end()
            try:
                listing = await self._list()
            except Truncated:
                continue  # the revision of the listing was compacted meanwhile
            for at in range(0, len(listing.found), ETCD_FETCH_MAX):
                entries = await self._fetch(listing.found[at : at + ETCD_FETCH_MAX])
                if not entries:
                    break
                self._progress = FollowProgress(entries[-1].point)
                yield entries
            else:
                if listing.is_all:
                    self._progress = FollowProgress(self.seen, listing.revision)
                return
        raise Unreachable("the etcd compacts faster than its keys can be listed")

    async def _list(self) -> _Listing:
        seen, count, revision = self.seen, 0, 0
        last: HeldKey | None = None
        fresh: list[tuple[int, bytes]] = []
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                revision = revision or page.header.revision
                for held in (kv.held for kv in page.kvs):
                    if held.key == self._keys.last:
                        last = held
                    elif held.revision > seen.position and self._keys.id_of(held.key) is not None:
                        count += 1
                        fresh.append((held.revision, held.key))
                if len(fresh) >= 2 * ETCD_LISTED_MAX:
                    fresh = nsmallest(ETCD_LISTED_MAX, fresh)
        end = seen if last is None else OrderPoint(last.revision, last.version)
        check_listed(seen, count, end)
        return _Listing(revision, nsmallest(ETCD_LISTED_MAX, fresh), count <= ETCD_LISTED_MAX)

    async def _pages(self) -> AsyncGenerator[RangeAnswer, None]:
        """All keys that a watch would cover, at the revision of the first page."""
        key, revision = self._keys.entries, 0
        while True:
            request = RangeRequest(
                key=key,
                range_end=self._keys.watched_end,
                revision=str(revision),
                limit=str(ETCD_PAGE_KEYS),
                keys_only=True,
            )
            page = await self._gateway.call(RANGE, request, RangeAnswer, until=self._until())
            revision = revision or page.header.revision
            yield page
            if not page.more or not page.kvs or page.kvs[-1].key < key:
                return
            key = page.kvs[-1].key + b"\0"

    async def _fetch(self, wanted: list[tuple[int, bytes]]) -> Entries:
        """These entries; none, if one of them was forgotten since it was listed."""
        request = transactions.get_keys([key for _, key in wanted])
        answer = await self._gateway.call(TXN, request, TxnAnswer, until=self._until())
        found = answer.ranges(len(wanted))
        entries: list[OrderedEntry] = []
        for number, ((revision, key), held) in enumerate(
            zip(wanted, found, strict=True), self.seen.number + 1
        ):
            id = self._keys.id_of(key)
            if held is None or id is None or held.revision != revision:
                return ()
            entries.append(ordered_entry(id, held, number))
        return tuple(entries)

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._patience_ms / SECOND_MS

    async def count_after(self) -> OrderPoint:
        """The point of a follower that knows its position and not its number, from a listing."""
        last, count = 0, 0
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                for held in (kv.held for kv in page.kvs):
                    if held.key == self._keys.last:
                        last = held.version
                    elif self._keys.id_of(held.key) is not None:
                        count += held.revision > self.seen.position
        return OrderPoint(self.seen.position, last - count)


async def counted_point(
    gateway: EtcdGateway, order: EtcdEngine, position: int, *, timeout_ms: int
) -> OrderPoint:
    """The point of the order at a position, up to which a node has folded it. QuorumSetBack if the
    etcd has not come as far.
    """
    end = await order.end(timeout_ms=timeout_ms)
    if position >= end.point.position or not position:
        point = OrderPoint(position, end.point.number if position else 0)
        check_end(point, end.point, 0)
        return point
    try:
        return OrderPoint(position, await order.number_at(position, timeout_ms=timeout_ms))
    except Truncated:  # the etcd has compacted its history since
        at = OrderPoint(position, 0)
        return await OrderFollower(gateway, order, at, patience_ms=timeout_ms).count_after()


async def _next(lines: AsyncIterator[WatchAnswer]) -> WatchAnswer:
    return await anext(lines)
