"""Which messages are heard at all, and what their term does to the own one.

A message counts if it is of this incarnation of the group, for this member, and not from an id that
a committed config has removed. An id that no config here names yet is heard: this node may lag
behind the config that added it. A later term is adopted; an earlier one is answered with the own
term, so that a sender which is behind, leader or candidate, learns of it.

A term that is far above the own one can only be a lie, or be told by somebody who was lied to. It
is adopted all the same, because voters whose terms are apart could never agree again, but slowly:
one leap in an election timeout, and none above `QUORUM_TERM_LEAP_MAX`. So a liar needs weeks to use
the terms up, and whoever it has not lied to follows as fast as it leads others away. What it can
use up are those of one incarnation: a recovery begins with as many again (`state.last_term`).
"""

from __future__ import annotations

from holdfast.rules.limits import QUORUM_TERM_LEAP_MAX, QUORUM_TERM_STEP_MAX
from holdfast.rules.quorum.raft import election
from holdfast.rules.quorum.raft.disk import health
from holdfast.rules.quorum.raft.messages import (
    AppendAnswer,
    AppendEntries,
    AskVote,
    ForwardProposals,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    ReadAsk,
    RemovedVoter,
    SnapshotOffer,
    VoteAnswer,
    WakeGroup,
)
from holdfast.rules.quorum.raft.roles import become_follower
from holdfast.rules.quorum.raft.state import GroupState, last_term
from holdfast.rules.quorum.raft.turn import RaftTurn

_QUESTIONS = (AskVote, AppendEntries, Heartbeat, SnapshotOffer, ForwardProposals, ReadAsk)
_FROM_LEADER = (AppendEntries, Heartbeat, SnapshotOffer)
_IN_ANY_TERM = (AskVote, ForwardProposals, ReadAsk, WakeGroup)


def is_removed(state: GroupState, id: int) -> bool:
    """Whether a committed config has removed that id. A config that is not committed removes nobody
    yet: it may be cut off by the very member that it leaves out.
    """
    index, committed = state.log.config_at(state.commit)
    if id >= committed.next_id or committed.member(id) is not None:
        return False
    return not any(config.member(id) for at, config in state.log.configs if at >= index)


def is_for_this_member(turn: RaftTurn, message: Message) -> bool:
    """Whether a message is heard at all."""
    state = turn.state
    if message.group != state.group:
        turn.alarm("another_group", message.sender)
    elif message.to != state.me:
        turn.alarm("another_recipient", message.sender)
    elif message.sender == state.me:
        turn.alarm("own_id", message.sender)
    elif is_removed(state, message.sender):
        turn.alarm("removed_sender", message.sender)
        if isinstance(message, _QUESTIONS):
            turn.send.append(RemovedVoter(state.group, state.me, message.sender, state.term))
    elif message.term > last_term(state.incarnation):
        turn.alarm("term_beyond", message.sender)
    elif message.term > state.term + QUORUM_TERM_STEP_MAX:
        return _may_leap(turn, message)
    else:
        return True
    return False


def _may_leap(turn: RaftTurn, message: Message) -> bool:
    """Whether a message of a term far above the own one is handled. If it is too far above, the
    term only comes nearer.
    """
    state = turn.state
    turn.alarm("term_leap", message.sender)
    if state.no_leap:
        return False
    nearer = min(state.term + QUORUM_TERM_LEAP_MAX, last_term(state.incarnation))
    if message.term <= nearer:
        return True
    if not isinstance(message, AskVote | RemovedVoter):  # those change no term by themselves
        turn.set(no_leap=state.timing.election)
        become_follower(turn, nearer, 0)
    return False


def agrees_on_term(turn: RaftTurn, message: Message) -> bool:
    """Whether a message that is heard is to be handled, in what is now the own term."""
    state = turn.state
    if isinstance(message, RemovedVoter):
        return True
    if message.term > state.term:
        return _adopt(turn, message)
    if message.term < state.term and not isinstance(message, _IN_ANY_TERM):
        _tell_term(turn, message)
        return False
    return True


def _adopt(turn: RaftTurn, message: Message) -> bool:
    """Takes over a later term, unless the message only asks or a leader is alive."""
    state = turn.state
    if isinstance(message, AskVote):
        if message.pre:
            return True
        if not message.transfer and election.hears_leader(state):
            turn.alarm("leader_alive", message.sender)
            return False
    if isinstance(message, VoteAnswer) and message.pre and message.granted:
        return True
    if message.term > state.term + QUORUM_TERM_STEP_MAX:
        turn.set(no_leap=state.timing.election)
    leader = message.sender if isinstance(message, _FROM_LEADER) else 0
    become_follower(turn, message.term, leader)
    return True


def _tell_term(turn: RaftTurn, message: Message) -> None:
    """A leader of an earlier term is told of the later one: it steps down."""
    state = turn.state
    head = (state.group, state.me, message.sender, state.term)
    last, disk = state.log.last, health(state)
    if isinstance(message, AppendEntries):
        turn.send.append(AppendAnswer(*head, False, message.prev, last, message.round, disk=disk))
    elif isinstance(message, Heartbeat | SnapshotOffer):
        turn.send.append(HeartbeatAnswer(*head, message.round, last, disk=disk))
