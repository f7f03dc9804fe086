"""Messages of topics that come by way of others.

Where a linked peer may pass on what is published here, a message is signed once, for its topic, and
the same bytes go to all: to those who listen and to those who pass it on. Whoever gets it checks
the signature of the origin, takes it in once, hands it to its own readers, and passes it on to the
peers that take it from here (`rules/bus/relaying.py` says to whom).

Nothing is kept for anybody: what cannot leave waits in memory, and what is too much of one origin
is dropped and counted. So an origin that floods loses its own messages first, and a reader that is
slow holds nobody up but itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from holdfast.bus.context import BusContext, log
from holdfast.bus.credit import Credit
from holdfast.bus.guard import guarded
from holdfast.bus.numbers import Numbers
from holdfast.bus.ports import Link, Peer
from holdfast.bus.topics import Topics
from holdfast.protocol.bus_frames import FrameKind, RelayFrame, Stream, read_told, told
from holdfast.rules.bus.batching import is_worth_a_thread
from holdfast.rules.bus.mesh_store import ArrivalVerdict, PeerKey, SignedArrival
from holdfast.rules.bus.message import BusMessage, MessageKind, decode_message, encode_message
from holdfast.rules.bus.relaying import (
    Neighbour,
    RelayStep,
    first_steps,
    next_steps,
    tag_of,
    topic_mark,
    topic_nonce,
)
from holdfast.rules.bus.signed_envelope import (
    NONCE_BYTES,
    Recipient,
    RecipientKind,
    SignedParcel,
    SigningMode,
    check_payload_ids,
    check_signature,
    read_parcel,
    sign_parcel,
)
from holdfast.rules.bus.topic_pattern import takes
from holdfast.rules.errors import (
    BadAnswer,
    BusStoreFailed,
    CapabilityRefused,
    HoldfastError,
    WrongRecipient,
    ZoneNotTrusted,
)
from holdfast.rules.limits import (
    BUS_CLOCK_SKEW_MS,
    BUS_GROUP_BYTES,
    BUS_RELAY_WAITING_BYTES,
    BUS_RELAY_WAITING_MAX,
)

MayPublish = Callable[[PeerKey, str], Awaitable[str | None]]
_ORIGINS_AT_ONCE = 4


class _Came(NamedTuple):
    """A message that came and whose form is right."""

    frame: RelayFrame
    parcel: SignedParcel
    size: int


class _Taken(NamedTuple):
    """A message that its origin has signed and may publish."""

    came: _Came
    name: str
    arrival: SignedArrival


class Leaving:
    """A message that waits for room on a link."""

    __slots__ = ("body", "origin", "written")

    def __init__(self, origin: PeerKey, body: bytes, written: asyncio.Future[bool]) -> None:
        self.origin, self.body, self.written = origin, body, written

    def told(self, written: bool) -> None:
        if not self.written.done():
            self.written.set_result(written)


class _Way:
    """What comes and goes over one link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.has_begun = False
        self.is_taking = False
        self.coming: deque[_Came] = deque()
        self.leaving: deque[Leaving] = deque()
        self._waiting: dict[PeerKey, tuple[int, int]] = {}
        """Of each origin: how many messages wait to leave, and their bytes."""
        self._bytes = 0

    def has_room(self, origin: PeerKey, size: int) -> bool:
        count, held = self._waiting.get(origin, (0, 0))
        if not count:
            return self._bytes < _ORIGINS_AT_ONCE * BUS_RELAY_WAITING_BYTES
        return (
            count < BUS_RELAY_WAITING_MAX
            and held + size <= BUS_RELAY_WAITING_BYTES
            and self._bytes + size <= _ORIGINS_AT_ONCE * BUS_RELAY_WAITING_BYTES
        )

    def add(self, leaving: Leaving) -> None:
        self.leaving.append(leaving)
        self._count(leaving, 1)

    def remove(self, leaving: Leaving) -> None:
        self.leaving.remove(leaving)
        self._count(leaving, -1)

    def _count(self, leaving: Leaving, one: int) -> None:
        count, held = self._waiting.pop(leaving.origin, (0, 0))
        size = one * len(leaving.body)
        self._bytes += size
        if count + one:
            self._waiting[leaving.origin] = (count + one, held + size)


class TopicRelay:
    """What one bus publishes by way of others, and passes on for them. Belongs to the loop."""

    def __init__(
        self, context: BusContext, numbers: Numbers, topics: Topics, may_publish: MayPublish
    ) -> None:
        """`may_publish` names the peer that has a key, if it may publish to a topic here."""
        self._context, self._numbers, self._topics = context, numbers, topics
        self._may_publish = may_publish
        self._ways: dict[str, _Way] = {}
        self._granted: dict[PeerKey, tuple[tuple[str, ...], int]] = {}
        """What peers may relay, and until when."""

    # --- who may -------------------------------------------------------------------------------

    def grant(self, key: PeerKey, peer: Peer) -> bool:
        """What a peer may relay from now on; True if that is something else than before."""
        before = self._granted.pop(key, None)
        if peer.relays:
            self._granted[key] = (peer.relays, peer.relays_until)
        return before != self._granted.get(key)

    def granted(self, key: PeerKey) -> list[str]:
        patterns, until = self._granted.get(key, ((), 0))
        is_over = until + BUS_CLOCK_SKEW_MS <= self._context.clock.now_ms()
        return [] if is_over else list(patterns)

    def _may_relay(self, key: PeerKey, topic: str) -> bool:
        return any(takes(pattern, topic) for pattern in self.granted(key))

    # --- links ---------------------------------------------------------------------------------

    def begin(self, link: Link) -> None:
        """The link may be used."""
        way = self._way(link)
        way.has_begun = True
        self.go(link)

    def end(self, link: Link) -> None:
        way = self._ways.get(link.name)
        if way is not None and way.link is link:
            del self._ways[link.name]
            way.coming.clear()
            for leaving in way.leaving:
                leaving.told(written=False)

    def _way(self, link: Link) -> _Way:
        way = self._ways.get(link.name)
        if way is None or way.link is not link:
            way = self._ways[link.name] = _Way(link)
        return way

    # --- publishing ----------------------------------------------------------------------------

    def is_carried(self, topic: str) -> bool:
        """Whether somebody passes on what is published here."""
        return any(one.carries for one in self._neighbours(topic))

    async def publish(
        self, message: BusMessage, otherwise: Sequence[PeerKey]
    ) -> dict[str, tuple[Leaving, bool]]:
        """Signs a message once and hands it to all who listen or pass it on; `otherwise` get it in
        another way. Returns by the name of each what waits to leave, and whether it listens.
        """
        number = await self._numbers.one()
        nonce = self._context.random(NONCE_BYTES)
        key, to = self._context.signing_key, Recipient.topic(message.topic)
        payload = encode_message(message)
        envelope = sign_parcel(key, to, [payload], number, nonce, SigningMode.EACH)
        handed: dict[str, tuple[Leaving, bool]] = {}
        neighbours = {
            one.name: one._replace(listens=one.listens and one.key not in otherwise)
            for one in self._neighbours(message.topic)
        }
        for step in first_steps(neighbours.values(), otherwise):
            leaving = self._leaving(self._context.key, step, envelope)
            way = self._ways[step.name]
            way.add(leaving)
            handed[step.name] = (leaving, neighbours[step.name].listens)
            self.wake(way.link)
        return handed

    def take_back(self, name: str, leaving: Leaving) -> None:
        """It is not to go any more, if it has not gone."""
        way = self._ways.get(name)
        if way is not None and leaving in way.leaving:
            way.remove(leaving)

    def wake(self, link: Link) -> None:
        """There may be room on a link."""
        way = self._ways.get(link.name)
        if way is None or way.link is not link or not way.has_begun or self._context.is_closed:
            return
        while way.leaving and link.available(Stream.RELAY):
            leaving = way.leaving[0]
            way.remove(leaving)
            link.send(FrameKind.RELAY, Stream.RELAY, leaving.body)
            leaving.told(written=True)

    def _neighbours(self, topic: str) -> list[Neighbour]:
        found: list[Neighbour] = []
        for name, way in self._ways.items():
            told = self._topics.interest_of(name)
            if told is None or not way.has_begun:
                continue
            carries = _any_takes(told.relays, topic) and self._may_relay(way.link.peer, topic)
            found.append(
                Neighbour(
                    name,
                    way.link.peer,
                    takes=_any_takes(told.takes, topic),
                    listens=_any_takes(told.topics, topic),
                    carries=carries,
                )
            )
        return found

    # --- arrivals ------------------------------------------------------------------------------

    def came(self, link: Link, body: bytes) -> None:
        """A frame came; others may have come with it. Raises if it cannot be one."""
        try:
            frame = read_told(FrameKind.RELAY, body)
            assert isinstance(frame, RelayFrame)
            parcel = read_parcel(frame.envelope)
            if (
                parcel.count != 1
                or parcel.mode is not SigningMode.EACH
                or parcel.recipient.kind is not RecipientKind.TOPIC
            ):
                raise BadAnswer(f"{link.name} passes on what is no message of a topic")
            if parcel.sender not in (link.peer, self._context.key) and not self._may_relay(
                link.peer, parcel.recipient.name
            ):
                self._count(CapabilityRefused.code)
                raise BadAnswer(f"{link.name} may not relay {parcel.recipient.name}")
        except HoldfastError:
            link.taken(Stream.RELAY, len(body))
            raise
        self._way(link).coming.append(_Came(frame, parcel, len(body)))

    def go(self, link: Link) -> None:
        """Takes what came over a link."""
        way = self._ways.get(link.name)
        if way is not None and way.coming and way.has_begun and not way.is_taking:
            way.is_taking = True
            self._context.spawn(self._take_all(way), "relay")

    async def _take_all(self, way: _Way) -> None:
        try:
            while way.coming:
                await self._take(way)
        except BusStoreFailed as error:
            log.error("what %s passes on cannot be noted: %s", way.link.name, error.message)
            way.link.close(error.code, "the store of this peer has failed")
        except HoldfastError as error:
            self._count(error.code)
            log.warning("%s passes on what nobody has signed: %s", way.link.name, error)
            way.link.broken(error)
        finally:
            way.is_taking = False

    async def _take(self, way: _Way) -> None:
        """Checks and takes in what came, the messages of one origin together."""
        group: list[_Came] = []
        size = 0
        while way.coming and size < BUS_GROUP_BYTES:
            group.append(way.coming.popleft())
            size += group[-1].size
        known = [(came, name) for came in group if (name := await self._origin(way, came))]
        parcels = [came.parcel for came, _ in known]
        if is_worth_a_thread(parcels):
            messages = await self._context.run_in_thread(lambda: [_checked(one) for one in parcels])
        else:
            messages = [_checked(one) for one in parcels]
        by_origin: dict[PeerKey, list[_Taken]] = {}
        for (came, name), message in zip(known, messages, strict=True):
            if isinstance(message, HoldfastError):
                self._refuse(way, came, message)
                way.link.blame(message)
                continue
            head = came.parcel.head(0)
            origin = came.parcel.sender
            nonce = topic_nonce(origin, head.nonce)
            arrival = SignedArrival(head.sequence, nonce, message, False)
            by_origin.setdefault(origin, []).append(_Taken(came, name, arrival))
        for origin, taken in by_origin.items():
            arrivals = [one.arrival for one in taken]
            verdicts = await guarded(
                self._context.store.accept(
                    topic_mark(origin), arrivals, window=True, name=taken[0].name
                )
            )
            for one, verdict in zip(taken, verdicts, strict=True):
                if verdict is ArrivalVerdict.NEW:
                    self._is_new(way, one)
                else:
                    self._context.counts["relayed_again"] += 1
                    way.link.taken(Stream.RELAY, one.came.size)

    async def _origin(self, way: _Way, came: _Came) -> str | None:
        """The name of who published a message; None, and it is refused, if nobody here knows it or
        it may not. What comes back to ourselves ends here.
        """
        origin, topic = came.parcel.sender, came.parcel.recipient.name
        if origin == self._context.key:
            self._context.counts["relayed_again"] += 1
            way.link.taken(Stream.RELAY, came.size)
            return None
        name = await self._may_publish(origin, topic)
        if name is None:
            self._refuse(way, came, ZoneNotTrusted(f"nobody here takes {topic} from its origin"))
        return name

    def _refuse(self, way: _Way, came: _Came, error: HoldfastError) -> None:
        self._count(error.code)
        log.info("what %s passes on is refused: %s", way.link.name, error.message)
        way.link.taken(Stream.RELAY, came.size)

    def _count(self, code: str) -> None:
        self._context.counts[f"refused_{code}"] += 1

    def _is_new(self, way: _Way, taken: _Taken) -> None:
        came, message = taken.came, taken.arrival.message
        frame, origin = came.frame, came.parcel.sender
        steps = next_steps(
            self._neighbours(message.topic),
            came_from=way.link.peer,
            origin=origin,
            hops=frame.hops,
            given=frame.given,
        )
        for step in steps:
            leaving = self._leaving(origin, step, frame.envelope)
            self._pass_on(self._ways[step.name], leaving)
        credit = Credit(way.link, Stream.RELAY, came.size)
        # Our readers may get it in another way, or may not want it; others get it all the same.
        is_new_here = tag_of(self._context.key) not in frame.given
        wanted = is_new_here and not self._context.drops(taken.name, message)
        if wanted and self._topics.is_heard(message.topic):
            self._topics.deliver_passing(taken.name, origin, message, credit)
        else:
            credit.release()

    def _leaving(self, origin: PeerKey, step: RelayStep, envelope: bytes) -> Leaving:
        body = told(FrameKind.RELAY, RelayFrame(step.hops, list(step.given), envelope))
        return Leaving(origin, body, self._context.loop.create_future())

    def _pass_on(self, way: _Way, leaving: Leaving) -> None:
        if not way.has_room(leaving.origin, len(leaving.body)):
            self._context.counts["relay_dropped"] += 1
            return
        self._context.counts["relayed"] += 1
        way.add(leaving)
        self.wake(way.link)


def _any_takes(patterns: Sequence[str], topic: str) -> bool:
    return any(takes(pattern, topic) for pattern in patterns)


def _checked(parcel: SignedParcel) -> BusMessage | HoldfastError:
    """The message of a parcel, or what is wrong with it. Raises BadSignature or BadPayloadId: then
    its carrier has forged it.
    """
    check_signature(parcel)
    check_payload_ids(parcel)
    try:
        message = decode_message(parcel.payloads[0])
    except HoldfastError as error:
        return error
    is_plain = message.kind is MessageKind.PUBLISH and not message.durable
    if not is_plain or message.topic != parcel.recipient.name:
        return WrongRecipient("a message is signed for another topic than its own")
    return message
