"""The JSON of the quorum on a node's own API: what programs ask of the daemon, and what they get.

Ids are UUID text, fences are text that sorts, every `…_at` is milliseconds since 1970. What the
source document names has its form and its field names (`DegradedRead`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.node.log.entity_history import ConflictSide, PastRevision
from holdfast.node.quorum.api import ReadDemand, ReceiptState, StrongReceipt
from holdfast.node.quorum.ports import OrderStatus
from holdfast.rules.bodies import encode_value
from holdfast.rules.errors import BadInput
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.commit_record import decode_record, encode_record
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.rules.quorum.entities import read_fields
from holdfast.rules.quorum.fence import parse_order
from holdfast.rules.quorum.intents import NO_FIELDS, EntityOperation, Guard, OperationKind
from holdfast.rules.quorum.state_rows import WaitingConflict
from holdfast.rules.quorum.view import Clash, EntityRevision, EntityRow, LeaseRow
from holdfast.rules.quorum.write_queue import QueuedWrite, WriteCounts
from holdfast.rules.reconcile import Outcome
from holdfast.rules.structs import copy_to


class _Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked for is all that is meant: a field that nobody knows is a typing error."""


# --- operators -------------------------------------------------------------------------------


class QuorumView(msgspec.Struct, frozen=True, kw_only=True):
    """How the quorum of a mesh stands, seen from this node."""

    order: OrderStatus
    minority: str
    """What this node does with strong writes that find no quorum: `queue` or `reject`."""
    handoff: str
    """What follows for the tasks of a lost node."""
    paused: bool
    """Writes that wait are not replayed until somebody resumes."""
    writes: WriteCounts
    conflicts: int
    """Intents that need a decision, up to a thousand."""
    read: DegradedRead
    """How fresh a read of this node's store is now, without asking anybody."""
    warnings: Sequence[str] = ()


class QuorumInit(_Asked, frozen=True, kw_only=True):
    voters: tuple[str, ...] = ()
    """Peers that vote beside this node."""
    engine: str = "embedded"
    """`embedded`, or the address of an etcd: `etcd://…`."""


class QuorumMove(_Asked, frozen=True, kw_only=True):
    engine: str
    """Which is to keep the order: `embedded`, or the address of an etcd: `etcd://…`."""
    voters: tuple[str, ...] = ()
    """Peers that vote beside this node."""


class QuorumTransfer(_Asked, frozen=True, kw_only=True):
    to: str | None = None
    timeout_ms: int | None = None


class QuorumForgetClaim(_Asked, frozen=True, kw_only=True):
    peer: str
    """Who has shown another order of the mesh, and is gone."""
    dry_run: bool = False
    """Nothing is changed: it is refused, or would be done."""


class QuorumRecover(_Asked, frozen=True, kw_only=True):
    accept_loss: bool = False


class ReplayAsked(_Asked, frozen=True, kw_only=True):
    node: str | None = None
    """Only writes that are for this node."""


class ReplayPause(msgspec.Struct, frozen=True):
    mesh: str
    paused: bool


# --- strong writes and reads -----------------------------------------------------------------


class IntentAsked(_Asked, frozen=True, kw_only=True):
    """An intent, for programs that make its body themselves."""

    op: str
    entity: str
    body: bytes
    """msgpack, as base64."""
    id: str | None = None
    timeout_ms: int | None = None


class RevisionDocument(msgspec.Struct, frozen=True):
    type: str
    id: str
    revision: int


class ReceiptDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a strong write."""

    id: str
    mesh: str
    state: ReceiptState
    """`committed`, or `queued`: it waits on this node's disk for a quorum."""
    outcome: Outcome | None = None
    number: int | None = None
    fence: str = ""
    reason: str = ""
    detail: str = ""
    revisions: Sequence[RevisionDocument] = ()
    clashes: Sequence[Clash] = ()

    @classmethod
    def of(cls, receipt: StrongReceipt) -> ReceiptDocument:
        fields = msgspec.structs.asdict(receipt)
        revisions = [RevisionDocument(one.type, one.id, one.revision) for one in receipt.revisions]
        return cls(**{**fields, "revisions": revisions})

    @property
    def receipt(self) -> StrongReceipt:
        fields = msgspec.structs.asdict(self)
        revisions = tuple(EntityRevision(one.type, one.id, one.revision) for one in self.revisions)
        return StrongReceipt(**{**fields, "revisions": revisions, "clashes": tuple(self.clashes)})


class ReadConfirmAsked(_Asked, frozen=True, kw_only=True):
    linearizable: bool = True
    staleness_ms_max: int | None = None
    timeout_ms: int | None = None

    @property
    def demand(self) -> ReadDemand:
        return ReadDemand(linearizable=self.linearizable, staleness_ms_max=self.staleness_ms_max)


class LeaseWait(_Asked, frozen=True, kw_only=True):
    name: str
    session: str
    """The id of the intent by which the lease was asked for."""
    timeout_ms: int


class LeaseGranted(msgspec.Struct, frozen=True):
    granted: bool


# --- entities --------------------------------------------------------------------------------


class FenceShown(_Asked, frozen=True, kw_only=True):
    """A user's lease that must still be held under this fence when the change is committed."""

    lease: str
    fence: str

    @property
    def guard(self) -> Guard:
        return Guard(self.lease, *parse_order(self.fence))


class OperationAsked(_Asked, frozen=True, kw_only=True):
    """What is done to one entity."""

    kind: OperationKind = "put"
    type: str
    id: str
    fields: dict[str, Any] = {}
    """All fields of a put, the changed ones of a patch."""
    removed: tuple[str, ...] = ()
    base: int | None = None
    """The revision that the writer saw; 0: the entity must not exist."""
    expected_epoch: int | None = None
    fence: FenceShown | None = None

    @property
    def operation(self) -> EntityOperation:
        return EntityOperation(
            self.kind,
            self.type,
            self.id,
            self.base,
            encode_value(self.fields) if self.fields else NO_FIELDS,
            self.removed,
            self.expected_epoch,
            None if self.fence is None else self.fence.guard,
        )


class EntitiesChange(_Asked, frozen=True, kw_only=True):
    """A change of several entities: all of them or none."""

    operations: tuple[OperationAsked, ...]
    id: str | None = None
    """Of the intent, for a retry that is applied once at most."""
    timeout_ms: int | None = None


class EntityDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An entity as it stands."""

    mesh: str
    type: str
    id: str
    revision: int
    fields: dict[str, Any]
    parent: str = ""
    deleted: bool = False
    origin: str
    """The node that made the last change."""
    fence: str
    committed_at: int

    @classmethod
    def of(cls, mesh: str, row: EntityRow) -> EntityDocument:
        return cls(
            mesh=mesh,
            type=row.type,
            id=row.id,
            revision=row.revision,
            fields=read_fields(row.fields),
            parent=row.parent,
            deleted=row.deleted,
            origin=row.origin,
            fence=str(row.fence),
            committed_at=row.committed_at,
        )


class EntityReadDocument(msgspec.Struct, frozen=True, kw_only=True):
    entity: EntityDocument
    read: DegradedRead


class EntityPage(msgspec.Struct, frozen=True, kw_only=True):
    """Entities of one type, by id."""

    entities: Sequence[EntityDocument]
    next: str | None
    """The `after` of the next page; None when there is none."""
    read: DegradedRead


class PastRevisionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of an entity, and the commit that made it."""

    revision: int
    deleted: bool
    whole: bool
    number: int
    """Of the commit, in commit order."""
    intent: str
    fence: str
    outcome: Outcome | None
    committed_at: int

    @classmethod
    def of(cls, past: PastRevision) -> PastRevisionDocument:
        commit = past.commit
        return cls(
            revision=past.revision,
            deleted=past.deleted,
            whole=past.whole,
            number=commit.number,
            intent=id_text(commit.id),
            fence=str(commit.fence),
            outcome=commit.outcome,
            committed_at=commit.committed_at,
        )


class StoredRevision(PastRevisionDocument, frozen=True, kw_only=True):
    """A revision with the whole record of its commit."""

    offset: int
    """Where its envelope is, or was, in this node's log."""
    record: bytes
    """The commit record, as base64."""

    @classmethod
    def whole_of(cls, past: PastRevision) -> StoredRevision:
        record = encode_record(past.commit)
        return copy_to(cls, PastRevisionDocument.of(past), offset=past.offset, record=record)

    @property
    def past(self) -> PastRevision:
        commit = decode_record(self.record)
        return PastRevision(self.revision, self.deleted, self.whole, self.offset, commit)


class EntityHistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    mesh: str
    type: str
    id: str
    revisions: Sequence[StoredRevision]
    next: int | None
    read: DegradedRead


# --- leases ----------------------------------------------------------------------------------


class LeaseDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that somebody holds, as it is committed."""

    mesh: str
    name: str
    holder: str
    session: str
    fence: str
    ttl_ms: int
    since_at: int
    waiting: Sequence[str] = ()
    """Peers that wait for it, the next one first."""

    @classmethod
    def of(cls, mesh: str, row: LeaseRow) -> LeaseDocument:
        return cls(
            mesh=mesh,
            name=row.name,
            holder=row.holder,
            session=id_text(row.session) if row.session else "",
            fence="" if row.grant is None else str(row.grant.order),
            ttl_ms=row.ttl_ms,
            since_at=row.since,
            waiting=[one.holder for one in row.waiting],
        )


class LeasePage(msgspec.Struct, frozen=True, kw_only=True):
    leases: Sequence[LeaseDocument]
    next: str | None
    read: DegradedRead


# --- writes that wait, and conflicts ---------------------------------------------------------


class WriteDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A strong write of this node that found no quorum, and what became of it."""

    id: str
    mesh: str
    number: int
    """Its place among all that this node ever queued."""
    op: str = ""
    entity: str = ""
    target: str = ""
    status: str
    attempts: int
    outcome: Outcome | None = None
    reason: str = ""
    detail: str = ""
    fence: str = ""
    earlier_fences: Sequence[str] = ()
    created_at: int
    attempted_at: int | None = None
    ended_at: int | None = None
    resolved_by: str = ""

    @classmethod
    def of(cls, number: int, write: QueuedWrite, op: str, entity: str) -> WriteDocument:
        return cls(
            id=id_text(write.id),
            mesh=write.mesh,
            number=number,
            op=op,
            entity=entity,
            target=write.target,
            status=write.status.value,
            attempts=write.attempts,
            outcome=write.outcome,
            reason=write.reason,
            detail=write.detail,
            fence="" if write.fence is None else str(write.fence),
            earlier_fences=[str(one) for one in write.earlier_fences],
            created_at=write.created_at,
            attempted_at=write.attempted_at,
            ended_at=write.ended_at,
            resolved_by=write.resolved_by,
        )


class WritePage(msgspec.Struct, frozen=True, kw_only=True):
    writes: Sequence[WriteDocument]
    next: int | None
    counts: WriteCounts


class ConflictSideDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One entity of a conflict: what the intent wants, and what stands."""

    type: str
    id: str
    kind: OperationKind
    base: int | None
    wanted: dict[str, Any]
    removed: Sequence[str] = ()
    stands: EntityDocument | None = None

    @classmethod
    def of(cls, mesh: str, side: ConflictSide) -> ConflictSideDocument:
        wanted, stands = side
        return cls(
            type=wanted.type,
            id=wanted.id,
            kind=wanted.kind,
            base=wanted.base,
            wanted=read_fields(wanted.fields),
            removed=wanted.removed,
            stands=None if stands is None else EntityDocument.of(mesh, stands),
        )


class QuorumConflictDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An intent that needs a decision, with both sides."""

    mesh: str
    number: int
    """Of its commit: this names the conflict."""
    intent: str
    clashes: Sequence[Clash]
    sides: Sequence[ConflictSideDocument] = ()
    resolved_at: int | None = None
    resolution: str = ""

    @classmethod
    def of(
        cls, waiting: WaitingConflict, intent: bytes, sides: Sequence[ConflictSide]
    ) -> QuorumConflictDocument:
        return cls(
            mesh=waiting.mesh,
            number=waiting.number,
            intent=id_text(intent),
            clashes=waiting.clashes,
            sides=[ConflictSideDocument.of(waiting.mesh, side) for side in sides],
            resolved_at=waiting.resolved_at,
            resolution=waiting.resolution,
        )


class QuorumConflictPage(msgspec.Struct, frozen=True, kw_only=True):
    conflicts: Sequence[QuorumConflictDocument]
    next: int | None


Settlement = Literal["committed", "intent", "fields"]


class SettleAsked(_Asked, frozen=True, kw_only=True):
    """How a conflict or a failed write ends.

    `committed`: what stands is right, and the intent is given up. `intent`: what the intent wanted
    is written again, on what stands now. `fields`: these are written, on what stands now.
    """

    take: Settlement = "committed"
    operations: tuple[OperationAsked, ...] = ()
    """For `fields`: what is written instead; without a base it is what stands now."""
    by: str = ""
    """Who decides: a person, an agent or a policy; the caller's user if it is empty."""
    note: str = ""

    def check(self) -> SettleAsked:
        if bool(self.operations) is not (self.take == "fields"):
            raise BadInput(
                f"take is {self.take!r}, with {len(self.operations)} operations",
                hint='give operations with "take": "fields", and only then',
            )
        return self


class SettledConflict(msgspec.Struct, frozen=True, kw_only=True):
    mesh: str
    number: int
    resolution: str
    receipt: ReceiptDocument | None = None
    """Of what was written to settle it."""
