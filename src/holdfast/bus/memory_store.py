"""The default store of the bus: everything in memory, no file, nothing survives the process.

It refuses replays for as long as it lives. A bus that is bound anew with it counts from 1 again and
knows no marks: peers with a durable store tell it which numbers they have seen, and its new
incarnation makes what was signed for the one before it worthless.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast.bus.base_store import BaseMeshStore, Kept
from holdfast.rules.bus.acceptance import judge_arrivals
from holdfast.rules.bus.mesh_store import (
    AcceptedArrivals,
    ArrivalVerdict,
    OutboxId,
    OutboxMessage,
    PeerKey,
    SignedArrival,
)
from holdfast.rules.bus.message import MessageKind
from holdfast.rules.bus.replay import Window, check_nonces_kept, is_above, leap_past
from holdfast.rules.bus.signed_envelope import SEQUENCE_MAX
from holdfast.rules.destinations import rank
from holdfast.rules.errors import BadSequence, PeerUnreachable
from holdfast.rules.limits import (
    BUS_IDS_KEPT,
    BUS_INBOX_BYTES_MAX,
    BUS_INBOX_MAX,
    BUS_NONCES_KEPT,
    BUS_OUTBOX_MAX,
)
from holdfast.rules.outbox import waits_until

_Lane = dict[int, dict[OutboxId, OutboxMessage]]
"""What waits for one peer: by rank, in the order in which it was put there."""


class MemoryMeshStore(BaseMeshStore):
    """Keeps what the bus keeps for as long as the process runs."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] | None = None,
        ticks_ms: Callable[[], int] | None = None,
        random: Callable[[int], bytes] = os.urandom,
        nonces_kept: int = BUS_NONCES_KEPT,
        outbox_max: int = BUS_OUTBOX_MAX,
        ids_kept: int = BUS_IDS_KEPT,
        settled_kept: int = BUS_IDS_KEPT,
        inbox_max: int = BUS_INBOX_MAX,
        inbox_bytes_max: int = BUS_INBOX_BYTES_MAX,
    ) -> None:
        super().__init__(
            now_ms=now_ms,
            ticks_ms=ticks_ms,
            random=random,
            ids_kept=ids_kept,
            settled_kept=settled_kept,
            inbox_max=inbox_max,
            inbox_bytes_max=inbox_bytes_max,
        )
        self._nonces_kept = check_nonces_kept(nonces_kept)
        self._nonces: set[bytes] = set()
        self._ring: deque[bytes] = deque()
        self._windows: dict[PeerKey, Window] = {}
        self._next_sequence = 1
        self._outbox_max = outbox_max
        self._outbox: dict[OutboxId, tuple[str, int]] = {}
        """Where each item is: its peer and rank."""
        self._lanes: dict[str, _Lane] = {}
        self._by_message: dict[tuple[str, bytes], OutboxId] = {}
        self._last_outbox_id = 0

    # --- nonces and marks --------------------------------------------------------------------

    async def nonce_seen(self, nonce: bytes) -> bool:
        return nonce in self._nonces

    async def record_nonce(self, nonce: bytes) -> None:
        self._remember((nonce,))

    def _remember(self, nonces: Sequence[bytes]) -> None:
        known, ring = self._nonces, self._ring
        for nonce in nonces:
            if nonce not in known:
                known.add(nonce)
                ring.append(nonce)
        while len(ring) > self._nonces_kept:
            known.discard(ring.popleft())

    async def last_seq(self, peer: PeerKey) -> int | None:
        window = self._windows.get(peer)
        return None if window is None else window.highest

    async def advance_seq(self, peer: PeerKey, sequence: int) -> None:
        window = self._windows.get(peer)
        if not is_above(None if window is None else window.highest, sequence):
            raise BadSequence(f"number {sequence} is not above the last one of this peer")
        self._windows[peer] = Window.strict(sequence)

    async def accept(
        self,
        peer: PeerKey,
        arrivals: Sequence[SignedArrival],
        *,
        window: bool = False,
        name: str = "",
    ) -> list[ArrivalVerdict]:
        """Nothing waits in here, so nothing comes between the parts of it."""
        sender = name or peer.hex()
        before = self._windows.get(peer, Window())
        ids = self._ids.of(sender)
        judged = judge_arrivals(before, arrivals, self._nonces, ids, window=window)
        kept = [one for one in judged.new if one.keep]
        if kept:
            self._inbox.make_room(peer, kept)
        if judged.nonces:
            self._windows[peer] = judged.window
            self._remember(judged.nonces)
        if not kept:
            return AcceptedArrivals(judged.verdicts, [])
        for arrival in kept:
            self._ids.add(sender, arrival.message.id)
        rows = self._inbox.add(peer, kept, self._now_ms())
        return AcceptedArrivals(judged.verdicts, rows, self._inbox.has_room(peer))

    # --- our own numbers ---------------------------------------------------------------------

    async def next_out_seq(self) -> int:
        return (await self.reserve(1)).start

    async def reserve(self, count: int, above: int = 0) -> range:
        first = leap_past(self._next_sequence, above)
        if first + count > SEQUENCE_MAX:
            raise BadSequence("this peer has used up its numbers", hint="take a new key")
        self._next_sequence = first + count
        return range(first, first + count)

    # --- the outbox --------------------------------------------------------------------------

    async def enqueue_outbox(self, item: OutboxMessage) -> OutboxId:
        name = (item.peer, item.message.id)
        waiting = self._by_message.get(name)
        if waiting is not None:
            return waiting
        if len(self._outbox) >= self._outbox_max:
            raise PeerUnreachable(
                f"{item.peer} is not there, and {len(self._outbox)} messages wait already",
                hint="a store in memory keeps no more; bind the bus with a durable store",
            )
        self._last_outbox_id += 1
        id, urgency = self._last_outbox_id, rank(item.message.priority)
        self._lanes.setdefault(item.peer, {}).setdefault(urgency, {})[id] = item
        self._outbox[id] = (item.peer, urgency)
        self._by_message[name] = id
        return id

    async def due_outbox(self) -> list[Kept]:
        now = self.counted.now_ms()
        return [(id, item) for id, item in self._all() if _is_due(item, now)]

    async def remove_outbox(self, id: OutboxId) -> None:
        self._remove(id)

    def _remove(self, id: OutboxId) -> None:
        place = self._outbox.pop(id, None)
        if place is None:
            return
        peer, urgency = place
        lane = self._lanes[peer]
        item = lane[urgency].pop(id)
        del self._by_message[peer, item.message.id]
        if not lane[urgency]:
            del lane[urgency]
        if not lane:
            del self._lanes[peer]

    async def outbox_peers(self) -> list[str]:
        return list(self._lanes)

    async def outbox_of(self, peer: str, limit: int, skip: Collection[OutboxId] = ()) -> list[Kept]:
        now, found = self.counted.now_ms(), list[Kept]()
        lane = self._lanes.get(peer, {})
        for urgency in sorted(lane):
            for id, item in lane[urgency].items():
                if len(found) >= limit:
                    return found
                if _is_due(item, now) and id not in skip:
                    found.append((id, item))
        return found

    async def next_outbox(self, peer: str) -> int | None:
        now = self.counted.now_ms()
        lane = self._lanes.get(peer, {})
        return min(
            (one.not_before for kept in lane.values() for one in kept.values()
             if waits_until(one.not_before, now) > now),
            default=None,
        )  # fmt: skip

    async def put_back(self, id: OutboxId, not_before: int) -> None:
        place = self._outbox.get(id)
        if place is None:
            return
        peer, urgency = place
        item = self._lanes[peer][urgency][id]
        self._lanes[peer][urgency][id] = msgspec.structs.replace(
            item, attempts=item.attempts + 1, not_before=not_before
        )

    async def outbox_requests(self) -> list[Kept]:
        return [kept for kept in self._all() if kept[1].message.kind is MessageKind.REQUEST]

    async def remove_many(self, ids: Collection[OutboxId]) -> None:
        for id in ids:
            self._remove(id)

    async def expire_outbox(self) -> list[OutboxMessage]:
        now = self.counted.now_ms()
        expired = [(id, item) for id, item in self._all() if _is_expired(item, now)]
        await self.remove_many([id for id, _ in expired])
        return [item for _, item in expired]

    def _all(self) -> list[Kept]:
        return [
            (id, self._lanes[peer][urgency][id]) for id, (peer, urgency) in self._outbox.items()
        ]


def _is_expired(item: OutboxMessage, now_ms: int) -> bool:
    return item.expires_at is not None and item.expires_at <= now_ms


def _is_due(item: OutboxMessage, now_ms: int) -> bool:
    return waits_until(item.not_before, now_ms) <= now_ms and not _is_expired(item, now_ms)
