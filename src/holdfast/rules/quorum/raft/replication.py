"""What members answer to the leader: how far their disks are, and that they are alive.

Answers name the round of the message that they answer. If a member reports a shorter log than it
had acknowledged before that round began, its disk has gone back in time: it is not counted any
more, and an operator has to remove it and add it anew.
"""

from __future__ import annotations

from holdfast.rules.quorum.raft import commit, reads, transfer
from holdfast.rules.quorum.raft.messages import AppendAnswer, HeartbeatAnswer
from holdfast.rules.quorum.raft.sending import send_entries, tell_late
from holdfast.rules.quorum.raft.state import PeerProgress
from holdfast.rules.quorum.raft.turn import RaftTurn


def on_append_answer(turn: RaftTurn, answer: AppendAnswer) -> None:
    peer = _heard(turn, answer)
    if peer is None:
        return
    if not answer.accepted:
        _on_rejection(turn, peer, answer)
    elif answer.match > turn.state.log.last:
        turn.alarm("contradicts_commit", answer.sender)  # It has what nobody sent to it.
    else:
        _on_match(turn, peer, answer.match)
    reads.confirm(turn)


def on_heartbeat_answer(turn: RaftTurn, answer: HeartbeatAnswer) -> None:
    peer = _heard(turn, answer)
    if peer is None:
        return
    peer = turn.set_peer(peer, asleep=answer.asleep, waiting=False)
    if peer.match < turn.state.log.last:
        send_entries(turn, peer, even_none=True)
    reads.confirm(turn)


def on_snapshot_finished(turn: RaftTurn, to: int) -> None:
    """Whatever became of the snapshot: a probe finds out what the member has now."""
    peer = turn.state.peer(to)
    if peer is not None and peer.mode == "snapshot":
        next = max(peer.match, turn.state.log.boundary) + 1
        peer = turn.set_peer(peer, mode="probe", next=next, waiting=False)
        send_entries(turn, peer, even_none=True)


def went_back(peer: PeerProgress, answer: AppendAnswer | HeartbeatAnswer) -> bool:
    """Whether a member says that it may have forgotten, or has less than it had acknowledged. Of
    the latter only an answer to a round that began after that acknowledgement tells; an older one
    is merely late.
    """
    shorter = answer.round > peer.match_round and answer.last < peer.match
    return shorter or answer.disk == "forgot"


def _heard(turn: RaftTurn, answer: AppendAnswer | HeartbeatAnswer) -> PeerProgress | None:
    """Notes a sign of life; None if the answer is nobody's that counts."""
    if turn.state.role != "leader" or answer.round > turn.state.round:
        return None
    peer = turn.state.peer(answer.sender)
    if peer is None or peer.restored:
        return None
    if went_back(peer, answer):
        turn.set_peer(peer, restored=True, active=False)
        turn.alarm("voter_restored", peer.id)
        return None
    echoed = max(peer.echoed, answer.round)
    if peer.active and not peer.asleep and (peer.echoed, peer.disk) == (echoed, answer.disk):
        return peer  # as with most answers between two beats
    return turn.set_peer(peer, active=True, echoed=echoed, disk=answer.disk, asleep=False)


def _on_match(turn: RaftTurn, peer: PeerProgress, match: int) -> None:
    state = turn.state
    before, raised = peer.match, match > peer.match
    if raised:
        peer = turn.set_peer(peer, match=match, match_round=state.round)
    if peer.mode == "probe" or (peer.mode == "snapshot" and match >= state.log.boundary):
        peer = turn.set_peer(peer, mode="stream", waiting=False, next=peer.match + 1)
    elif peer.next <= peer.match:
        peer = turn.set_peer(peer, next=peer.match + 1)
    if raised:
        commit.advance(turn)
        if turn.state.commit == state.commit > before:
            tell_late(turn, peer)
        transfer.nudge(turn)
    known = turn.state.peer(peer.id)
    if known is not None:
        send_entries(turn, known)


def _on_rejection(turn: RaftTurn, peer: PeerProgress, answer: AppendAnswer) -> None:
    late = answer.match <= peer.match or (peer.mode == "probe" and answer.match != peer.next - 1)
    if late or peer.mode == "snapshot":
        return
    agreed = turn.state.log.probe_from(answer.hint, answer.hint_term)
    if answer.hint < turn.state.log.boundary:
        agreed = answer.hint  # The leader cannot tell any more: a snapshot will.
    next = max(peer.match + 1, min(answer.match, agreed + 1))
    peer = turn.set_peer(peer, mode="probe", next=next, waiting=False)
    send_entries(turn, peer, even_none=True)
