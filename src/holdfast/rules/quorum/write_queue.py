"""Strong writes that wait for a quorum: their states, and what each failure means.

    pending → replaying → applied      the quorum has decided, and nothing is left to do
       ↑          ├─────→ failed       it was refused, fenced, or needs a decision
       └──────────┘                    an outage: it is tried again

Rows are never removed: what was applied and what failed is the history of reconciliation. A failed
row that somebody has dealt with is **resolved**; it no longer counts, and it stays.

Which failures are tried again (`is_retryable`):

- No answer at all: timeouts, aborts, refused, reset or unresolved connections. The write may have
  happened; under the same id a second try is safe.
- 502, 503, 504, and whatever says that there is no quorum or no coordinator: an outage.
- 408 and 429: the other side wants us to come later, and has decided nothing.
- 500: the other side failed on the way. It may have happened, so only a try under the same id
  tells; to call it permanent would be to drop a write that may be committed.
- 507: the disk of the coordinator is full. Nothing is wrong with the write, and somebody will make
  room, or another node will coordinate.

All other answers are permanent: 400, 401, 403, 404, 409, 422, and every further 4xx, as well as 501
and 505, which say that the other side cannot do such a thing at all. A code that says that the
write is too large is permanent under any status: an etcd says so with 429. Permanent failures are
recorded as failed at once and never queued. Every try counts as an attempt, also one that an outage
ended: the broker's outbox counts otherwise.

Some intents never wait (`can_wait`): a lease, a lost node or a handoff is about this moment. Taken
an hour later it would hold a name for nobody, or move a task of a node that is long back.

A row is fenced anew each time that it is replayed: a token that was taken before a restart would
fence a node's own queue for ever. The tokens of earlier tries are kept for whoever looks into it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.rules.errors import AlreadyResolved, BodyTooLarge, OverLimit
from holdfast.rules.limits import REASON_CHARS_MAX
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.reconcile import Outcome


class WriteStatus(StrEnum):
    PENDING = "pending"
    REPLAYING = "replaying"
    APPLIED = "applied"
    FAILED = "failed"


class QueuedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One strong write of this node that found no quorum."""

    id: bytes
    mesh: str
    target: str = ""
    """The node that should take it; empty for whoever coordinates the mesh."""
    created_at: int
    """When it was queued; never before that of a row that was queued earlier on this node."""
    status: WriteStatus = WriteStatus.PENDING
    attempts: int = 0
    fence: FenceToken | None = None
    """The token of the present try, or of the last one."""
    earlier_fences: tuple[FenceToken, ...] = ()
    outcome: Outcome | None = None
    reason: str = ""
    """The code of the last failure."""
    detail: str = ""
    attempted_at: int | None = None
    ended_at: int | None = None
    resolved_by: str = ""
    """Who dealt with a failed one, and how: empty as long as nobody did."""


class WriteFailure(msgspec.Struct, frozen=True):
    """Why a try did not come to a decision: the status of an answer, or the name of what ended the
    connection.
    """

    status: int | None = None
    code: str = ""
    detail: str = ""


class WriteCounts(msgspec.Struct, frozen=True):
    """What of a queue still needs something."""

    queue_depth: int = 0
    """Pending, replaying, and failed without having been resolved."""
    pending: int = 0
    """Pending and replaying."""
    failed: int = 0


_LATER: Final = frozenset({408, 429})
_NEVER_5XX: Final = frozenset({501, 505})
OUTAGES: Final = frozenset(
    {
        *("ECONNREFUSED", "ENOTFOUND", "ETIMEDOUT", "ECONNRESET", "EPIPE", "EHOSTUNREACH"),
        *("ENETUNREACH", "EAI_AGAIN", "timeout", "abort", "network", "TypeError"),
        *("no_quorum", "no_leader", "unreachable", "too_slow", "outcome_unknown", "store_busy"),
    }
)
"""Names of failures that are outages, where there is no status or whatever the status is."""
_TOO_LARGE: Final = frozenset({OverLimit.code, BodyTooLarge.code})

_ENDS: Final = {
    Outcome.APPLIED: WriteStatus.APPLIED,
    Outcome.NOOP_ALREADY_APPLIED: WriteStatus.APPLIED,
    Outcome.SUPERSEDED: WriteStatus.APPLIED,
    Outcome.CONFLICT_REQUIRES_MERGE: WriteStatus.FAILED,
    Outcome.REJECTED_FENCED: WriteStatus.FAILED,
    None: WriteStatus.FAILED,
}


def can_wait(op: str) -> bool:
    """Whether an intent of this op is worth something when it is committed much later."""
    return op == "entity.change" or (op.startswith("task.") and op != "task.handoff")


def is_retryable(failure: WriteFailure) -> bool:
    """Whether a write that failed like this is queued and tried again."""
    if failure.code in _TOO_LARGE:
        return False
    if failure.code in OUTAGES:
        return True
    if failure.status is None:
        return True  # nothing was answered: whatever broke, it was not a decision
    if failure.status in _LATER:
        return True
    return failure.status >= 500 and failure.status not in _NEVER_5XX


def is_open(row: QueuedWrite) -> bool:
    """Whether it waits or is being replayed."""
    return row.status in (WriteStatus.PENDING, WriteStatus.REPLAYING)


def next_created_at(last_ms: int, now_ms: int) -> int:
    """When a row that is queued now was created: a clock that was set back does not put it in front
    of those that came before it.
    """
    return max(last_ms, now_ms)


def replay_key(row: QueuedWrite) -> tuple[int, bytes]:
    return (row.created_at, row.id)


def to_replay(rows: Iterable[QueuedWrite], target: str | None = None) -> list[QueuedWrite]:
    """Rows that wait, in the order in which they are replayed; with `target` only those of that
    node.
    """
    waiting = (
        row
        for row in rows
        if row.status is WriteStatus.PENDING and (target is None or row.target == target)
    )
    return sorted(waiting, key=replay_key)


def queued(row: QueuedWrite, failure: WriteFailure, now_ms: int) -> QueuedWrite:
    """A new row for a write whose first try failed: pending, or failed at once."""
    assert row.status is WriteStatus.PENDING, "a new row waits"
    if is_retryable(failure):
        return _noted(row, failure)
    return replace(_noted(row, failure), status=WriteStatus.FAILED, ended_at=now_ms)


def started(row: QueuedWrite, fence: FenceToken | None, now_ms: int) -> QueuedWrite:
    """A row whose try begins, under a fence of its own. Beginning twice counts twice, and is
    harmless: the quorum knows the id.
    """
    _check_open(row)
    earlier = row.earlier_fences
    if row.fence is not None and row.fence != fence:
        earlier = (*earlier, row.fence)
    return replace(
        row,
        status=WriteStatus.REPLAYING,
        attempts=row.attempts + 1,
        attempted_at=now_ms,
        fence=fence,
        earlier_fences=earlier,
    )


def decided(
    row: QueuedWrite, outcome: Outcome | None, now_ms: int, reason: str = "", detail: str = ""
) -> QueuedWrite:
    """A row whose intent the quorum has decided. Deciding it again says the same."""
    if row.status in (WriteStatus.APPLIED, WriteStatus.FAILED) and row.outcome == outcome:
        return row
    _check_open(row)
    return replace(
        row,
        status=_ENDS[outcome],
        outcome=outcome,
        reason=reason,
        detail=detail[:REASON_CHARS_MAX],
        ended_at=now_ms,
    )


def failed_try(row: QueuedWrite, failure: WriteFailure, now_ms: int) -> QueuedWrite:
    """A row whose try came to no decision: it waits again, or has failed for good."""
    _check_open(row)
    if is_retryable(failure):
        return replace(_noted(row, failure), status=WriteStatus.PENDING)
    return replace(_noted(row, failure), status=WriteStatus.FAILED, ended_at=now_ms)


def recovered(row: QueuedWrite) -> QueuedWrite:
    """A row after a restart: what was under way is pending again."""
    if row.status is WriteStatus.REPLAYING:
        return replace(row, status=WriteStatus.PENDING)
    return row


def resolved(row: QueuedWrite, by: str) -> QueuedWrite:
    """A failed row that a policy, an agent or a person has dealt with."""
    assert by, "somebody did it"
    if row.status is not WriteStatus.FAILED or row.resolved_by:
        raise AlreadyResolved(
            f"the write is {row.status.value}"
            + (f", and {row.resolved_by!r} has resolved it" if row.resolved_by else "")
        )
    return replace(row, resolved_by=by)


def count_writes(rows: Iterable[QueuedWrite]) -> WriteCounts:
    pending = failed = 0
    for row in rows:
        pending += row.status in (WriteStatus.PENDING, WriteStatus.REPLAYING)
        failed += row.status is WriteStatus.FAILED and not row.resolved_by
    return WriteCounts(pending + failed, pending, failed)


def _noted(row: QueuedWrite, failure: WriteFailure) -> QueuedWrite:
    code = failure.code or ("" if failure.status is None else f"http_{failure.status}")
    return replace(row, reason=code, detail=failure.detail[:REASON_CHARS_MAX])


def _check_open(row: QueuedWrite) -> None:
    if not is_open(row):
        raise AlreadyResolved(f"the write has ended as {row.status.value}")
