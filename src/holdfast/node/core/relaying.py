"""Hands what came by another way to the broker of its mesh, where this node may `relay`.

Whoever wrote something hands it to its broker itself, if it is a member there and reaches it. A
node that is on the bus only cannot, nor can one beyond a link between zones, nor one whose log came
in a file. Then a node that may relay at the broker does it in its place: what it gets from others,
by the bus, a link or an import, enters the lane of the broker, in the transaction that stores it.
Without the grant nothing of that goes to a broker. What the broker brings goes on over the bus and
links by itself, because they read the log.

Nothing runs in circles: what is new here comes to the log once, whatever way it takes, and what the
broker brought is not handed to it.

Several nodes may relay, and the origin may only be slow. So rows wait for a moment, which is
another one for each node and batch. What the broker brings meanwhile ends them
(`node/sync/receive.py`); and if two are equally fast, the broker knows the second by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from holdfast.node.core.context import NodeContext
from holdfast.node.core.intake import Applied
from holdfast.rules.arrivals import Arrivals, header_of, kinds_of, raw_of
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.limits import BUS_RELAY_MS
from holdfast.rules.message import MESSAGE
from holdfast.rules.outbox import lane_of, outbox_row
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Reader, Transaction


def hand_on(
    ctx: NodeContext, tx: Transaction, arrivals: Arrivals, applied: Sequence[Applied]
) -> int:
    """Puts changes that are new here into the lanes of their brokers, as far as this node may. What
    it wrote itself, and has lost and got back, it always may. Returns how many rows.
    """
    us, rows = ctx.peer, 0
    for mesh, relays in _handed_on(tx, arrivals, us).items():
        found = [
            (decode_trusted(raw_of(arrival)), one.offset)
            for arrival, one in zip(arrivals, applied, strict=True)
            if one.offset
            and one.outcome is not Outcome.NOOP_ALREADY_APPLIED
            and (header := header_of(arrival)) is not None
            and header[1] == mesh
            and header[2] != MESSAGE
            and (relays or header[4] == us)
        ]
        if found:
            now = ctx.now_ms()
            at = now + _wait_ms(us, found[0][0].id)
            made = [outbox_row(lane_of(mesh), envelope, offset, now) for envelope, offset in found]
            rows += tx.outbox_add([msgspec.structs.replace(row, not_before=at) for row in made])
    return rows


def _handed_on(tx: Reader, arrivals: Arrivals, us: str) -> dict[str, bool]:
    """The meshes of a batch that are at a broker, and whether this node may relay there, as the
    broker last said. If it has changed its mind since, it refuses the rows, and
    that ends them.
    """
    names = sorted({mesh for mesh, _, _ in kinds_of(arrivals)})
    meshes = [row for name in names if (row := tx.mesh_get(name)) is not None]
    return {
        row.slug: any(
            member.name == us and {"write", "relay"} <= set(member.grants)
            for member in tx.known_members_list(row.slug)
        )
        for row in meshes
        if row.shared
    }


def _wait_ms(us: str, id: bytes) -> int:
    """From half to one and a half of the time to wait: as if by lot, and the same in every run."""
    lot = int.from_bytes(sha256(us.encode() + id).digest()[:4], "big") / (1 << 32)
    return round(BUS_RELAY_MS * (0.5 + lot))
