"""The rows that a node keeps of what a quorum has committed, beside those that decisions write.

Entities, leases and nodes are rows of `view`. Here is what goes with them: where this node stands
with the quorum, the commit record of each entry, which commit made which revision, what waits for a
decision, and what the lane of a quorum keeps of a row of the outbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from zlib import crc32

import msgspec

from holdfast.rules.outbox import DROPPED, OutboxState
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import Engine
from holdfast.rules.quorum.view import Clash
from holdfast.rules.quorum.write_queue import QueuedWrite, WriteCounts, WriteStatus
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import OutboxRow


class QuorumRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where this node stands with the quorum of a mesh. A mesh without voters has none."""

    mesh: str
    engine: Engine = "embedded"
    incarnation: int
    tag: bytes
    """Tells this incarnation from any other group of the same name."""
    voter: int | None = None
    """This node's id among the voters; None if it does not vote."""
    applied: int = 0
    """The engine's index of the last entry that was folded here. It counts anew in each
    incarnation.
    """
    number: int = 0
    """The commit number of the last entry that counts; it goes on across incarnations."""
    fence: FenceToken | None = None
    """The fence of that entry."""
    committed_at: int = 0


class CommitRow(msgspec.Struct, frozen=True, gc=False):
    """The commit record of an entry of the log."""

    offset: int
    mesh: str
    number: int
    id: bytes
    head: int
    """The end of this node's log when the entry was folded: its own offset, or a later one if the
    intent had waited in the log.
    """
    record: bytes
    """As `commit_record` encodes it."""


STAGED: Final = 1 << 62
"""Records of a snapshot that is not in place yet have offsets below what any other one has: those
of their envelopes less this, so that a fold may still give these envelopes their records."""
_LOST_BITS: Final = 28
LOST: Final = 1 << _LOST_BITS
"""So many records without an envelope may one snapshot have."""


def staged_offset(mesh: str, offset: int | None, lost: int) -> int:
    """The offset of a staged record: of one whose envelope stands in the log, or of the so-many-th
    one (from 1 on) whose envelope nobody has.
    """
    if offset is not None:
        return offset - STAGED
    assert 0 < lost < LOST, "more records without envelopes than a snapshot may have"
    return -STAGED - (crc32(mesh.encode()) << _LOST_BITS) - lost


def placed_offset(staged: int, lowest: int) -> int:
    """The offset of a staged record that takes its place; `lowest` is the lowest one in place."""
    if staged > -STAGED:
        return staged + STAGED
    return min(lowest, 0) - (-staged - STAGED) % LOST


class RevisionRow(msgspec.Struct, frozen=True, gc=False):
    """One revision of an entity, and the commit that made it."""

    type: str
    id: str
    revision: int
    number: int
    deleted: bool
    whole: bool


class WaitingConflict(msgspec.Struct, frozen=True, kw_only=True):
    """An intent that needs a decision. Its own side is the envelope in the log, the other one the
    entities as they stand.
    """

    mesh: str
    number: int
    """Of its commit."""
    clashes: tuple[Clash, ...]
    resolved_at: int | None = None
    resolution: str = ""


class QueueNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the lane of a quorum keeps of a row of the outbox beyond what every lane does. Both
    together are a `QueuedWrite`.
    """

    number: int
    """Of the row of the outbox."""
    target: str = ""
    outcome: Outcome | None = None
    fence: FenceToken | None = None
    earlier_fences: tuple[FenceToken, ...] = ()
    resolved_by: str = ""


_STATUS: Final = {
    OutboxState.PENDING: WriteStatus.PENDING,
    OutboxState.INFLIGHT: WriteStatus.REPLAYING,
    OutboxState.DONE: WriteStatus.APPLIED,
    OutboxState.DEAD: WriteStatus.FAILED,
    OutboxState.ABORTED: WriteStatus.FAILED,
}
"""The states of the outbox in the words of the source document. An aborted row is one that somebody
gave up: it has failed, and is resolved."""
_STATES: Final = {
    status: state for state, status in _STATUS.items() if state is not OutboxState.ABORTED
}


def queued_write(row: OutboxRow, note: QueueNote) -> QueuedWrite:
    """A row of the outbox in the lane of a quorum, as the rules of the queue see it."""
    return QueuedWrite(
        id=row.id,
        mesh=row.mesh,
        target=note.target,
        created_at=row.created_at,
        status=_STATUS[OutboxState(row.state)],
        attempts=row.attempts,
        fence=note.fence,
        earlier_fences=note.earlier_fences,
        outcome=note.outcome,
        reason=row.code,
        detail=row.error,
        attempted_at=row.tried_at,
        ended_at=row.ended_at,
        resolved_by=note.resolved_by or (DROPPED if row.state == OutboxState.ABORTED else ""),
    )


def with_write(row: OutboxRow, write: QueuedWrite) -> tuple[OutboxRow, QueueNote]:
    """How a write is kept after it has changed, in the place of this row."""
    changed = msgspec.structs.replace(
        row,
        state=_STATES[write.status].value,
        attempts=write.attempts,
        tried_at=write.attempted_at,
        ended_at=write.ended_at,
        created_at=write.created_at,
        code=write.reason,
        error=write.detail,
    )
    note = QueueNote(
        number=row.number,
        target=write.target,
        outcome=write.outcome,
        fence=write.fence,
        earlier_fences=write.earlier_fences,
        resolved_by=write.resolved_by,
    )
    return changed, note


def counts_of(by_state: Mapping[str, int]) -> WriteCounts:
    """What of a queue still needs something, from how many unresolved rows are in which state."""
    pending = by_state.get(OutboxState.PENDING, 0) + by_state.get(OutboxState.INFLIGHT, 0)
    failed = by_state.get(OutboxState.DEAD, 0)
    return WriteCounts(pending + failed, pending, failed)
