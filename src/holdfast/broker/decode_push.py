"""Reading what a member hands in: everything that can be said about an envelope by itself.

What passes here is well formed, belongs to the mesh that it was handed in for, and bears the
fingerprint of its content. Whether the sender may, and whether there is such a destination, is
asked in the transaction that accepts it.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.rules import limits
from holdfast.rules.broker_rows import PushedEnvelope
from holdfast.rules.envelope import decode
from holdfast.rules.errors import BadEnvelope
from holdfast.rules.message import CHANGE, check_arriving

NewId = Callable[[], bytes]
"""Makes UUIDs of version 7."""


def decode_push(raw: bytes, mesh: str, sender: bytes, epoch: int, new_id: NewId) -> PushedEnvelope:
    if not 0 <= epoch <= limits.LAMPORT_MAX:
        # A store that cannot count so far would refuse all that shares its transaction.
        raise BadEnvelope(f"{epoch} is no epoch of a mesh")
    envelope = decode(raw)
    if envelope.mesh != mesh:
        raise BadEnvelope(f"the envelope is of mesh {envelope.mesh!r}, not {mesh!r}")
    kind, ref = check_arriving(envelope)
    if kind == CHANGE and envelope.op.startswith("message."):
        raise BadEnvelope("a message names no destination")
    return PushedEnvelope(
        mesh=mesh,
        id=envelope.id,
        fingerprint=envelope.fingerprint,
        kind=kind,
        ref=ref,
        origin=envelope.origin,
        sender=sender,
        priority=envelope.priority,
        raw=raw,
        broker_id=new_id(),
        epoch=epoch,
    )
