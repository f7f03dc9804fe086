"""The library for coroutines: `holdfast.aopen(home)` gives an `AsyncNode` with the same verbs.

Writes go through `LoopWriter`, so that many coroutines share one commit. Reads that may take long
run in a thread.

A write that was handed to the writer happens even if its coroutine is cancelled meanwhile. Whoever
must know gives it an id, and asks again with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from holdfast.node.core import operations
from holdfast.node.core.change import Receipt
from holdfast.node.core.files import Content
from holdfast.node.core.intake import Applied
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.core.receive import intakes
from holdfast.node.core.views import (
    Consumer,
    FileInfo,
    Hit,
    LastKnown,
    Memory,
    MeshClock,
    PeerInfo,
    StateEntry,
)
from holdfast.node.library.aio_messages import AsyncInbox, AsyncOutbox, stream
from holdfast.node.library.families import Rows
from holdfast.node.library.node import Mesh, Node, open_node
from holdfast.node.log.log import Head, Log
from holdfast.node.messages.messages import Sent, one_destination, prepare
from holdfast.node.upkeep.sweep import DEFAULT_TTL, SweepReport, Ttl
from holdfast.protocol.log_wire import Batch
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.limits import FETCH_ROWS_DEFAULT
from holdfast.rules.rows import (
    ConflictRow,
    Entry,
    MeshRow,
    ModelRow,
    TaskEventRow,
    TaskRow,
    WarningRow,
)
from holdfast.rules.tasks import TaskStatus
from holdfast.rules.vectors import Model

if TYPE_CHECKING:
    from holdfast.node.library.aio_sharing import AsyncSharing

T = TypeVar("T")


class _Family:
    def __init__(self, writer: LoopWriter, sync: Mesh) -> None:
        self._writer = writer
        self._ctx = writer.engine.ctx
        self._sync = sync
        self._mesh = sync.slug


class AsyncState(_Family):
    async def set(
        self,
        key: str,
        value: object,
        *,
        id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Receipt:
        return await self._writer.write(
            "state.set", operations.state_set(self._ctx, self._mesh, key, value, id, meta)
        )

    async def get(self, key: str, default: Any = None) -> Any:
        return self._sync.state.get(key, default)

    async def entry(self, key: str) -> StateEntry | None:
        return self._sync.state.entry(key)

    async def delete(self, key: str, *, id: str | None = None) -> Receipt:
        return await self._writer.write(
            "state.delete", operations.state_delete(self._ctx, self._mesh, key, id)
        )

    def list(self, prefix: str = "") -> AsyncIterator[StateEntry]:
        return stream(self._sync.state.list(prefix))

    async def as_of(
        self,
        key: str | None = None,
        *,
        offset: int | None = None,
        lamport: int | None = None,
        at_ms: int | None = None,
    ) -> Rows[StateEntry]:
        return await asyncio.to_thread(
            self._sync.state.as_of, key, offset=offset, lamport=lamport, at_ms=at_ms
        )


class AsyncMemories(_Family):
    async def set(
        self, key: str, value: object, *, tags: Iterable[str] = (), id: str | None = None
    ) -> Receipt:
        return await self._writer.write(
            "memory.set", operations.memory_set(self._ctx, self._mesh, key, value, tags, id)
        )

    async def get(self, key: str, *, peer: str | None = None) -> Memory | None:
        return self._sync.memory.get(key, peer=peer)

    async def recall(self, key: str, *, scope: str = "self") -> Rows[Memory]:
        return self._sync.memory.recall(key, scope=scope)

    async def forget(self, key: str, *, id: str | None = None) -> Receipt:
        return await self._writer.write(
            "memory.forget", operations.memory_forget(self._ctx, self._mesh, key, id)
        )

    def list(self, *, scope: str = "self") -> AsyncIterator[Memory]:
        return stream(self._sync.memory.list(scope=scope))

    async def as_of(
        self,
        key: str | None = None,
        *,
        offset: int | None = None,
        lamport: int | None = None,
        at_ms: int | None = None,
    ) -> Rows[Memory]:
        return await asyncio.to_thread(
            self._sync.memory.as_of, key, offset=offset, lamport=lamport, at_ms=at_ms
        )


class AsyncVectors(_Family):
    async def store(
        self,
        key: str,
        embedding: Any,
        *,
        model: Model,
        content: str = "",
        metadata: object = None,
        id: str | None = None,
    ) -> Receipt:
        return await self._writer.write(
            "vector.store",
            operations.vector_store(
                self._ctx, self._mesh, key, embedding, model, content, metadata, id
            ),
        )

    async def search(
        self, query: Any, *, model: Model, limit: int = 10, exact: bool = False
    ) -> Rows[Hit]:
        return await asyncio.to_thread(
            self._sync.vectors.search, query, model=model, limit=limit, exact=exact
        )

    async def delete(self, key: str, *, model: Model, id: str | None = None) -> Receipt:
        return await self._writer.write(
            "vector.delete", operations.vector_delete(self._ctx, self._mesh, key, model, id)
        )

    async def models(self) -> Rows[ModelRow]:
        return self._sync.vectors.models()

    async def reembed(
        self,
        old: Model,
        new: Model,
        embed: Callable[[list[str]], Sequence[Any]],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        return await asyncio.to_thread(
            self._sync.vectors.reembed, old, new, embed, progress=progress
        )


class AsyncFiles(_Family):
    async def share(self, path: str, content: Content, *, id: str | None = None) -> Receipt:
        return await asyncio.to_thread(self._sync.files.share, path, content, id=id)

    async def read(self, path: str, *, peer: str | None = None) -> bytes:
        return await asyncio.to_thread(self._sync.files.read, path, peer=peer)

    async def last_known(self, path: str, *, peer: str | None = None) -> LastKnown:
        return await asyncio.to_thread(self._sync.files.last_known, path, peer=peer)

    async def open(self, path: str, *, peer: str | None = None) -> BinaryIO:
        """A plain stream, verified already: read it in a thread if it is large."""
        return await asyncio.to_thread(self._sync.files.open, path, peer=peer)

    async def info(self, path: str, *, peer: str | None = None) -> FileInfo:
        return await asyncio.to_thread(self._sync.files.info, path, peer=peer)

    async def delete(self, path: str, *, id: str | None = None) -> Receipt:
        return await self._writer.write(
            "file.delete", operations.file_delete(self._ctx, self._mesh, path, id)
        )

    def list(self, *, peer: str | None = None) -> AsyncIterator[FileInfo]:
        return stream(self._sync.files.list(peer=peer))


class AsyncTasks(_Family):
    async def create(self, title: str, *, description: str = "", id: str | None = None) -> TaskRow:
        change = operations.task_create(self._ctx, self._mesh, title, description, id)
        return await self._writer.write("task.create", operations.ThenTask(change))

    async def claim(self, task: str, *, id: str | None = None) -> TaskRow:
        return await self._move("claim", task, id)

    async def release(self, task: str, *, id: str | None = None) -> TaskRow:
        return await self._move("release", task, id)

    async def complete(self, task: str, *, id: str | None = None) -> TaskRow:
        return await self._move("complete", task, id)

    async def cancel(self, task: str, *, id: str | None = None) -> TaskRow:
        return await self._move("cancel", task, id)

    async def get(self, task: str) -> TaskRow:
        return self._sync.tasks.get(task)

    def list(self, *, status: TaskStatus | str | None = None) -> AsyncIterator[TaskRow]:
        return stream(self._sync.tasks.list(status=status))

    async def events(self, task: str) -> Rows[TaskEventRow]:
        return self._sync.tasks.events(task)

    async def _move(self, verb: str, task: str, id: str | None) -> TaskRow:
        change = operations.task_move(self._ctx, self._mesh, verb, task, id)
        return await self._writer.write(f"task.{verb}", operations.ThenTask(change))


class AsyncFacts(_Family):
    async def append(
        self,
        subject: str,
        predicate: str,
        object: Any,
        *,
        id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        objects: Iterable[str] = (),
    ) -> Receipt:
        return await self._writer.write(
            "fact.append",
            operations.fact_append(
                self._ctx, self._mesh, subject, predicate, object, id, meta, objects
            ),
        )


class AsyncMesh:
    """One mesh, seen from one node, for coroutines."""

    def __init__(self, writer: LoopWriter, sync: Mesh) -> None:
        self.slug = sync.slug
        self.sync = sync
        """The same mesh for callers that wait: for what takes microseconds, or for threads."""
        self.state = AsyncState(writer, sync)
        self.memory = AsyncMemories(writer, sync)
        self.vectors = AsyncVectors(writer, sync)
        self.files = AsyncFiles(writer, sync)
        self.tasks = AsyncTasks(writer, sync)
        self.facts = AsyncFacts(writer, sync)
        self.inbox = AsyncInbox(sync.inbox)
        self._writer = writer

    async def info(self) -> MeshRow:
        return self.sync.info()

    async def counts(self) -> dict[str, int]:
        return await asyncio.to_thread(self.sync.counts)

    async def clock(self) -> MeshClock:
        return self.sync.clock()

    async def peers(self) -> Rows[PeerInfo]:
        return self.sync.peers()

    async def send(
        self,
        content: bytes | str,
        *,
        topic: str | None = None,
        dm: str | None = None,
        queue: str | None = None,
        content_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
        priority: str = "next",
        reply_to: str | None = None,
        id: str | None = None,
    ) -> Sent:
        send = prepare(
            self._writer.engine,
            self.slug,
            *one_destination(topic, dm, queue),
            content,
            content_type=content_type,
            meta=meta,
            priority=priority,
            reply_to=reply_to,
            id=id,
        )
        return await self._writer.write("message.send", send)


class AsyncLog:
    """The node's log for its readers, for coroutines."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def head(self) -> Head:
        return self._log.head()

    def range(self, start: int = 1, end: int | None = None) -> AsyncIterator[Entry]:
        return stream(self._log.range(start, end))

    async def tail(self, count: int = 20) -> Rows[Entry]:
        return await asyncio.to_thread(self._log.tail, count)

    async def consumers(self) -> Rows[Consumer]:
        return self._log.consumers()

    async def add_consumer(
        self,
        name: str,
        start: str | int = "start",
        *,
        retire_ms: int | None = None,
        retire_lag: int | None = None,
        filter: Filter = EVERYTHING,
    ) -> Consumer:
        return await asyncio.to_thread(
            self._log.add_consumer,
            name,
            start,
            retire_ms=retire_ms,
            retire_lag=retire_lag,
            filter=filter,
        )

    async def fetch(self, consumer: str, limit: int = FETCH_ROWS_DEFAULT) -> Rows[Entry]:
        return await asyncio.to_thread(self._log.fetch, consumer, limit)

    async def batch(self, consumer: str, limit: int = FETCH_ROWS_DEFAULT) -> Batch:
        return await asyncio.to_thread(self._log.batch, consumer, limit)

    async def confirm(
        self,
        consumer: str,
        offset: int | None = None,
        *,
        ranges: Iterable[tuple[int, int]] | None = None,
    ) -> Consumer:
        return await asyncio.to_thread(self._log.confirm, consumer, offset, ranges=ranges)

    async def retire(self, consumer: str) -> None:
        await asyncio.to_thread(self._log.retire, consumer)


class AsyncNode:
    """A home that is open, for coroutines. Use it as an async context manager."""

    def __init__(self, node: Node) -> None:
        self.sync = node
        """The same node for callers that wait; safe to use from threads at the same time."""
        self._writer = LoopWriter(node._engine, node._opened.store.writer)
        self.log = AsyncLog(node.log)
        self.inbox = AsyncInbox(node.inbox)
        self.outbox = AsyncOutbox(node.outbox)

    @property
    def home(self) -> Path:
        return self.sync.home

    @property
    def peer(self) -> str:
        return self.sync.peer

    @property
    def sharing(self) -> AsyncSharing:
        from holdfast.node.library.aio_sharing import AsyncSharing

        return AsyncSharing(self.sync.sharing)

    async def create_mesh(self, slug: str, *, name: str | None = None) -> AsyncMesh:
        mesh = await asyncio.to_thread(self.sync.create_mesh, slug, name=name)
        return AsyncMesh(self._writer, mesh)

    async def mesh(self, slug: str, *, create: bool = False) -> AsyncMesh:
        mesh = await asyncio.to_thread(self.sync.mesh, slug, create=create)
        return AsyncMesh(self._writer, mesh)

    async def meshes(self) -> Rows[MeshRow]:
        return self.sync.meshes()

    async def apply(self, envelopes: Iterable[bytes]) -> Rows[Applied]:
        results: list[Applied] = []
        for intake in intakes(self._writer.engine.ctx, envelopes):
            results += await self._writer.write("intake", intake)
        return results

    async def receive_blob(self, content: Content) -> str:
        return await asyncio.to_thread(self.sync.receive_blob, content)

    async def open_blob(self, sha256: str) -> BinaryIO:
        return await asyncio.to_thread(self.sync.open_blob, sha256)

    async def take_warnings(self, mesh: str | None = None) -> Rows[WarningRow]:
        return await asyncio.to_thread(self.sync.take_warnings, mesh)

    def conflicts(
        self, mesh: str | None = None, *, open_only: bool = True
    ) -> AsyncIterator[ConflictRow]:
        return stream(self.sync.conflicts(mesh, open_only=open_only))

    async def conflict(self, number: int) -> ConflictRow:
        return self.sync.conflict(number)

    async def restore_conflict(self, number: int, *, id: str | None = None) -> Receipt:
        return await asyncio.to_thread(self.sync.restore_conflict, number, id=id)

    async def dismiss_conflict(self, number: int) -> None:
        await asyncio.to_thread(self.sync.dismiss_conflict, number)

    async def sweep(self, ttl: Ttl = DEFAULT_TTL) -> SweepReport:
        return await asyncio.to_thread(self.sync.sweep, ttl)

    async def close(self) -> None:
        await asyncio.to_thread(self.sync.close)

    async def __aenter__(self) -> AsyncNode:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Opening:
    """What `aopen` returns: await it, or enter it with `async with`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._args, self._kwargs = args, kwargs
        self._node: AsyncNode | None = None

    async def _open(self) -> AsyncNode:
        node = await asyncio.to_thread(open_node, *self._args, **self._kwargs)
        return AsyncNode(node)

    def __await__(self) -> Any:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncNode:
        self._node = await self._open()
        return self._node

    async def __aexit__(self, *exc: object) -> None:
        assert self._node is not None
        await self._node.close()


def aopen(
    home: str | Path | None = None,
    *,
    peer: str | None = None,
    create: bool = False,
    sync: str | None = None,
) -> Opening:
    """Opens a home for coroutines: `async with holdfast.aopen(home) as node`, or `await
    holdfast.aopen(home)`.
    """
    return Opening(home, peer=peer, create=create, sync=sync)
