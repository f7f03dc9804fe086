"""A SQLite desk in threads of its own, so that no sync of the disk stops the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from holdfast.rules.broker_rows import (
    AcceptResult,
    BrokerConsumer,
    BrokerMesh,
    BrokerSwept,
    DeadLetter,
    DestinationRow,
    EpochRow,
    FeedPage,
    InviteRow,
    LogPage,
    MemberRow,
    Mode,
    Orphan,
    PushedEnvelope,
    QueueCounts,
    SnapshotRow,
    TakenRow,
)
from holdfast.storage.broker.sqlite.store import SqliteBrokerStore
from holdfast.storage.broker.sqlite.worker import Worker

T = TypeVar("T")


class ThreadedBrokerStore:
    """The same desk. What changes something runs in one thread, one after the other; what only
    looks runs in another, so that nobody waits for a sync of the disk to see what is there.

    A look that begins after a change was answered sees it. A caller that is cancelled cannot know:
    its work does not happen, happens, or has happened.
    """

    def __init__(self, inner: SqliteBrokerStore) -> None:
        self.inner = inner
        self._beside = inner.another()
        self._writer, self._reader = Worker("holdfast-desk"), Worker("holdfast-desk-reads")
        self._do = self._writer.do

    async def _look(self, begin: Callable[[SqliteBrokerStore], Coroutine[Any, Any, T]]) -> T:
        if self.inner.failed is not None:
            # Nobody is shown what may be gone after the next start.
            return await self._do(lambda: begin(self.inner))
        return await self._reader.do(lambda: begin(self._beside))

    async def open(self, now_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._writer.start(loop)
        self._reader.start(loop)
        try:
            await self._do(lambda: self.inner.open(now_ms))
            await self._reader.do(self._beside.open_beside)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """May be called twice."""
        if not self._writer.runs:
            return
        try:
            await self._reader.do(self._beside.close)
            await self._do(self.inner.close)
        finally:
            self._reader.stop()
            self._writer.stop()

    async def ping(self) -> None:
        await self._look(lambda store: store.ping())

    def on_news(self, told: Callable[[str, int], None]) -> None:
        loop = asyncio.get_running_loop()
        self.inner.on_news(lambda mesh, seq: _tell(loop, told, mesh, seq))

    async def mesh_register(
        self, slug: str, name: str, owner: bytes, owner_name: str, server_id: str, now_ms: int
    ) -> BrokerMesh:
        return await self._do(
            lambda: self.inner.mesh_register(slug, name, owner, owner_name, server_id, now_ms)
        )

    async def mesh_get(self, slug: str) -> BrokerMesh | None:
        return await self._look(lambda store: store.mesh_get(slug))

    async def mesh_list(self) -> list[BrokerMesh]:
        return await self._look(lambda store: store.mesh_list())

    async def mesh_remove(self, slug: str) -> bool:
        return await self._do(lambda: self.inner.mesh_remove(slug))

    async def epochs(self, slug: str) -> list[EpochRow]:
        return await self._look(lambda store: store.epochs(slug))

    async def new_epoch(self, slug: str | None, reason: str, now_ms: int) -> list[BrokerMesh]:
        return await self._do(lambda: self.inner.new_epoch(slug, reason, now_ms))

    async def member_get(self, mesh: str, key: bytes) -> MemberRow | None:
        return await self._look(lambda store: store.member_get(mesh, key))

    async def member_list(self, mesh: str) -> list[MemberRow]:
        return await self._look(lambda store: store.member_list(mesh))

    async def member_put(self, mesh: str, row: MemberRow) -> None:
        await self._do(lambda: self.inner.member_put(mesh, row))

    async def member_grant(self, mesh: str, key: bytes, grants: frozenset[str]) -> MemberRow | None:
        return await self._do(lambda: self.inner.member_grant(mesh, key, grants))

    async def member_remove(self, mesh: str, key: bytes, now_ms: int) -> bool:
        return await self._do(lambda: self.inner.member_remove(mesh, key, now_ms))

    async def meshes_of(self, key: bytes) -> list[str]:
        return await self._look(lambda store: store.meshes_of(key))

    async def member_got(self, mesh: str, key: bytes, epoch: int, seq: int, now_ms: int) -> None:
        await self._do(lambda: self.inner.member_got(mesh, key, epoch, seq, now_ms))

    async def invite_put(self, row: InviteRow) -> None:
        await self._do(lambda: self.inner.invite_put(row))

    async def invite_list(self, mesh: str) -> list[InviteRow]:
        return await self._look(lambda store: store.invite_list(mesh))

    async def invite_drop(self, mesh: str, digest: bytes) -> bool:
        return await self._do(lambda: self.inner.invite_drop(mesh, digest))

    async def invite_use(self, digest: bytes, key: bytes, name: str, now_ms: int) -> str:
        return await self._do(lambda: self.inner.invite_use(digest, key, name, now_ms))

    async def destination_put(self, mesh: str, row: DestinationRow) -> None:
        await self._do(lambda: self.inner.destination_put(mesh, row))

    async def destination_list(self, mesh: str) -> list[DestinationRow]:
        return await self._look(lambda store: store.destination_list(mesh))

    async def destination_drop(self, mesh: str, kind: str, ref: str) -> bool:
        return await self._do(lambda: self.inner.destination_drop(mesh, kind, ref))

    async def subscribe(self, mesh: str, key: bytes, topic: str) -> int:
        return await self._do(lambda: self.inner.subscribe(mesh, key, topic))

    async def unsubscribe(self, mesh: str, key: bytes, topic: str) -> bool:
        return await self._do(lambda: self.inner.unsubscribe(mesh, key, topic))

    async def subscriptions(self, mesh: str, key: bytes) -> dict[str, int]:
        return await self._look(lambda store: store.subscriptions(mesh, key))

    groups_max: Final = 2
    """One is written, the next one waits for the thread and not for the loop."""

    def accept(
        self, batch: Sequence[PushedEnvelope], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> asyncio.Future[list[AcceptResult]]:
        return self._writer.begin(
            lambda: self.inner.accept(batch, now_ms, keep_ms=keep_ms, dedupe_ms=dedupe_ms)
        )

    async def known(
        self, mesh: str, asked: Sequence[tuple[bytes, bytes]]
    ) -> list[AcceptResult | None]:
        return await self._look(lambda store: store.known(mesh, asked))

    async def feed(
        self, mesh: str, key: bytes, after: int, limit: int, bytes_max: int, *, own: bool
    ) -> FeedPage:
        return await self._look(
            lambda store: store.feed(mesh, key, after, limit, bytes_max, own=own)
        )

    async def express(self, mesh: str, key: bytes, after: int, limit: int) -> FeedPage:
        return await self._look(lambda store: store.express(mesh, key, after, limit))

    async def log_page(
        self, mesh: str, after: int, upto: int, limit: int, bytes_max: int
    ) -> LogPage:
        return await self._look(lambda store: store.log_page(mesh, after, upto, limit, bytes_max))

    async def consumer_add(
        self, mesh: str, key: bytes, name: str, after: int, known: int, now_ms: int
    ) -> BrokerConsumer:
        return await self._do(
            lambda: self.inner.consumer_add(mesh, key, name, after, known, now_ms)
        )

    async def consumer_confirm(
        self, mesh: str, key: bytes, name: str, epoch: int, seq: int, now_ms: int
    ) -> BrokerConsumer:
        return await self._do(
            lambda: self.inner.consumer_confirm(mesh, key, name, epoch, seq, now_ms)
        )

    async def consumer_list(self, mesh: str) -> list[BrokerConsumer]:
        return await self._look(lambda store: store.consumer_list(mesh))

    async def consumer_drop(self, mesh: str, key: bytes, name: str) -> bool:
        return await self._do(lambda: self.inner.consumer_drop(mesh, key, name))

    async def take(
        self, mesh: str, queue: str, holder: bytes, most: int, leases: Sequence[bytes], now_ms: int
    ) -> list[TakenRow]:
        return await self._do(lambda: self.inner.take(mesh, queue, holder, most, leases, now_ms))

    async def settle(
        self, mesh: str, queue: str, seq: int, lease: bytes, how: str, reason: str, now_ms: int
    ) -> bool:
        return await self._do(
            lambda: self.inner.settle(mesh, queue, seq, lease, how, reason, now_ms)
        )

    async def queue_counts(self, mesh: str) -> list[QueueCounts]:
        return await self._look(lambda store: store.queue_counts(mesh))

    async def dead_letters(self, mesh: str, queue: str, limit: int) -> list[DeadLetter]:
        return await self._look(lambda store: store.dead_letters(mesh, queue, limit))

    async def revive(self, mesh: str, queue: str, seq: int) -> bool:
        return await self._do(lambda: self.inner.revive(mesh, queue, seq))

    async def object_size(self, mesh: str, sha256: str) -> int | None:
        return await self._look(lambda store: store.object_size(mesh, sha256))

    async def object_add(self, mesh: str, sha256: str, number: int, piece: bytes) -> int:
        return await self._do(lambda: self.inner.object_add(mesh, sha256, number, piece))

    async def object_finish(self, mesh: str, sha256: str, size: int) -> None:
        await self._do(lambda: self.inner.object_finish(mesh, sha256, size))

    async def object_asked(self, mesh: str, sha256: str) -> int | None:
        return await self._do(lambda: self.inner.object_asked(mesh, sha256))

    async def objects_after(self, mesh: str, sha256: str, limit: int) -> list[str]:
        return await self._look(lambda store: store.objects_after(mesh, sha256, limit))

    async def objects_settle(
        self, mesh: str, named: Sequence[str], unnamed: Sequence[str], now_ms: int, before_ms: int
    ) -> int:
        return await self._do(
            lambda: self.inner.objects_settle(mesh, named, unnamed, now_ms, before_ms)
        )

    async def object_piece(self, mesh: str, sha256: str, number: int) -> bytes | None:
        return await self._look(lambda store: store.object_piece(mesh, sha256, number))

    async def object_read(self, mesh: str, sha256: str) -> AsyncIterator[bytes]:
        number = 0
        while (piece := await self.object_piece(mesh, sha256, number)) is not None:
            yield piece
            number += 1

    async def snapshot_begin(self, mesh: str, row: SnapshotRow) -> SnapshotRow:
        return await self._do(lambda: self.inner.snapshot_begin(mesh, row))

    async def snapshot_add(self, mesh: str, id: str, number: int, rows: int, part: bytes) -> int:
        return await self._do(lambda: self.inner.snapshot_add(mesh, id, number, rows, part))

    async def snapshot_commit(self, mesh: str, id: str, digest: bytes, now_ms: int) -> SnapshotRow:
        return await self._do(lambda: self.inner.snapshot_commit(mesh, id, digest, now_ms))

    async def snapshot_get(self, mesh: str) -> SnapshotRow | None:
        return await self._look(lambda store: store.snapshot_get(mesh))

    async def snapshot_part(self, mesh: str, id: str, number: int) -> bytes | None:
        return await self._look(lambda store: store.snapshot_part(mesh, id, number))

    async def sweep(self, now_ms: int, most: int) -> BrokerSwept:
        return await self._do(lambda: self.inner.sweep(now_ms, most))

    async def orphans(self, limit: int) -> list[Orphan]:
        # It reads all there is: nobody waits behind it.
        if self.inner.failed is not None or not self._writer.runs:
            return await self._look(lambda store: store.orphans(limit))
        aside, thread = self.inner.another(), Worker("holdfast-desk-orphans")
        thread.start(asyncio.get_running_loop())
        try:
            await thread.do(aside.open_beside)
            return await thread.do(lambda: aside.orphans(limit))
        finally:
            try:
                await thread.do(aside.close)
            finally:
                thread.stop()

    async def counts(self) -> dict[str, int]:
        return await self._look(lambda store: store.counts())

    async def mode(self) -> tuple[Mode, int]:
        return await self._look(lambda store: store.mode())

    async def set_mode(self, mode: Mode, days: int) -> None:
        await self._do(lambda: self.inner.set_mode(mode, days))


def _tell(
    loop: asyncio.AbstractEventLoop, told: Callable[[str, int], None], mesh: str, seq: int
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(told, mesh, seq)
