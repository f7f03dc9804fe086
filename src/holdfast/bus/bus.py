"""The bus of one peer: the calls that programs use.

    async with await Bus.bind(name="ana", peers=["ben:ed25519:…@10.0.0.2:7412"]) as bus:
        await bus.send("ben", "hello")
        async with bus.subscribe("builds.*") as messages:
            async for message in messages: ...

`send` waits for an absent peer, `request` until its deadline, `publish` only for durable
subscriptions. A bus belongs to the event loop in which it was bound.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Self, overload

import msgspec

from holdfast.bus.context import BusContext
from holdfast.bus.guard import guarded, store_failed
from holdfast.bus.lane import Outgoing
from holdfast.bus.links.dialling import WantedPeer
from holdfast.bus.links.link import CLOSING
from holdfast.bus.links.links import BusLinks
from holdfast.bus.links.tls_net import TlsNet
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.options import BusOptions
from holdfast.bus.ports import Link, LinkPart, Peer
from holdfast.bus.received import BusReply, OutstandingRequest, PublishReceipt, SendReceipt
from holdfast.bus.router import BusRouter
from holdfast.bus.serving import Handler
from holdfast.bus.static_peers import StaticPeers
from holdfast.bus.status import BusStatus, PeerStatus
from holdfast.bus.subscription import BusSubscription
from holdfast.rules.bus.mesh_store import OutboxMessage, PeerKey
from holdfast.rules.bus.message import (
    BusMessage,
    MessageKind,
    bus_fingerprint,
    check_message,
)
from holdfast.rules.bus.topic_pattern import EVERYTHING, check_pattern, check_topic
from holdfast.rules.destinations import check_priority
from holdfast.rules.errors import (
    BadValue,
    BusClosed,
    BusError,
    HoldfastError,
    IdempotencyKeyReused,
    NotTrusted,
    OverLimit,
    PeerUnreachable,
    UnknownPeer,
)
from holdfast.rules.ids import check_id, check_new_id, id_text
from holdfast.rules.keys import card_of, text_of
from holdfast.rules.limits import (
    BUS_BUFFER,
    BUS_HEAD_BYTES,
    BUS_PAYLOAD_BYTES_MAX,
    BUS_REQUEST_MS,
    BUS_RESOLVE_MS,
    BUS_SERVE_MAX,
    BUS_TTL_MS,
    BUS_TTL_MS_MAX,
)
from holdfast.transport.remote_errors import error_by_code

_BODY_MAX: Final = BUS_PAYLOAD_BYTES_MAX - BUS_HEAD_BYTES
"""The rest of a payload is room for topic, content type and the like."""


class _Written(NamedTuple):
    """A message of a topic on its way to one peer."""

    done: asyncio.Future[bool]
    """Whether it went out."""
    take_back: Callable[[], None]
    listens: bool = True
    """False: it only passes it on."""


class Bus:
    """A peer on the bus."""

    def __init__(self, context: BusContext, options: BusOptions, seed: bytes) -> None:
        """`Bus.bind` and `Bus.bind_with` make one."""
        self._context = context
        self._discovery = options.discovery
        self.router = BusRouter(context)
        """What links tell their events to."""
        self.links = BusLinks(
            seed,
            options.net or TlsNet(),
            self.router,
            random=options.random,
            jitter=options.jitter,
            now_ms=options.clock.now_ms,
            missed=self._missed,
            copied=self._told_copied,
            former=options.former,
            changed=context.changed,
        )
        self._names: dict[PeerKey, str] = {}

    @classmethod
    async def bind(
        cls,
        *,
        name: str = "",
        listen: tuple[str, ...] = ("127.0.0.1:0",),
        peers: Iterable[str] = (),
    ) -> Bus:
        """A bus of its own: no home, nothing that survives the process. `peers` are those it may
        speak with, `CARD@host:port` each.
        """
        return await cls.bind_with(BusOptions(name=name, listen=listen, peers=StaticPeers(peers)))

    @classmethod
    async def bind_with(cls, options: BusOptions) -> Bus:
        store = options.store
        if store is None:
            store = MemoryMeshStore(now_ms=options.clock.now_ms, random=options.random)
        seed = options.seed or options.random(32)
        peers = options.peers or StaticPeers()
        context = BusContext(options, seed, store, peers)
        if isinstance(peers, StaticPeers):
            peers.bound(context.key, options.clock.now_ms)
        bus = cls(context, options, seed)
        try:
            await bus._start(options.listen)
        except BaseException:
            await bus.close()
            raise
        return bus

    async def _start(self, listen: Sequence[str]) -> None:
        await self.router.start()
        for address in listen:
            self.router.addresses.append(await self.links.listen(address))
        if self._discovery is not None:
            await self._discovery.start(self.key, self.addresses, self._found)
        await self.refresh_peers()

    async def refresh_peers(self) -> None:
        """Looks again who is known: those who are new are dialled, and links to those who are not
        known any more end.
        """
        known_peers = await guarded(self._context.peers.all())
        peers = [one for one in known_peers if self.key not in one.keys]
        self._names = {key: peer.name for peer in peers for key in peer.keys}
        for link in self.links.all():
            known = await guarded(self._context.peers.of_key(link.peer))
            if known is None:
                link.close(NotTrusted.code, "this peer is not known any more")
            else:
                self.router.may_less(link, known)
        self.links.refresh(
            {
                peer.name: WantedPeer(peer.keys, peer.addresses)
                for peer in peers
                if peer.addresses or self._discovery is not None
            }
        )
        if self._discovery is not None:
            self._discovery.seek(self._names)

    def look_at_outbox(self) -> None:
        """Somebody else has changed what waits in the outbox of the store."""
        for lane in self.router.lanes.values():
            lane.look_again()

    def _told_copied(self, key: PeerKey) -> None:
        if key in self._names:
            self.router.key_use.told(self._names[key])

    def _missed(self, key: PeerKey) -> None:
        if self._discovery is not None:
            self._discovery.look(key)

    def _found(self, key: PeerKey, addresses: Sequence[str]) -> None:
        name = self._names.get(key)
        if name is not None:
            self.links.found(name, addresses)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def key(self) -> bytes:
        return self._context.key

    @property
    def name(self) -> str:
        return self._context.name

    @property
    def card(self) -> str:
        """What others need to know this peer by: `name:ed25519:key`."""
        return card_of(self.name or text_of(self.key)[:16], self.key)

    @property
    def addresses(self) -> list[str]:
        """Where peers can reach this one."""
        return list(self.router.addresses)

    # --- messages ----------------------------------------------------------------------------

    async def send(
        self,
        to: str,
        body: bytes | str,
        *,
        topic: str = "",
        content_type: str = "",
        priority: str = "next",
        ttl_ms: int | None = None,
        id: bytes | None = None,
        wait_ms: int = BUS_RESOLVE_MS,
    ) -> SendReceipt:
        """Sends a message to one peer. It is in the outbox before anything else happens, and stays
        there until the peer has stored it. If the peer is not there for `wait_ms`, the receipt says
        `spooled`, and so it does if the peer lets this node not do that now; else this waits for as
        long as the peer takes.
        """
        peer = await self._peer(to)
        if topic:
            check_topic(topic)
        message, expires_at = self._message(
            MessageKind.SEND, topic, body, content_type, priority, ttl_ms, id
        )
        if id is not None:
            await self._claim(peer.name, message)
        lane = self.router.lane_of(peer.name)
        receipt = lane.expect(message.id, wait_ms)
        try:
            item = OutboxMessage(
                peer=peer.name,
                message=message,
                created_at=self._context.clock.now_ms(),
                expires_at=expires_at,
            )
            lane.put(await guarded(self._context.store.enqueue_outbox(item)), item)
            state = await receipt
        finally:
            lane.no_longer_expected(message.id, receipt)
        return SendReceipt(id=message.id, state="delivered" if state == "delivered" else "spooled")

    async def publish(
        self,
        topic: str,
        body: bytes | str,
        *,
        content_type: str = "",
        priority: str = "next",
        ttl_ms: int | None = None,
        id: bytes | None = None,
        wait_ms: int = BUS_RESOLVE_MS,
    ) -> PublishReceipt:
        """Sends a message to all peers that listen to a topic. It is kept for durable subscribers,
        and for nobody else. A peer that takes nothing for `wait_ms` misses it, and is counted.
        """
        self._check_open()
        message, expires_at = self._message(
            MessageKind.PUBLISH, check_topic(topic), body, content_type, priority, ttl_ms, id
        )
        if id is not None:
            await self._claim("", message)
        topics = self.router.topics
        # Nothing is kept for a peer that is blocked by now, however it subscribed.
        durable = topics.durably_listening(topic)
        peers_of = {name: await self._known(name) for name in durable}
        kept = [name for name, peer in peers_of.items() if peer is not None]
        now = self._context.clock.now_ms()
        lasting = msgspec.structs.replace(message, durable=True)
        for name in kept:
            item = OutboxMessage(peer=name, message=lasting, created_at=now, expires_at=expires_at)
            row = await guarded(self._context.store.enqueue_outbox(item))
            self.router.lane_of(name).put(row, item)
        if self.router.relay.is_carried(topic):
            written = await self._carry(message, [one for one in peers_of.values() if one])
        else:
            written = [self._write(name, message, expires_at) for name in topics.listening(topic)]
        if written:
            await asyncio.wait([one.done for one in written], timeout=wait_ms / 1000)
        peers = sum(one.listens and one.done.done() and one.done.result() for one in written)
        for one in written:
            if not one.done.done():
                one.take_back()
        missed = sum(one.listens for one in written) - peers
        return PublishReceipt(id=message.id, peers=peers, kept=len(kept), missed=missed)

    def _write(self, name: str, message: BusMessage, expires_at: int | None) -> _Written:
        """Hands a message to a lane."""
        written: asyncio.Future[bool] = self._context.loop.create_future()
        lane = self.router.lane_of(name)
        outgoing = Outgoing(message, expires_at, on_written=written.set_result)
        lane.put_passing(outgoing)
        return _Written(written, partial(lane.take_back, outgoing))

    async def _carry(self, message: BusMessage, kept: Sequence[Peer]) -> list[_Written]:
        """Hands a message to those who listen and those who pass it on, all the same bytes."""
        otherwise = [key for peer in kept for key in peer.keys]
        relay = self.router.relay
        handed = await relay.publish(message, otherwise)
        return [
            _Written(leaving.written, partial(relay.take_back, name, leaving), listens)
            for name, (leaving, listens) in handed.items()
        ]

    def subscribe(
        self,
        pattern: str = EVERYTHING,
        *,
        buffer: int = BUS_BUFFER,
        durable: bool = False,
        manual: bool = False,
    ) -> BusSubscription:
        """Messages to this peer, and of topics, that a pattern takes: see
        `rules/bus/topic_pattern.py`. `durable`: peers keep messages of the topic for this one while
        it is away. `manual`: a message is finished by its `finish`, not by asking for the next one.
        """
        if buffer < 1:
            raise BadValue(f"a buffer of {buffer} messages cannot be filled")
        return BusSubscription(
            self.router.topics,
            check_pattern(pattern),
            buffer=buffer,
            durable=durable,
            manual=manual,
        )

    async def settle(self) -> None:
        """Returns when the store knows which messages were finished: those never come again, also
        if this process is killed. By itself the store learns it a few milliseconds later.
        """
        await self._context.settle()

    async def forget(self, pattern: str) -> None:
        """Ends a durable subscription for good: peers keep nothing for it any more."""
        await self.router.topics.forget(pattern)

    # --- requests ----------------------------------------------------------------------------

    async def request(
        self,
        to: str | None,
        service: str,
        body: bytes | str = b"",
        *,
        content_type: str = "",
        priority: str = "next",
        timeout_ms: int = BUS_REQUEST_MS,
        id: bytes | None = None,
        wait_ms: int = BUS_RESOLVE_MS,
    ) -> BusReply:
        """Asks a peer for something that it serves; `to=None`: any connected peer that serves it.
        Raises NoResponder (nothing happened), RequestTimedOut (it may have happened), or
        RequestRefused with the code of the other side.
        """
        self._check_open()
        name = None if to is None else (await self._peer(to)).name
        message, _ = self._message(
            MessageKind.REQUEST, service, body, content_type, priority, timeout_ms, id
        )
        if id is not None:
            await self._claim(name or "", message)
        return await self.router.requests.ask(name, message, timeout_ms, wait_ms)

    def outstanding(self) -> list[OutstandingRequest]:
        """Requests of an earlier life of this bus that have no reply yet."""
        return self.router.requests.outstanding()

    async def reissue(self, id: bytes) -> BusReply:
        """Waits for the reply to one of these; the peer is asked again with the same id."""
        self._check_open()
        return await self.router.requests.reissue(id)

    def cancel(self, id: bytes) -> None:
        """Ends a request that somebody here waits for; the waiting call raises RequestCancelled."""
        self.router.requests.cancel(id)

    @overload
    def serve(
        self, service: str, handler: None = None, *, most: int = ...
    ) -> Callable[[Handler], Handler]: ...
    @overload
    def serve(self, service: str, handler: Handler, *, most: int = ...) -> Handler: ...
    def serve(
        self, service: str, handler: Handler | None = None, *, most: int = BUS_SERVE_MAX
    ) -> Handler | Callable[[Handler], Handler]:
        """Answers requests: `handler` gets a `ReceivedRequest` and returns bytes or text. At most
        `most` run at a time, others wait. A handler is cancelled when its asker cancels or its
        time is over. Without a handler it is a decorator.
        """
        self._check_open()
        if most < 1:
            raise BadValue(f"{most} requests at a time serve nobody")
        if handler is not None:
            self.router.serving.serve(service, handler, most)
            return handler

        def decorate(handler: Handler) -> Handler:
            self.router.serving.serve(service, handler, most)
            return handler

        return decorate

    def stop_serving(self, service: str) -> None:
        self.router.serving.stop(service)

    # --- peers -------------------------------------------------------------------------------

    async def ping(self, peer: str, wait_ms: int = BUS_RESOLVE_MS) -> float:
        """Milliseconds to a peer and back. Raises PeerUnreachable."""
        found = await self._peer(peer)
        link = await self._context.until(lambda: self.router.link_to(found.name), wait_ms)
        if link is None:
            raise PeerUnreachable(f"there is no link to {found.name}")
        return await link.ping()

    async def connected(
        self,
        peer: str,
        wait_ms: int = BUS_RESOLVE_MS,
        final: tuple[type[HoldfastError], ...] = (),
    ) -> bool:
        """Whether there is a link to a peer, or comes to be within `wait_ms`. Raises what stands
        against it at once if that is one of `final`.
        """
        name = (await self._peer(peer)).name
        before = self.links.problem(name)
        if before is not None:
            self.links.try_now(name)

        def look() -> Link | HoldfastError | None:
            problem, link = self.links.problem(name), self.router.link_to(name)
            is_new = problem is not None and problem is not before
            if link is None and problem is not None and is_new and problem.code in codes:
                return error_by_code(problem.code, problem.message, problem.hint)
            return link

        codes = [kind.code for kind in final]
        found = await self._context.until(look, wait_ms)
        if isinstance(found, HoldfastError):
            raise found
        return found is not None

    async def hang_up(self, peer: str) -> None:
        """Ends the link to a peer; if the peer is wanted, it is made anew."""
        link = self.router.link_to((await self._peer(peer)).name)
        if link is not None:
            link.close(CLOSING)

    async def peers(self) -> list[Peer]:
        return await guarded(self._context.peers.all())

    def attach(self, part: LinkPart) -> None:
        """Plugs something in that uses the links beside messages."""
        self._check_open()
        self.router.parts.append(part)
        for intake in self.router.intakes.values():
            part.link_up(intake.link)

    def status(self) -> BusStatus:
        router = self.router
        kept_for = router.topics.durable_names
        names = dict.fromkeys([*router.intakes, *router.lanes, *kept_for])
        return BusStatus(
            name=self.name,
            key=text_of(self.key),
            addresses=self.addresses,
            peers=[self._status_of(name) for name in names],
            topics=router.topics.patterns,
            durable=router.topics.durable_patterns,
            services=router.serving.services,
            asking=router.requests.count,
            handling=router.serving.running,
            counts=dict(sorted((self._context.counts + self._link_counts()).items())),
            warnings=router.key_use.warnings(),
            problems={
                view.name: f"{problem.code}: {problem.message}"
                for view in self.links.dials()
                if (problem := self.links.problem(view.name)) is not None
            },
        )

    def _link_counts(self) -> Counter[str]:
        """Connections that were refused, by us or by others, and bad frames, by their code."""
        return Counter({f"link_{code}": count for code, count in self.links.counts.items()})

    def _status_of(self, name: str) -> PeerStatus:
        lane, traffic = self.router.lane_of(name), self.router.traffic_of(name)
        link = lane.link
        return PeerStatus(
            name=name,
            key="" if link is None else text_of(link.peer),
            state="absent" if link is None else "connected",
            address="" if link is None else link.address,
            rtt_ms=None if link is None else link.rtt_ms,
            sent=lane.sent,
            acked=lane.acked,
            received=traffic.received,
            again=traffic.again,
            refused=dict(traffic.refused),
            queued=lane.queued,
            under_way=lane.under_way,
            topics=self.router.topics.topics_of(name),
            durable=self.router.topics.durable_of(name),
            services=self.router.topics.services_of(name),
        )

    async def close(self) -> None:
        """Ends the bus. What waits in the outbox stays there; the store stays open."""
        if self._context.is_closed:
            return
        self._context.is_closed = True
        await self.router.stop()
        if self._discovery is not None:
            await self._discovery.stop()
        await self.links.close()
        await self.router.close()

    # --- helpers -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._context.is_closed:
            raise BusClosed("the bus is closed")

    async def _known(self, name: str) -> Peer | None:
        return await guarded(self._context.peers.find(name))

    async def _peer(self, name: str) -> Peer:
        self._check_open()
        try:
            found = await self._context.peers.find(name)
        except BusError:
            raise
        except Exception as error:
            raise store_failed(error) from error
        if found is None:
            raise UnknownPeer(f"nobody here is known as {name!r}")
        return found

    async def _claim(self, to: str, message: BusMessage) -> None:
        """An id that a caller gives belongs to what it asks for. Raises IdempotencyKeyReused if it
        was given for something else.
        """
        asked = bus_fingerprint(to, message)
        until = self._context.counted_ms() + BUS_TTL_MS_MAX
        first = await guarded(self._context.store.claim_id(message.id, asked, until))
        if first != asked:
            raise IdempotencyKeyReused(
                f"the id {id_text(message.id)} was given before, for another message"
            )

    def _message(
        self,
        kind: MessageKind,
        topic: str,
        body: bytes | str,
        content_type: str,
        priority: str,
        ttl_ms: int | None,
        id: bytes | None,
    ) -> tuple[BusMessage, int]:
        """A checked message, and when it expires."""
        if isinstance(body, str):
            body = body.encode()
        ttl = BUS_TTL_MS if ttl_ms is None else ttl_ms
        if ttl < 1 or ttl > BUS_TTL_MS_MAX:
            raise OverLimit(f"a message cannot wait for {ttl} ms; the most is {BUS_TTL_MS_MAX}")
        clock = self._context.clock
        message = check_message(
            BusMessage(
                id=clock.new_id() if id is None else check_new_id(check_id(id)),
                kind=kind,
                topic=topic,
                body=body,
                content_type=content_type,
                priority=check_priority(priority),
                ttl_ms=ttl,
                durable=kind is MessageKind.SEND,
            )
        )
        if len(body) > _BODY_MAX:
            raise OverLimit(f"a message has {len(body)} bytes; the most is {_BODY_MAX}")
        return message, self._context.counted_ms() + ttl
