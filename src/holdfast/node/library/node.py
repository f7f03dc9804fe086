"""The library for callers that wait: `holdfast.open(home)` gives a `Node`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from holdfast.node.core.change import Receipt
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.files import Content
from holdfast.node.core.intake import Applied
from holdfast.node.core.receive import intakes
from holdfast.node.core.views import MeshClock, PeerInfo
from holdfast.node.home.opening import Opened, open_home
from holdfast.node.library import conflicts
from holdfast.node.library.families import AuditTrail, Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.library.mesh_status import mesh_status
from holdfast.node.library.telemetry import Telemetry
from holdfast.node.library.verbs import opened_bus
from holdfast.node.library.verbs import writes as writes_op
from holdfast.node.log.log import Log
from holdfast.node.messages.inbox import Inbox
from holdfast.node.messages.outbox import Outbox
from holdfast.node.messages.send import Sent, one_destination, prepare
from holdfast.node.upkeep.restamp import RestampReport, restamp
from holdfast.node.upkeep.sweep import DEFAULT_TTL, SweepReport, Ttl, sweep
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.limits import LEASE_TTL_MS, PEER_STALE_MS
from holdfast.rules.names import check_key, check_mesh
from holdfast.rules.rows import ConflictRow, MeshRow, WarningRow
from holdfast.storage.ports import Transaction, Work

if TYPE_CHECKING:
    from holdfast.node.library.bus import NodeBus
    from holdfast.node.library.entities import Entities
    from holdfast.node.library.lease import Lease
    from holdfast.node.library.waiting_writes import WaitingWrites
    from holdfast.node.sharing.sharing import Sharing


@checks_arguments()
class Mesh:
    """One mesh, seen from one node."""

    def __init__(
        self, engine: NodeEngine, slug: str, bus: Callable[[], NodeBus] | None = None
    ) -> None:
        """`bus` opens the bus of the node, for what a quorum decides."""
        self._engine = engine
        self.slug = slug
        self._bus = bus
        self.state = State(engine, slug)
        self.memory = Memories(engine, slug)
        self.vectors = Vectors(engine, slug)
        self.files = Files(engine, slug)
        self.tasks = Tasks(engine, slug, bus)
        self.facts = Facts(engine, slug)
        self.audit = AuditTrail(engine, slug)
        self.telemetry = Telemetry(engine, slug)
        self.inbox = Inbox(engine, slug)

    def info(self) -> MeshRow:
        return self._engine.require_mesh(self.slug)

    @property
    def entities(self) -> Entities:
        """What a mesh with voters has agreed on: missions, settings, agents and the like."""
        # It brings asyncio with it, which most callers do not need.
        from holdfast.node.library.aio_entities import AsyncEntities
        from holdfast.node.library.entities import Entities

        bus = opened_bus(self._bus)
        face = AsyncEntities(self._engine, self.slug, bus.quorums())
        return Entities(bus.loop_thread, face)

    @property
    def writes(self) -> WaitingWrites:
        """Strong writes of this node that waited for a majority, and conflicts to be settled."""
        from holdfast.node.library.aio_waiting_writes import AsyncWaitingWrites
        from holdfast.node.library.waiting_writes import WaitingWrites

        bus = opened_bus(self._bus)
        face = AsyncWaitingWrites(self._engine, self.slug, bus.quorums())
        return WaitingWrites(bus.loop_thread, face)

    def lease(self, name: str, ttl_ms: int = LEASE_TTL_MS, *, wait_ms: int = 0) -> Lease:
        """A name that one session holds as long as it renews it: enter it with `with`, in
        coroutines with `async with`. Another holder is waited for up to `wait_ms`. Its `fence` is
        what to show to a resource of your own.
        """
        from holdfast.node.library.aio_lease import AsyncLease
        from holdfast.node.library.lease import Lease

        bus = opened_bus(self._bus)
        asks = (self._engine, self.slug, bus.quorums(), name)
        return Lease(bus.loop_thread, lambda: AsyncLease(*asks, ttl_ms=ttl_ms, wait_ms=wait_ms))

    def counts(self) -> dict[str, int]:
        """Live rows per family."""
        return self._engine.read("mesh.info", lambda tx: tx.family_counts(self.slug))

    def clock(self) -> MeshClock:
        row = self.info()
        return MeshClock(row.lamport, mesh_status(self._engine, row), row.last_sync_at)

    def peers(self) -> list[PeerInfo]:
        """Peers that were heard of, with a flag for those that have been silent for a while."""
        now = self._engine.ctx.now_ms()
        rows = self._engine.read("peer.list", lambda tx: tx.peer_list(self.slug))
        return [
            PeerInfo(
                row.peer, row.last_seen_at, row.last_lamport, now - row.last_seen_at > PEER_STALE_MS
            )
            for row in rows
        ]

    def restamp(self, past: int) -> RestampReport:
        """Writes again what is this node's own here and stamped at `past` or before: for a node
        whose writes others refuse as too old.
        """
        return restamp(self._engine, self.slug, past)

    @writes_op("message.send")
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
    ) -> Work[Sent]:
        """Sends a message to one topic, one member (by name or key) or one queue. It is on the disk
        when this returns, and goes to the broker when that can be reached.
        """
        return prepare(
            self._engine,
            self.slug,
            *one_destination(topic, dm, queue),
            content,
            content_type=content_type,
            meta=meta,
            priority=priority,
            reply_to=reply_to,
            id=id,
        )


@checks_arguments()
class Node:
    """A home that is open. Use it as a context manager, or call `close`."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._engine = opened.engine
        self.log = Log(self._engine)
        self.inbox = Inbox(self._engine)
        self.outbox = Outbox(self._engine)
        self._bus: NodeBus | None = None

    @property
    def home(self) -> Path:
        return self._opened.paths.root

    @property
    def peer(self) -> str:
        return self._engine.ctx.peer

    # --- meshes ------------------------------------------------------------------------------

    def create_mesh(self, slug: str, *, name: str | None = None) -> Mesh:
        check_mesh(slug)
        if name:
            check_key(name, "name of the mesh")
        now = self._engine.ctx.now_ms()
        row = MeshRow(slug=slug, name=name or slug, created_at=now, updated_at=now)
        self._engine.write("mesh.create", lambda tx: tx.mesh_add(row))
        return Mesh(self._engine, slug, self._open_bus)

    def mesh(self, slug: str, *, create: bool = False) -> Mesh:
        """A mesh by name; `create` makes it if it is not there yet."""
        check_mesh(slug)
        if create and slug not in {row.slug for row in self.meshes()}:
            # Another thread or process may be faster, and then it is there, as was asked for.
            with suppress(AlreadyExists):
                return self.create_mesh(slug)
        self._engine.require_mesh(slug)
        return Mesh(self._engine, slug, self._open_bus)

    def meshes(self) -> list[MeshRow]:
        return self._engine.read("mesh.list", lambda tx: tx.mesh_list())

    @property
    def sharing(self) -> Sharing:
        """What asks brokers: publish, join, invites, members, topics and queues."""
        # It brings TLS with it, which most callers do not need.
        from holdfast.node.sharing.sharing import Sharing
        from holdfast.node.trust.trust import Trust

        return Sharing(self._engine, Trust(self._engine, self._opened.paths))

    @property
    def bus(self) -> NodeBus:
        """Messages between peers without a broker."""
        return self._open_bus()

    def _open_bus(self) -> NodeBus:
        if self._bus is None:
            # It brings asyncio and TLS with it, which most callers do not need.
            from holdfast.node.library.bus import NodeBus

            self._bus = NodeBus(self._opened)
        return self._bus

    # --- the door in -------------------------------------------------------------------------

    def apply(self, envelopes: Iterable[bytes]) -> list[Applied]:
        """Takes in envelopes from elsewhere, each once, in any order; says what became of each."""
        results: list[Applied] = []
        for intake in intakes(self._engine.ctx, envelopes):
            results += self._engine.write("intake", intake)
        return results

    def receive_blob(self, content: Content) -> str:
        """Stores the content of a file before the envelope that names it; returns its hash."""
        return self._engine.blobs.put(content).sha256

    def open_blob(self, sha256: str) -> BinaryIO:
        """The verified content that a file's envelope names, to be sent ahead of it."""
        return self._engine.blobs.open(sha256)

    # --- what people must know -----------------------------------------------------------------

    def take_warnings(self, mesh: str | None = None) -> list[WarningRow]:
        """The warnings for this peer that were not taken before; each is given once."""
        if not self._engine.read("warnings", lambda tx: tx.warning_list(mesh)):
            return []

        def work(tx: Transaction) -> list[WarningRow]:
            return tx.warnings_take(mesh)

        return self._engine.write("warnings", work)

    def conflicts(
        self, mesh: str | None = None, *, open_only: bool = True
    ) -> Iterator[ConflictRow]:
        """What merges discarded, oldest first."""
        return conflicts.list_all(self._engine, mesh, open_only=open_only)

    def conflict(self, number: int) -> ConflictRow:
        return conflicts.get(self._engine, number)

    def restore_conflict(self, number: int, *, id: str | None = None) -> Receipt:
        """Writes a discarded version again, as a new change that wins."""
        return conflicts.restore(self._engine, number, id)

    def dismiss_conflict(self, number: int) -> None:
        """Keeps the outcome as it is and closes the entry."""
        conflicts.dismiss(self._engine, number)

    # --- upkeep ------------------------------------------------------------------------------

    def sweep(self, ttl: Ttl = DEFAULT_TTL) -> SweepReport:
        """Forgets what is old enough and past every reader of the log."""
        return sweep(self._engine, ttl)

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
        self._opened.close()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@checked
def open_node(
    home: str | Path | None = None,
    *,
    peer: str | None = None,
    create: bool = False,
    sync: str | None = None,
    **inner: Any,
) -> Node:
    """Opens a home. `create` makes it first if it is not there, for the peer that `peer` names."""
    return Node(open_home(home, peer=peer, create=create, sync=sync, **inner))
