"""What a committed entry does. Every node asks this of every entry, in commit order.

The answer follows from the entry and from the state that the entries before it made, and from
nothing else: there is no clock here, and nothing is guessed. So all nodes of a mesh have the same
state after the same entry, whichever engine brought it.

The questions are asked in the order of `rules/reconcile.py`, and the first that answers decides:

1. Was this intent committed before, with the same fingerprint? Then nothing happens again. If it
   was applied, it is `noop_already_applied`; otherwise the answer is the one of the first time.
   An intent that was given up is void for ever, whatever its fingerprint.
2. Was its id committed with another fingerprint? `conflict_requires_merge`: nothing is applied, and
   the id stays with the first.
3. Is the fence not newer than that of the last entry, or does it name another coordinator in the
   same epoch? `rejected_fenced`, and nothing is recorded: such an entry is not part of the order,
   and its intent may still be committed by somebody with authority.
4. Can it be read, and may it be done at all? If not, it is refused for good: `outcome` is None and
   `reason` the code of the error.
5. What do the rules of its op say? Of entities `entity_change` tells when it is `rejected_fenced`,
   `conflict_requires_merge`, `superseded` or applied; of leases `lease`; of tasks `task_turns`.

Everything from 4 on is recorded under the intent's id, also a refusal: whoever asks again under the
same id gets the same answer, on every node and after any restart. A writer that wants another
answer makes another intent.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.rules.bodies import Body
from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import (
    BadEntity,
    BadEnvelope,
    BadFence,
    BadId,
    BadKey,
    BadPeerId,
    BadStamp,
    BadValue,
    BaseRequired,
    DependencyCycle,
    FenceForged,
    FenceTooOld,
    ForgedOrigin,
    HasChildren,
    HoldfastError,
    IdReused,
    IntentAbandoned,
    LeaseHeld,
    LeaseNotHeld,
    NodeNotLost,
    NotOurs,
    NotTheCoordinator,
    Orphaned,
    OverLimit,
    Refused,
    RevisionMoved,
    SecretRefused,
    UnknownEntity,
    UnknownEntityType,
    UnknownTask,
    UnsupportedProtocol,
)
from holdfast.rules.quorum.commit_record import CommitRecord
from holdfast.rules.quorum.entity_change import rule_change
from holdfast.rules.quorum.fence import FenceToken, check_newer
from holdfast.rules.quorum.intents import (
    EntityChange,
    IntentAbandon,
    LeaseAcquire,
    LeaseExpire,
    LeaseRelease,
    LeaseRenew,
    OrderMove,
    TaskAdopt,
    TaskHandoff,
    decode_intent,
)
from holdfast.rules.quorum.lease import rule_lease
from holdfast.rules.quorum.order_move import rule_move
from holdfast.rules.quorum.task_turns import rule_adopt, rule_handoff, rule_node, rule_turn
from holdfast.rules.quorum.view import (
    Clash,
    EntityRevision,
    IntentRecord,
    PutIntent,
    Ruling,
    View,
    Write,
)
from holdfast.rules.reconcile import Outcome


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an entry does to the committed state."""

    outcome: Outcome | None
    """None: refused for good, for the `reason`."""
    reason: str = ""
    """The code of an error, where there is one."""
    detail: str = ""
    """For people. It is not part of any record: texts may differ between versions."""
    writes: tuple[Write, ...] = ()
    revisions: tuple[EntityRevision, ...] = ()
    """Of a repeated intent, those of the first time."""
    clashes: tuple[Clash, ...] = ()
    first: IntentRecord | None = None
    """Of a repeated intent, what is on record; of one that is to be given up, what became of it."""

    @property
    def counts(self) -> bool:
        """Whether the entry gets a number and a commit record. One that was seen before has them
        already, and one without authority gets none.
        """
        return bool(self.writes)


def decide(
    view: View,
    envelope: Envelope,
    fence: FenceToken,
    committed_at: int,
    body: Body | None = None,
) -> Decision:
    """What a committed envelope does, given everything that was committed before it. `body` is what
    `decode_intent` gave for this envelope, where the caller has asked before.
    """
    known = view.intent(envelope.id)
    if known is not None:
        return _repeated(known, envelope)
    try:
        check_newer(view.last_fence(), fence, envelope.mesh)
    except (FenceTooOld, FenceForged) as error:
        return Decision(outcome=Outcome.REJECTED_FENCED, reason=error.code, detail=error.message)
    try:
        body = decode_intent(envelope) if body is None else body
        if isinstance(body, IntentAbandon):
            return _abandoned(view, envelope, body, fence, committed_at)
        ruling = _rule(view, envelope, body, fence, committed_at)
    except Refused as error:
        record = _record(envelope, fence, committed_at, None, error.code)
        return Decision(
            outcome=None, reason=error.code, detail=error.message, writes=(PutIntent(record),)
        )
    record = _record(envelope, fence, committed_at, ruling.outcome, ruling.reason, ruling.revisions)
    return Decision(
        outcome=ruling.outcome,
        reason=ruling.reason,
        detail=ruling.detail,
        writes=(*ruling.writes, PutIntent(record)),
        revisions=ruling.revisions,
        clashes=ruling.clashes,
    )


def _rule(
    view: View, envelope: Envelope, body: Body, fence: FenceToken, committed_at: int
) -> Ruling:
    if isinstance(body, EntityChange):
        return rule_change(view, envelope, body, fence, committed_at)
    if isinstance(body, LeaseAcquire | LeaseRenew | LeaseRelease | LeaseExpire):
        return rule_lease(view, envelope, body, fence, committed_at)
    if isinstance(body, OrderMove):
        return rule_move(body, fence)
    if isinstance(body, TaskAdopt):
        return rule_adopt(view, envelope, body)
    if isinstance(body, TaskHandoff):
        return rule_handoff(view, envelope, body)
    if envelope.op.startswith("node."):
        return rule_node(view, envelope, body, fence, committed_at)
    return rule_turn(view, envelope, body)


def _repeated(known: IntentRecord, envelope: Envelope) -> Decision:
    if known.void:
        return Decision(
            outcome=None,
            reason=IntentAbandoned.code,
            detail="the intent was given up before it was committed",
            first=known,
        )
    if known.fingerprint != envelope.fingerprint:
        return Decision(
            outcome=Outcome.CONFLICT_REQUIRES_MERGE,
            reason=IdReused.code,
            detail="the id was committed with another content",
            first=known,
        )
    applied = known.outcome is Outcome.APPLIED
    return Decision(
        outcome=Outcome.NOOP_ALREADY_APPLIED if applied else known.outcome,
        reason=known.reason,
        revisions=known.revisions,
        first=known,
    )


def _abandoned(
    view: View, envelope: Envelope, body: IntentAbandon, fence: FenceToken, committed_at: int
) -> Decision:
    """Giving an intent up is an entry like any other: which of the two was first, decides."""
    first = view.intent(body.intent)
    outcome = Outcome.APPLIED if first is None else Outcome.NOOP_ALREADY_APPLIED
    writes: list[Write] = []
    if first is None:
        void = IntentRecord(
            id=body.intent,
            fingerprint=b"",
            void=True,
            outcome=None,
            reason=IntentAbandoned.code,
            fence=fence,
            committed_at=committed_at,
        )
        writes.append(PutIntent(void))
    writes.append(PutIntent(_record(envelope, fence, committed_at, outcome)))
    return Decision(outcome=outcome, writes=tuple(writes), first=first)


def _record(
    envelope: Envelope,
    fence: FenceToken,
    committed_at: int,
    outcome: Outcome | None,
    reason: str = "",
    revisions: tuple[EntityRevision, ...] = (),
) -> IntentRecord:
    return IntentRecord(
        id=envelope.id,
        fingerprint=envelope.fingerprint,
        outcome=outcome,
        reason=reason,
        fence=fence,
        committed_at=committed_at,
        revisions=revisions,
    )


def commit_record(
    envelope: Envelope, fence: FenceToken, committed_at: int, number: int, decision: Decision
) -> CommitRecord:
    """What stands beside the bytes of an envelope that counts."""
    assert decision.counts, "only what is part of the order has a record"
    return CommitRecord(
        mesh=envelope.mesh,
        id=envelope.id,
        fingerprint=envelope.fingerprint,
        number=number,
        fence=fence,
        committed_at=committed_at,
        outcome=decision.outcome,
        reason=decision.reason,
        revisions=decision.revisions,
    )


def as_recorded(record: CommitRecord) -> Decision:
    """The decision that stands in a record and that our own rules do not come to. It changes
    nothing but what is known of the intent: what it did elsewhere cannot be told from its record.
    """
    known = IntentRecord(
        id=record.id,
        fingerprint=record.fingerprint,
        outcome=record.outcome,
        reason=record.reason,
        fence=record.fence,
        committed_at=record.committed_at,
        revisions=record.revisions,
    )
    return Decision(
        outcome=record.outcome,
        reason=record.reason,
        writes=(PutIntent(known),),
        revisions=record.revisions,
    )


_REFUSING: Final[tuple[type[Refused], ...]] = (
    BadEntity,
    BadEnvelope,
    BadFence,
    BadId,
    BadKey,
    BadPeerId,
    BadStamp,
    BadValue,
    BaseRequired,
    DependencyCycle,
    FenceForged,
    FenceTooOld,
    ForgedOrigin,
    HasChildren,
    IdReused,
    IntentAbandoned,
    LeaseHeld,
    LeaseNotHeld,
    NodeNotLost,
    NotOurs,
    NotTheCoordinator,
    Orphaned,
    OverLimit,
    RevisionMoved,
    SecretRefused,
    UnknownEntity,
    UnknownEntityType,
    UnknownTask,
    UnsupportedProtocol,
)
REFUSALS: Final = {kind.code: kind for kind in _REFUSING}
"""By code: the errors that a decision can have as its reason."""


def error_of(reason: str, detail: str = "") -> HoldfastError | None:
    """The error behind a reason, as its caller gets it; None if there is none. A reason that only a
    later version knows is a BadEnvelope here.
    """
    if not reason:
        return None
    return REFUSALS.get(reason, BadEnvelope)(detail or f"the quorum refused it: {reason}")
