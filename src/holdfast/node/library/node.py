"""The library for callers that wait: `holdfast.open(home)` gives a `Node`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from holdfast.node.core.change import Receipt
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.files import Content, objects
from holdfast.node.core.intake import Applied
from holdfast.node.core.receive import incoming
from holdfast.node.core.views import MeshClock, ObjectInfo, PeerInfo
from holdfast.node.home.opening import Opened, open_home
from holdfast.node.library import conflicts
from holdfast.node.library.families import AuditTrail, Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.library.mesh_status import mesh_status
from holdfast.node.library.verbs import opened_bus
from holdfast.node.library.verbs import writes as writes_op
from holdfast.node.log.log import Log
from holdfast.node.messages.inbox import Inbox
from holdfast.node.messages.outbox import Outbox
from holdfast.node.messages.send import Sent, one_destination, prepare
from holdfast.node.trust import blocked
from holdfast.node.upkeep.delete_mesh import (
    DeletedMesh,
    DeletionPlan,
    delete_mesh,
    plan_deletion,
)
from holdfast.node.upkeep.restamp import RestampReport, restamp
from holdfast.node.upkeep.sweep import SweepReport, Ttl, sweep
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.limits import LEASE_TTL_MS, PEER_STALE_MS
from holdfast.rules.listed import listed, listed_rows
from holdfast.rules.names import check_key, check_mesh
from holdfast.rules.rows import BlockedPeer, ConflictRow, MeshRow, WarningRow
from holdfast.rules.shown import ShownFace
from holdfast.storage.ports import Work

if TYPE_CHECKING:
    from holdfast.node.bus.ways import PingRound
    from holdfast.node.library.batch import WriteBatch
    from holdfast.node.library.bus import NodeBus
    from holdfast.node.library.entities import Entities
    from holdfast.node.library.lease import Lease
    from holdfast.node.library.presence import PeerPresences
    from holdfast.node.library.telemetry import Telemetry
    from holdfast.node.library.waiting_writes import WaitingWrites
    from holdfast.node.sharing.sharing import Sharing
    from holdfast.service.clock import Clock


class _FamilyCount(NamedTuple):
    """A line of what a notebook shows of a mesh."""

    family: str
    rows: int


@checks_arguments()
class Mesh(ShownFace):
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
        self.inbox = Inbox(engine, slug)

    def _shown(self) -> str:
        return self.slug

    def _shown_rows(self) -> Iterable[Any]:
        return [_FamilyCount(family, rows) for family, rows in self.counts().items()]

    def info(self) -> MeshRow:
        """What this node knows of the mesh: its clock, its broker, where its sync stands.

        >>> team.info().kind
        'personal'
        """
        return self._engine.require_mesh(self.slug)

    @property
    def telemetry(self) -> Telemetry:
        """What is true on this node only: kept for a while, and given to nobody.

        >>> team.telemetry.set("gauge", "load", 0.5)
        """
        from holdfast.node.library.telemetry import Telemetry

        return Telemetry(self._engine, self.slug)

    @property
    def presence(self) -> PeerPresences:
        """What the peers of this mesh say of themselves, and when they were last heard of.

        >>> team.presence.set(status="away")
        """
        from holdfast.node.library.presence import PeerPresences

        return PeerPresences(self._engine, self.slug)

    @property
    def entities(self) -> Entities:
        """What a mesh with voters has agreed on: missions, settings, agents and the like.

        >>> ship.entities.put("mission", "m1", {"title": "Sail"})
        """
        # It brings asyncio with it, which most callers do not need.
        from holdfast.node.library.aio_entities import AsyncEntities
        from holdfast.node.library.entities import Entities

        bus = opened_bus(self._bus)
        face = AsyncEntities(self._engine, self.slug, bus.quorums())
        return Entities(bus.loop_thread, face)

    @property
    def writes(self) -> WaitingWrites:
        """Strong writes of this node that waited for a majority, and conflicts to be settled.

        >>> [write.status for write in ship.writes.list("pending")]
        []
        """
        from holdfast.node.library.aio_waiting_writes import AsyncWaitingWrites
        from holdfast.node.library.waiting_writes import WaitingWrites

        bus = opened_bus(self._bus)
        face = AsyncWaitingWrites(self._engine, self.slug, bus.quorums())
        return WaitingWrites(bus.loop_thread, face)

    def lease(self, name: str, ttl_ms: int = LEASE_TTL_MS, *, wait_ms: int = 0) -> Lease:
        """A name that one session holds as long as it renews it: enter it with `with`, in
        coroutines with `async with`. Another holder is waited for up to `wait_ms`. Its `fence` is
        what to show to a resource of your own.

        >>> with ship.lease("deploy", wait_ms=5_000) as lease:
        ...     lease.fence
        '...'
        """
        from holdfast.node.library.aio_lease import AsyncLease
        from holdfast.node.library.lease import Lease

        bus = opened_bus(self._bus)
        asks = (self._engine, self.slug, bus.quorums(), name)
        return Lease(bus.loop_thread, lambda: AsyncLease(*asks, ttl_ms=ttl_ms, wait_ms=wait_ms))

    def batch(self, *, id: str | None = None) -> WriteBatch:
        """Several changes of any family in one transaction, all of them or none: enter it with
        `with`, in coroutines with `async with` (its verbs need no `await`). With an `id` (any text)
        the same block run again is written once.

        >>> with team.batch() as b:
        ...     b.state.set("build", "green")
        ...     task = b.tasks.create("Ship it")
        ...     b.tasks.claim(task.id)
        >>> task.receipt.peer
        'ana'
        """
        from holdfast.node.library.batch import WriteBatch

        return WriteBatch(self._engine, self.slug, id)

    def counts(self) -> dict[str, int]:
        """Live rows per family.

        >>> team.counts()["state"] > 0
        True
        """
        return self._engine.read("mesh.info", lambda tx: tx.family_counts(self.slug))

    def clock(self) -> MeshClock:
        """The Lamport clock of the mesh, and how the mesh stands with its broker.

        >>> team.clock().lamport > 0
        True
        """
        row = self.info()
        return MeshClock(row.lamport, mesh_status(self._engine, row), row.last_sync_at)

    @listed_rows(PeerInfo)
    @checked
    def peers(self) -> list[PeerInfo]:
        """Peers that were heard of, with a flag for those that have been silent for a while.

        >>> [peer.peer for peer in team.peers()]
        ['eve']
        """
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

        >>> team.restamp(past=1)
        RestampReport(...)
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

        >>> fleet.send("standup at ten", topic="news").state
        'pending'
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
class Node(ShownFace):
    """A home that is open. Use it as a context manager, or call `close`."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._engine = opened.engine
        self.log = Log(self._engine)
        self.inbox = Inbox(self._engine)
        self.outbox = Outbox(self._engine)
        self._bus: NodeBus | None = None

    def _shown(self) -> str:
        return f"{self.peer} at {self.home}"

    def _shown_rows(self) -> Iterable[Any]:
        return self.meshes()

    @property
    def home(self) -> Path:
        """The folder of the home.

        >>> node.home.name
        'ana'
        """
        return self._opened.paths.root

    @property
    def peer(self) -> str:
        """The name under which this node writes.

        >>> node.peer
        'ana'
        """
        return self._engine.ctx.peer

    # --- meshes ------------------------------------------------------------------------------

    def create_mesh(self, slug: str, *, name: str | None = None) -> Mesh:
        """Makes a mesh that is this node's own until it is shared.

        >>> node.create_mesh("plans", name="Our plans").slug
        'plans'
        """
        check_mesh(slug)
        if name:
            check_key(name, "name of the mesh")
        now = self._engine.ctx.now_ms()
        row = MeshRow(slug=slug, name=name or slug, created_at=now, updated_at=now)
        self._engine.write("mesh.create", lambda tx: tx.mesh_add(row))
        return Mesh(self._engine, slug, self._open_bus)

    def mesh(self, slug: str, *, create: bool = False) -> Mesh:
        """A mesh by name; `create` makes it if it is not there yet.

        >>> team = node.mesh("team", create=True)
        """
        check_mesh(slug)
        if create and slug not in {row.slug for row in self.meshes()}:
            # Another thread or process may be faster, and then it is there, as was asked for.
            with suppress(AlreadyExists):
                return self.create_mesh(slug)
        self._engine.require_mesh(slug)
        return self._mesh_there(slug)

    def _mesh_there(self, slug: str) -> Mesh:
        """A mesh that is known to be there."""
        return Mesh(self._engine, slug, self._open_bus)

    def deletion_plan(self, mesh: str) -> DeletionPlan:
        """What `delete_mesh` would remove, and what the mesh owes to others. Nothing changes.

        >>> node.deletion_plan("team").rows["state"] > 0
        True
        """
        return plan_deletion(self._engine, mesh)

    def delete_mesh(self, mesh: str, *, owed_too: bool = False) -> DeletedMesh:
        """Removes a mesh from this home: all of its rows, and the blobs that nothing else names.
        Others keep what they have. `MeshOwes` if something of it was not sent or confirmed, or if
        it is shared, unless `owed_too`. A call that is cut off is finished by the next one, or by
        the sweep.

            node.delete_mesh("scratch")

        >>> node.create_mesh("scratch")
        >>> node.delete_mesh("scratch")
        """
        return delete_mesh(self._engine, mesh, owed_too=owed_too)

    @listed_rows(MeshRow)
    @checked
    def meshes(self) -> list[MeshRow]:
        """Every mesh that this node takes part in.

        >>> "team" in [mesh.slug for mesh in node.meshes()]
        True
        """
        return self._engine.read("mesh.list", lambda tx: tx.mesh_list())

    @property
    def sharing(self) -> Sharing:
        """What asks brokers: publish, join, invites, members, topics and queues.

        >>> node.sharing.members("fleet")[0].name
        'ana'
        """
        # It brings TLS with it, which most callers do not need.
        from holdfast.node.sharing.sharing import Sharing
        from holdfast.node.trust.trust import Trust

        return Sharing(self._engine, Trust(self._engine, self._opened.paths))

    @property
    def bus(self) -> NodeBus:
        """Messages between peers without a broker.

        >>> node.bus.send("bo", "the build is green", topic="builds").state
        'delivered'
        """
        return self._open_bus()

    def _open_bus(self) -> NodeBus:
        if self._bus is None:
            # It brings asyncio and TLS with it, which most callers do not need.
            from holdfast.node.library.bus import NodeBus

            self._bus = NodeBus(self._opened)
        return self._bus

    def ping(self, target: str, *, card: str | None = None) -> PingRound:
        """How a peer or a broker is reached: every way that this node has, and how long it takes
        there and back. A broker is named by its name or its address, and by its `card` if no mesh
        is shared through it. Nothing is sent but the question.

        >>> node.ping("bo").kind
        'peer'
        """
        # It brings TLS with it, which most callers do not need.
        from holdfast.node.bus.ways import reach
        from holdfast.node.trust.trust import Trust

        trust = Trust(self._engine, self._opened.paths)
        return reach(self._engine, trust, target, lambda: self.bus, card)

    # --- the door in -------------------------------------------------------------------------

    def apply(self, envelopes: Iterable[bytes]) -> list[Applied]:
        """Takes in envelopes from elsewhere, each once, in any order; says what became of each.

        >>> envelopes = [entry.raw for entry in node.log.range(1, 3)]
        >>> len(node.apply(envelopes))
        2
        """
        results: list[Applied] = []
        for batch in incoming(self._engine.ctx, envelopes):
            results += self._engine.write("intake", batch)
        return results

    def receive_blob(self, content: Content) -> str:
        """Stores the content of a file before the envelope that names it; returns its hash.

        >>> node.receive_blob(b"a picture")
        '...'
        """
        return self._engine.blobs.put(content).sha256

    def open_blob(self, sha256: str) -> BinaryIO:
        """The verified content that a file's envelope names, to be sent ahead of it.

        >>> with node.open_blob(node.receive_blob(b"a picture")) as stream:
        ...     stream.read()
        b'a picture'
        """
        return self._engine.blobs.open(sha256)

    def objects(self) -> Iterator[ObjectInfo]:
        """Content that is known by its hash, and whether it is here.

        >>> [found.sha256 for found in node.objects()]
        [...]
        """
        return objects(self._engine)

    # --- whom this node does not want to hear -------------------------------------------------

    def block_peer(self, peer: str) -> BlockedPeer:
        """Drops what a peer sends to this node from now on: messages over brokers and the bus,
        requests, what it publishes. They are counted, and it is not told. Changes of meshes stay.

        >>> node.block_peer("mallory").peer
        'mallory'
        >>> node.unblock_peer("mallory")
        """
        return self._refreshed(blocked.block_peer(self._engine, peer))

    def unblock_peer(self, peer: str) -> BlockedPeer:
        """Hears a peer again. What was dropped meanwhile does not come again.

        >>> node.block_peer("mallory")
        >>> node.unblock_peer("mallory").peer
        'mallory'
        """
        return self._refreshed(blocked.unblock_peer(self._engine, peer))

    @listed_rows(BlockedPeer)
    @checked
    def blocked_peers(self) -> list[BlockedPeer]:
        """Whom this node does not want to hear, and how much of theirs was dropped.

        >>> [blocked.peer for blocked in node.blocked_peers()]
        []
        """
        return blocked.blocked_peers(self._engine)

    def _refreshed(self, row: BlockedPeer) -> BlockedPeer:
        if self._bus is not None:
            self._bus.refresh()
        return row

    # --- what people must know -----------------------------------------------------------------

    def take_warnings(self, mesh: str | None = None) -> list[WarningRow]:
        """The warnings for this peer that were not taken before; each is given once.

        >>> for warning in node.take_warnings():
        ...     print(warning.type, warning.entity, warning.by_peer)
        """
        return self._engine.take_warnings(mesh)

    @listed(ConflictRow)
    @checked
    def conflicts(
        self, mesh: str | None = None, *, open_only: bool = True, after: int = 0
    ) -> Iterator[ConflictRow]:
        """What merges discarded, oldest first; only those behind the number `after`.

        >>> [(conflict.entity, conflict.reason) for conflict in node.conflicts("team")]
        [('...', '...')...]
        """
        return conflicts.list_all(self._engine, mesh, open_only=open_only, after=after)

    def conflict(self, number: int) -> ConflictRow:
        """One entry of the conflict ledger by its number.

        >>> first = next(node.conflicts(open_only=False))
        >>> node.conflict(first.number).family
        'state'
        """
        return conflicts.get(self._engine, number)

    def restore_conflict(self, number: int, *, id: str | None = None) -> Receipt:
        """Writes a discarded version again, as a new change that wins.

        >>> open_one = next(node.conflicts())
        >>> node.restore_conflict(open_one.number)
        """
        return conflicts.restore(self._engine, number, id)

    def dismiss_conflict(self, number: int) -> None:
        """Keeps the outcome as it is and closes the entry.

        >>> open_one = next(node.conflicts())
        >>> node.dismiss_conflict(open_one.number)
        """
        conflicts.dismiss(self._engine, number)

    # --- upkeep ------------------------------------------------------------------------------

    def sweep(self, ttl: Ttl | None = None) -> SweepReport:
        """Forgets what is old enough and past every reader of the log. How old that is, the
        settings in $HOLDFAST_CONFIG say, if `ttl` does not.

        >>> node.sweep().log_entries
        0
        """
        if ttl is None:
            # Most programs leave sweeping to the daemon, and need no settings.
            from holdfast.node.settings import load

            ttl = Ttl.of_settings(load(os.environ, {}).retention)
        return sweep(self._engine, ttl)

    def close(self) -> None:
        """Ends what this node has open; what was written is on the disk already.

        >>> other = holdfast.open("other", peer="bo", create=True)
        >>> other.close()
        """
        for end in self._engine.on_close:
            end()
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
    source: Clock | None = None,
    vfs: str | None = None,
    nudges: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Node:
    """Opens a home. `create` makes it first if it is not there, for the peer that `peer` names.

    Simulations give a `source` of time and ids, and the name of a `vfs` of SQLite. Without
    `nudges`, commits of this node do not wake the daemon of the home.

    >>> with holdfast.open("new", peer="bo", create=True) as opened:
    ...     opened.mesh("team", create=True).state.set("build", "green")
    """
    # Here, because a command, which has no threads, opens a home without it.
    from holdfast.node.library import whole  # noqa: F401

    return Node(
        open_home(
            home,
            peer=peer,
            create=create,
            sync=sync,
            source=source,
            vfs=vfs,
            nudges=nudges,
            environ=os.environ if environ is None else environ,
        )
    )
