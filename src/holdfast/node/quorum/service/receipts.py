"""What a caller gets for what became of its intent: a receipt, or the error that a refusal is."""

from __future__ import annotations

from holdfast.node.core.commit import Committed
from holdfast.node.quorum.api import StrongReceipt
from holdfast.rules.errors import BadEnvelope, HoldfastError
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.decide import error_of
from holdfast.rules.quorum.view import IntentRecord
from holdfast.rules.quorum.write_queue import QueuedWrite, WriteFailure, is_open
from holdfast.rules.reconcile import Outcome

_DONE = frozenset({Outcome.APPLIED, Outcome.NOOP_ALREADY_APPLIED, Outcome.SUPERSEDED})
"""Nothing is left to do for the caller: a newer revision replaces what was superseded."""


def was_decided(committed: Committed) -> bool:
    """False of an entry that came without authority: it is not part of the order, and its intent
    may still be committed.
    """
    return committed.number is not None or committed.outcome is not Outcome.REJECTED_FENCED


def receipt_of_commit(mesh: str, id: bytes, committed: Committed) -> StrongReceipt:
    """Raises the error that a refusal is; the record of the refusal stays."""
    if committed.outcome not in _DONE:
        raise _refusal(committed.reason, committed.detail)
    return StrongReceipt(
        id=id_text(id),
        mesh=mesh,
        state="committed",
        outcome=committed.outcome,
        number=committed.number,
        fence="" if committed.fence is None else committed.fence.text,
        reason=committed.reason,
        detail=committed.detail,
        revisions=committed.revisions,
        clashes=committed.clashes,
    )


def receipt_of_record(mesh: str, record: IntentRecord, number: int | None) -> StrongReceipt:
    """Of an intent that was decided before."""
    outcome = record.outcome
    if outcome not in _DONE:
        raise _refusal(record.reason, "")
    return StrongReceipt(
        id=id_text(record.id),
        mesh=mesh,
        state="committed",
        outcome=Outcome.NOOP_ALREADY_APPLIED if outcome is Outcome.APPLIED else outcome,
        number=number,
        fence=str(record.fence.order),
        reason=record.reason,
        revisions=record.revisions,
    )


def receipt_of_row(write: QueuedWrite) -> StrongReceipt:
    """Of a write in the queue that the quorum has not decided: it waits, or it failed on the way
    there, which is raised.
    """
    if not is_open(write):
        raise _refusal(write.reason, write.detail)
    return StrongReceipt(
        id=id_text(write.id),
        mesh=write.mesh,
        state="queued",
        reason=write.reason,
        detail=write.detail,
    )


def failure_of(error: HoldfastError) -> WriteFailure:
    """An error in the words of the queue."""
    return WriteFailure(error.http_status, error.code, error.message)


def _refusal(reason: str, detail: str) -> HoldfastError:
    return error_of(reason, detail) or BadEnvelope("the quorum refused it, and gave no reason")
