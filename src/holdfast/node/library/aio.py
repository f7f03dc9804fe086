"""The library for coroutines: `holdfast.aopen(home)` gives an `AsyncNode` with the same verbs.

Each class here lists the verbs of its twin for callers that wait, by the way in which they run
(`aio_verbs`). Only what must be made for coroutines, such as an `AsyncMesh` for a `Mesh`, is
written out.

A write that was handed to the writer happens even if its coroutine is cancelled meanwhile. A caller
that must know gives the write an id, and asks again with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.node.core.intake import Applied
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.core.receive import intakes
from holdfast.node.library.aio_verbs import (
    AsyncFace,
    AsyncWriter,
    at_once,
    in_thread,
    streamed,
    written,
)
from holdfast.node.library.families import Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.library.node import Mesh, Node, open_node
from holdfast.node.log.log import Log
from holdfast.node.messages.inbox import Inbox
from holdfast.node.messages.outbox import Outbox

if TYPE_CHECKING:
    from holdfast.node.library.aio_bus import AsyncNodeBus
    from holdfast.node.library.aio_sharing import AsyncSharing


class AsyncState(AsyncWriter[State]):
    """`State`, for coroutines."""

    set = written(State.set)
    get = at_once(State.get)
    entry = at_once(State.entry)
    delete = written(State.delete)
    list = streamed(State.list)
    as_of = in_thread(State.as_of)


class AsyncMemories(AsyncWriter[Memories]):
    """`Memories`, for coroutines."""

    set = written(Memories.set)
    get = at_once(Memories.get)
    recall = at_once(Memories.recall)
    forget = written(Memories.forget)
    list = streamed(Memories.list)
    as_of = in_thread(Memories.as_of)


class AsyncVectors(AsyncWriter[Vectors]):
    """`Vectors`, for coroutines."""

    store = written(Vectors.store)
    search = in_thread(Vectors.search)
    delete = written(Vectors.delete)
    models = at_once(Vectors.models)
    reembed = in_thread(Vectors.reembed)


class AsyncFiles(AsyncWriter[Files]):
    """`Files`, for coroutines. What `open` returns is a plain stream, verified already: read it in
    a thread if it is large.
    """

    share = in_thread(Files.share)
    read = in_thread(Files.read)
    last_known = in_thread(Files.last_known)
    open = in_thread(Files.open)
    info = in_thread(Files.info)
    delete = written(Files.delete)
    list = streamed(Files.list)


class AsyncTasks(AsyncWriter[Tasks]):
    """`Tasks`, for coroutines."""

    create = written(Tasks.create)
    claim = written(Tasks.claim)
    release = written(Tasks.release)
    complete = written(Tasks.complete)
    cancel = written(Tasks.cancel)
    get = at_once(Tasks.get)
    list = streamed(Tasks.list)
    events = at_once(Tasks.events)


class AsyncFacts(AsyncWriter[Facts]):
    """`Facts`, for coroutines."""

    append = written(Facts.append)


class AsyncInbox(AsyncFace[Inbox]):
    """Messages that came for this node, for coroutines."""

    list = streamed(Inbox.list)
    page = in_thread(Inbox.page)
    get = in_thread(Inbox.get)
    read = in_thread(Inbox.read)
    reply = in_thread(Inbox.reply)
    counts = in_thread(Inbox.counts)


class AsyncOutbox(AsyncFace[Outbox]):
    """What this node has to send, for coroutines."""

    list = streamed(Outbox.list)
    page = in_thread(Outbox.page)
    get = in_thread(Outbox.get)
    lanes = in_thread(Outbox.lanes)
    retry = in_thread(Outbox.retry)
    drop = in_thread(Outbox.drop)
    requeue = in_thread(Outbox.requeue)


class AsyncLog(AsyncFace[Log]):
    """The node's log for its readers, for coroutines."""

    head = at_once(Log.head)
    range = streamed(Log.range)
    tail = in_thread(Log.tail)
    consumers = at_once(Log.consumers)
    add_consumer = in_thread(Log.add_consumer)
    fetch = in_thread(Log.fetch)
    batch = in_thread(Log.batch)
    confirm = in_thread(Log.confirm)
    retire = in_thread(Log.retire)


class AsyncMesh(AsyncWriter[Mesh]):
    """One mesh, seen from one node, for coroutines."""

    def __init__(self, writer: LoopWriter, sync: Mesh) -> None:
        super().__init__(writer, sync)
        self.slug = sync.slug
        self.sync = sync
        """The same mesh for callers that wait: for what takes microseconds, or for threads."""
        self.state = AsyncState(writer, sync.state)
        self.memory = AsyncMemories(writer, sync.memory)
        self.vectors = AsyncVectors(writer, sync.vectors)
        self.files = AsyncFiles(writer, sync.files)
        self.tasks = AsyncTasks(writer, sync.tasks)
        self.facts = AsyncFacts(writer, sync.facts)
        self.inbox = AsyncInbox(sync.inbox)

    info = at_once(Mesh.info)
    counts = in_thread(Mesh.counts)
    clock = at_once(Mesh.clock)
    peers = at_once(Mesh.peers)
    restamp = in_thread(Mesh.restamp)
    send = written(Mesh.send)


class AsyncNode(AsyncWriter[Node]):
    """A home that is open, for coroutines. Use it as an async context manager."""

    def __init__(self, node: Node) -> None:
        super().__init__(LoopWriter(node._engine, node._opened.store.writer), node)
        self.sync = node
        """The same node for callers that wait; safe to use from threads at the same time."""
        self.log = AsyncLog(node.log)
        self.inbox = AsyncInbox(node.inbox)
        self.outbox = AsyncOutbox(node.outbox)
        self._bus: AsyncNodeBus | None = None

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

    @property
    def bus(self) -> AsyncNodeBus:
        """Messages between peers without a broker."""
        if self._bus is None:
            from holdfast.node.library.aio_bus import AsyncNodeBus

            self._bus = AsyncNodeBus(self.sync._opened)
        return self._bus

    async def create_mesh(self, slug: str, *, name: str | None = None) -> AsyncMesh:
        mesh = await asyncio.to_thread(self.sync.create_mesh, slug, name=name)
        return AsyncMesh(self._writer, mesh)

    async def mesh(self, slug: str, *, create: bool = False) -> AsyncMesh:
        """A mesh by name; `create` makes it if it is not there yet."""
        mesh = await asyncio.to_thread(self.sync.mesh, slug, create=create)
        return AsyncMesh(self._writer, mesh)

    async def apply(self, envelopes: Iterable[bytes]) -> list[Applied]:
        """Takes in envelopes from elsewhere, each once, in any order; says what became of each."""
        results: list[Applied] = []
        for intake in intakes(self._writer.engine.ctx, envelopes):
            results += await self._writer.write("intake", intake)
        return results

    meshes = at_once(Node.meshes)
    receive_blob = in_thread(Node.receive_blob)
    open_blob = in_thread(Node.open_blob)
    take_warnings = in_thread(Node.take_warnings)
    conflicts = streamed(Node.conflicts)
    conflict = at_once(Node.conflict)
    restore_conflict = in_thread(Node.restore_conflict)
    dismiss_conflict = in_thread(Node.dismiss_conflict)
    sweep = in_thread(Node.sweep)

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()
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
