"""Changing who belongs to a group: one member at a time, through the log itself.

A config is in force from the moment it is appended, on every node. Two majorities of configs that
differ in one voter always have a voter in common; this holds only between neighbours, so one change
is in flight at a time, judged by the log: the last config must be committed. And a new leader must
first have committed an entry of its own term, or it may not know the config that a majority uses
already (the correction to Raft's dissertation).

A new member begins as a learner and is promoted when it has caught up. What would leave no majority
alive is refused.
"""

from __future__ import annotations

from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.limits import (
    QUORUM_ID_MAX,
    QUORUM_MEMBERS_MAX,
    QUORUM_PROMOTE_LAG_MAX,
    QUORUM_VOTERS_MAX,
)
from holdfast.rules.quorum.raft import commit, sending
from holdfast.rules.quorum.raft.config import (
    GroupConfig,
    decode_config,
    encode_config,
    majority,
)
from holdfast.rules.quorum.raft.effects import ChangeOutcome
from holdfast.rules.quorum.raft.events import ChangeMembers
from holdfast.rules.quorum.raft.messages import RaftEntry
from holdfast.rules.quorum.raft.state import GroupState, PeerProgress
from holdfast.rules.quorum.raft.turn import RaftTurn


def change(turn: RaftTurn, asked: ChangeMembers) -> None:
    """Appends the changed config, or says why not."""
    state = turn.state
    reason = not_now(state) or refusal(state, asked)
    if reason:
        turn.change = ChangeOutcome(0, reason, asked.id)
        return
    config = changed(state.log.config, asked)
    payload = encode_config(config)
    try:
        decode_config(payload)
    except BadQuorumMessage:  # Others could not read it: a name or a key is too long.
        turn.change = ChangeOutcome(0, "bad_member", asked.id)
        return
    index = turn.append(RaftEntry(state.term, "config", payload))
    turn.set(log=turn.state.log.with_config(index, config), quiet=0)
    turn.set(peers=_progress(turn.state))
    id = state.log.config.next_id if asked.change == "add" else asked.id
    turn.change = ChangeOutcome(index, id=id)
    sending.broadcast(turn)
    commit.advance(turn)


def changed(config: GroupConfig, asked: ChangeMembers) -> GroupConfig:
    if asked.change == "add":
        return config.with_learner(asked.peer, asked.key)
    if asked.change == "promote":
        return config.with_place(asked.id, "voter")
    return config.without(asked.id)


def not_now(state: GroupState) -> str:
    """Why no change can begin at this time; empty if one can."""
    if state.role != "leader":
        return "not_leader"
    if state.transfer is not None:
        return "transferring"
    if not settled_in_term(state):
        return "term_not_settled"
    if change_in_flight(state):
        return "change_in_flight"
    return ""


def settled_in_term(state: GroupState) -> bool:
    """Whether the leader has committed an entry of its own term."""
    return state.leads_settled


def change_in_flight(state: GroupState) -> bool:
    """Whether the last config in the log is not committed yet."""
    return state.log.config_index > state.commit


def refusal(state: GroupState, asked: ChangeMembers) -> str:
    """Why this change is refused as it is; empty if it is not."""
    config = state.log.config
    member = config.member(asked.id)
    if asked.change == "add":
        if len(config.members) >= QUORUM_MEMBERS_MAX or config.next_id >= QUORUM_ID_MAX:
            return "too_many_members"
        return "already_a_member" if _is_known(config, asked) else ""
    if member is None:
        return "unknown_member"
    if asked.change == "promote":
        if member.place == "voter":
            return "already_a_voter"
        if len(config.voters) >= QUORUM_VOTERS_MAX:
            return "too_many_voters"
        if not caught_up(state, asked.id):
            return "not_caught_up"
    elif config.voters == (asked.id,):
        return "last_voter"
    return "" if keeps_live_majority(state, changed(config, asked)) else "no_live_majority"


def caught_up(state: GroupState, id: int) -> bool:
    """Whether a learner is so close to the end of the log that it can take part."""
    peer = state.peer(id)
    if peer is None or peer.restored or id in state.lost:
        return False
    return peer.match > 0 and state.log.last - peer.match <= QUORUM_PROMOTE_LAG_MAX


def keeps_live_majority(state: GroupState, config: GroupConfig) -> bool:
    """Whether a majority of that config is heard by the leader."""
    live = sum(voter == state.me or _is_live(state, voter) for voter in config.voters)
    return live >= majority(config)


def _is_live(state: GroupState, voter: int) -> bool:
    peer = state.peer(voter)
    return peer is not None and not peer.restored and voter not in state.lost


def _is_known(config: GroupConfig, asked: ChangeMembers) -> bool:
    return any(member.peer == asked.peer for member in config.members)


def _progress(state: GroupState) -> tuple[PeerProgress, ...]:
    """The progress of all other members; of a new one nothing is known."""
    next = state.log.last + 1
    others = [id for id in state.log.config.ids if id != state.me]
    return tuple([state.peer(id) or PeerProgress(id, next=next) for id in others])
