"""The calls of a `MeshStore` that can be built from its eight.

A store of one's own inherits these and brings the eight. Then everything works, with two
reservations. Mark, nonce and inbox row of an arrival are written by calls of their own: a process
that is killed between two of them has a mark without its row, and the message is lost to it.
And ids, inbox, attempts, delays and durable subscriptions live in memory: after a restart a message
that was resent may come twice, and one that no handler has finished with is gone. A store that
keeps promises across a kill replaces `accept` and what is said about the inbox, as the SQLite store
does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast.rules.bus.acceptance import Acceptance, InboxShare, judge_arrivals
from holdfast.rules.bus.counted_clock import CountedClock
from holdfast.rules.bus.known_ids import KnownIds
from holdfast.rules.bus.mesh_store import (
    AcceptedArrivals,
    ArrivalVerdict,
    EightCalls,
    InboxMessage,
    OutboxId,
    OutboxMessage,
    PeerKey,
    SignedArrival,
)
from holdfast.rules.bus.message import MessageKind
from holdfast.rules.bus.replay import Window, leap_past
from holdfast.rules.bus.signed_envelope import INCARNATION_BYTES
from holdfast.rules.destinations import rank
from holdfast.rules.limits import BUS_IDS_KEPT, BUS_INBOX_BYTES_MAX, BUS_INBOX_MAX, SECOND_MS
from holdfast.rules.outbox import waits_until
from holdfast.service.clock import SystemClock

Kept = tuple[OutboxId, OutboxMessage]


def _ticks_ms() -> int:
    """The time of the loop: nobody sets it, and a simulated loop has its own."""
    return int(asyncio.get_running_loop().time() * SECOND_MS)


class InboxInMemory:
    """What waits for handlers, in memory."""

    def __init__(self, most: int = BUS_INBOX_MAX, bytes_max: int = BUS_INBOX_BYTES_MAX) -> None:
        self._share = InboxShare(most, bytes_max)
        self._last = 0
        self._waiting: dict[int, InboxMessage] = {}

    def make_room(self, sender: PeerKey, arrivals: Sequence[SignedArrival]) -> None:
        """Raises BusInboxFull if there is none for these."""
        self._share.take(sender, *_measure(arrivals))

    def give_back(self, sender: PeerKey, arrivals: Sequence[SignedArrival]) -> None:
        """These do not come after all."""
        self._share.give_back(sender, *_measure(arrivals))

    def has_room(self, sender: PeerKey) -> bool:
        return self._share.has_room(sender)

    def add(
        self, sender: PeerKey, arrivals: Sequence[SignedArrival], now_ms: int
    ) -> list[InboxMessage]:
        """Puts messages where room was made for them."""
        first = self._last + 1
        self._last += len(arrivals)
        rows = [
            InboxMessage(number, sender, arrival.message, now_ms)
            for number, arrival in enumerate(arrivals, first)
        ]
        for row in rows:
            self._waiting[row.number] = row
        return rows

    def after(self, number: int, limit: int) -> list[InboxMessage]:
        found: list[InboxMessage] = []
        for row in self._waiting.values():
            if row.number > number:
                found.append(row)
                if len(found) >= limit:
                    break
        return found

    def finish(self, numbers: Collection[int]) -> None:
        for number in numbers:
            row = self._waiting.pop(number, None)
            if row is not None:
                self._share.give_back(row.sender, 1, len(row.message.body))


def _measure(arrivals: Sequence[SignedArrival]) -> tuple[int, int]:
    return len(arrivals), sum(len(one.message.body) for one in arrivals)


class BaseMeshStore(EightCalls):
    """What can be built from the eight calls."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] | None = None,
        ticks_ms: Callable[[], int] | None = None,
        random: Callable[[int], bytes] = os.urandom,
        ids_kept: int = BUS_IDS_KEPT,
        settled_kept: int = BUS_IDS_KEPT,
        inbox_max: int = BUS_INBOX_MAX,
        inbox_bytes_max: int = BUS_INBOX_BYTES_MAX,
    ) -> None:
        self._now_ms = now_ms or SystemClock().now_ms
        self.counted = CountedClock(self._now_ms, ticks_ms or _ticks_ms)
        self._incarnation = random(INCARNATION_BYTES)
        self._ids, self._settled_kept = KnownIds(ids_kept), settled_kept
        self._inbox = InboxInMemory(inbox_max, inbox_bytes_max)
        self._ahead = 0
        """By how much the numbers that are given are above those of `next_out_seq`."""
        self._tries: dict[OutboxId, tuple[int, int]] = {}
        """Of items that were put back: the attempts, and when they may go."""
        self._interests: dict[str, list[str]] = {}
        self._claimed: dict[bytes, bytes] = {}
        """Ids that callers gave, with the fingerprints of what they asked for."""

    async def incarnation(self) -> bytes:
        return self._incarnation

    # --- arrivals ----------------------------------------------------------------------------

    async def accept(
        self,
        peer: PeerKey,
        arrivals: Sequence[SignedArrival],
        *,
        window: bool = False,
        name: str = "",
    ) -> list[ArrivalVerdict]:
        """One transaction it is not: each call of the eight stands for itself. Only a strict mark
        can be built from them, so what was overtaken on another carrier counts as a replay.
        """
        nonces = {one.nonce for one in arrivals if await self.nonce_seen(one.nonce)}
        last = await self.last_seq(peer)
        sender = name or peer.hex()
        before = Window.strict(last or 0)
        judged = judge_arrivals(before, arrivals, nonces, self._ids.of(sender), window=False)
        kept = [one for one in judged.new if one.keep]
        self._inbox.make_room(peer, kept)
        try:
            await self._note(peer, before, judged)
        except BaseException:
            self._inbox.give_back(peer, kept)
            raise
        for arrival in judged.new:
            if arrival.keep:
                self._ids.add(sender, arrival.message.id)
        rows = self._inbox.add(peer, kept, self._now_ms())
        return AcceptedArrivals(judged.verdicts, rows, self._inbox.has_room(peer))

    async def settle_ids(self, name: str, waiting: Collection[bytes]) -> None:
        self._ids.settle(name, set(waiting), self._settled_kept)

    async def claim_id(self, id: bytes, fingerprint: bytes, until_ms: int) -> bytes:
        found = self._claimed.setdefault(id, fingerprint)
        if len(self._claimed) > self._settled_kept:
            del self._claimed[next(iter(self._claimed))]
        return found

    async def _note(self, peer: PeerKey, before: Window, judged: Acceptance) -> None:
        if judged.window != before:
            await self.advance_seq(peer, judged.window.highest)
        for nonce in judged.nonces:
            await self.record_nonce(nonce)

    async def pending_inbox(self, after: int, limit: int) -> list[InboxMessage]:
        return self._inbox.after(after, limit)

    async def has_room(self, peer: PeerKey) -> bool:
        return self._inbox.has_room(peer)

    async def finish_inbox(self, numbers: Collection[int]) -> None:
        self._inbox.finish(numbers)

    # --- numbers -----------------------------------------------------------------------------

    async def reserve(self, count: int, above: int = 0) -> range:
        """The leap past `above` is forgotten with the process: the peer tells it again."""
        first = await self.next_out_seq()
        for _ in range(count - 1):
            await self.next_out_seq()
        given = leap_past(first + self._ahead, above)
        self._ahead = given - first
        return range(given, given + count)

    # --- the outbox --------------------------------------------------------------------------

    async def outbox_peers(self) -> list[str]:
        return list(dict.fromkeys(item.peer for _, item in await self.due_outbox()))

    async def outbox_of(self, peer: str, limit: int, skip: Collection[OutboxId] = ()) -> list[Kept]:
        now = self.counted.now_ms()
        found = [
            (id, item)
            for id, item in await self._waiting()
            if item.peer == peer
            and waits_until(item.not_before, now) <= now
            and (item.expires_at is None or item.expires_at > now)
            and id not in skip
        ]
        found.sort(key=lambda kept: rank(kept[1].message.priority))  # stable: order is kept
        return found[:limit]

    async def next_outbox(self, peer: str) -> int | None:
        now = self.counted.now_ms()
        later = [
            item.not_before
            for _, item in await self._waiting()
            if item.peer == peer and waits_until(item.not_before, now) > now
        ]
        return min(later, default=None)

    async def put_back(self, id: OutboxId, not_before: int) -> None:
        for found, item in await self._waiting():
            if found == id:
                self._tries[id] = (item.attempts + 1, not_before)

    async def give_up(self, id: OutboxId, code: str, error: str) -> None:
        await self.remove_many((id,))

    async def outbox_requests(self) -> list[Kept]:
        return [
            (id, item)
            for id, item in await self._waiting()
            if item.message.kind is MessageKind.REQUEST
        ]

    async def remove_many(self, ids: Collection[OutboxId]) -> None:
        for id in ids:
            self._tries.pop(id, None)
            await self.remove_outbox(id)

    async def expire_outbox(self) -> list[OutboxMessage]:
        now = self.counted.now_ms()
        expired = [
            (id, item)
            for id, item in await self._waiting()
            if item.expires_at is not None and item.expires_at <= now
        ]
        await self.remove_many([id for id, _ in expired])
        return [item for _, item in expired]

    async def interests(self) -> dict[str, list[str]]:
        return {name: list(patterns) for name, patterns in self._interests.items()}

    async def keep_interest(self, name: str, patterns: Sequence[str]) -> None:
        self._interests.pop(name, None)
        if patterns:
            self._interests[name] = list(patterns)

    async def close(self) -> None:
        """Nothing to do, unless the store has something open."""

    async def _waiting(self) -> list[Kept]:
        """What the store says is due, with the attempts and delays that are known here."""
        found: list[Kept] = []
        for id, item in await self.due_outbox():
            if id in self._tries:
                attempts, not_before = self._tries[id]
                item = msgspec.structs.replace(item, attempts=attempts, not_before=not_before)
            found.append((id, item))
        return found
