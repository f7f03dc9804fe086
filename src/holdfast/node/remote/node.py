"""A node and its meshes over a connection: what `holdfast.connect` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from holdfast.node.core.files import Content
from holdfast.node.core.views import ObjectInfo
from holdfast.node.library.node import Mesh, Node
from holdfast.node.messages.send import Sent
from holdfast.node.remote import messages
from holdfast.node.remote.content import RemoteFiles, fetched, sized
from holdfast.node.remote.faces import RemoteFace, asked, asks, needs_home
from holdfast.node.remote.families import (
    RemoteAuditTrail,
    RemoteFacts,
    RemoteMemories,
    RemotePresences,
    RemoteSharing,
    RemoteState,
    RemoteTasks,
    RemoteTelemetry,
    RemoteVectors,
)
from holdfast.node.remote.line import Line
from holdfast.node.remote.log import RemoteLog
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.limits import LEASE_TTL_MS
from holdfast.rules.names import check_mesh
from holdfast.storage.files.blobs import check_sha

if TYPE_CHECKING:
    from holdfast.node.library.entities import Entities
    from holdfast.node.library.lease import Lease
    from holdfast.node.remote.batch import RemoteBatch
    from holdfast.node.remote.strong import RemoteWaitingWrites


class _Put(msgspec.Struct):
    sha256: str


@asks
class RemoteMesh(RemoteFace, Mesh):
    """One mesh, seen from the node of a daemon."""

    def __init__(self, line: Line, slug: str) -> None:
        super().__init__(line, slug)
        self.slug = slug
        self.state = RemoteState(line, slug)
        self.memory = RemoteMemories(line, slug)
        self.vectors = RemoteVectors(line, slug)
        self.files = RemoteFiles(line, slug)
        self.tasks = RemoteTasks(line, slug)
        self.facts = RemoteFacts(line, slug)
        self.audit = RemoteAuditTrail(line, slug)
        self.inbox = messages.RemoteInbox(line, slug)

    @property
    def telemetry(self) -> RemoteTelemetry:
        return RemoteTelemetry(self._line, self.slug)

    @property
    def presence(self) -> RemotePresences:
        return RemotePresences(self._line, self.slug)

    @property
    def entities(self) -> Entities:
        # It brings asyncio and the quorum with it, which most callers do not need.
        from holdfast.node.library.entities import Entities
        from holdfast.node.remote.strong import AsyncRemoteEntities

        return Entities(self._line.loop_thread, AsyncRemoteEntities(self._line, self.slug))

    @property
    def writes(self) -> RemoteWaitingWrites:
        from holdfast.node.remote.strong import RemoteWaitingWrites

        return RemoteWaitingWrites(self._line, self.slug)

    def lease(self, name: str, ttl_ms: int = LEASE_TTL_MS, *, wait_ms: int = 0) -> Lease:
        from holdfast.node.library.lease import Lease
        from holdfast.node.remote.quorum import remote_lease

        asked = partial(remote_lease, self._line, self.slug, name, ttl_ms, wait_ms=wait_ms)
        return Lease(self._line.loop_thread, asked)

    def batch(self, *, id: str | None = None) -> RemoteBatch:
        from holdfast.node.remote.batch import RemoteBatch

        return RemoteBatch(self._line, self.slug, id)

    def send(
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
        return messages.send(
            self._line,
            self.slug,
            content,
            (topic, dm, queue),
            content_type=content_type,
            meta=meta,
            priority=priority,
            reply_to=reply_to,
            id=id,
        )


@asks
class RemoteNode(RemoteFace, Node):
    """The node of a daemon. Use it as a context manager, or call `close`."""

    def __init__(self, line: Line, home: Path | None = None) -> None:
        super().__init__(line)
        self._home = home
        self.log = RemoteLog(line)
        self.inbox = messages.RemoteInbox(line)
        self.outbox = messages.RemoteOutbox(line)

    def _shown(self) -> str:
        return f"{self.peer} over {self._line.address}"

    @property
    def home(self) -> Path:
        return needs_home(self) if self._home is None else self._home

    @property
    def peer(self) -> str:
        return self._line.peer()

    def create_mesh(self, slug: str, *, name: str | None = None) -> RemoteMesh:
        asked(Node.create_mesh)(self, slug, name=name)
        return RemoteMesh(self._line, slug)

    def mesh(self, slug: str, *, create: bool = False) -> RemoteMesh:
        check_mesh(slug)
        if create and slug not in {row.slug for row in self.meshes()}:
            with suppress(AlreadyExists):
                return self.create_mesh(slug)
        mesh = self._mesh_there(slug)
        mesh.info()
        return mesh

    def _mesh_there(self, slug: str) -> RemoteMesh:
        return RemoteMesh(self._line, slug)

    @property
    def sharing(self) -> RemoteSharing:
        return RemoteSharing(self._line)

    bus = property(needs_home)
    apply = needs_home
    sweep = needs_home

    def receive_blob(self, content: Content) -> str:
        with sized(content) as body:
            answer = self._line.call("PUT", "/v1/objects", content=body)
        return answer.json(_Put).sha256

    def open_blob(self, sha256: str) -> BinaryIO:
        return fetched(self._line, f"/v1/objects/{check_sha(sha256)}", sha256)

    def objects(self) -> Iterator[ObjectInfo]:
        return iter(asked(Node.objects)(self))

    def close(self) -> None:
        """Ends the connections; the daemon goes on."""
        self._line.close()
