"""A store of the bus that takes time, and whose answers the world writes into its books.

Between the call and its effect, and between the effect and the answer, other things happen, as with
a disk: so the process can die there. Writes keep their order, as with a store that commits groups.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.rules.bus.counted_clock import CountedClock
from holdfast.rules.bus.mesh_store import (
    AcceptedArrivals,
    ArrivalVerdict,
    OutboxMessage,
    PeerKey,
    SignedArrival,
)
from holdfast.rules.errors import StoreFailed
from holdfast.simulate.bus.books import BusBooks

READS: Final = frozenset(
    {
        *("nonce_seen", "last_seq", "due_outbox", "incarnation", "outbox_peers", "outbox_of"),
        *("next_outbox", "outbox_requests", "pending_inbox", "interests"),
    }
)
ANSWERED_IN_ORDER: Final = frozenset({"enqueue_outbox"})
"""Whoever puts one message behind another also hears of it later, as with every store here."""
LATE_MS_MAX: Final = 3


class WatchedStore:
    """A `MeshStore` around the one of a machine."""

    def __init__(
        self,
        inner: Any,
        machine: str,
        books: BusBooks,
        rng: random.Random,
        is_alive: Callable[[], bool],
        on_failure: Callable[[], None],
    ) -> None:
        """`on_failure` is told when the store will work again only after it was opened anew."""
        self._inner, self._machine, self._books, self._rng = inner, machine, books, rng
        self._is_alive, self._on_failure = is_alive, on_failure
        self._in_order = asyncio.Lock()
        self._ids: dict[int, bytes] = {}
        """The ids of messages of the inbox, by number."""

    @property
    def counted(self) -> CountedClock:
        found = self._inner.counted
        assert isinstance(found, CountedClock)
        return found

    def __getattr__(self, name: str) -> Any:
        """The calls that the books need not know of."""

        async def call(*args: Any, **given: Any) -> Any:
            return await self._call(name, *args, **given)

        return call

    async def _call(
        self, call: str, /, *args: Any, done: Callable[[Any], None] = lambda _: None, **given: Any
    ) -> Any:
        """`done` hears the answer at once when it is true, and the caller perhaps never."""
        if call in READS:
            await self._wait()
            found = await self._act(call, done, *args, **given)
        else:
            async with self._in_order:
                await self._wait()
                found = await self._act(call, done, *args, **given)
                if call in ANSWERED_IN_ORDER:
                    await self._wait()
                    return found
        await self._wait()
        return found

    async def _act(
        self, call: str, done: Callable[[Any], None], /, *args: Any, **given: Any
    ) -> Any:
        try:
            found = await getattr(self._inner, call)(*args, **given)
        except StoreFailed:
            self._on_failure()
            raise
        if self._is_alive():
            done(found)
        return found

    async def _wait(self) -> None:
        if self._rng.random() < 0.7:
            await asyncio.sleep(self._rng.randrange(LATE_MS_MAX) / 1000)

    # --- what the books are told ----------------------------------------------------------------

    async def enqueue_outbox(self, item: OutboxMessage) -> int:
        self._books.trying(self._machine, item)
        number: int = await self._call(
            "enqueue_outbox", item, done=lambda _: self._books.placed(item)
        )
        return number

    async def accept(
        self, peer: PeerKey, arrivals: Sequence[SignedArrival], **given: Any
    ) -> list[ArrivalVerdict]:
        def accepted(verdicts: list[ArrivalVerdict]) -> None:
            for arrival, verdict in zip(arrivals, verdicts, strict=True):
                self._books.accepted(self._machine, peer, arrival, verdict)

        verdicts: list[ArrivalVerdict] = await self._call(
            "accept", peer, arrivals, done=accepted, **given
        )
        if isinstance(verdicts, AcceptedArrivals):
            self._ids |= {row.number: row.message.id for row in verdicts.kept}
        return verdicts

    async def pending_inbox(self, after: int, limit: int) -> Any:
        rows = await self._call("pending_inbox", after, limit)
        self._ids |= {row.number: row.message.id for row in rows}
        return rows

    async def finish_inbox(self, numbers: Any) -> None:
        ids = [self._ids[number] for number in numbers]
        await self._call(
            "finish_inbox", numbers, done=lambda _: self._books.finished(self._machine, ids)
        )
