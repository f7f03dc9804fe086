"""The library for coroutines: `holdfast.aopen(home)` gives an `AsyncNode` with the same verbs.

Each class here lists the verbs of its twin for callers that wait, by the way in which they run
(`aio_verbs`). Only what must be made for coroutines, such as an `AsyncMesh` for a `Mesh`, is
written out.

A write that was handed to the writer happens even if its coroutine is cancelled meanwhile. A caller
that must know gives the write an id, and asks again with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.node.core.intake import Applied
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.core.receive import incoming
from holdfast.node.library.aio_verbs import (
    AsyncFace,
    AsyncTurns,
    AsyncWriter,
    at_once,
    in_thread,
    streamed,
    turned,
    watched,
    written,
)
from holdfast.node.library.families import AuditTrail, Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.library.node import Mesh, Node, open_node
from holdfast.node.library.presence import PeerPresences
from holdfast.node.library.quorum_reach import quorum_api
from holdfast.node.library.telemetry import Telemetry
from holdfast.node.log.log import Log
from holdfast.node.messages.inbox import Inbox
from holdfast.node.messages.outbox import Outbox
from holdfast.rules.arguments import checked
from holdfast.rules.errors import HasVoters
from holdfast.rules.limits import LEASE_TTL_MS

if TYPE_CHECKING:
    from holdfast.node.bus.ways import PingRound
    from holdfast.node.library.aio_bus import AsyncNodeBus
    from holdfast.node.library.aio_entities import AsyncEntities
    from holdfast.node.library.aio_lease import AsyncLease
    from holdfast.node.library.aio_sharing import AsyncSharing
    from holdfast.node.library.aio_waiting_writes import AsyncWaitingWrites
    from holdfast.node.library.batch import AsyncWriteBatch
    from holdfast.node.quorum.api import QuorumApi
    from holdfast.service.clock import Clock


class AsyncState(AsyncWriter[State]):
    """`State`, for coroutines."""

    set = written(State.set)
    get = at_once(State.get)
    entry = at_once(State.entry)
    delete = written(State.delete)
    list = streamed(State.list)
    as_of = in_thread(State.as_of)
    history = in_thread(State.history)
    watch = watched(State.watch)


class AsyncMemories(AsyncWriter[Memories]):
    """`Memories`, for coroutines."""

    set = written(Memories.set)
    get = at_once(Memories.get)
    recall = at_once(Memories.recall)
    forget = written(Memories.forget)
    list = streamed(Memories.list)
    as_of = in_thread(Memories.as_of)
    history = in_thread(Memories.history)
    watch = watched(Memories.watch)


class AsyncVectors(AsyncWriter[Vectors]):
    """`Vectors`, for coroutines."""

    store = written(Vectors.store)
    search = in_thread(Vectors.search)
    delete = written(Vectors.delete)
    models = at_once(Vectors.models)
    watch = watched(Vectors.watch)
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
    watch = watched(Files.watch)


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
    watch = watched(Tasks.watch)


class AsyncPeerPresences(AsyncWriter[PeerPresences]):
    """`PeerPresences`, for coroutines."""

    set = written(PeerPresences.set)
    get = at_once(PeerPresences.get)
    list = at_once(PeerPresences.list)


class AsyncFacts(AsyncWriter[Facts]):
    """`Facts`, for coroutines."""

    append = written(Facts.append)
    watch = watched(Facts.watch)


class AsyncAuditTrail(AsyncWriter[AuditTrail]):
    """`AuditTrail`, for coroutines."""

    append = written(AuditTrail.append)
    list = streamed(AuditTrail.list)
    watch = watched(AuditTrail.watch)
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
    watch = watched(Inbox.watch)
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
    place_at = in_thread(Log.place_at)
    range = streamed(Log.range)
    watch = watched(Log.watch)
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
        self.inbox = AsyncInbox(sync.inbox)

    async def _quorums(self) -> QuorumApi:
        if self._bus is None:
            raise HasVoters("voters decide that, and this program has no way to ask them")
        return await quorum_api(self._bus())

    @property
    def telemetry(self) -> AsyncTelemetry:
        """What is true on this node only: kept for a while, and given to nobody."""
        return AsyncTelemetry(self._writer, self.sync.telemetry)

    @property
    def presence(self) -> AsyncPeerPresences:
        """What the peers of this mesh say of themselves, and when they were last heard of."""
        return AsyncPeerPresences(self._writer, self.sync.presence)

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

    @checked
    def batch(self, *, id: str | None = None) -> AsyncWriteBatch:
        """Several changes of any family in one transaction, all of them or none: enter it with
        `with`, in coroutines with `async with` (its verbs need no `await`). With an `id` (any text)
        the same block run again is written once.
        """
        from holdfast.node.library.batch import AsyncWriteBatch

        return AsyncWriteBatch(self._writer, self._writer.engine, self.slug, id)

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
        """Makes a mesh that is this node's own until it is shared."""
        mesh = await asyncio.to_thread(self.sync.create_mesh, slug, name=name)
        return AsyncMesh(self._writer, mesh, self._open_bus)

    async def mesh(self, slug: str, *, create: bool = False) -> AsyncMesh:
        """A mesh by name; `create` makes it if it is not there yet."""
        mesh = await asyncio.to_thread(self.sync.mesh, slug, create=create)
        return AsyncMesh(self._writer, mesh, self._open_bus)

    async def apply(self, envelopes: Iterable[bytes]) -> list[Applied]:
        """Takes in envelopes from elsewhere, each once, in any order; says what became of each."""
        results: list[Applied] = []
        for batch in incoming(self._writer.engine.ctx, envelopes):
            results += await self._writer.write("intake", batch)
        return results

    async def ping(self, target: str, *, card: str | None = None) -> PingRound:
        """How a peer or a broker is reached: every way that this node has, and how long it takes
        there and back. A broker is named by its name or its address, and by its `card` if no mesh
        is shared through it. Nothing is sent but the question.

        >>> node.ping("bo").kind
        'peer'
        """
        from holdfast.node.bus.ways import BusOfLoop, reach
        from holdfast.node.trust.trust import Trust

        bus = BusOfLoop(self.bus, asyncio.get_running_loop())
        trust = Trust(self._writer.engine, self.sync._opened.paths)
        return await asyncio.to_thread(reach, self._writer.engine, trust, target, lambda: bus, card)

    meshes = at_once(Node.meshes)
    receive_blob = in_thread(Node.receive_blob)
    open_blob = in_thread(Node.open_blob)
    objects = streamed(Node.objects)
    take_warnings = in_thread(Node.take_warnings)
    conflicts = streamed(Node.conflicts)
    conflict = at_once(Node.conflict)
    restore_conflict = in_thread(Node.restore_conflict)
    dismiss_conflict = in_thread(Node.dismiss_conflict)
    sweep = in_thread(Node.sweep)
    delete_mesh = in_thread(Node.delete_mesh)
    block_peer = in_thread(Node.block_peer)
    unblock_peer = in_thread(Node.unblock_peer)
    blocked_peers = in_thread(Node.blocked_peers)
    deletion_plan = in_thread(Node.deletion_plan)

    async def close(self) -> None:
        """Ends what this node has open; what was written is on the disk already."""
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

    def __init__(
        self, make: Callable[[], Node], face: Callable[[Node], AsyncNode] = AsyncNode
    ) -> None:
        """`make` opens the node, in a thread; `face` is what coroutines get of it."""
        self._make, self._face = make, face
        self._node: AsyncNode | None = None

    async def _open(self) -> AsyncNode:
        return self._face(await asyncio.to_thread(self._make))

    def __await__(self) -> Generator[Any, None, AsyncNode]:
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
    source: Clock | None = None,
    vfs: str | None = None,
    nudges: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Opening:
    """Opens a home for coroutines: `async with holdfast.aopen(home) as node`, or `await
    holdfast.aopen(home)`.

    >>> async def build() -> str:
    ...     async with holdfast.aopen("later", peer="bo", create=True) as opened:
    ...         mesh = await opened.mesh("team", create=True)
    ...         await mesh.state.set("build", "green")
    ...         return await mesh.state.get("build")
    >>> asyncio.run(build())
    'green'
    """
    make = partial(
        open_node,
        home,
        peer=peer,
        create=create,
        sync=sync,
        source=source,
        vfs=vfs,
        nudges=nudges,
        environ=environ,
    )
    return Opening(make)
