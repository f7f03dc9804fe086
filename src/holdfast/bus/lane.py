"""The lane of one peer: what waits for it, what is under way, what it has acknowledged.

What must not be lost stands in the outbox of the store, by the peer's name, before it comes here.
While there is a link, the lane holds the next rows in memory, numbers and signs them when the link
has room, and forgets them when the peer says that it has stored them. When the link ends, the lane
forgets everything that stands in the outbox and reads it again for the next link: then it is signed
anew, and keeps its id. Order is kept within each priority.

Some messages are in no outbox, because nobody wants them later: those for subscriptions that are
not durable, and cancels. They end with the link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from holdfast.bus.context import BusContext, log
from holdfast.bus.guard import guarded
from holdfast.bus.numbers import Numbers
from holdfast.bus.ports import Link
from holdfast.bus.settling import Settling
from holdfast.protocol.bus_frames import AckFrame, FrameKind, Stream, told
from holdfast.rules.bus.batching import FRONT_BYTES, fits, parcel_bytes
from holdfast.rules.bus.mesh_store import OutboxId, OutboxMessage
from holdfast.rules.bus.message import CODE_CHARS_MAX, BusMessage, MessageKind, encode_message
from holdfast.rules.bus.refusal import NOT_NOW, RESIGN, next_try
from holdfast.rules.bus.signed_envelope import NONCE_BYTES, ParcelSigner, Recipient, SigningMode
from holdfast.rules.errors import BadAnswer, BusError, MessageRefused, PeerUnreachable
from holdfast.rules.limits import (
    BUS_LANE_BYTES,
    BUS_LANE_ROWS,
    BUS_LANE_URGENT,
    REASON_CHARS_MAX,
    SECOND_MS,
)
from holdfast.transport.remote_errors import clean

STREAMS: Final = (Stream.REPLY, Stream.NOW, Stream.NEXT, Stream.LOW)
_STREAM_OF: Final = {"now": Stream.NOW, "next": Stream.NEXT, "low": Stream.LOW}
_ANSWERS: Final = (MessageKind.REPLY, MessageKind.CANCEL)


def stream_of(message: BusMessage) -> Stream:
    return Stream.REPLY if message.kind in _ANSWERS else _STREAM_OF[message.priority]


class Outgoing:
    """A message on its way to one peer."""

    __slots__ = ("attempts", "dropped", "expires_at", "id", "message", "on_written")

    def __init__(
        self,
        message: BusMessage,
        expires_at: int | None,
        id: OutboxId | None = None,
        attempts: int = 0,
        on_written: Callable[[bool], None] | None = None,
    ) -> None:
        self.message, self.expires_at, self.id, self.attempts = message, expires_at, id, attempts
        self.on_written = on_written
        """Told once, of a message that is in no outbox: whether it went out."""
        self.dropped = False
        """It is not wanted any more."""

    def payload(self, now_ms: int) -> bytes:
        """As it is signed now, with the time that is left now."""
        message = self.message
        if self.expires_at is not None and message.ttl_ms != self.expires_at - now_ms:
            # Never longer than in the beginning: the wall clock may have been set back since.
            left_ms = max(0, self.expires_at - now_ms)
            if message.ttl_ms is not None:
                left_ms = min(left_ms, message.ttl_ms)
            message = msgspec.structs.replace(message, ttl_ms=left_ms)
        return encode_message(message)

    def told(self, written: bool) -> None:
        told, self.on_written = self.on_written, None
        if told is not None:
            told(written)


Receipt = asyncio.Future[str]
"""Becomes `delivered` or `spooled`, or an error if the peer refused the message."""


class Asked(Protocol):
    """Who waits for replies here."""

    def is_asked(self, id: bytes) -> bool:
        """Whether somebody waits for the reply to this request."""

    def was_refused(self, id: bytes, error: Exception) -> None:
        """The peer did not take this request."""

    def found_reply(self, name: str, reply: BusMessage) -> None:
        """A reply waits in the outbox for this peer."""


class Lane:
    """Everything that goes to one peer. Belongs to the loop."""

    def __init__(
        self,
        name: str,
        context: BusContext,
        numbers: Numbers,
        asked: Asked,
    ) -> None:
        self.name = name
        self.link: Link | None = None
        self.sent = 0
        self.acked = 0
        self._context, self._numbers, self._asked = context, numbers, asked
        self._queues: dict[Stream, deque[Outgoing]] = {stream: deque() for stream in STREAMS}
        self.queued = 0
        """Messages in memory that wait for room."""
        self._queued_bytes = 0
        self._under_way: deque[tuple[int, Outgoing]] = deque()
        self.last_number = 0
        """Of what went over this link."""
        self._held: dict[OutboxId, Outgoing] = {}
        """Rows of the outbox that are in memory: queued, under way, or requests without reply."""
        self._dormant: dict[OutboxId, None] = {}
        """Requests of an earlier life that nobody here has asked again."""
        self._more = True
        """The outbox may have rows that are not held."""
        self._pressing: dict[Stream, None] = {}
        """Streams of which something waits in the outbox while memory is full, perhaps of others
        that cannot go.
        """
        self._loading = False
        self._draining = False
        self._later: asyncio.TimerHandle | None = None
        self._looked_ahead_ms = context.clock_ahead_ms()
        self._settling = Settling(context)
        self._returning = 0
        """Rows that are being put back."""
        self._mode = SigningMode.BATCH if context.batch else SigningMode.EACH
        self._signer: tuple[Link, ParcelSigner] | None = None
        """Who signs what goes over a link."""
        self._receipts: dict[bytes, dict[Receipt, int]] = {}
        """By the id of a message: who waits for its receipt, and how long for a link."""

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def _has_space(self) -> bool:
        """Whether more of the outbox may be held in memory."""
        return self.queued < BUS_LANE_ROWS and self._queued_bytes < BUS_LANE_BYTES

    # --- what is to go -----------------------------------------------------------------------

    def expect(self, id: bytes, wait_ms: int) -> Receipt:
        """A receipt for a message that is about to be put into the outbox. It becomes `spooled`
        when the peer is not there for so long.
        """
        receipt: Receipt = self._context.loop.create_future()
        self._receipts.setdefault(id, {})[receipt] = wait_ms
        if self.link is None:
            self._arm(receipt, wait_ms)
        return receipt

    def no_longer_expected(self, id: bytes, receipt: Receipt) -> None:
        waiting = self._receipts.get(id)
        if waiting is not None:
            waiting.pop(receipt, None)
            if not waiting:
                del self._receipts[id]

    def put(self, id: OutboxId, item: OutboxMessage, *, at_once: bool = False) -> None:
        """A message that was just put into the outbox. `at_once`: it does not wait for others."""
        self._context.keep_outbox(id)
        if self.link is None or id in self._held:
            return
        self._dormant.pop(id, None)
        stream = stream_of(item.message)
        if (self._more or self._loading or not self._has_space) and not self._may_overtake(stream):
            # Others wait before it: it is read when it is its turn.
            self._more = True
            if not self._has_space:
                self._pressing[stream] = None
            self._drain_soon()
            return
        outgoing = Outgoing(item.message, item.expires_at, id, item.attempts)
        self._held[id] = outgoing
        if not (at_once and self._goes_alone(outgoing, stream)):
            self._queue(outgoing)
            self._drain_soon()

    def _goes_alone(self, outgoing: Outgoing, stream: Stream) -> bool:
        """Writes a message for which nothing and nobody waits, if it may go."""
        link, expires_at, now = self.link, outgoing.expires_at, self._context.counted_ms()
        if (
            link is None
            or self.queued
            or self._draining
            or (expires_at is not None and expires_at <= now)
            or not self._numbers.at_hand
            or not link.available(stream)
        ):
            return False
        self._hand_over(link, stream, [outgoing], [outgoing.payload(now)], at_once=True)
        self._load_soon()
        return True

    def _may_overtake(self, stream: Stream) -> bool:
        """Replies have no order among them: they need not wait behind what cannot go now."""
        few = len(self._queues[Stream.REPLY]) < BUS_LANE_ROWS
        return stream is Stream.REPLY and few and self._queued_bytes < 2 * BUS_LANE_BYTES

    def put_passing(self, outgoing: Outgoing) -> None:
        """A message that is in no outbox."""
        if self.link is None:
            outgoing.told(written=False)
            return
        self._queue(outgoing)
        self._drain_soon()

    def take_back(self, outgoing: Outgoing) -> None:
        """A message that is in no outbox is not to go any more, if it has not gone."""
        queue = self._queues[stream_of(outgoing.message)]
        if outgoing in queue:
            queue.remove(outgoing)
            self.queued -= 1
            self._queued_bytes -= len(outgoing.message.body)

    def drop(self, id: OutboxId) -> None:
        """A request was answered or given up: it does not go any more."""
        outgoing = self._held.pop(id, None)
        self._dormant.pop(id, None)
        if outgoing is not None:
            outgoing.dropped = True

    def awake(self) -> None:
        """A request of an earlier life was asked again: it may go now."""
        self._dormant.clear()
        self._more = True
        self._drain_soon()

    def _hold(self, id: OutboxId, item: OutboxMessage) -> None:
        outgoing = Outgoing(item.message, item.expires_at, id, item.attempts)
        self._held[id] = outgoing
        self._queue(outgoing)

    def _queue(self, outgoing: Outgoing) -> None:
        self._queues[stream_of(outgoing.message)].append(outgoing)
        self.queued += 1
        self._queued_bytes += len(outgoing.message.body)

    # --- the link ----------------------------------------------------------------------------

    def begin(self, link: Link) -> None:
        """There is a link, and our numbers are above what the peer has seen."""
        self._let_go()
        self.link, self.last_number, self._more = link, 0, True
        self._settling.begin()
        self._drain_soon()

    def end(self, link: Link) -> None:
        """The link is gone. What was under way is tried again on the next one."""
        if self.link is not link:
            return
        tried = [out.id for _, out in self._under_way if out.id is not None and not out.dropped]
        self._let_go()
        self.link = None
        if tried and not self._context.is_closed:
            self._context.spawn(self._count_tries(tried), "tried")
        for waiting in self._receipts.values():
            for receipt, wait_ms in waiting.items():
                self._arm(receipt, wait_ms)

    def _let_go(self) -> None:
        """Forgets all that the outbox has, and what was to go by the old link only."""
        for queue in self._queues.values():
            for outgoing in queue:
                outgoing.told(written=False)
                self._context.counts["dropped_with_link"] += outgoing.id is None
            queue.clear()
        self.queued = self._queued_bytes = 0
        self._under_way.clear()
        self._held.clear()
        self._pressing.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _arm(self, receipt: Receipt, wait_ms: int) -> None:
        self._context.loop.call_later(wait_ms / 1000, self._absent, receipt)

    def _absent(self, receipt: Receipt) -> None:
        if self.link is None and not receipt.done():
            receipt.set_result("spooled")

    async def _count_tries(self, ids: list[OutboxId]) -> None:
        await asyncio.gather(*map(self._count_try, ids))

    async def _count_try(self, id: OutboxId) -> None:
        # At any time: a moment of now would be in the future for a clock that is set back.
        await guarded(self._context.store.put_back(id, 0))

    # --- reading the outbox --------------------------------------------------------------------

    def _load_soon(self) -> None:
        if self._more and not self._loading and not self._context.is_closed:
            self._loading, self._more = True, False
            self._context.spawn(self._load(), "load")

    async def _load(self) -> None:
        link = self.link
        self._looked_ahead_ms = self._context.clock_ahead_ms()
        limit = BUS_LANE_ROWS if self._has_space else BUS_LANE_URGENT
        try:
            skip = [*self._held, *self._dormant]
            rows = await guarded(self._context.store.outbox_of(self.name, limit, skip))
            size = sum(len(item.message.body) for _, item in rows)
            more, later = len(rows) >= limit or size >= BUS_LANE_BYTES, None
            if not more:  # it looks at all that waits: once, at the end
                later = await guarded(self._context.store.next_outbox(self.name))
        except BusError as error:
            self._more = True
            if link is not None:
                # Nothing can go. On the next link it is read again; until then all of it waits.
                log.error("what waits for %s cannot be read: %s", self.name, error.message)
                link.close(error.code, "the store of this peer has failed")
            return
        finally:
            self._loading = False
        if self.link is not link or link is None:
            self._more = True
        else:
            self._more = self._more or more
            found = {stream_of(item.message): None for _, item in rows}
            self._pressing = {one: None for one in self._pressing if one in found}
            for id, item in rows:
                if id in self._held or self._context.is_removed(id):
                    continue
                if item.message.kind is MessageKind.REQUEST and not self._asked.is_asked(
                    item.message.id
                ):
                    self._dormant[id] = None
                    continue
                if item.message.kind is MessageKind.REPLY:
                    self._asked.found_reply(self.name, item.message)
                self._hold(id, item)
            self._look_again_at(later)
            self._tell_settled()
        self._drain_soon()

    def _look_again_at(self, at_ms: int | None) -> None:
        if at_ms is None:
            return
        if self._later is not None:
            self._later.cancel()
        wait_s = max(0, at_ms - self._context.counted_ms()) / 1000
        self._later = self._context.loop.call_later(wait_s, self.look_again)

    def look_again(self) -> None:
        """Something in the outbox may be due that was not."""
        if self._later is not None:
            self._later.cancel()
        self._later, self._more = None, True
        self._drain_soon()

    def notice_clock(self) -> None:
        """If the clock was set since the lane looked into the outbox, it looks again: what seemed
        to be over, or not due, may be due.
        """
        if abs(self._context.clock_ahead_ms() - self._looked_ahead_ms) > SECOND_MS:
            self.look_again()

    # --- writing -----------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be room, or numbers, again."""
        self._drain_soon()

    def _drain_soon(self) -> None:
        """Writes at the end of this turn of the loop: with everything that comes until then."""
        if not self._draining and self.link is not None:
            self._draining = True
            self._context.loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Writes one parcel; then it is the turn of other lanes."""
        self._draining = False
        link = self.link
        if link is None or self._context.is_closed:
            return
        wrote = False
        if self.queued and (most := self._numbers.at_hand):
            for stream, queue in self._queues.items():
                if queue and self._write(link, stream, queue, most):
                    wrote = True
                    break
        if self._has_space or any(not self._queues[one] for one in self._pressing):
            self._load_soon()
        if wrote and self.queued:
            self._drain_soon()

    def _write(self, link: Link, stream: Stream, queue: deque[Outgoing], most: int) -> bool:
        """Numbers, signs and hands over what may go of one stream, `most` messages of it."""
        now = self._context.counted_ms()
        if len(queue) == 1:
            return self._write_one(link, stream, queue, now)
        mode = self._mode
        taken: list[Outgoing] = []
        payloads: list[bytes] = []

        def sizes() -> Iterator[int]:
            while queue and len(taken) < most:
                outgoing = queue.popleft()
                self.queued -= 1
                self._queued_bytes -= len(outgoing.message.body)
                if self._is_over(outgoing, now):
                    continue
                taken.append(outgoing)
                payloads.append(outgoing.payload(now))
                yield len(payloads[-1])

        count = fits(sizes(), link.available(stream), mode)
        if count and not link.has_room(
            stream, FRONT_BYTES + sum(parcel_bytes(len(one), mode) for one in payloads[:count])
        ):
            count = 0
        for outgoing in reversed(taken[count:]):
            queue.appendleft(outgoing)
            self.queued += 1
            self._queued_bytes += len(outgoing.message.body)
        if not count:
            return False
        self._hand_over(link, stream, taken[:count], payloads[:count])
        return True

    def _write_one(self, link: Link, stream: Stream, queue: deque[Outgoing], now: int) -> bool:
        """As `_write`, for the only one that waits."""
        if not self._is_over(queue[0], now):
            if not link.available(stream):
                return False
            outgoing = queue[0]
            self._hand_over(link, stream, [outgoing], [outgoing.payload(now)])
        self.queued -= 1
        self._queued_bytes -= len(queue.popleft().message.body)
        return True

    def _hand_over(
        self,
        link: Link,
        stream: Stream,
        taken: list[Outgoing],
        payloads: list[bytes],
        at_once: bool = False,
    ) -> None:
        """Numbers and signs messages, and hands them to the link."""
        count = len(taken)
        first = self._numbers.take(count)
        if self._signer is None or self._signer[0] is not link:
            self._signer = link, self._signer_for(link)
        nonces = self._context.random(count * NONCE_BYTES)
        body = self._signer[1].sign(payloads, first, nonces)
        link.send(FrameKind.PARCEL, stream, body, at_once=at_once)
        self.last_number = first + count - 1
        self.sent += count
        self._under_way.extend(enumerate(taken, first))
        for outgoing in taken:
            if outgoing.on_written is not None:
                outgoing.told(written=True)

    def _signer_for(self, link: Link) -> ParcelSigner:
        recipient = Recipient.direct(link.peer, link.welcome.incarnation)
        return ParcelSigner(self._context.signing_key, recipient, self._mode)

    def _is_over(self, outgoing: Outgoing, now_ms: int) -> bool:
        """Whether a message is not to go any more. One that has expired is given up."""
        if outgoing.dropped:
            return True
        if outgoing.expires_at is None or outgoing.expires_at > now_ms:
            return False
        self._context.counts["expired"] += 1
        outgoing.told(written=False)
        if outgoing.id is not None:
            self._done_with(outgoing.id, outgoing.message)
        self._answer(outgoing.message.id, PeerUnreachable(f"{self.name} did not come in time"))
        return True

    # --- acknowledgements ------------------------------------------------------------------------

    def acknowledge(self, link: Link, ack: AckFrame) -> None:
        """The peer has stored, or refused, everything up to a number. Raises BadAnswer if it names
        a number that it was not sent.
        """
        if link is not self.link:
            return
        if ack.upto > self.last_number:
            raise BadAnswer(f"{self.name} acknowledges number {ack.upto}, which it was not sent")
        refused = {
            number: (clean(code[:CODE_CHARS_MAX]), clean(reason[:REASON_CHARS_MAX]))
            for number, code, reason in ack.refused
        }
        while self._under_way and self._under_way[0][0] <= ack.upto:
            number, outgoing = self._under_way.popleft()
            if number in refused:
                self._was_refused(link, outgoing, *refused[number])
            else:
                self._has_arrived(outgoing)

    def _has_arrived(self, outgoing: Outgoing) -> None:
        self.acked += 1
        if outgoing.id is not None and not outgoing.dropped:
            if outgoing.message.kind is MessageKind.REQUEST:
                return  # it stays in the outbox until there is a reply
            self._done_with(outgoing.id, outgoing.message)
        if self._receipts:
            self._answer(outgoing.message.id, "delivered")

    def _done_with(self, id: OutboxId, message: BusMessage) -> None:
        self._held.pop(id, None)
        self._context.remove_outbox(id)
        self._settling.ended(id, message)
        if self._settling.is_due:
            self._tell_settled()

    def _tell_settled(self) -> None:
        """Tells the peer which messages may come again, if all that wait are known here."""
        unknown = self._more or self._loading or self._later is not None or self._returning
        if unknown or self.link is None or not self._settling.is_due:
            return
        word = self._settling.word(one.message for one in self._held.values())
        if word is not None:
            with suppress(PeerUnreachable):  # the next link begins with it
                self.link.send(FrameKind.SETTLED, Stream.CONTROL, told(FrameKind.SETTLED, word))

    def _was_refused(self, link: Link, outgoing: Outgoing, code: str, reason: str) -> None:
        context, id = self._context, outgoing.id
        context.counts["refused_by_peer"] += 1
        if id is None or outgoing.dropped:
            return
        asked = outgoing.message.kind is MessageKind.REQUEST
        now_ms, jitter = context.counted_ms(), context.jitter()
        again = next_try(code, outgoing.attempts, now_ms, jitter, is_request=asked)
        self._held.pop(id, None)
        if again is not None:
            self._returning += 1
            context.spawn(self._put_back(id, again), "put-back")
            if code in RESIGN:
                # A new link brings a new welcome: the peer's life and what it has seen of ours.
                link.close(code, "what was signed for this link is refused")
            if code in NOT_NOW and outgoing.message.id in self._receipts:
                # Nobody waits until it may: it is in the outbox.
                log.warning("%s does not take a message now: %s: %s", self.name, code, reason)
                self._answer(outgoing.message.id, "spooled")
            return
        context.spawn(self._give_up(id, code, reason), "give-up")
        error = MessageRefused(f"{code}: {reason}")
        if asked:
            self._asked.was_refused(outgoing.message.id, error)
        self._answer(outgoing.message.id, error)

    async def _put_back(self, id: OutboxId, not_before: int) -> None:
        try:
            await guarded(self._context.store.put_back(id, not_before))
        finally:
            self._returning -= 1
            self._more = True
        self._drain_soon()

    async def _give_up(self, id: OutboxId, code: str, reason: str) -> None:
        await guarded(self._context.store.give_up(id, code, reason))

    def _answer(self, id: bytes, outcome: str | Exception) -> None:
        for receipt in self._receipts.pop(id, ()):
            if receipt.done():
                continue
            if isinstance(outcome, Exception):
                receipt.set_exception(outcome)
                receipt.exception()  # its sender may still be writing the outbox: nothing to log
            else:
                receipt.set_result(outcome)

    def close(self, error: Exception) -> None:
        """The bus is closing: whoever waits for a receipt gets this error."""
        self._let_go()
        self.link = None
        for id in list(self._receipts):
            self._answer(id, error)
