"""Becoming follower, candidate or leader, and what each change clears.

Everything that belongs to one stay in a role is cleared here and nowhere else: votes, progress of
members, reads that wait, a transfer under way. So no flag of an old role outlives it.
"""

from __future__ import annotations

from holdfast.rules.quorum.raft.effects import ReadFailed
from holdfast.rules.quorum.raft.messages import RaftEntry, ReadAnswer
from holdfast.rules.quorum.raft.state import PeerProgress
from holdfast.rules.quorum.raft.turn import RaftTurn


def become_follower(turn: RaftTurn, term: int, leader: int) -> None:
    """Follows in this term, which may be later than the own one; 0 while no leader is known."""
    state = turn.state
    assert term >= state.term, "a term never falls"
    if (state.role, state.term, state.leader) == ("follower", term, leader):
        return
    _leave_role(turn)
    vote = state.vote if term == state.term else 0
    turn.set(role="follower", term=term, vote=vote, leader=leader)
    turn.retry_held = turn.retry_held or leader != 0


def become_precandidate(turn: RaftTurn) -> None:
    """Asks whether it would be elected; term and vote stay."""
    _leave_role(turn)
    turn.set(role="precandidate", leader=0)


def become_candidate(turn: RaftTurn, forced: bool) -> None:
    """Stands for election in the next term. The vote for itself counts when the disk has it."""
    _leave_role(turn)
    state = turn.state
    turn.set(
        role="candidate",
        term=state.term + 1,
        vote=state.me,
        leader=0,
        forced=forced,
        vote_write=turn.write_number,
    )


def become_leader(turn: RaftTurn) -> None:
    """Leads. The first entry of the term is empty: by it everything before it is committed."""
    _leave_role(turn)
    state = turn.state
    next = state.log.last + 1
    others = [id for id in state.log.config.ids if id != state.me]
    peers = tuple([PeerProgress(id, next=next) for id in others])
    turn.set(role="leader", leader=state.me, peers=peers, term_start=next, round=1)
    turn.append(RaftEntry(state.term, "noop"))
    turn.retry_held = True


def _leave_role(turn: RaftTurn) -> None:
    state = turn.state
    for read in state.reads:
        fail_read(turn, read.origin, read.number)
    turn.set(
        votes=(),
        vote_write=0,
        forced=False,
        peers=(),
        round=0,
        term_start=0,
        reads=(),
        transfer=None,
        asleep=False,
        quiet=0,
        elapsed=0,
        timeout=0,
    )
    # What was held for a transfer is tried again, whatever became of it.
    turn.retry_held = turn.retry_held or state.transfer is not None


def fail_read(turn: RaftTurn, origin: int, number: int) -> None:
    """Answers a read that cannot be confirmed any more: a refusal is never silence."""
    state = turn.state
    if origin == state.me:
        turn.reads.append(ReadFailed(number, "leader_changed"))
    else:
        answer = ReadAnswer(state.group, state.me, origin, state.term, number, -1, "leader_changed")
        turn.send.append(answer)
