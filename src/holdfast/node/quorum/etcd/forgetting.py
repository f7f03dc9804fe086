"""Removing entries that every node of the mesh has, in steps of bounded size.

First the floor is raised, then entries below it are deleted. Every append compares the floor, so
one that was on its way for so long that its id was forgotten meanwhile does not get through: it is
refused by the time in its id (`TooOld`). Ids that tell no time, because they were computed from
something, cannot be refused by it. Their entries stay.

Compacting concerns the whole etcd: it removes the history of all keys, also those of other
programs. Many etcds do it by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from holdfast.node.quorum.etcd import transactions
from holdfast.node.quorum.etcd.engine import EtcdEngine
from holdfast.protocol.etcd_json import (
    COMPACTION,
    RANGE,
    TXN,
    CompactionAnswer,
    CompactionRequest,
    RangeAnswer,
    RangeRequest,
    TxnAnswer,
)
from holdfast.rules.errors import PastEnd, Truncated
from holdfast.rules.etcd.entry import HeldKey, OrderState, StoredFloor
from holdfast.rules.ids import id_time_ms
from holdfast.rules.limits import ETCD_DELETES_MAX, SECOND_MS
from holdfast.transport.etcd_gateway import EtcdGateway


class OrderForgetting:
    """What forgets for one order."""

    def __init__(self, gateway: EtcdGateway, order: EtcdEngine, *, step_ms: int) -> None:
        """`step_ms` is the time that one step may take."""
        self._gateway, self._order, self._keys = gateway, order, order.keys
        self._step_ms = step_ms

    async def forget(self, upto: int, ids_before_ms: int) -> AsyncGenerator[int, None]:
        """Removes the entries up to a position whose ids were made before a time. Each step yields
        how many it removed. Breaking off loses nothing: the next time goes on.
        """
        state = await self._raise_floor(upto, ids_before_ms)
        key = self._keys.entries
        while True:
            request = RangeRequest(
                key=key,
                range_end=self._keys.entries_end,
                limit=str(ETCD_DELETES_MAX),
                keys_only=True,
            )
            page = await self._gateway.call(RANGE, request, RangeAnswer, until=self._until())
            gone = [kv.key for kv in page.kvs if self._is_gone(kv.held, state)]
            if gone:
                removing = transactions.delete_keys(gone)
                await self._gateway.call(TXN, removing, TxnAnswer, until=self._until(), writes=True)
            yield len(gone)
            if not page.more or not page.kvs or page.kvs[-1].key < key:
                return
            key = page.kvs[-1].key + b"\0"

    async def compact(self, upto: int) -> None:
        """Removes the history of the whole etcd up to a position."""
        await self._check_end(upto)
        request = CompactionRequest(revision=str(upto))
        try:
            await self._gateway.call(
                COMPACTION, request, CompactionAnswer, until=self._until(), writes=True
            )
        except Truncated:
            return  # somebody has done it, perhaps an earlier try of ours

    async def _raise_floor(self, upto: int, ids_before_ms: int) -> OrderState:
        while True:
            state = await self._check_end(upto)
            if state.floor >= upto and state.ids_before_ms >= ids_before_ms:
                return state
            # Neither ever falls.
            floor = StoredFloor(1, max(upto, state.floor), max(ids_before_ms, state.ids_before_ms))
            raising = transactions.raise_floor(self._keys, state, floor)
            await self._gateway.call(TXN, raising, TxnAnswer, until=self._until(), writes=True)

    async def _check_end(self, upto: int) -> OrderState:
        end = await self._order.end(timeout_ms=self._step_ms)
        if upto > end.point.position:
            raise PastEnd(f"the order ends at {end.point.position}; {upto} is beyond it")
        return end.state

    def _is_gone(self, held: HeldKey, state: OrderState) -> bool:
        id = self._keys.id_of(held.key)
        made_ms = 0 if id is None else id_time_ms(id)
        return held.revision <= state.floor and 0 < made_ms < state.ids_before_ms

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._step_ms / SECOND_MS
