"""What comes over one link: parcels are checked, stored, acknowledged, handed out.

Parcels that came while others were being stored are stored together, so the more comes, the fewer
commits it takes. Checking many signatures happens in a thread. A peer that proved its key and then
hands over something that it cannot have signed is not worth a second look: its link ends, and what
it says that it has sent counts as not received. A message that is refused for a lesser reason is
named in the acknowledgement, with the reason; too many of them end the link as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from holdfast.bus.context import BusContext, log
from holdfast.bus.credit import Credit
from holdfast.bus.guard import guarded, store_failed
from holdfast.bus.ports import Link
from holdfast.protocol.bus_frames import AckFrame, FrameKind, Stream, told
from holdfast.rules.bus.batching import CHECKED_AT_ONCE, is_worth_a_thread
from holdfast.rules.bus.mesh_store import (
    AcceptedArrivals,
    ArrivalVerdict,
    InboxMessage,
    SignedArrival,
)
from holdfast.rules.bus.message import BusMessage, MessageKind, decode_message
from holdfast.rules.bus.signed_envelope import (
    RecipientKind,
    SignedParcel,
    check_payload_ids,
    check_recipient,
    check_signature,
    read_parcel,
)
from holdfast.rules.errors import (
    BadSequence,
    BadSignature,
    BusError,
    BusInboxFull,
    BusStoreFailed,
    HoldfastError,
    MessageRefused,
    PeerUnreachable,
    WrongRecipient,
)
from holdfast.rules.limits import (
    BUS_ACK_MS,
    BUS_GROUP_BYTES,
    BUS_PARCEL_MESSAGES_MAX,
    REASON_CHARS_MAX,
)

Refusal = tuple[int, str, str]
_NEW: Final = ArrivalVerdict.NEW
_DUPLICATE: Final = ArrivalVerdict.DUPLICATE
_REPLAY: Final = ArrivalVerdict.REPLAY
_WAITED_FOR: Final = (MessageKind.SEND, MessageKind.PUBLISH)
"""A send returns when it is acknowledged; a request has its reply, and a reply nobody who waits."""


class Receiver(Protocol):
    """Who gets the messages."""

    def is_limited(self, link: Link) -> bool:
        """Whether there is anything that the peer may not send."""

    def refusal(self, link: Link, message: BusMessage) -> HoldfastError | None:
        """Why the peer may not send this message; None if it may."""

    def keeps(self, message: BusMessage) -> bool:
        """Whether it goes to the inbox."""

    def is_new(self, link: Link, message: BusMessage, credit: Credit) -> None:
        """A message came that is not kept. The receiver gives the credit back when it is taken."""

    def are_kept(
        self, link: Link, came: list[tuple[BusMessage, Credit]], rows: list[InboxMessage] | None
    ) -> None:
        """Messages stand in the inbox, in these rows, unless the store does not tell which."""

    def is_again(self, link: Link, message: BusMessage, credit: Credit) -> None:
        """A message came again that was stored before."""


class _Came(NamedTuple):
    stream: Stream
    parcel: SignedParcel
    size: int


class Traffic:
    """What came from one peer since the bus was bound."""

    def __init__(self) -> None:
        self.received = 0
        self.again = 0
        self.refused: dict[str, int] = {}
        """How many messages were refused, by code."""


class ParcelIntake:
    """The receiving side of one link."""

    def __init__(
        self, context: BusContext, link: Link, receiver: Receiver, traffic: Traffic
    ) -> None:
        self._context, self.link, self._receiver = context, link, receiver
        self._waiting: deque[tuple[Stream, bytes]] = deque()
        self._has_begun = False
        self._is_running = False
        self._traffic = traffic
        self._is_over = False
        self._upto = 0
        self._later: asyncio.TimerHandle | None = None
        self._settled: list[bytes] | None = None
        """What the peer has said that may come again, until the store knows it."""
        self._withheld: list[Credit] = []
        """Credit that the peer gets back when there is room in the inbox for more of it."""

    def add(self, stream: Stream, body: bytes) -> None:
        """A parcel came; others may have come with it."""
        self._waiting.append((stream, body))

    def settled(self, waiting: list[bytes]) -> None:
        """The peer sends nothing again but these. What it has sent since then is stored later."""
        self._settled = waiting
        self.go()

    def begin(self) -> None:
        """We can answer over this link. What came before waits; its credit bounds it."""
        self._has_begun = True
        self.go()

    def go(self) -> None:
        """Takes what came: at once, as far as nothing has to be waited for."""
        if self._is_running or not self._has_begun:
            return
        if self._waiting or self._settled is not None:
            self._is_running = True
            self._context.spawn_at_once(self._run(), "intake")

    @property
    def is_busy(self) -> bool:
        """Whether something that came is not handed out yet."""
        return bool(self._waiting) or self._is_running

    def end(self) -> None:
        """The link is gone. What is being stored is stored; the rest is dropped unread."""
        self._is_over = True
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while (self._waiting or self._settled is not None) and not self._is_over:
                if self._settled is not None:
                    settled, self._settled = self._settled, None
                    await guarded(self._context.store.settle_ids(self.link.name, settled))
                if self._waiting:
                    await self._take(self._next_group())
                    if self._waiting:
                        await asyncio.sleep(0)  # a peer that floods gives the others their turn
        except PeerUnreachable:
            pass  # the link ended meanwhile
        except BusStoreFailed as error:
            # Nothing was acknowledged, so the peer sends all of it again on its next link.
            log.error("messages of %s cannot be kept: %s", self.link.name, error.message)
            self.link.close(error.code, "the store of this peer has failed")
        except HoldfastError as error:
            self._count(error.code)
            log.warning("%s hands over what it cannot have signed: %s", self.link.name, error)
            self.link.broken(error)
        finally:
            self._is_running = False

    def _next_group(self) -> list[_Came]:
        group: list[_Came] = []
        size = 0
        while self._waiting and size < BUS_GROUP_BYTES:
            stream, body = self._waiting.popleft()
            size += len(body)
            try:
                parcel = read_parcel(body)
            except HoldfastError:
                if group:
                    self._waiting.appendleft((stream, body))
                    break
                raise
            group.append(_Came(stream, parcel, len(body)))
        return group

    async def _take(self, group: Sequence[_Came]) -> None:
        """Checks, stores, acknowledges, hands out."""
        arrivals: list[SignedArrival] = []
        credits: list[Credit] = []
        refused: list[Refusal] = []
        upto = 0
        for came in group:
            parcel = came.parcel
            upto = max(upto, parcel.last_sequence)
            if parcel.sender != self.link.peer:
                raise BadSignature(f"{self.link.name} hands over a message of another peer")
        if len(group) == 1 and parcel.count == 1 and came.size <= CHECKED_AT_ONCE:
            self._sort(came, _check_one(parcel), arrivals, credits, refused)
        else:
            parcels = [came.parcel for came in group]
            if is_worth_a_thread(parcels):
                checked = await self._context.run_in_thread(lambda: _check(parcels))
            else:
                checked = _check(parcels)
            for came, messages in zip(group, checked, strict=True):
                self._sort(came, messages, arrivals, credits, refused)
        verdicts = await self._accept(arrivals)
        if _REPLAY in verdicts:
            for arrival, verdict in zip(arrivals, verdicts, strict=True):
                if verdict is _REPLAY:
                    number = arrival.sequence
                    refused.append((number, BadSequence.code, "this number was seen before"))
        is_waited_for = bool(refused)
        for arrival in arrivals:
            if arrival.message.kind in _WAITED_FOR:
                is_waited_for = True
                break
        if is_waited_for:
            self._acknowledge(upto, refused)
        else:
            self._acknowledge_later(upto)
        self._hand_out(arrivals, credits, verdicts)

    def _sort(
        self,
        came: _Came,
        messages: Sequence[BusMessage | HoldfastError],
        arrivals: list[SignedArrival],
        credits: list[Credit],
        refused: list[Refusal],
    ) -> None:
        """Divides the messages of a parcel into those that may be stored and others."""
        stream, parcel, rest = came
        link, keeps = self.link, self._receiver.keeps
        wrong, look = self._wrong_recipient(parcel), self._looks_closely(parcel)
        size = rest // parcel.count
        for (nonce, sequence, _), message in zip(parcel.raw_heads(), messages, strict=True):
            if isinstance(message, BusMessage):
                error = wrong
                if look and error is None:
                    error = self._refusal(parcel, message)
                if error is None and self._context.drops(link.name, message):
                    continue  # it is acknowledged, so that the sender is not told
                if error is None:
                    rest -= size
                    arrivals.append(SignedArrival(sequence, nonce, message, keeps(message)))
                    credits.append(Credit(link, stream, size))
                    continue
            else:
                error = wrong or message
            refused.append((sequence, error.code, error.message[:REASON_CHARS_MAX]))
        if rest:
            link.taken(stream, rest)

    def _looks_closely(self, parcel: SignedParcel) -> bool:
        """Whether a message of it may be refused for what it says."""
        direct = parcel.recipient.kind is RecipientKind.DIRECT
        return not direct or self._receiver.is_limited(self.link)

    def _refusal(self, parcel: SignedParcel, message: BusMessage) -> HoldfastError | None:
        to = parcel.recipient
        if to.kind is RecipientKind.TOPIC:
            return WrongRecipient("a message that is signed for a topic comes by relay")
        if to.kind is RecipientKind.ANYCAST and message.topic != to.name:
            return WrongRecipient("a message is signed for another service than its own")
        return self._receiver.refusal(self.link, message)

    def _wrong_recipient(self, parcel: SignedParcel) -> HoldfastError | None:
        try:
            check_recipient(parcel, self._context.key, self._context.incarnation)
        except WrongRecipient as error:
            return error
        return None

    async def _accept(self, arrivals: list[SignedArrival]) -> list[ArrivalVerdict]:
        """Stores them in one transaction. While the inbox is full, the sender waits with us: it
        gets neither credit nor an acknowledgement.
        """
        if not arrivals:
            return []
        store, link = self._context.store, self.link
        while not self._is_over:
            self._context.tidy_along()
            try:
                return await store.accept(link.peer, arrivals, name=link.name)
            except BusInboxFull:
                self._context.counts["inbox_full"] += 1
                await self._context.until_changed()
            except BusError:
                raise
            except Exception as error:
                raise store_failed(error) from error
        raise PeerUnreachable(f"the link to {link.name} has ended")

    def _acknowledge_later(self, upto: int) -> None:
        """Nobody waits for this one: it goes with others."""
        self._upto = upto
        if self._later is None:
            self._later = self._context.loop.call_later(BUS_ACK_MS / 1000, self._acknowledge_now)

    def _acknowledge_now(self) -> None:
        self._later = None
        if not self._is_over:
            self._tell(AckFrame(self._upto))

    def _acknowledge(self, upto: int, refused: list[Refusal]) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        refused.sort()
        for at in range(0, len(refused), BUS_PARCEL_MESSAGES_MAX):
            part = refused[at : at + BUS_PARCEL_MESSAGES_MAX]
            last = at + BUS_PARCEL_MESSAGES_MAX >= len(refused)
            self._tell(AckFrame(upto if last else part[-1][0], part))
        if not refused:
            self._tell(AckFrame(upto))
        reasons = {code: reason for _, code, reason in refused}
        for _, code, _ in refused:
            self._count(code)
        for code, reason in reasons.items():
            log.info("messages of %s are refused: %s", self.link.name, reason)
            self.link.blame(MessageRefused(f"{code}: {reason}"))

    def _tell(self, ack: AckFrame) -> None:
        with suppress(PeerUnreachable):  # then the peer sends it again, and it is known
            self.link.send(FrameKind.ACK, Stream.CONTROL, told(FrameKind.ACK, ack))

    def _hand_out(
        self,
        arrivals: Sequence[SignedArrival],
        credits: Sequence[Credit],
        verdicts: Sequence[ArrivalVerdict],
    ) -> None:
        link, receiver, traffic = self.link, self._receiver, self._traffic
        kept: list[tuple[BusMessage, Credit]] = []
        for arrival, credit, verdict in zip(arrivals, credits, verdicts, strict=True):
            if verdict is _NEW:
                traffic.received += 1
                if arrival.keep:
                    kept.append((arrival.message, credit))
                else:
                    receiver.is_new(link, arrival.message, credit)
            elif verdict is _DUPLICATE:
                traffic.again += 1
                receiver.is_again(link, arrival.message, credit)
            else:
                credit.release()
        if kept:
            rows = None
            if isinstance(verdicts, AcceptedArrivals):
                rows = verdicts.kept
                if not verdicts.has_room:
                    self._withhold([credit for _, credit in kept])
            receiver.are_kept(link, kept, rows)

    def _withhold(self, credits: Sequence[Credit]) -> None:
        """The peer has filled its share of the inbox: what it sends there stops, and what it
        answers goes on, because that has credit of its own.
        """
        for credit in credits:
            credit.hold()
        if not self._withheld:
            self._context.counts["inbox_full"] += 1
            self._context.changed()
            self._context.spawn(self._give_back(), "inbox-room")
        self._withheld.extend(credits)

    async def _give_back(self) -> None:
        store, peer = self._context.store, self.link.peer
        try:
            while not self._is_over and not await guarded(store.has_room(peer)):
                await self._context.until_changed()
        except BusStoreFailed as error:
            self.link.close(error.code, "the store of this peer has failed")
        withheld, self._withheld = self._withheld, []
        for credit in withheld:
            credit.release()

    def _count(self, code: str) -> None:
        self._traffic.refused[code] = self._traffic.refused.get(code, 0) + 1
        self._context.counts[f"refused_{code}"] += 1


def _check_one(parcel: SignedParcel) -> list[BusMessage | HoldfastError]:
    """The message of a parcel that has one. Raises as `_check`."""
    check_signature(parcel)
    check_payload_ids(parcel)
    return [_decoded(parcel.payloads[0])]


def _check(parcels: Sequence[SignedParcel]) -> list[list[BusMessage | HoldfastError]]:
    """The messages of parcels that their sender signed. Raises BadSignature or BadPayloadId."""
    found: list[list[BusMessage | HoldfastError]] = []
    for parcel in parcels:
        check_signature(parcel)
        check_payload_ids(parcel)
        found.append([_decoded(payload) for payload in parcel.payloads])
    return found


def _decoded(payload: bytes) -> BusMessage | HoldfastError:
    try:
        return decode_message(payload)
    except HoldfastError as error:
        return error
