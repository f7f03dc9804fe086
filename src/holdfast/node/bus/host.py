"""Holds the bus of a home: binds it with the home's key, certificate and store, and lets it go.

The daemon holds it for as long as it runs; without a daemon, a program that uses `node.bus` does.
When the trust of the node changes, `refresh` looks again: new peers are called, links to those who
are no longer trusted end, and if this node has a new key, the bus is bound anew with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from holdfast.bus.bus import Bus
from holdfast.bus.discovery.mdns import MdnsDiscovery
from holdfast.bus.links.tls_net import TlsNet
from holdfast.bus.options import BusOptions
from holdfast.bus.ports import DiscoveryStatus, Link, LinkPart
from holdfast.bus.received import ReceivedRequest
from holdfast.node.bus.auth_channel import AuthChannel
from holdfast.node.bus.auth_material import AuthMaterial
from holdfast.node.bus.blocked import BlockedOnBus
from holdfast.node.bus.capabilities import CapabilityPeers
from holdfast.node.bus.directory import TrustDirectory
from holdfast.node.bus.documents import BusReplyGiven
from holdfast.node.bus.holder import hold_bus
from holdfast.node.bus.home_directory import HomeDirectory
from holdfast.node.bus.local import LocalBus, ServedHere, answered_by
from holdfast.node.bus.member_peers import MemberPeers
from holdfast.node.bus.members import MeshMembers
from holdfast.node.bus.members_heard import MembersHeard
from holdfast.node.bus.meshes.exchange import MeshExchange
from holdfast.node.bus.meshes.grants import MemberGrants
from holdfast.node.bus.seal_secret import seal_secret
from holdfast.node.bus.standing import MeshExchangeView
from holdfast.node.bus.voters import MeshVoters
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.quorum.embedded.groups import EmbeddedGroups
from holdfast.node.quorum.embedded.operators import EmbeddedOperators
from holdfast.node.quorum.etcd.orders import EtcdOrders
from holdfast.node.quorum.orders import NodeOrders
from holdfast.node.quorum.service.local_quorum import LocalQuorum
from holdfast.node.quorum.voter_service import VoterService
from holdfast.node.settings import QuorumSettings, Settings
from holdfast.node.trust.own_key import OwnKey
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.protocol.quorum_requests import OPERATE
from holdfast.rules.errors import BadInput, WrongKey
from holdfast.rules.keys import public_key
from holdfast.rules.limits import SECOND_MS
from holdfast.rules.outbox import is_peer_lane
from holdfast.service.instance_lock import DaemonLock
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from holdfast.storage.sqlite.bus.resealing import unlock
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.transport.tls import certificate_digest, certificate_in, server_context

OnLink = Callable[[dict[str, Any]], None]


class BusHost:
    """The bus of a home, in the process that holds it. Belongs to one event loop."""

    def __init__(
        self, engine: NodeEngine, store: SqliteStore, paths: HomePaths, settings: Settings
    ) -> None:
        """`bind` makes one."""
        self._engine, self._paths, self._settings = engine, paths, settings
        self._own_key = OwnKey(engine, paths)
        writer = LoopWriter(engine, store.writer)
        self.directory = TrustDirectory(engine, writer.write, settings.bus.static_peers)
        self._member_peers = MemberPeers(engine, self._own_key, writer.write)
        self._blocked = BlockedOnBus(engine)
        self._rights = CapabilityPeers(engine, self._own_key)
        self.voters = MeshVoters(engine, self._own_key, self._member_peers)
        self.groups = EmbeddedGroups(engine, paths.root, writer.write, self.voters)
        self.operators = EmbeddedOperators(self.groups, self.voters, self.voters.may_vote)
        self.etcd_orders = EtcdOrders(engine, writer.write)
        orders = NodeOrders(
            engine,
            self.groups,
            self.operators,
            self.etcd_orders,
            self.voters,
            self.voters.addresses,
            writer.write,
        )
        heard = MembersHeard(engine, self._member_peers, self.voters, _monotonic_ms)
        self.quorum = LocalQuorum(engine, writer.write, orders.order, orders, heard=heard)
        orders.on_order = self._order_changed
        self._orders = orders
        self._voter_service = VoterService(engine, orders.own_order, self._member_peers.standing)
        self.quorum.settings = settings.quorum
        self._member_peers.static = settings.bus.static_peers
        self._peers = HomeDirectory(engine, self.directory, self._member_peers, self._rights)
        self.auth = AuthChannel(AuthMaterial(engine, paths), self._own_key, settings.quorum)
        self._write = writer.write
        self._store = SqliteMeshStore(
            store,
            paths.root / "bus.mark",
            write=partial(writer.write, "bus"),
            now_ms=engine.ctx.now_ms,
        )
        self._parts: list[Callable[[], LinkPart]] = []
        self._lock: DaemonLock | None = None
        self._discovery: MdnsDiscovery | None = None
        self._turn = asyncio.Lock()
        self._log_head = 0

    @classmethod
    async def bind(
        cls,
        engine: NodeEngine,
        store: SqliteStore,
        paths: HomePaths,
        settings: Settings,
        *,
        patience_ms: int = 0,
    ) -> BusHost:
        """Raises AlreadyExists if another process holds the bus and does not let go of it within
        `patience_ms`.
        """
        lock = await asyncio.to_thread(partial(hold_bus, paths, patience_ms=patience_ms))
        try:
            host = cls(engine, store, paths, settings)
            await host._unlock()
            await host._store.start()
            await host.groups.start()
            try:
                await host.etcd_orders.start()
                await host._begin()
                await host.quorum.start()
                host._orders.moves.start()
            except BaseException:
                await host.etcd_orders.close()
                await host.groups.close()
                raise
        except BaseException:
            lock.close()
            raise
        host.api = LocalBus(host.bus, host.directory, host.members, host._discovered, host.close)
        host.api.meshes_changed = host._meshes_changed
        host.api.exchanged = host._exchanged
        host.api.look_again = host.refresh
        host.api.quorum = host.quorum
        host._lock = lock
        return host

    def _order_changed(self, mesh: str) -> None:
        self.quorum.look(mesh)
        if self._exchanges:
            self.exchange.orders_changed()

    _exchanges = False
    bus: Bus
    api: LocalBus
    members: MeshMembers
    """This node's side of its meshes without a broker."""
    exchange: MeshExchange
    """The meshes that are shared over the bus."""

    async def _unlock(self) -> None:
        """Opens the seal of messages at rest. Raises WrongKey, also if no key is to be had."""
        source = self._settings.bus.seal_source
        secret = None
        if source is not None:
            lock = await self._store.write_rows(lambda tx: tx.bus_noted("lock"))
            find = partial(seal_secret, source, self._paths.root, sealed=lock is not None)
            try:
                secret = await asyncio.to_thread(find)
            except BadInput as error:
                raise WrongKey(error.message, hint=error.hint) from error
        await unlock(self._store, secret)

    async def _begin(self) -> None:
        """Binds the bus, with all that uses it."""
        self.bus = await self._bind()
        try:
            self.members = MeshMembers(
                self._engine, self._own_key, self._member_peers, self._write, self._rights.gone
            )
            self.voters.members = self.members
            await self.members.take_over()
            self.members.start(self.bus)
            self.bus.serve(OPERATE, self.operators.operate_asked)
            self._voter_service.start(self.bus)
            grants = MemberGrants(self._member_peers.standing, self.voters.is_voter)
            self.exchange = MeshExchange(self._engine, self.bus.key, grants=grants)
            self.exchange.know_keys(self._member_peers.keys_of)
            self.exchange.know_orders(self._orders.brings, self._orders.compared)
            self.exchange.know_voters(self.groups.votes)
            await self.exchange.start()
            self._exchanges = True
            self.members.on_change = self.exchange.refresh_soon
            self.auth.start(self.bus, self._peers)
        except BaseException:
            await self.bus.close()
            raise
        self.bus.attach(self.exchange)
        self.bus.attach(self.groups.links)
        self.bus.attach(_LinkNews(lambda document: self._orders.linked()))
        for part in self._parts:
            self.bus.attach(part())

    async def _bind(self) -> Bus:
        settings = self._settings
        cert, key = await asyncio.to_thread(
            certificate_in, self._paths.root, settings.tls_cert, settings.tls_key
        )
        self._discovery = MdnsDiscovery() if settings.bus.is_discovering else None
        return await Bus.bind_with(
            BusOptions(
                seed=self._own_key.seed(),
                former=self._own_key.former(),
                name=self._own_key.name,
                listen=tuple(settings.bus.addresses),
                store=self._store,
                peers=self._peers,
                net=TlsNet((server_context(cert, key), certificate_digest(cert))),
                discovery=self._discovery,
                drops=self._blocked.drops,
                batch=settings.bus.batch,
                clock=self._engine.ctx,
            )
        )

    def log_at(self, head: int) -> None:
        """The log ends here now. Another process may have written what peers wait for."""
        if head != self._log_head:
            self._log_head = head
            self.exchange.ring()

    async def _meshes_changed(self) -> None:
        await self.exchange.refresh()

    def _exchanged(self) -> MeshExchangeView:
        return self.exchange.status()

    def _discovered(self) -> DiscoveryStatus | None:
        return None if self._discovery is None else self._discovery.status()

    def attach(self, part: Callable[[], LinkPart]) -> None:
        """Plugs something in that uses the links; it is made anew when the bus is."""
        self._parts.append(part)
        self.bus.attach(part())

    def on_link(self, tell: OnLink) -> None:
        """Calls `tell` when a link comes up or goes down."""
        self.attach(lambda: _LinkNews(tell))

    async def serve_program(
        self,
        service: str,
        ask: Callable[[ReceivedRequest], Awaitable[BusReplyGiven]],
        *,
        most: int,
    ) -> ServedHere:
        """Offers a service that another process answers."""
        return await self.api.serve(service, answered_by(ask), most=most)

    def set_quorum(self, settings: QuorumSettings) -> None:
        """The operator says what is done without a majority, how long is waited, and with whom auth
        material is exchanged.
        """
        self.quorum.settings = settings
        self.auth.set(settings)

    def set_static(self, static: Mapping[str, tuple[str, ...]]) -> None:
        """The operator says where peers are."""
        self.directory.static = self._member_peers.static = static

    def retried(self, lane: str) -> None:
        """Something in this lane of the outbox is to be tried again at once."""
        if is_peer_lane(lane):
            self.bus.look_at_outbox()

    async def refresh(self) -> None:
        """Looks again whom this node trusts, and by which key it is known itself. With a new key
        subscriptions and services end, and are opened again by those who want them.
        """
        async with self._turn:
            if public_key(self._own_key.seed()) != self.bus.key:
                await self.bus.close()
                await self._begin()
                self.api.bus, self.api.members = self.bus, self.members
            await asyncio.to_thread(self._blocked.refresh)
            await self.members.refresh()
            await self.exchange.refresh()
            self.bus.look_at_outbox()

    async def close(self) -> None:
        """Ends links and work; what waits for absent peers stays in the outbox."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            await self._orders.moves.close()
            await self.quorum.close()
            await self.etcd_orders.close()
            await self.groups.close()
            await self.bus.close()
            await self._blocked.close()
        finally:
            lock.close()


class _LinkNews:
    """A `LinkPart` that only looks on."""

    def __init__(self, tell: OnLink) -> None:
        self._tell = tell

    def link_up(self, link: Link) -> None:
        self._tell({"name": link.name, "state": "up", "address": link.address})

    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> bool:
        return False

    def link_down(self, link: Link) -> None:
        self._tell({"name": link.name, "state": "down", "address": link.address})

    async def close(self) -> None: ...


def _monotonic_ms() -> int:
    return int(monotonic() * SECOND_MS)
