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
from holdfast.bus.guard import guarded
from holdfast.bus.ports import Link
from holdfast.protocol.bus_frames import AckFrame, FrameKind, Stream, told
from holdfast.rules.bus.batching import is_worth_a_thread
from holdfast.rules.bus.mesh_store import ArrivalVerdict, SignedArrival
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
_WAITED_FOR: Final = (MessageKind.SEND, MessageKind.PUBLISH)
"""A send returns when it is acknowledged; a request has its reply, and a reply nobody who waits."""


class Receiver(Protocol):
    """Who gets the messages."""

    def refusal(self, link: Link, message: BusMessage) -> HoldfastError | None:
        """Why the peer may not send this message; None if it may."""

    def keeps(self, message: BusMessage) -> bool:
        """Whether it goes to the inbox."""

    def is_new(self, link: Link, message: BusMessage, kept: bool, credit: Credit) -> None:
        """A message was stored. The receiver gives the credit back when it is taken."""

    def is_again(self, link: Link, message: BusMessage, credit: Credit) -> None:
        """A message came again that was stored before."""


class _Came(NamedTuple):
    stream: Stream
    parcel: SignedParcel
    size: int


class _Taken(NamedTuple):
    """A message that may be stored, with what it has cost its sender."""

    arrival: SignedArrival
    stream: Stream
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
        self._wake: asyncio.Future[None] | None = None
        self._traffic = traffic
        self._is_over = False
        self._upto = 0
        self._later: asyncio.TimerHandle | None = None
        context.spawn(self._run(), "intake")

    def add(self, stream: Stream, body: bytes) -> None:
        """A parcel came."""
        self._waiting.append((stream, body))
        self._rouse()

    @property
    def is_busy(self) -> bool:
        """Whether something that came is not handed out yet."""
        return bool(self._waiting) or self._wake is None

    def end(self) -> None:
        """The link is gone. What is being stored is stored; the rest is dropped unread."""
        self._is_over = True
        self._waiting.clear()
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self) -> None:
        while not self._is_over:
            if not self._waiting:
                self._wake = self._context.loop.create_future()
                await self._wake
                self._wake = None
                continue
            try:
                await self._take(self._next_group())
            except PeerUnreachable:
                return  # the link ended meanwhile
            except BusStoreFailed as error:
                # Nothing was acknowledged, so the peer sends all of it again on its next link.
                log.error("messages of %s cannot be kept: %s", self.link.name, error.message)
                self.link.close(error.code, "the store of this peer has failed")
                return
            except HoldfastError as error:
                self._count(error.code)
                log.warning("%s hands over what it cannot have signed: %s", self.link.name, error)
                self.link.broken(error)
                return
            if self._waiting:
                await asyncio.sleep(0)  # a peer that floods gives the others their turn

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
        parcels = [came.parcel for came in group]
        for parcel in parcels:
            if parcel.sender != self.link.peer:
                raise BadSignature(f"{self.link.name} hands over a message of another peer")
        if is_worth_a_thread(parcels):
            checked = await self._context.run_in_thread(lambda: _check(parcels))
        else:
            checked = _check(parcels)
        taken: list[_Taken] = []
        refused: list[Refusal] = []
        for came, messages in zip(group, checked, strict=True):
            self._sort(came, messages, taken, refused)
        verdicts = await self._accept([one.arrival for one in taken])
        for one, verdict in zip(taken, verdicts, strict=True):
            if verdict is ArrivalVerdict.REPLAY:
                number = one.arrival.sequence
                refused.append((number, BadSequence.code, "this number was seen before"))
        upto = max(parcel.head(parcel.count - 1).sequence for parcel in parcels)
        if refused or any(one.arrival.message.kind in _WAITED_FOR for one in taken):
            self._acknowledge(upto, refused)
        else:
            self._acknowledge_later(upto)
        for one, verdict in zip(taken, verdicts, strict=True):
            self._hand_out(one, verdict)

    def _sort(
        self,
        came: _Came,
        messages: Sequence[BusMessage | HoldfastError],
        taken: list[_Taken],
        refused: list[Refusal],
    ) -> None:
        """Divides the messages of a parcel into those that may be stored and others."""
        parcel, rest = came.parcel, came.size
        wrong = self._wrong_recipient(parcel)
        for head, message in zip(parcel.each_head(), messages, strict=True):
            error = wrong
            if isinstance(message, HoldfastError):
                error = error or message
            elif parcel.recipient.kind is not RecipientKind.DIRECT and (
                message.topic != parcel.recipient.name
            ):
                error = WrongRecipient("a message is signed for another topic than its own")
            else:
                error = error or self._receiver.refusal(self.link, message)
            if error is not None or isinstance(message, HoldfastError):
                assert error is not None
                refused.append((head.sequence, error.code, error.message[:REASON_CHARS_MAX]))
                continue
            size = came.size // parcel.count
            rest -= size
            arrival = SignedArrival(
                head.sequence, head.nonce, message, self._receiver.keeps(message)
            )
            taken.append(_Taken(arrival, came.stream, size))
        if rest:
            self.link.taken(came.stream, rest)

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
            try:
                return await guarded(store.accept(link.peer, arrivals, name=link.name))
            except BusInboxFull:
                self._context.counts["inbox_full"] += 1
                await self._context.until_changed()
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

    def _hand_out(self, one: _Taken, verdict: ArrivalVerdict) -> None:
        credit = Credit(self.link, one.stream, one.size)
        if verdict is ArrivalVerdict.NEW:
            self._traffic.received += 1
            self._receiver.is_new(self.link, one.arrival.message, one.arrival.keep, credit)
        elif verdict is ArrivalVerdict.DUPLICATE:
            self._traffic.again += 1
            self._receiver.is_again(self.link, one.arrival.message, credit)
        else:
            credit.release()

    def _count(self, code: str) -> None:
        self._traffic.refused[code] = self._traffic.refused.get(code, 0) + 1
        self._context.counts[f"refused_{code}"] += 1


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
