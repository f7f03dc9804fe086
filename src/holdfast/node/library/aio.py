"""The library for coroutines: `holdfast.aopen(home)` gives an `AsyncNode` with the same verbs.

Each class here lists the verbs of its twin for callers that wait, by the way in which they run
(`aio_verbs`). Only what must be made for coroutines, such as an `AsyncMesh` for a `Mesh`, is
written out.

A write that was handed to the writer happens even if its coroutine is cancelled meanwhile. A caller
that must know gives the write an id, and asks again with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.node.core.intake import Applied
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.core.receive import intakes
from holdfast.node.library.aio_verbs import (
    AsyncFace,
    AsyncTurns,
    AsyncWriter,
    at_once,
    in_thread,
    streamed,
    turned,
    written,
)
from holdfast.node.library.families import AuditTrail, Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.library.node import Mesh, Node, open_node
from holdfast.node.library.quorum_reach import quorum_api
from holdfast.node.library.telemetry import Telemetry
from holdfast.node.log.log import Log
from holdfast.node.messages.inbox import Inbox
from holdfast.node.messages.outbox import Outbox
from holdfast.rules.arguments import checked
from holdfast.rules.errors import HasVoters
from holdfast.rules.limits import LEASE_TTL_MS

if TYPE_CHECKING:
    from holdfast.node.library.aio_bus import AsyncNodeBus
    from holdfast.node.library.aio_entities import AsyncEntities
    from holdfast.node.library.aio_lease import AsyncLease
    from holdfast.node.library.aio_sharing import AsyncSharing
    from holdfast.node.library.aio_waiting_writes import AsyncWaitingWrites
    from holdfast.node.quorum.api import QuorumApi


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


class AsyncTasks(AsyncTurns):
    """`Tasks`, for coroutines."""

    create = turned(Tasks.create)
    claim = turned(Tasks.claim)
    release = turned(Tasks.release)
    complete = turned(Tasks.complete)
    cancel = turned(Tasks.cancel)
    get = at_once(Tasks.get)
    list = streamed(Tasks.list)
    events = at_once(Tasks.events)


class AsyncFacts(AsyncWriter[Facts]):
    """`Facts`, for coroutines."""

    append = written(Facts.append)


class AsyncAuditTrail(AsyncWriter[AuditTrail]):
    """`AuditTrail`, for coroutines."""

    append = written(AuditTrail.append)
    list = streamed(AuditTrail.list)
    streams = in_thread(AuditTrail.streams)
    verify = in_thread(AuditTrail.verify)


class AsyncTelemetry(AsyncWriter[Telemetry]):
    """`Telemetry`, for coroutines."""

    set = written(Telemetry.set)
    get = at_once(Telemetry.get)
    entry = at_once(Telemetry.entry)
    delete = written(Telemetry.delete)
    list = streamed(Telemetry.list)


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

    def __init__(
        self, writer: LoopWriter, sync: Mesh, bus: Callable[[], AsyncNodeBus] | None = None
    ) -> None:
        """`bus` opens the bus of the node, for what a quorum decides."""
        super().__init__(writer, sync)
        self._bus = bus
        self.slug = sync.slug
        self.sync = sync
        """The same mesh for callers that wait: for what takes microseconds, or for threads."""
        self.state = AsyncState(writer, sync.state)
        self.memory = AsyncMemories(writer, sync.memory)
        self.vectors = AsyncVectors(writer, sync.vectors)
        self.files = AsyncFiles(writer, sync.files)
        self.tasks = AsyncTasks(writer, sync.tasks, None if bus is None else self._quorums)
        self.facts = AsyncFacts(writer, sync.facts)
        self.audit = AsyncAuditTrail(writer, sync.audit)
        self.telemetry = AsyncTelemetry(writer, sync.telemetry)
        self.inbox = AsyncInbox(sync.inbox)

    async def _quorums(self) -> QuorumApi:
        if self._bus is None:
            raise HasVoters("voters decide that, and this program has no way to ask them")
        return await quorum_api(self._bus())

    @property
    def entities(self) -> AsyncEntities:
        """What a mesh with voters has agreed on: missions, settings, agents and the like."""
        from holdfast.node.library.aio_entities import AsyncEntities

        return AsyncEntities(self._writer.engine, self.slug, self._quorums)

    @property
    def writes(self) -> AsyncWaitingWrites:
        """Strong writes of this node that waited for a majority, and conflicts to be settled."""
        from holdfast.node.library.aio_waiting_writes import AsyncWaitingWrites

        return AsyncWaitingWrites(self._writer.engine, self.slug, self._quorums)

    @checked
    def lease(self, name: str, ttl_ms: int = LEASE_TTL_MS, *, wait_ms: int = 0) -> AsyncLease:
        """A name that one session holds as long as it renews it: enter it with `with`, in
        coroutines with `async with`. Another holder is waited for up to `wait_ms`. Its `fence` is
        what to show to a resource of your own.
        """
        from holdfast.node.library.aio_lease import AsyncLease

        asks = (self._writer.engine, self.slug, self._quorums, name)
        return AsyncLease(*asks, ttl_ms=ttl_ms, wait_ms=wait_ms)

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
        return self._open_bus()

    def _open_bus(self) -> AsyncNodeBus:
        if self._bus is None:
            from holdfast.node.library.aio_bus import AsyncNodeBus

            self._bus = AsyncNodeBus(self.sync._opened)
        return self._bus

    async def create_mesh(self, slug: str, *, name: str | None = None) -> AsyncMesh:
        mesh = await asyncio.to_thread(self.sync.create_mesh, slug, name=name)
        return AsyncMesh(self._writer, mesh, self._open_bus)

    async def mesh(self, slug: str, *, create: bool = False) -> AsyncMesh:
        """A mesh by name; `create` makes it if it is not there yet."""
        mesh = await asyncio.to_thread(self.sync.mesh, slug, create=create)
        return AsyncMesh(self._writer, mesh, self._open_bus)

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
