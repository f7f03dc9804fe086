"""What is committed: Raft's rule, and the contract's that the leader's own disk is among those.

An entry is committed when the disks of a majority have it, and it is of the leader's own term;
older entries are committed with it, never by counting, because an entry of an older term on a
majority can still be overwritten. The leader counts itself only as far as its own disk is, and
commits nothing that its disk has not.
"""

from __future__ import annotations

from holdfast.rules.quorum.raft import reads, sending
from holdfast.rules.quorum.raft.config import majority
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.messages import RemovedVoter
from holdfast.rules.quorum.raft.roles import become_follower
from holdfast.rules.quorum.raft.state import GroupState
from holdfast.rules.quorum.raft.turn import RaftTurn


def advance(turn: RaftTurn) -> None:
    """Moves the leader's commit index as far as the rule allows, and tells everybody."""
    state = turn.state
    index = agreed(state)
    if state.role != "leader" or index <= state.commit:
        return
    if not may_commit(state.log, index, state.term):
        return
    before = state.commit
    turn.set(commit=index)
    sending.tell_commit(turn, before)
    _after_config(turn, before)
    reads.next_round(turn)


def agreed(state: GroupState) -> int:
    """The highest index that the disks of a majority and of the leader have."""
    counted = [
        own_match(state) if voter == state.me else _match(state, voter)
        for voter in state.log.config.voters
    ]
    counted.sort(reverse=True)
    return min(counted[majority(state.log.config) - 1], own_match(state))


def own_match(state: GroupState) -> int:
    """How far the leader's own disk is."""
    return state.durable


def may_commit(log: RaftLog, index: int, term: int) -> bool:
    """Only an entry of the own term is committed by counting."""
    return log.term_at(index) == term


def _match(state: GroupState, voter: int) -> int:
    peer = state.peer(voter)
    return 0 if peer is None or peer.restored else peer.match


def _after_config(turn: RaftTurn, before: int) -> None:
    """A config was committed just now: whoever it removed is told, and a leader that removed itself
    steps down.
    """
    state = turn.state
    log = state.log
    if not before < log.config_index <= state.commit:
        return
    earlier = [
        id
        for index, config in log.configs[:-1]
        if index >= _base(state, before)
        for id in config.ids
    ]
    for id in sorted(set(earlier) - set(log.config.ids) - {state.me}):
        turn.send.append(RemovedVoter(state.group, state.me, id, state.term))
    if not log.config.is_voter(state.me):
        become_follower(turn, state.term, 0)


def _base(state: GroupState, before: int) -> int:
    return state.log.config_at(before)[0]
