"""Linearizable reads by confirmation: no clock is believed.

The leader notes its commit index, begins a round of heartbeats after the read has come, and when a
majority has answered that round or a later one it was still the leader then: the read may be served
by any node that has applied so far. Reads wait until the leader has committed an entry of its own
term, because before that it does not know what is committed. One round is under way at a time; all
reads that come meanwhile share the next one.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.rules.limits import QUORUM_READS_MAX
from holdfast.rules.quorum.raft import sending
from holdfast.rules.quorum.raft.config import majority
from holdfast.rules.quorum.raft.effects import ReadFailed, ReadReady
from holdfast.rules.quorum.raft.messages import ReadAnswer, ReadAsk, RefusalReason
from holdfast.rules.quorum.raft.state import GroupState, PendingRead
from holdfast.rules.quorum.raft.turn import RaftTurn


def on_ask(turn: RaftTurn, number: int) -> None:
    """A caller of this node wants to read."""
    state = turn.state
    if state.role == "leader":
        _take(turn, PendingRead(state.me, number))
    elif state.leader:
        turn.send.append(ReadAsk(state.group, state.me, state.leader, state.term, number))
    else:
        turn.reads.append(ReadFailed(number, "no_leader"))


def on_read_ask(turn: RaftTurn, ask: ReadAsk) -> None:
    """A caller of another node wants to read there."""
    if turn.state.role == "leader":
        _take(turn, PendingRead(ask.sender, ask.number))
    else:
        _refuse(turn, PendingRead(ask.sender, ask.number), "no_leader")


def on_read_answer(turn: RaftTurn, answer: ReadAnswer) -> None:
    if answer.index >= 0:
        turn.reads.append(ReadReady(answer.number, answer.index))
    else:
        turn.reads.append(ReadFailed(answer.number, answer.reason or "leader_changed"))


def next_round(turn: RaftTurn) -> None:
    """Begins a round for the reads that wait, unless one is under way or it is too early."""
    state = turn.state
    waiting = [read for read in state.reads if not read.round]
    if not waiting or not may_serve(state) or len(waiting) < len(state.reads):
        return
    round = state.round + 1
    turn.set(reads=tuple([replace(it, round=round, index=state.commit) for it in waiting]))
    sending.heartbeat(turn)
    confirm(turn)


def confirm(turn: RaftTurn) -> None:
    """Answers the reads whose round a majority has confirmed, then begins the next round."""
    state = turn.state
    ready = [read for read in state.reads if read.round and _is_confirmed(state, read.round)]
    if not ready:
        return
    turn.set(reads=tuple([read for read in state.reads if read not in ready]))
    for read in ready:
        _answer(turn, read)
    next_round(turn)


def may_serve(state: GroupState) -> bool:
    """A leader that has committed nothing in its term may not know what is committed."""
    return state.leads_settled


def confirms(echoed: int, round: int) -> bool:
    """An answer to an earlier round says nothing about a later read."""
    return echoed >= round


def _is_confirmed(state: GroupState, round: int) -> bool:
    config = state.log.config
    agreeing = sum(
        not peer.restored and confirms(peer.echoed, round) and config.is_voter(peer.id)
        for peer in state.peers
    )
    return agreeing + config.is_voter(state.me) >= majority(config)


def _take(turn: RaftTurn, read: PendingRead) -> None:
    # Each member has room of its own: one that asks for ever refuses itself, and nobody else.
    if sum([it.origin == read.origin for it in turn.state.reads]) >= QUORUM_READS_MAX:
        _refuse(turn, read, "too_many")
        return
    turn.set(reads=(*turn.state.reads, read))
    next_round(turn)


def _answer(turn: RaftTurn, read: PendingRead) -> None:
    state = turn.state
    if read.origin == state.me:
        turn.reads.append(ReadReady(read.number, read.index))
    else:
        turn.send.append(
            ReadAnswer(state.group, state.me, read.origin, state.term, read.number, read.index)
        )


def _refuse(turn: RaftTurn, read: PendingRead, reason: RefusalReason) -> None:
    state = turn.state
    if read.origin == state.me:
        turn.reads.append(ReadFailed(read.number, reason))
    else:
        turn.send.append(
            ReadAnswer(state.group, state.me, read.origin, state.term, read.number, -1, reason)
        )
