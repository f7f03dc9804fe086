"""The one door in: whatever arrives from outside passes here.

Broker, bus, zone, import and pipeline differ only in how bytes reach this point. Every check comes
before the first change, so that a refused envelope leaves nothing behind and its neighbours in the
batch are not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.node.change import known_receipt
from holdfast.node.context import Context
from holdfast.node.fold import current_version, fold
from holdfast.rules.bodies import Body, decode_body
from holdfast.rules.clock import check_incoming
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.errors import HoldfastError, Refused, TooOld, UnknownMesh
from holdfast.rules.ids import id_text
from holdfast.rules.merge import version_of
from holdfast.rules.order import Version, is_newer
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import PeerRow
from holdfast.storage.ports import Transaction


class Applied(msgspec.Struct, frozen=True):
    """What became of one envelope: an outcome and its place in our log, or the error that refused
    it.
    """

    id: str | None
    outcome: Outcome | None
    offset: int | None = None
    error: HoldfastError | None = None


class Arrival:
    """An envelope read and checked, on its way in."""

    __slots__ = ("body", "envelope", "error", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = bytes(raw)
        self.envelope: Envelope | None = None
        self.body: Body | None = None
        self.error: HoldfastError | None = None
        try:
            self.envelope = decode(self.raw)
            self.body = decode_body(self.envelope)
        except Refused as error:
            self.error = error


class Intake:
    """A batch of arrivals, applied in order in one transaction: call it with one."""

    def __init__(self, ctx: Context, batch: Iterable[bytes]) -> None:
        self._ctx = ctx
        self._arrivals = [Arrival(raw) for raw in batch]

    def __call__(self, tx: Transaction) -> list[Applied]:
        seen: dict[tuple[str, str], int] = {}
        results = []
        for arrival in self._arrivals:
            result = self._take(tx, arrival)
            results.append(result)
            envelope = arrival.envelope
            if result.error is None and envelope is not None and envelope.origin != self._ctx.peer:
                key = (envelope.mesh, envelope.origin)
                seen[key] = max(seen.get(key, 0), envelope.lamport)
        now = self._ctx.now_ms()
        for (mesh, peer), lamport in seen.items():
            tx.peer_seen(PeerRow(mesh=mesh, peer=peer, last_seen_at=now, last_lamport=lamport))
        return results

    def _take(self, tx: Transaction, arrival: Arrival) -> Applied:
        envelope = arrival.envelope
        name = None if envelope is None else id_text(envelope.id)
        if arrival.error is not None or envelope is None:
            return Applied(name, None, error=arrival.error)
        try:
            known = known_receipt(tx, envelope.id, envelope.fingerprint, envelope.mesh)
            if known is not None:
                return Applied(name, known.outcome, known.offset)
            current = self._examine(tx, envelope, arrival.body)
        except Refused as error:
            return Applied(name, None, error=error)
        tx.tick_merged(envelope.mesh, envelope.lamport)
        offset = tx.log_append(
            envelope.id,
            envelope.mesh,
            envelope.op,
            envelope.entity,
            envelope.origin,
            envelope.lamport,
            self._ctx.now_ms(),
            arrival.raw,
        )
        outcome = fold(tx, self._ctx, envelope, arrival.body, offset, current)
        return Applied(name, outcome, offset)

    def _examine(self, tx: Transaction, envelope: Envelope, body: Body | None) -> Version | None:
        """Every check that needs the store. Returns the version that the envelope meets."""
        mesh = tx.mesh_get(envelope.mesh)
        if mesh is None:
            raise UnknownMesh(f"there is no mesh {envelope.mesh!r}")
        check_incoming(mesh.lamport, envelope.lamport)
        if body is None:
            return None
        current = current_version(tx, envelope, body)
        _check_not_forgotten(envelope, body, current, mesh.forgotten_lamport)
        return current


def _check_not_forgotten(
    envelope: Envelope, body: Body, current: Version | None, forgotten_lamport: int
) -> None:
    """A write older than removed tombstones could bring back what one of them had deleted."""
    if envelope.lamport > forgotten_lamport or envelope.op.startswith(("task.", "fact.")):
        return
    if current is None or is_newer(version_of(envelope), current):
        raise TooOld(
            f"{envelope.op} {envelope.entity!r} of {envelope.origin} has stamp {envelope.lamport}; "
            f"this node has forgotten deletions up to {forgotten_lamport}"
        )
