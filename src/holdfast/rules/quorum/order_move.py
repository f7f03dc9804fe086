"""How the order of a mesh goes from one engine to another: its last entry ends it.

`order.move` is an entry like any other, and the last that counts in its incarnation. Where it is
folded, the incarnation rises in the same step: whatever the old engine commits behind it is fenced,
on every node and for ever, and its intents may still be committed by the next order. That one
begins behind the move: with the next incarnation, the tag that the entry names, and epochs above
that of its fence. So every node knows from the order itself where the next one begins, numbers go
on without a gap, and fences only grow (docs/decisions, 0086).
"""

from __future__ import annotations

import msgspec

from holdfast.rules.limits import QUORUM_ID_MAX, QUORUM_IDS_PER_INCARNATION
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import OrderMove
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.quorum.view import PutOrder, Ruling
from holdfast.rules.reconcile import Outcome


def rule_move(body: OrderMove, fence: FenceToken) -> Ruling:
    """What a move decides. One that was made for an earlier incarnation comes too late."""
    if body.incarnation != fence.incarnation:
        return Ruling(outcome=Outcome.SUPERSEDED)
    put = PutOrder(body.engine, fence.incarnation + 1, body.tag)
    return Ruling(outcome=Outcome.APPLIED, writes=(put,))


def moved_standing(row: QuorumRow, put: PutOrder) -> QuorumRow:
    """Where a node stands that has folded a move: at the beginning of the next incarnation, of
    which it knows nothing yet. Who votes there is for the new engine to say.
    """
    return msgspec.structs.replace(
        row, engine=put.engine, incarnation=put.incarnation, tag=put.tag, voter=None, applied=0
    )


def has_not_begun(row: QuorumRow) -> bool:
    """Whether this node has folded the end of an order, and nothing of the next one."""
    return row.fence is not None and row.fence.incarnation < row.incarnation


def first_voter_id(incarnation: int) -> int:
    """The id of the first voter of a group that begins behind another order. Ids are never used
    twice in a mesh, and nobody need know which ones the groups before it have used.
    """
    return min(1 + (incarnation - 1) * QUORUM_IDS_PER_INCARNATION, QUORUM_ID_MAX - 1)
