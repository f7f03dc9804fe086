"""A group without work sleeps: no ticks, no heartbeats, until something happens.

The leader asks for it when every member has everything, and sleeps when all of them do. Nobody
sleeps while a member lags. A sleeping group trusts the driver to tell that the node at the other
end of a pair is gone (`PairLost`); a proposal, a read, or any message other than those about
sleeping wakes a node, and a follower that wakes wakes its leader.
"""

from __future__ import annotations

from holdfast.rules.quorum.raft import sending
from holdfast.rules.quorum.raft.disk import health
from holdfast.rules.quorum.raft.events import (
    DiskWrote,
    LogCompacted,
    PairFound,
    PairLost,
    RaftEvent,
    Receive,
    Tick,
)
from holdfast.rules.quorum.raft.messages import Heartbeat, HeartbeatAnswer, WakeGroup
from holdfast.rules.quorum.raft.state import GroupState
from holdfast.rules.quorum.raft.turn import RaftTurn


def may_sleep(state: GroupState) -> bool:
    """Whether a leader wants its group to sleep."""
    if not state.timing.sleep or state.quiet < state.timing.sleep:
        return False
    busy = state.unsynced or state.reads or state.transfer or health(state) != "fine"
    if busy or state.commit != state.log.last:
        return False
    return all(
        peer.match == state.log.last and not peer.restored and peer.id not in state.lost
        for peer in state.peers
    )


def fall_asleep(turn: RaftTurn) -> None:
    """Puts a leader to sleep whose members all sleep."""
    state = turn.state
    if may_sleep(state) and all(peer.asleep for peer in state.peers):
        turn.set(asleep=True)


def wakes(state: GroupState, event: RaftEvent) -> bool:
    """Whether this event wakes a sleeping node."""
    if isinstance(event, Tick | DiskWrote | LogCompacted | PairFound):
        return False
    if isinstance(event, PairLost):
        return state.role == "leader" or event.peer == state.leader
    if isinstance(event, Receive):
        return not _about_sleep(state, event)
    return True


def wake(turn: RaftTurn, event: RaftEvent) -> None:
    """Ends the sleep: timers start anew."""
    turn.set(asleep=False, quiet=0, elapsed=0)
    state = turn.state
    if state.role == "leader":
        for peer in state.peers:
            turn.set_peer(peer, asleep=False, active=False)
        sending.heartbeat(turn)
    elif isinstance(event, PairLost):
        # The driver has waited for a sign of life already.
        turn.set(elapsed=state.timing.election)
    elif state.leader:
        turn.send.append(WakeGroup(state.group, state.me, state.leader, state.term))


def _about_sleep(state: GroupState, event: Receive) -> bool:
    message = event.message
    if isinstance(message, Heartbeat):
        return message.sleep and message.term == state.term and message.sender == state.leader
    return isinstance(message, HeartbeatAnswer) and message.term <= state.term
