"""One group on one node: `step(state, event)` gives the next state and what is to be done.

Deterministic: the same state and event give the same result, on every machine. `RaftMachine` holds
the state for a driver that does not want to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from holdfast.rules.quorum.raft import (
    admission,
    commit,
    disk,
    election,
    following,
    membership,
    proposals,
    reads,
    replication,
    sending,
    sleep,
    transfer,
)
from holdfast.rules.quorum.raft.effects import AlarmName, RaftEffects
from holdfast.rules.quorum.raft.events import (
    AskRead,
    ChangeMembers,
    DiskChanged,
    DiskWrote,
    LogCompacted,
    NodeStalled,
    PairFound,
    PairLost,
    Propose,
    RaftEvent,
    Receive,
    SnapshotFinished,
    StepDown,
    Tick,
    TransferLeadership,
)
from holdfast.rules.quorum.raft.messages import (
    AppendAnswer,
    AppendEntries,
    AskVote,
    ForwardAnswer,
    ForwardProposals,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    ReadAnswer,
    ReadAsk,
    RemovedVoter,
    SnapshotOffer,
    TimeoutNow,
    VoteAnswer,
    WakeGroup,
)
from holdfast.rules.quorum.raft.roles import become_follower
from holdfast.rules.quorum.raft.state import GroupState
from holdfast.rules.quorum.raft.turn import RaftTurn


class RaftMachine:
    """The state of one group, and its steps."""

    def __init__(self, state: GroupState) -> None:
        self.state = state

    def step(self, event: RaftEvent) -> RaftEffects:
        self.state, effects = step(self.state, event)
        return effects


def step(state: GroupState, event: RaftEvent) -> tuple[GroupState, RaftEffects]:
    """What follows from an event."""
    turn = RaftTurn(state)
    if state.asleep:
        if isinstance(event, Tick):
            return turn.end()
        if not isinstance(event, Receive) and sleep.wakes(state, event):
            sleep.wake(turn, event)
    _EVENTS[type(event)](turn, event)
    return turn.end()


def _on_tick(turn: RaftTurn, tick: Tick) -> None:
    if turn.state.disk == "failed":
        return
    disk.grow_older(turn)
    turn.set(elapsed=turn.state.elapsed + 1, quiet=turn.state.quiet + 1)
    if turn.state.no_leap:
        turn.set(no_leap=turn.state.no_leap - 1)
    if turn.state.role == "leader":
        _lead_on(turn)
    else:
        _wait_for_leader(turn, tick.draw)


def _lead_on(turn: RaftTurn) -> None:
    """A leader's tick: it steps down without its disk or a majority, else it beats."""
    state = turn.state
    if disk.hangs(state):
        _step_down(turn, "disk_hangs")
        return
    if state.elapsed >= state.timing.election:
        if not _hears_majority(state):
            _step_down(turn, "lost_quorum")
            return
        quiet = tuple([replace(peer, active=False) for peer in state.peers])
        turn.set(elapsed=0, peers=quiet)
        if state.disk == "full" and state.transfer is None:
            transfer.begin(turn, 0)
    transfer.on_tick(turn)
    if turn.state.elapsed % state.timing.heartbeat == 0:
        sending.heartbeat(turn, sleep=sleep.may_sleep(turn.state))
        sleep.fall_asleep(turn)


def _hears_majority(state: GroupState) -> bool:
    """Check-quorum: a majority has answered since the last count, with disks that work."""
    config = state.log.config
    heard = sum(
        peer.active and peer.disk in ("fine", "full") and config.is_voter(peer.id)
        for peer in state.peers
    )
    return heard + config.is_voter(state.me) >= len(config.voters) // 2 + 1


def _wait_for_leader(turn: RaftTurn, draw: int) -> None:
    state = turn.state
    if not state.timeout:
        turn.set(timeout=state.timing.election + draw % state.timing.election)
    if turn.state.elapsed < turn.state.timeout:
        return
    if state.may_lead and not disk.hangs(turn.state):
        election.ask_first(turn)
    elif state.leader:
        become_follower(turn, state.term, 0)


def _step_down(turn: RaftTurn, why: AlarmName) -> None:
    turn.alarm(why, turn.state.me)
    become_follower(turn, turn.state.term, 0)


def _on_receive(turn: RaftTurn, event: Receive) -> None:
    if turn.state.disk == "failed":
        return
    message = event.message
    if not admission.is_for_this_member(turn, message):
        return
    if turn.state.asleep and sleep.wakes(turn.state, event):
        sleep.wake(turn, event)
    if admission.agrees_on_term(turn, message):
        if turn.state.removed_by and isinstance(message, AppendEntries | Heartbeat):
            # A leader speaks only to members: whoever said that we are none was mistaken, or lied.
            turn.set(removed_by=())
        _MESSAGES[type(message)](turn, message)


def _on_wrote(turn: RaftTurn, wrote: DiskWrote) -> None:
    if not disk.on_wrote(turn, wrote):
        return
    state = turn.state
    if state.role == "candidate" and state.vote_write <= wrote.number:
        election.on_own_vote_durable(turn)
    elif state.role == "leader":
        commit.advance(turn)


def _on_disk(turn: RaftTurn, changed: DiskChanged) -> None:
    """A failed sync is never retried: what the disk has is unknown, so this node is out."""
    state = turn.state
    if state.disk == "failed" or state.disk == changed.health:
        return
    turn.set(disk=changed.health)
    if changed.health == "failed":
        turn.alarm("disk_failed", state.me)
        become_follower(turn, state.term, 0)
    elif changed.health == "full" and state.role == "leader":
        transfer.begin(turn, 0)


def _on_stalled(turn: RaftTurn, event: NodeStalled) -> None:
    """Time that this process slept through says nothing about others: timers start anew."""
    if not turn.state.asleep:
        fresh = tuple([replace(it, age=0) for it in turn.state.unsynced])
        peers = tuple([replace(peer, active=False) for peer in turn.state.peers])
        turn.set(elapsed=0, unsynced=fresh, peers=peers)


def _on_compacted(turn: RaftTurn, compacted: LogCompacted) -> None:
    state = turn.state
    assert compacted.index <= state.told, "a snapshot holds only what was applied"
    if compacted.index > state.log.boundary:
        turn.set(log=state.log.compacted(compacted.index))


def _on_step_down(turn: RaftTurn, event: StepDown) -> None:
    if turn.state.role == "leader":
        become_follower(turn, turn.state.term, 0)


def _on_lost(turn: RaftTurn, event: PairLost) -> None:
    turn.set(lost=tuple(sorted({*turn.state.lost, event.peer})))


def _on_found(turn: RaftTurn, event: PairFound) -> None:
    turn.set(lost=tuple([id for id in turn.state.lost if id != event.peer]))


def _on_wake(turn: RaftTurn, message: WakeGroup) -> None:
    """Only wakes; `step` has done it. An awake leader beats anyway."""
    turn.set(quiet=0)


def _on_removed(turn: RaftTurn, message: RemovedVoter) -> None:
    """A voter says that a config which this node has not got has removed it. An id never comes
    back, so that would be for ever: one voter is not believed, most of the others are.
    """
    state = turn.state
    others = [id for id in state.log.config.voters if id != state.me]
    if state.removed or message.sender not in others:
        return
    removed_by = tuple(sorted({*state.removed_by, message.sender}))
    turn.set(removed_by=removed_by)
    if len(removed_by) * 2 > len(others):
        turn.alarm("this_node_removed", state.me)
        turn.set(removed=True)
        become_follower(turn, state.term, 0)


Handler = Callable[[RaftTurn, Any], None]
_EVENTS: Final[dict[type, Handler]] = {
    Tick: _on_tick,
    Receive: _on_receive,
    Propose: lambda turn, event: proposals.propose(turn, event.proposals),
    AskRead: lambda turn, event: reads.on_ask(turn, event.number),
    ChangeMembers: membership.change,
    TransferLeadership: lambda turn, event: transfer.begin(turn, event.to),
    StepDown: _on_step_down,
    DiskWrote: _on_wrote,
    DiskChanged: _on_disk,
    LogCompacted: _on_compacted,
    SnapshotFinished: lambda turn, event: replication.on_snapshot_finished(turn, event.to),
    NodeStalled: _on_stalled,
    PairLost: _on_lost,
    PairFound: _on_found,
}
_MESSAGES: Final[dict[type[Message], Handler]] = {
    AskVote: election.on_ask_vote,
    VoteAnswer: election.on_vote_answer,
    AppendEntries: following.on_append,
    AppendAnswer: replication.on_append_answer,
    Heartbeat: following.on_heartbeat,
    HeartbeatAnswer: replication.on_heartbeat_answer,
    SnapshotOffer: following.on_snapshot,
    ForwardProposals: proposals.on_forward,
    ForwardAnswer: proposals.on_forward_answer,
    ReadAsk: reads.on_read_ask,
    ReadAnswer: reads.on_read_answer,
    TimeoutNow: election.on_timeout_now,
    WakeGroup: _on_wake,
    RemovedVoter: _on_removed,
}
