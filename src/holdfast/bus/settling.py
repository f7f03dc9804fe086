"""Which messages to one peer may come again: what the peer is told, so that it can forget ids.

A peer that keeps a message knows it by its id when it comes again. It comes again only if its row
in the outbox was not removed: because it is under way, or waits, or because the row is gone in
memory and not yet on the disk, from which a kill would bring it back. The peer need not know the
ids of all others.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.bus.context import BusContext
from holdfast.protocol.bus_frames import SettledFrame
from holdfast.rules.bus.mesh_store import OutboxId
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.limits import BUS_SETTLE_EVERY, BUS_SETTLED_IDS_MAX


class Settling:
    """What one lane has to tell its peer, now and then."""

    def __init__(self, context: BusContext) -> None:
        self._context = context
        self._ended = 0
        """Messages since the peer was told."""
        self._parting: dict[OutboxId, bytes] = {}
        """Ids of messages whose rows are being removed."""

    @property
    def is_due(self) -> bool:
        return self._ended >= BUS_SETTLE_EVERY

    def begin(self) -> None:
        """There is a new link: what earlier ones have settled is told soon."""
        self._ended = BUS_SETTLE_EVERY

    def ended(self, row: OutboxId, message: BusMessage) -> None:
        """A message is done with; its row is removed soon."""
        self._ended += 1
        self._parting[row] = message.id
        if len(self._parting) > 4 * BUS_SETTLED_IDS_MAX:
            self._let_part()

    def word(self, held: Iterable[BusMessage]) -> SettledFrame | None:
        """What to tell, if the outbox has no more for this peer than is held; None if that is too
        much now. Requests are recognised without their id, by who handles them.
        """
        self._let_part()
        waiting = [one.id for one in held if one.kind is not MessageKind.REQUEST]
        waiting += self._parting.values()
        if len(waiting) > BUS_SETTLED_IDS_MAX:
            self._ended -= BUS_SETTLED_IDS_MAX  # looked at again after so many more
            return None
        self._ended = 0
        return SettledFrame(waiting)

    def _let_part(self) -> None:
        removed = self._context.is_removed
        self._parting = {row: id for row, id in self._parting.items() if removed(row)}
