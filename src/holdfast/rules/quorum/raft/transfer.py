"""Handing leadership over without refusing a write.

The leader holds new proposals, sends the chosen voter all it has, and when that voter's disk has
the whole log it tells it to stand for election at once. If no election follows within one election
timeout the leader goes on, and what was held is proposed. `roles` clears a transfer with every
change of role.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.rules.quorum.raft import sending
from holdfast.rules.quorum.raft.messages import TimeoutNow
from holdfast.rules.quorum.raft.state import GroupState, TransferState
from holdfast.rules.quorum.raft.turn import RaftTurn


def begin(turn: RaftTurn, to: int) -> None:
    """Begins a transfer to this voter, or to the best one if `to` is 0."""
    state = turn.state
    target = to or best_target(state)
    if state.role != "leader" or target == state.me or not _can_lead(state, target):
        turn.alarm("transfer_failed", target)
        return
    turn.set(transfer=TransferState(target))
    peer = state.peer(target)
    assert peer is not None
    sending.send_entries(turn, peer)
    nudge(turn)


def best_target(state: GroupState) -> int:
    """The voter that has most of the log; 0 if none can lead."""
    fit = [peer for peer in state.peers if _can_lead(state, peer.id)]
    return max(fit, key=lambda peer: (peer.match, -peer.id)).id if fit else 0


def nudge(turn: RaftTurn) -> None:
    """Tells the chosen voter to stand for election, once it has the whole log."""
    state = turn.state
    if state.transfer is None:
        return
    peer = state.peer(state.transfer.to)
    if peer is not None and peer.match == state.log.last:
        turn.send.append(TimeoutNow(state.group, state.me, peer.id, state.term))


def on_tick(turn: RaftTurn) -> None:
    """Gives up after one election timeout, and reminds the chosen voter until then."""
    under_way = turn.state.transfer
    if under_way is None:
        return
    elapsed = under_way.elapsed + 1
    if elapsed >= turn.state.timing.election:
        turn.set(transfer=None)
        turn.alarm("transfer_failed", under_way.to)
        turn.retry_held = True
    else:
        turn.set(transfer=replace(under_way, elapsed=elapsed))
        nudge(turn)


def _can_lead(state: GroupState, id: int) -> bool:
    peer = state.peer(id)
    if peer is None or not state.log.config.is_voter(id):
        return False
    return not peer.restored and peer.disk == "fine" and id not in state.lost
