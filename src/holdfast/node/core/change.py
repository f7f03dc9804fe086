"""Local writes: from a caller's request to an envelope in the log.

A change is checked, encoded and fingerprinted before its transaction, because that needs no lock.
In the transaction it is deduplicated, stamped, appended and folded, all or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from holdfast.node.core.fold import CURRENT, FOLDS
from holdfast.rules.bodies import OPS, Body, encode_body, family_of
from holdfast.rules.data_classes import data_class_of, is_decided, write_class_of
from holdfast.rules.envelope import (
    PROTOCOL,
    VERSION,
    Base,
    Destination,
    Envelope,
    Priority,
    decode_trusted,
    encode,
    encode_fields,
)
from holdfast.rules.errors import HasVoters, IdReused
from holdfast.rules.fingerprint import canonical_meta, fingerprint
from holdfast.rules.ids import id_text, parse_new_id
from holdfast.rules.order import Stamp, Version
from holdfast.rules.reconcile import Outcome
from holdfast.rules.shown import Shown

if TYPE_CHECKING:
    from holdfast.node.core.context import NodeContext
    from holdfast.storage.ports import Reader, Transaction

_WRITE_CLASS: Final = {
    op: write_class_of(data_class_of(family_of(op)), voters=False).value for op in OPS
}


DECIDED: Final = frozenset(op for op in OPS if is_decided(family_of(op)))
"""Ops that voters decide, where a mesh has voters."""


class Receipt(Shown, msgspec.Struct, frozen=True, gc=False):
    """The result of a write that is in the log and on the disk."""

    raw_id: bytes
    offset: int
    lamport: int
    peer: str
    duplicate: bool = False
    """The id was known with the same content: the other fields are those of the first write."""
    outcome: Outcome = Outcome.APPLIED

    @property
    def id(self) -> str:
        return id_text(self.raw_id)

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.lamport, self.peer)


class Change:
    """One local write. Calling it with a transaction carries it out."""

    repeatable = True
    """It touches nothing but the transaction, so the writer may undo it and run it again."""
    version: ClassVar[str] = VERSION
    """Of the envelope: it names the formula of the fingerprint."""

    __slots__ = (
        "body",
        "ctx",
        "encoded",
        "entity",
        "fingerprint",
        "given",
        "id",
        "mesh",
        "meta",
        "op",
        "owner",
        "priority",
        "reply_to",
        "to",
    )

    def __init__(
        self,
        ctx: NodeContext,
        mesh: str,
        op: str,
        entity: str,
        body: Body,
        *,
        owner: str = "",
        id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        asked: bytes | None = None,
    ) -> None:
        """`asked` is what the fingerprint covers, if that is not the body: where part of the body
        depends on the state.
        """
        self.to: tuple[Destination, str] | None = None
        self.reply_to = ""
        self.priority: Priority = "next"
        self.ctx, self.mesh, self.op, self.entity, self.owner = ctx, mesh, op, entity, owner
        self.body = body
        self.encoded = encode_body(body)
        self.given = id is not None
        self.id = ctx.new_id() if id is None else parse_new_id(id)
        self.meta = b"" if meta is None else canonical_meta(meta)
        self.fingerprint = fingerprint(
            kind=op, ref=entity, meta=self.meta, body=self.encoded if asked is None else asked
        )

    def __call__(self, tx: Transaction) -> Receipt:
        if self.op in DECIDED:
            refuse_undecided(tx, self.mesh, self.op)
        if self.given:
            known = self.known(tx)
            if known is not None:
                return known
        return self.carry_out(tx)

    def envelope_version(self) -> str:
        return self.version

    def known(self, tx: Transaction) -> Receipt | None:
        """The receipt of an earlier call with this id; None if there was none."""
        return known_receipt(tx, self.id, self.fingerprint, self.mesh)

    def make_ready(self, tx: Reader) -> None:
        """Makes the checks and looks that come before its stamp; raises what refuses it. It changes
        nothing in the store.
        """

    def carry_out(self, tx: Transaction) -> Receipt:
        self.make_ready(tx)
        ctx = self.ctx
        lamport, seq, lane, on_bus = tx.tick(self.mesh)
        find = CURRENT.get(self.op)
        current = None if find is None else find(tx, self, self.body)
        assert current is None or current.lamport < lamport, "our clock is past everything we hold"
        now = ctx.now_ms()
        envelope = self.envelope(seq, lamport, now, current)
        raw = encode(envelope)
        offset = tx.log_append(
            self.id, self.mesh, self.op, self.entity, ctx.peer, lamport, now, raw
        )
        if on_bus:
            # Here and below, because a mesh of this node alone needs neither.
            from holdfast.node.core.streams import placed
            from holdfast.rules.bus.meshes.coverage import StreamName

            name = StreamName(self.mesh, ctx.peer, ctx.epoch)
            tx.stream_add(name, (placed(self.op, seq, offset, raw),))
        apply = FOLDS.get(self.op)
        outcome = Outcome.APPLIED
        if apply is not None:
            outcome = apply(tx, ctx, envelope, self.body, offset, current)
        if lane is not None:
            from holdfast.rules.outbox import outbox_row

            tx.outbox_add((outbox_row(lane, envelope, offset, now),))
        return Receipt(self.id, offset, lamport, ctx.peer, False, outcome)

    def envelope(self, seq: int, lamport: int, now_ms: int, current: Version | None) -> Envelope:
        """It, with these numbers; `current` is the version that it replaces."""
        return Envelope(
            version=self.envelope_version(),
            id=self.id,
            mesh=self.mesh,
            op=self.op,
            entity=self.entity,
            owner=self.owner,
            origin=self.ctx.peer,
            epoch=self.ctx.epoch,
            seq=seq,
            lamport=lamport,
            created_at=now_ms,
            write_class=_WRITE_CLASS[self.op],
            fingerprint=self.fingerprint,
            base=None if current is None else Base(current.lamport, current.peer),
            meta=self.meta,
            body=self.encoded,
            to=self.to,
            reply_to=self.reply_to,
            priority=self.priority,
        )

    def encode(self, seq: int, lamport: int, now_ms: int, current: Version | None) -> bytes:
        """Its envelope as bytes: what `encode` makes of `envelope`, at half of the price."""
        return encode_fields(
            (
                *(PROTOCOL, self.envelope_version(), self.id, self.mesh, self.op, self.entity),
                *(self.owner, self.ctx.peer, self.ctx.epoch, seq, lamport, now_ms),
                *(_WRITE_CLASS[self.op], "committed", self.fingerprint),
                None if current is None else (current.lamport, current.peer, None),
                *(self.meta, self.encoded, self.to, self.reply_to, self.priority),
                *(None, None, None),
            )
        )


def known_receipt(tx: Reader, id: bytes, asked: bytes, mesh: str) -> Receipt | None:
    """The receipt of the first write with this id; None if there is none. Raises `IdReused` if that
    had another fingerprint than `asked`, or was in another mesh.
    """
    entry = tx.log_find(id)
    if entry is not None:
        first = decode_trusted(entry.raw)
        _refuse_other(id, first.fingerprint, asked)
        if entry.mesh != mesh:
            raise IdReused(f"id {id_text(id)} was used before in the mesh {entry.mesh!r}")
        return Receipt(
            id, entry.offset, entry.lamport, entry.origin, True, Outcome.NOOP_ALREADY_APPLIED
        )
    gone = tx.forgotten(id)
    ended = None if gone is None else tx.ended_mesh(mesh)
    if gone is not None and (ended is None or gone[0] > ended.head):
        offset, fingerprint_ = gone
        _refuse_other(id, fingerprint_, asked)
        return Receipt(id, offset, 0, "", True, Outcome.NOOP_ALREADY_APPLIED)
    return None


def refuse_undecided(tx: Reader, mesh: str, op: str) -> None:
    """Raises HasVoters for a change of a kind that voters decide, if the mesh has them: it would be
    decided here alone, and by another order.
    """
    if tx.quorum_get(mesh) is not None:
        raise HasVoters(f"{op}: in the mesh {mesh!r} voters decide that")


def _refuse_other(id: bytes, first: bytes, asked: bytes) -> None:
    if first != asked:
        raise IdReused(
            f"id {id_text(id)} was used before for another request "
            f"(its fingerprint begins with {first[:8].hex()})"
        )
