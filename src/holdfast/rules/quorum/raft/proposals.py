"""What callers want in the log, and where it goes.

The leader appends; any other member forwards to the leader it knows, under the same ids; where
there is no leader, or leadership is being handed over, the driver keeps the proposals until the
machine says `retry_held`. The machine keeps no payload: it says what becomes of each proposal.
"""

from __future__ import annotations

from holdfast.rules.limits import (
    QUORUM_ENTRY_BYTES_MAX,
    QUORUM_PROPOSALS_MAX,
    QUORUM_UNCOMMITTED_MAX,
)
from holdfast.rules.quorum.raft import commit, sending
from holdfast.rules.quorum.raft.effects import (
    ProposalsForwarded,
    ProposalsHeld,
    ProposalsRefused,
    ProposalsTaken,
)
from holdfast.rules.quorum.raft.messages import (
    ForwardAnswer,
    ForwardProposals,
    Proposal,
    RaftEntry,
    RefusalReason,
)
from holdfast.rules.quorum.raft.state import GroupState
from holdfast.rules.quorum.raft.turn import RaftTurn

Proposals = tuple[Proposal, ...]


def propose(turn: RaftTurn, proposals: Proposals) -> None:
    """Callers of this node propose."""
    assert 0 < len(proposals) <= QUORUM_PROPOSALS_MAX
    state = turn.state
    turn.set(quiet=0)
    if sum(len(it.payload) for it in proposals) > QUORUM_ENTRY_BYTES_MAX:
        turn.proposals.append(ProposalsRefused(_ids(proposals), "too_large"))
    elif state.role == "leader":
        _take(turn, proposals, state.me)
    elif state.removed or state.disk == "failed":
        reason: RefusalReason = "removed" if state.removed else "disk_failed"
        turn.proposals.append(ProposalsRefused(_ids(proposals), reason))
    elif state.leader:
        turn.send.append(
            ForwardProposals(state.group, state.me, state.leader, state.term, proposals)
        )
        turn.proposals.append(ProposalsForwarded(_ids(proposals), state.leader))
    else:
        turn.proposals.append(ProposalsHeld(_ids(proposals), "no_leader", state.me))


def on_forward(turn: RaftTurn, message: ForwardProposals) -> None:
    """Another member forwards. Whoever does not lead says so; nothing is forwarded twice."""
    state = turn.state
    turn.set(quiet=0)
    if state.role == "leader":
        _take(turn, message.proposals, message.sender)
    else:
        _decline(turn, _ids(message.proposals), message.sender, "no_leader")


def on_forward_answer(turn: RaftTurn, answer: ForwardAnswer) -> None:
    turn.proposals.append(ProposalsRefused(answer.ids, answer.reason))


def held_because(state: GroupState) -> RefusalReason | None:
    """Why the leader takes no proposals for a while."""
    if state.transfer is not None:
        return "transferring"
    if state.log.last - state.commit >= QUORUM_UNCOMMITTED_MAX:
        return "too_many"
    return None


def _take(turn: RaftTurn, proposals: Proposals, origin: int) -> None:
    state = turn.state
    ids = _ids(proposals)
    held = held_because(state)
    if held is not None:
        turn.proposals.append(ProposalsHeld(ids, held, origin))
    elif state.disk == "full":
        if origin == state.me:
            turn.proposals.append(ProposalsRefused(ids, "disk_full"))
        else:
            _decline(turn, ids, origin, "disk_full")
    else:
        first = state.log.last + 1
        turn.append(*[RaftEntry(state.term, "data", proposal.payload) for proposal in proposals])
        turn.proposals.append(ProposalsTaken(ids, first, state.term))
        sending.broadcast(turn)
        commit.advance(turn)


def _decline(turn: RaftTurn, ids: tuple[bytes, ...], to: int, reason: RefusalReason) -> None:
    state = turn.state
    turn.send.append(ForwardAnswer(state.group, state.me, to, state.term, ids, reason))


def _ids(proposals: Proposals) -> tuple[bytes, ...]:
    return tuple([proposal.id for proposal in proposals])
