"""What one member takes from queues, over its connection.

A taker says how many messages it can have in hand. The broker hands out so many, and another one
whenever the taker has finished with one. A message that a taker keeps for too long goes to another
taker, and what the first one says of it then is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.broker.access import require_member
from holdfast.broker.verdicts import problem_of
from holdfast.protocol.frames import FromBroker, QueueMessage, Refusal, Settle, Take
from holdfast.rules import limits
from holdfast.rules.errors import (
    BadValue,
    HoldfastError,
    LeaseEnded,
    OverLimit,
    Refused,
    UnknownDestination,
)
from holdfast.storage.broker.port import BrokerStore

LEASE_BYTES: Final = 16
HOWS: Final = ("done", "again", "dead", "extend")


class QueueWindow:
    """One queue that the member takes from: how many messages it wants, and which it has."""

    __slots__ = ("held", "most", "news")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: dict[int, tuple[int, int]] = {}
        """By seq: until when the member has it, and for how long it was given."""
        self.news = True


class QueueDelivery:
    """All queues that one connection takes from."""

    def __init__(
        self,
        store: BrokerStore,
        key: bytes,
        clock: Callable[[], int],
        random: Callable[[int], bytes],
    ) -> None:
        self._store, self._key, self._clock, self._random = store, key, clock, random
        self.by_queue: dict[tuple[str, str], QueueWindow] = {}

    async def take(self, frame: Take) -> None:
        at = frame.mesh, frame.queue
        if frame.most == 0:
            self.by_queue.pop(at, None)
            return
        if not 0 < frame.most <= limits.TAKE_MAX:
            raise OverLimit(f"a taker has {limits.TAKE_MAX} messages in hand at most")
        if at not in self.by_queue and len(self.by_queue) >= limits.FOLLOWS_MAX:
            raise OverLimit(f"a connection takes from {limits.FOLLOWS_MAX} queues at most")
        await require_member(self._store, frame.mesh, self._key, "read")
        await require_queue(self._store, frame.mesh, frame.queue)
        window = self.by_queue.setdefault(at, QueueWindow(frame.most))
        window.most, window.news = frame.most, True

    async def settle(self, frame: Settle) -> None:
        await require_member(self._store, frame.mesh, self._key, "read")
        now = self._clock()
        held = await settle_messages(
            self._store,
            frame.mesh,
            frame.queue,
            frame.seq,
            frame.lease,
            frame.how,
            frame.reason,
            now,
        )
        window = self.by_queue.get((frame.mesh, frame.queue))
        if window is None:
            return
        had = window.held.pop(frame.seq, None)
        if held and had is not None and frame.how == "extend":
            window.held[frame.seq] = (now + had[1], had[1])
        window.news = True

    def news(self, mesh: str, queue: str) -> None:
        window = self.by_queue.get((mesh, queue))
        if window is not None:
            window.news = True

    def look(self) -> None:
        for window in self.by_queue.values():
            window.news = True

    @property
    def eager(self) -> bool:
        return any(window.news for window in self.by_queue.values())

    async def pages(self) -> list[FromBroker]:
        """The messages to hand out now, as frames."""
        out: list[FromBroker] = []
        for (mesh, queue), window in list(self.by_queue.items()):
            if not window.news:
                continue
            window.news = False
            try:
                out += await self._hand_out(mesh, queue, window)
            except HoldfastError as error:
                if isinstance(error, Refused) and error.http_status < 500:
                    self.by_queue.pop((mesh, queue), None)
                    out.append(Refusal(mesh, problem_of(error)))
        return out

    async def _hand_out(self, mesh: str, queue: str, window: QueueWindow) -> list[FromBroker]:
        now = self._clock()
        # A lease never lasts for longer than it was given: else the clock was set back.
        window.held = {
            seq: (min(until, now + span), span)
            for seq, (until, span) in window.held.items()
            if until > now
        }
        room = window.most - len(window.held)
        if room <= 0:
            return []
        await require_member(self._store, mesh, self._key, "read")
        leases = [self._random(LEASE_BYTES) for _ in range(room)]
        out: list[FromBroker] = []
        taken = await self._store.take(mesh, queue, self._key, room, leases, now)
        # Large messages may have ended the batch before the queue was empty: look again.
        window.news = window.news or sum(len(one.raw) for one in taken) > limits.TAKE_BYTES // 2
        for one in taken:
            span = max(0, one.until - now)
            window.held[one.seq] = (one.until, span)
            rest = (one.lease, one.deliveries, span, one.broker_id, one.raw)
            out.append(QueueMessage(mesh, queue, one.seq, *rest))
        return out


async def require_queue(store: BrokerStore, mesh: str, queue: str) -> None:
    if await store.destination_get(mesh, "queue", queue) is None:
        raise UnknownDestination(f"mesh {mesh!r} has no queue {queue!r}")


async def settle_messages(
    store: BrokerStore,
    mesh: str,
    queue: str,
    seq: int,
    lease: bytes,
    how: str,
    reason: str,
    now: int,
) -> bool:
    """Ends or extends a message in hand; LeaseEnded if another taker may have it by now."""
    if how not in HOWS:
        raise BadValue(f"{how!r} is no way to settle it", hint=f"use one of: {', '.join(HOWS)}")
    if not 0 < seq <= limits.LAMPORT_MAX or len(lease) != LEASE_BYTES:
        raise BadValue("a message in hand is named by its seq and its lease of 16 bytes")
    reason = reason[: limits.REASON_CHARS_MAX].replace("\0", "")
    if not await store.settle(mesh, queue, seq, lease, how, reason, now):
        raise LeaseEnded(f"message {seq} of queue {queue!r} is not in these hands any more")
    return True
