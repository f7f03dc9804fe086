"""Whose messages the bus drops: a picture of the table, looked at anew with each refresh.

The bus asks for every message, so the answer comes from memory. Counts are written behind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.storage.ports import Transaction

_ANSWERS: Final = (MessageKind.REPLY, MessageKind.CANCEL)
_OURS: Final = "holdfast."
"""Services and topics by which meshes are kept together begin so."""


class BlockedOnBus:
    """Asked by the bus in its loop."""

    def __init__(self, engine: NodeEngine) -> None:
        self._engine = engine
        self._names: frozenset[str] = frozenset()
        self._dropped: Counter[str] = Counter()
        self._writing: asyncio.Task[None] | None = None
        self.refresh()

    def refresh(self) -> None:
        rows = self._engine.read("peer.blocked", lambda tx: tx.blocked_list())
        self._names = frozenset(row.peer for row in rows)

    def drops(self, peer: str, message: BusMessage) -> bool:
        """Whether a message is dropped here, and counted. What answers us is not sent unasked."""
        if peer not in self._names or message.kind in _ANSWERS or message.topic.startswith(_OURS):
            return False
        self._dropped[peer] += 1
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())
        return True

    async def close(self) -> None:
        """Returns when what was counted is written."""
        if self._writing is not None:
            await self._writing
        await self._write()

    async def _write(self) -> None:
        while self._dropped:
            counted, self._dropped = self._dropped, Counter()

            def work(tx: Transaction, counted: Counter[str] = counted) -> None:
                for peer, count in counted.items():
                    tx.blocked_dropped(peer, count)

            await asyncio.to_thread(self._engine.write, "peer.dropped", work)
