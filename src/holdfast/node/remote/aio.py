"""`holdfast.aconnect`: the same for coroutines. Each verb asks in a thread, on a connection of its
own.

A coroutine that is cancelled no longer waits, but what it has asked for may happen all the same, as
with `aopen`.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.node.library import aio
from holdfast.node.library.aio import AsyncNode, Opening
from holdfast.node.library.aio_sharing import AsyncSharing
from holdfast.node.library.aio_waiting_writes import AsyncWaitingWrites
from holdfast.node.remote.batch import AsyncRemoteBatch
from holdfast.node.remote.faces import needs_home
from holdfast.node.remote.node import RemoteMesh, RemoteNode
from holdfast.node.remote.opening import connect_node
from holdfast.rules.limits import CHUNK_ROWS, LEASE_TTL_MS

if TYPE_CHECKING:
    from holdfast.node.library.aio_lease import AsyncLease
    from holdfast.node.remote.strong import AsyncRemoteEntities

F = TypeVar("F")


def _threaded(kind: type[F]) -> type[F]:
    """Fills a class with the verbs of the one that it extends, each run in a thread."""
    for name, verb in vars(kind.__bases__[-1]).items():
        if name.startswith("_") or name in vars(kind):
            continue
        if any(map(inspect.iscoroutinefunction, (verb, inspect.unwrap(verb)))):
            setattr(kind, name, _in_thread(name, verb))
        elif inspect.isfunction(verb) and _gives_rows(verb):
            setattr(kind, name, _streamed(name, verb))
    return kind


def _gives_rows(verb: Callable[..., Any]) -> bool:
    return str(inspect.signature(verb).return_annotation).startswith("AsyncIterator")


def _in_thread(name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    async def call(self: _AsyncRemote, /, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self._sync, name), *args, **kwargs)

    return call


def _streamed(name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def call(self: _AsyncRemote, /, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        return _rows(partial(getattr(self._sync, name), *args, **kwargs))

    return call


async def _rows(find: Callable[[], Any]) -> AsyncIterator[Any]:
    rows = iter(await asyncio.to_thread(find))
    while page := await asyncio.to_thread(lambda: list(islice(rows, CHUNK_ROWS))):
        for row in page:
            yield row


class _AsyncRemote:
    """What every class here is made of: the same for callers that wait."""

    def __init__(self, sync: Any) -> None:
        self._sync: Any = sync

    _writer: Any = property(needs_home)


@_threaded
class _State(_AsyncRemote, aio.AsyncState):
    pass


@_threaded
class _Memories(_AsyncRemote, aio.AsyncMemories):
    pass


@_threaded
class _Vectors(_AsyncRemote, aio.AsyncVectors):
    pass


@_threaded
class _Files(_AsyncRemote, aio.AsyncFiles):
    pass


@_threaded
class _Tasks(_AsyncRemote, aio.AsyncTasks):
    pass


@_threaded
class _Facts(_AsyncRemote, aio.AsyncFacts):
    pass


@_threaded
class _Audit(_AsyncRemote, aio.AsyncAuditTrail):
    pass


@_threaded
class _Telemetry(_AsyncRemote, aio.AsyncTelemetry):
    pass


@_threaded
class _Presences(_AsyncRemote, aio.AsyncPeerPresences):
    pass


@_threaded
class _WaitingWrites(_AsyncRemote, AsyncWaitingWrites):
    pass


@_threaded
class AsyncRemoteMesh(_AsyncRemote, aio.AsyncMesh):
    """One mesh, seen from the node of a daemon, for coroutines."""

    def __init__(self, sync: RemoteMesh) -> None:
        super().__init__(sync)
        self.slug = sync.slug
        self.sync = sync
        self.state = _State(sync.state)
        self.memory = _Memories(sync.memory)
        self.vectors = _Vectors(sync.vectors)
        self.files = _Files(sync.files)
        self.tasks = _Tasks(sync.tasks)
        self.facts = _Facts(sync.facts)
        self.audit = _Audit(sync.audit)
        self.inbox = aio.AsyncInbox(sync.inbox)

    @property
    def telemetry(self) -> _Telemetry:
        return _Telemetry(self.sync.telemetry)

    @property
    def presence(self) -> _Presences:
        return _Presences(self.sync.presence)

    def batch(self, *, id: str | None = None) -> AsyncRemoteBatch:
        return AsyncRemoteBatch(self._sync._line, self.slug, id)

    @property
    def entities(self) -> AsyncRemoteEntities:
        from holdfast.node.remote.strong import AsyncRemoteEntities

        return AsyncRemoteEntities(self._sync._line, self.slug)

    @property
    def writes(self) -> _WaitingWrites:
        return _WaitingWrites(self._sync.writes)

    def lease(self, name: str, ttl_ms: int = LEASE_TTL_MS, *, wait_ms: int = 0) -> AsyncLease:
        from holdfast.node.remote.quorum import remote_lease

        return remote_lease(self._sync._line, self.slug, name, ttl_ms, wait_ms=wait_ms)


@_threaded
class AsyncRemoteNode(_AsyncRemote, AsyncNode):
    """The node of a daemon, for coroutines. Use it as an async context manager."""

    def __init__(self, sync: RemoteNode) -> None:
        super().__init__(sync)
        self.sync = sync
        self.log = _Log(sync.log)
        self.inbox = aio.AsyncInbox(sync.inbox)
        self.outbox = aio.AsyncOutbox(sync.outbox)

    @property
    def sharing(self) -> AsyncSharing:
        return AsyncSharing(self.sync.sharing)

    bus = property(needs_home)

    async def create_mesh(self, slug: str, *, name: str | None = None) -> AsyncRemoteMesh:
        mesh = await asyncio.to_thread(self.sync.create_mesh, slug, name=name)
        return AsyncRemoteMesh(cast(RemoteMesh, mesh))

    async def mesh(self, slug: str, *, create: bool = False) -> AsyncRemoteMesh:
        mesh = await asyncio.to_thread(self.sync.mesh, slug, create=create)
        return AsyncRemoteMesh(cast(RemoteMesh, mesh))


@_threaded
class _Log(_AsyncRemote, aio.AsyncLog):
    pass


def aconnect(
    where: str | Path | None = None,
    *,
    token: str | None = None,
    context: ssl.SSLContext | None = None,
    ca: str | Path | None = None,
) -> Opening:
    """Connects to a daemon for coroutines: `async with holdfast.aconnect() as node`, or `await
    holdfast.aconnect()`. See `connect`.

    >>> async def peer() -> str:
    ...     async with holdfast.aconnect(ship_home) as far:
    ...         return far.peer
    >>> asyncio.run(peer())
    'ana'
    """
    return Opening(partial(connect_node, where, token=token, context=context, ca=ca), _of)


def _of(node: Any) -> AsyncNode:
    return AsyncRemoteNode(node)
