"""What the leader sends to each member: entries, heartbeats, or word that a snapshot is needed.

A member is probed until it is known where its log agrees, then entries stream to it with many
messages under way; if it needs entries that the leader has dropped it gets a snapshot. Messages may
leave before the leader's own disk has the entries; they count for nothing until its disk and the
members' have them (`commit`).
"""

from __future__ import annotations

from holdfast.rules.limits import QUORUM_APPEND_ENTRIES_MAX, QUORUM_WINDOW_ENTRIES
from holdfast.rules.quorum.raft.effects import SendAppend, SendSnapshot
from holdfast.rules.quorum.raft.messages import NO_ROUND, Heartbeat
from holdfast.rules.quorum.raft.state import GroupState, PeerProgress
from holdfast.rules.quorum.raft.turn import RaftTurn


def broadcast(turn: RaftTurn) -> None:
    """Sends every member what it lacks."""
    for peer in turn.state.peers:
        send_entries(turn, peer)


def send_entries(turn: RaftTurn, peer: PeerProgress, *, even_none: bool = False) -> None:
    """Sends a member the entries that follow, as far as there is room for more under way. With
    `even_none` it gets an empty message too, by which a lost one is noticed.
    """
    while _may_send(turn.state, peer):
        log = turn.state.log
        if peer.next <= log.boundary:
            _send_snapshot(turn, peer)
            return
        last = min(log.last, peer.next + QUORUM_APPEND_ENTRIES_MAX - 1)
        if last < peer.next and not even_none:
            return
        turn.send.append(_append(turn.state, peer, last))
        if peer.mode == "probe":
            turn.set_peer(peer, waiting=True)
            return
        if last < peer.next:
            return
        peer, even_none = turn.set_peer(peer, next=last + 1), False


def heartbeat(turn: RaftTurn, *, sleep: bool = False) -> None:
    """Begins a round: tells every member who leads and what is committed."""
    turn.set(round=turn.state.round + 1)
    state = turn.state
    turn.send += [_beat(state, peer, state.round, sleep) for peer in state.peers]


def tell_commit(turn: RaftTurn, before: int) -> None:
    """Tells members what was committed since `before`, as far as their own logs have it; those that
    have nothing of it hear of it when they do (`replication`). That belongs to no round, so nobody
    answers: the next beat asks for signs of life.
    """
    state = turn.state
    turn.send += [_beat(state, peer, NO_ROUND) for peer in state.peers if peer.match > before]


def tell_late(turn: RaftTurn, peer: PeerProgress) -> None:
    """Tells one member what was committed before it had it."""
    turn.send.append(_beat(turn.state, peer, NO_ROUND))


def _beat(state: GroupState, peer: PeerProgress, round: int, sleep: bool = False) -> Heartbeat:
    upto = min(peer.match, state.commit)
    term = state.log.term_at(upto)
    commit, term = (upto, term) if term >= 0 else (0, 0)
    return Heartbeat(state.group, state.me, peer.id, state.term, commit, term, round, sleep)


def _may_send(state: GroupState, peer: PeerProgress) -> bool:
    if peer.restored or peer.disk == "full" or peer.mode == "snapshot":
        return False
    if peer.mode == "probe":
        return not peer.waiting
    return peer.next - peer.match <= QUORUM_WINDOW_ENTRIES


def _append(state: GroupState, peer: PeerProgress, last: int) -> SendAppend:
    return SendAppend(
        group=state.group,
        sender=state.me,
        to=peer.id,
        term=state.term,
        prev_term=state.log.term_at(peer.next - 1),
        first=peer.next,
        last=last,
        commit=state.commit,
        round=state.round,
    )


def _send_snapshot(turn: RaftTurn, peer: PeerProgress) -> None:
    if peer.active:  # A member that is away would make the driver read a snapshot for nobody.
        turn.send.append(SendSnapshot(peer.id, turn.state.term, turn.state.log.boundary))
        turn.set_peer(peer, mode="snapshot", waiting=False)
