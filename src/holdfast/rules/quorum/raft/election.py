"""Who leads: pre-votes, votes, and the rules by which they are given.

A node whose election timeout passes first asks whether it would be elected (pre-vote), without
touching its term; so a node that was cut off does not come back with a term that deposes a healthy
leader. Whoever has heard a leader within the least election timeout refuses, unless the leader
itself asked for the election. A vote leaves a node when its disk has it; so does a candidate's
question, because it promises the log that it names.

Votes are counted over the config of the candidate, as a set of ids. Any node of the group gives its
vote by these rules, also a learner or one that its config does not name: a learner may have been
promoted without knowing yet.
"""

from __future__ import annotations

from typing import Literal

from holdfast.rules.quorum.raft import sending
from holdfast.rules.quorum.raft.config import GroupConfig, majority
from holdfast.rules.quorum.raft.messages import AskVote, TimeoutNow, VoteAnswer
from holdfast.rules.quorum.raft.roles import (
    become_candidate,
    become_follower,
    become_leader,
    become_precandidate,
)
from holdfast.rules.quorum.raft.state import GroupState
from holdfast.rules.quorum.raft.turn import RaftTurn

Votes = tuple[tuple[int, bool], ...]


def ask_first(turn: RaftTurn) -> None:
    """Begins with a pre-vote."""
    become_precandidate(turn)
    turn.set(votes=count_vote((), turn.state.me, True))
    _ask(turn, pre=True)
    _judge(turn)


def campaign(turn: RaftTurn, *, forced: bool = False) -> None:
    """Stands for election, in a new term. `forced`: the leader asked for it."""
    become_candidate(turn, forced)
    _ask(turn, pre=False)


def on_timeout_now(turn: RaftTurn, message: TimeoutNow) -> None:
    if turn.state.may_lead and turn.state.role != "leader":
        campaign(turn, forced=True)


def on_own_vote_durable(turn: RaftTurn) -> None:
    """The disk has a candidate's vote for itself."""
    state = turn.state
    turn.set(votes=count_vote(state.votes, state.me, True))
    _judge(turn)


def on_ask_vote(turn: RaftTurn, ask: AskVote) -> None:
    """Answers a question in the own term, or a pre-vote in any."""
    if ask.pre:
        granted = would_vote(turn.state, ask)
        term = ask.term if granted else turn.state.term
        turn.send.append(_answer(turn.state, ask, term, granted))
        return
    granted = ask.term == turn.state.term and may_grant(turn.state, ask)
    if granted:
        turn.set(vote=ask.sender, elapsed=0)
    answer = _answer(turn.state, ask, turn.state.term, granted)
    turn.send_durable(answer, wait=granted and vote_waits())


def on_vote_answer(turn: RaftTurn, answer: VoteAnswer) -> None:
    state = turn.state
    if answer.pre:
        expected = state.term + 1 if answer.granted else state.term
        counts = state.role == "precandidate" and answer.term == expected
    else:
        counts = state.role == "candidate" and answer.term == state.term
    if counts:
        turn.set(votes=count_vote(state.votes, answer.sender, answer.granted))
        _judge(turn)


def hears_leader(state: GroupState) -> bool:
    """Whether a leader was heard within the least election timeout. A leader hears itself: it steps
    down when a majority is silent for as long.
    """
    return state.leader != 0 and state.elapsed < state.timing.election


def may_vote(state: GroupState) -> bool:
    """A node that may have forgotten a vote never gives one."""
    return not (state.barred or state.removed or state.disk == "failed")


def would_vote(state: GroupState, ask: AskVote) -> bool:
    """The answer to a pre-vote."""
    if ask.term <= state.term or hears_leader(state):
        return False
    return may_vote(state) and state.log.up_to_date(ask.last, ask.last_term)


def may_grant(state: GroupState, ask: AskVote) -> bool:
    """Whether this node votes for the asker in its own term: one vote a term."""
    free = state.vote == ask.sender or (state.vote == 0 and state.leader == 0)
    return free and may_vote(state) and state.log.up_to_date(ask.last, ask.last_term)


def vote_waits() -> bool:
    """A vote leaves when the disk has it: a crash would forget it, and it would be given again."""
    return True


def count_vote(votes: Votes, voter: int, granted: bool) -> Votes:
    """The votes with one more answer; the first answer of a voter stands."""
    return tuple(sorted({voter: granted, **dict(votes)}.items()))


def outcome(config: GroupConfig, votes: Votes) -> Literal["won", "lost", "open"]:
    """Counts over the config: answers of others than its voters are nothing."""
    voters, needed = config.voters, majority(config)
    if sum(granted for voter, granted in votes if voter in voters) >= needed:
        return "won"
    refused = sum(not granted for voter, granted in votes if voter in voters)
    return "lost" if len(voters) - refused < needed else "open"


def _ask(turn: RaftTurn, *, pre: bool) -> None:
    state = turn.state
    term = state.term + 1 if pre else state.term
    log = state.log
    for voter in log.config.voters:
        if voter != state.me:
            ask = AskVote(
                state.group, state.me, voter, term, pre, log.last, log.last_term, state.forced
            )
            turn.send_durable(ask, wait=not pre)


def _judge(turn: RaftTurn) -> None:
    state = turn.state
    result = outcome(state.log.config, state.votes)
    if result == "won" and state.role == "precandidate":
        campaign(turn)
    elif result == "won":
        become_leader(turn)
        sending.broadcast(turn)
    elif result == "lost":
        become_follower(turn, state.term, 0)


def _answer(state: GroupState, ask: AskVote, term: int, granted: bool) -> VoteAnswer:
    return VoteAnswer(state.group, state.me, ask.sender, term, ask.pre, granted)
