"""The middle of a bus: what links tell goes to the part that it concerns.

    Lane            what goes to one peer
    ParcelIntake    what comes over one link
    Topics          subscriptions and interests
    TopicRelay      what is published by way of others
    Requests        what we ask
    RequestServing  what we answer
    KeyUse          whether two processes use one key
    Announcing      what peers are told of all this

A link is used once our numbers are above what the peer has seen of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.bus.announcing import Announcing
from holdfast.bus.context import BusContext, log
from holdfast.bus.credit import Credit
from holdfast.bus.guard import guarded
from holdfast.bus.key_use import KeyUse
from holdfast.bus.lane import Lane
from holdfast.bus.numbers import Numbers
from holdfast.bus.parcel_intake import ParcelIntake, Traffic
from holdfast.bus.ports import Link, LinkPart, Peer
from holdfast.bus.requests import Requests
from holdfast.bus.serving import RequestServing
from holdfast.bus.topic_relay import TopicRelay
from holdfast.bus.topics import Topics
from holdfast.protocol.bus_frames import (
    AckFrame,
    FrameKind,
    InterestFrame,
    NoticeFrame,
    SettledFrame,
    Stream,
    WelcomeFrame,
    read_told,
)
from holdfast.rules.bus.mesh_store import InboxMessage, PeerKey
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.bus.relaying import topic_mark
from holdfast.rules.bus.scope import may_listen, may_send, one_covers
from holdfast.rules.bus.succession import KeySuccession
from holdfast.rules.errors import (
    BusClosed,
    BusError,
    BusStoreFailed,
    CapabilityRefused,
    HoldfastError,
    PeerNameTaken,
    PeerUnreachable,
    ZoneNotTrusted,
)
from holdfast.rules.keys import text_of
from holdfast.rules.limits import BUS_CLOCK_SKEW_MS, BUS_SWEEP_MS, SECOND_MS


class BusRouter:
    """A `LinkEvents`, and the `Receiver` of what comes."""

    def __init__(self, context: BusContext) -> None:
        self.context = context
        self.addresses: list[str] = []
        self.lanes: dict[str, Lane] = {}
        self.intakes: dict[str, ParcelIntake] = {}
        self._traffic: dict[str, Traffic] = {}
        self.parts: list[LinkPart] = []
        self.numbers = Numbers(context, self._numbers_ready)
        self.serving = RequestServing(context, self.lane_of, self.announce, self._is_passing)
        self.topics = Topics(context, self.announce, self._reply_kept)
        self.requests = Requests(context, self.lane_of, self.topics.serving)
        self.key_use = KeyUse(context)
        self._announcing = Announcing(
            context, lambda: [one.link for one in self.intakes.values()], self._interest_for
        )
        self._interests: dict[str, tuple[Link, InterestFrame]] = {}
        """The last that each peer told and that was not taken up yet."""
        self._hearing = False
        self._scopes: dict[PeerKey, tuple[str, ...]] = {}
        """What peers may ask for and publish that may not do everything."""
        self._passing: dict[str, PeerKey] = {}
        """Peers that are known for as long as their link, by name."""
        self._ends: dict[PeerKey, int] = {}
        """Until when that holds."""
        self.relay = TopicRelay(context, self.numbers, self.topics, self._may_publish)

    async def start(self) -> None:
        """Reads what an earlier life of the bus left behind."""
        self.context.incarnation = await guarded(self.context.store.incarnation())
        await self.topics.load()
        await self.requests.load()
        self.topics.take_in()
        self.context.spawn(self._sweep(), "sweep")

    def lane_of(self, name: str) -> Lane:
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name, self.context, self.numbers, self)
        return lane

    def traffic_of(self, name: str) -> Traffic:
        return self._traffic.setdefault(name, Traffic())

    def link_to(self, name: str) -> Link | None:
        lane = self.lanes.get(name)
        return None if lane is None else lane.link

    # --- LinkEvents ----------------------------------------------------------------------------

    async def welcome(self, peer: PeerKey) -> WelcomeFrame:
        if await self.context.peers.of_key(peer) is None:
            raise ZoneNotTrusted(f"nobody here knows the key {text_of(peer)}")
        store = self.context.store
        seen: int | None = await guarded(store.last_seq(peer))
        relayed: int | None = await guarded(store.last_seq(topic_mark(peer)))
        return WelcomeFrame(
            name=self.context.name,
            incarnation=self.context.incarnation,
            seen=max(seen or 0, relayed or 0),
            capabilities=list(self.context.peers.capabilities(peer)),
            addresses=list(self.addresses),
            life=self.context.life,
        )

    async def admit(self, peer: PeerKey, welcome: WelcomeFrame) -> str:
        admitted = await self.context.peers.admit(peer, welcome.name, welcome.capabilities)
        await self._only_one(admitted.name, peer)
        linked = self.intakes.get(admitted.name)
        link = None if linked is None else linked.link
        await self.key_use.check(admitted.name, peer, welcome.life, link)
        self._scopes.pop(peer, None)
        self._ends.pop(peer, None)
        if admitted.scopes is not None:
            self._scopes[peer] = admitted.scopes
        if admitted.ends_at is not None:
            self._ends[peer] = admitted.ends_at
        self._passing.pop(admitted.name, None)
        if admitted.is_passing:
            self._passing[admitted.name] = peer
        self.relay.grant(peer, admitted)
        return admitted.name

    def _is_passing(self, name: str) -> bool:
        return name in self._passing

    async def follow(self, peer: PeerKey, chain: Sequence[KeySuccession]) -> bool:
        return await self.context.peers.follow(peer, chain)

    async def _only_one(self, name: str, peer: PeerKey) -> None:
        """A peer has one lane and one link, whichever of its keys it shows. If another key of this
        name is linked and answers, these are two processes; if it does not answer, its end is gone
        and the key was changed. Raises PeerNameTaken.
        """
        intake = self.intakes.get(name)
        if intake is None or intake.link.peer == peer:
            return
        try:
            await intake.link.ping()
        except PeerUnreachable:
            intake.link.close(PeerNameTaken.code, _taken(name))
        else:
            log.warning("%s; the one that came last is refused", _taken(name))
            self.context.counts[f"refused_{PeerNameTaken.code}"] += 1
            raise PeerNameTaken(_taken(name))

    def may_less(self, link: Link, peer: Peer) -> None:
        """What a linked peer may do has perhaps become less."""
        if self.relay.grant(link.peer, peer):
            self._announcing.tell(link)
        if peer.scopes is not None and peer.scopes != self._scopes.get(link.peer):
            self._scopes[link.peer] = peer.scopes
            self._announcing.tell(link)

    def _end_in_time(self, link: Link) -> None:
        """The link ends when the right by which the peer was let in does."""
        ends_at = self._ends.get(link.peer)
        if ends_at is None:
            return
        left_ms = ends_at + BUS_CLOCK_SKEW_MS - self.context.clock.now_ms()
        if left_ms > 0:
            # Looked at again from time to time: the clock of the wall may be set.
            wait = min(left_ms, BUS_SWEEP_MS)
            self.context.loop.call_later(wait / SECOND_MS, self._end_if_over, link)
        else:
            link.close(CapabilityRefused.code, "the capability of this peer has expired")

    def _end_if_over(self, link: Link) -> None:
        if self._is_used(link) and not self.context.is_closed:
            self._end_in_time(link)

    def link_up(self, link: Link) -> None:
        before = self.intakes.get(link.name)
        if before is not None and before.link.peer != link.peer:
            link.close(PeerNameTaken.code, _taken(link.name))  # both said hello at once
            return
        if before is not None:
            self.link_down(before.link, None)
        self.intakes[link.name] = ParcelIntake(self.context, link, self, self.traffic_of(link.name))
        self.key_use.link_up(link)
        self._announcing.tell(link)
        self._end_in_time(link)
        self.context.spawn(self._begin(link), "begin")
        for part in self.parts:
            part.link_up(link)

    async def _begin(self, link: Link) -> None:
        try:
            await self.numbers.leap(link.peer, link.welcome.seen)
        except BusError as error:
            log.warning("the link to %s cannot be used: %s", link.name, error.message)
            self.context.counts[f"unusable_{error.code}"] += 1
            link.close(error.code, error.message)
            return
        intake = self.intakes.get(link.name)
        if intake is not None and intake.link is link:
            self.lane_of(link.name).begin(link)
            intake.begin()
            self.relay.begin(link)
            self.context.changed()
        if link.dialled:
            await self._note_address(link)

    async def _note_address(self, link: Link) -> None:
        """Where the peer was found is a hint for later. If the disk is full, say, it cannot be
        kept, and the link is as good as any.
        """
        try:
            await guarded(self.context.peers.note_address(link.peer, link.address))
        except BusError as error:
            log.warning("where %s was found is not noted: %s", link.name, error.message)

    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> None:
        intake = self.intakes.get(link.name)
        if intake is None or intake.link is not link:
            return  # a link that was replaced
        if kind is FrameKind.PARCEL:
            intake.add(stream, body)
        elif kind is FrameKind.MESH or kind is FrameKind.QUORUM:
            taken = [part for part in self.parts if part.frame(link, kind, stream, body)]
            if not taken and stream is not Stream.CONTROL:
                link.taken(stream, len(body))  # nobody here shares meshes, or votes
        elif kind is FrameKind.RELAY:
            self.relay.came(link, body)
        elif kind is FrameKind.SETTLED:
            settled = read_told(kind, body)
            assert isinstance(settled, SettledFrame)
            intake.settled(settled.waiting)
        elif kind is FrameKind.NOTICE:
            notice = read_told(kind, body)
            assert isinstance(notice, NoticeFrame)
            self.key_use.noticed(link, notice)
        elif kind is FrameKind.ACK:
            ack = read_told(kind, body)
            assert isinstance(ack, AckFrame)
            self.lane_of(link.name).acknowledge(link, ack)
        elif kind is FrameKind.INTEREST:
            interest = read_told(kind, body)
            assert isinstance(interest, InterestFrame)
            self._interests[link.name] = (link, interest)
            if not self._hearing:
                self._hearing = True
                self.context.spawn(self._hear(), "interests")

    def frames_end(self, link: Link) -> None:
        intake = self.intakes.get(link.name)
        if intake is not None and intake.link is link:
            intake.go()
            self.relay.go(link)

    def writable(self, link: Link) -> None:
        lane = self.lanes.get(link.name)
        if lane is not None and lane.link is link:
            lane.wake()
            self.relay.wake(link)

    def link_down(self, link: Link, error: Exception | None) -> None:
        intake = self.intakes.get(link.name)
        if intake is None or intake.link is not link:
            return
        del self.intakes[link.name]
        intake.end()
        self.relay.end(link)
        self._announcing.link_down(link)
        self.lane_of(link.name).end(link)
        self.topics.link_down(link.name)
        self.requests.link_down(link.name)
        self.serving.link_down(link.name)
        if self._passing.pop(link.name, None) is not None:
            del self.lanes[link.name]
        for part in self.parts:
            part.link_down(link)
        self.context.changed()

    def _is_used(self, link: Link) -> bool:
        """Whether this is still the link to its peer."""
        intake = self.intakes.get(link.name)
        return intake is not None and intake.link is link

    async def _hear(self) -> None:
        """Takes up what peers told, one after the other."""
        try:
            while self._interests:
                link, interest = self._interests.pop(next(iter(self._interests)))
                if not self._is_used(link):
                    continue
                try:
                    if link.peer in self._scopes:
                        interest = _within(self._scopes[link.peer], interest)
                    await self.topics.keep(link, interest)
                    if self._is_used(link):
                        self.topics.heard(link.name, interest)
                    self.context.changed()
                except BusStoreFailed as error:
                    log.error("what %s listens to cannot be kept: %s", link.name, error.message)
                    link.close(error.code, "the store of this peer has failed")
                except HoldfastError as error:
                    link.broken(error)
        finally:
            self._hearing = False

    # --- Receiver ------------------------------------------------------------------------------

    def is_limited(self, link: Link) -> bool:
        return link.peer in self._scopes

    def refusal(self, link: Link, message: BusMessage) -> HoldfastError | None:
        scopes = self._scopes.get(link.peer)
        if scopes is None or may_send(scopes, message.kind, message.topic):
            return None
        return CapabilityRefused(f"{link.name} may not do this: it has {', '.join(scopes)}")

    async def _may_publish(self, key: PeerKey, topic: str) -> str | None:
        """The name of the peer that published something, linked or not; None if it may not."""
        peer = await guarded(self.context.peers.of_key(key))
        if peer is None:
            return None
        scopes = peer.scopes
        allowed = scopes is None or may_send(scopes, MessageKind.PUBLISH, topic)
        return peer.name if allowed else None

    def keeps(self, message: BusMessage) -> bool:
        kind = message.kind
        if kind is MessageKind.SEND:
            return True
        if kind is MessageKind.REPLY:
            return self.requests.is_wanted_later(message.correlation)
        return kind is MessageKind.PUBLISH and message.durable

    def are_kept(
        self, link: Link, came: list[tuple[BusMessage, Credit]], rows: list[InboxMessage] | None
    ) -> None:
        self.topics.are_kept(link, came, rows)

    def is_new(self, link: Link, message: BusMessage, credit: Credit) -> None:
        if message.kind is MessageKind.REQUEST:
            self.serving.asked(link, message, credit)
        elif message.kind is MessageKind.PUBLISH:
            self.topics.deliver_passing(link.name, link.peer, message, credit)
        else:
            credit.release()
            if message.kind is MessageKind.REPLY:
                self.requests.heard(link.name, message)
            else:
                self.serving.cancelled(link, message)

    def is_again(self, link: Link, message: BusMessage, credit: Credit) -> None:
        if message.kind is MessageKind.REQUEST:
            self.serving.asked(link, message, credit)
            return
        credit.release()
        if message.kind is MessageKind.REPLY:
            self.requests.heard(link.name, message)

    # --- Asked ---------------------------------------------------------------------------------

    def is_asked(self, id: bytes) -> bool:
        return self.requests.is_asked(id)

    def was_refused(self, id: bytes, error: Exception) -> None:
        self.requests.was_refused(id, error)

    def found_reply(self, name: str, reply: BusMessage) -> None:
        self.serving.found_reply(name, reply)

    def _reply_kept(self, sender: str, row: InboxMessage) -> None:
        self.requests.keep_reply(sender, row)

    # --- what we tell --------------------------------------------------------------------------

    def announce(self) -> None:
        """Tells all peers what we listen to and serve, soon."""
        self._announcing.announce()

    def _interest_for(self, link: Link) -> InterestFrame:
        interest = InterestFrame(
            self.topics.patterns,
            self.topics.durable_patterns,
            self.serving.services,
            self.topics.taken_by_others(link.name),
            self.relay.granted(link.peer),
        )
        scopes = self._scopes.get(link.peer)
        if scopes is None:
            return interest
        # It learns of nothing else that we do.
        asked = [name for name in interest.services if one_covers(scopes, f"service:{name}")]
        heard = _within(scopes, interest)
        return InterestFrame(heard.topics, heard.durable, asked, interest.relays, interest.takes)

    # --- the rest ------------------------------------------------------------------------------

    def _numbers_ready(self) -> None:
        for lane in self.lanes.values():
            lane.wake()

    async def _sweep(self) -> None:
        """Removes what nobody waits for any more, from time to time."""
        while True:
            for lane in self.lanes.values():
                lane.notice_clock()
            try:
                expired = await guarded(self.context.store.expire_outbox())
                self.context.counts["expired"] += len(expired)
                self.requests.expired(expired)
            except BusError as error:
                log.warning("expired messages cannot be removed: %s", error.message)
            await asyncio.sleep(BUS_SWEEP_MS / 1000)

    async def stop(self) -> None:
        """Whoever waits for something is told that the bus is closed. Links go down next."""
        closed = BusClosed("the bus is closed")
        self.requests.close(closed)
        self.topics.end()
        for lane in self.lanes.values():
            lane.close(closed)
        for part in self.parts:
            await part.close()

    async def close(self) -> None:
        """Ends what still runs, and tells the store what is done with."""
        await self.context.end_tasks()
        try:
            await self.context.tidy()
        except BusError as error:
            log.warning("what was done with could not be noted: %s", error.message)


def _taken(name: str) -> str:
    return f"two processes are called {name!r} here, with different keys"


def _within(scopes: Sequence[str], interest: InterestFrame) -> InterestFrame:
    """What a peer that may not do everything gets of what it listens to."""
    return InterestFrame(
        [topic for topic in interest.topics if may_listen(scopes, topic)],
        [topic for topic in interest.durable if may_listen(scopes, topic)],
        interest.services,
        interest.relays,
        interest.takes,
    )
