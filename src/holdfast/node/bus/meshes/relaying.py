"""Hands what came over the bus to the broker of its mesh, where this node may `relay`.

Whoever wrote something hands it to its broker itself, if it is a member there and reaches it. A
node that is on the bus only cannot, and then one that may relay at the broker does it in its place:
what it gets from others enters the lane of the broker, in the transaction that stores it. Without
the grant nothing from the bus goes to a broker.

Several nodes may relay, and the origin may only be slow. So a row waits for a moment that each node
draws by lot. What the broker brings meanwhile ends it (`node/sync/receive.py`); and if two are
equally fast, the broker knows the second by its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Applied
from holdfast.rules.arrivals import Arrivals, raw_of
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.limits import BUS_RELAY_MS
from holdfast.rules.outbox import lane_of, outbox_row
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Reader, Transaction


class BrokerRelay:
    """What one node hands on to brokers. `key` is its own; `jitter` draws from [0, 1)."""

    def __init__(self, engine: NodeEngine, key: bytes, jitter: Callable[[], float]) -> None:
        self._engine, self._key, self._jitter = engine, key, jitter

    def hand_on(
        self, tx: Transaction, mesh: str, arrivals: Arrivals, applied: Sequence[Applied]
    ) -> int:
        """Puts what is new here into the lane of the mesh's broker, as far as this node may. What
        it wrote itself, and has lost and got back, it always may. Returns how many rows.
        """
        new = [
            (raw_of(arrival), one.offset)
            for arrival, one in zip(arrivals, applied, strict=True)
            if one.offset and one.outcome is not Outcome.NOOP_ALREADY_APPLIED
        ]
        row = tx.mesh_get(mesh) if new else None
        if row is None or not row.shared:
            return 0
        found = [(decode_trusted(raw), offset) for raw, offset in new]
        if not self._may_relay(tx, mesh):
            us = self._engine.ctx.peer
            found = [(envelope, offset) for envelope, offset in found if envelope.origin == us]
        now = self._engine.ctx.now_ms()
        not_before = now + round(BUS_RELAY_MS * (0.5 + self._jitter()))
        rows = [outbox_row(lane_of(mesh), envelope, offset, now) for envelope, offset in found]
        return tx.outbox_add([msgspec.structs.replace(row, not_before=not_before) for row in rows])

    def _may_relay(self, tx: Reader, mesh: str) -> bool:
        """Whether the broker of the mesh takes from this node what others wrote, as it last said.
        If it has changed its mind since, it refuses them, and that ends their rows.
        """
        return any(
            member.key == self._key and {"write", "relay"} <= set(member.grants)
            for member in tx.known_members_list(mesh)
        )
