"""The follower's side of replication: taking entries, commits and snapshots from the leader.

The log is cut only at the first entry whose term differs, so a late or repeated message never
takes away what was acknowledged; nothing at or below the commit index is ever cut. An answer that
acknowledges entries leaves when the disk has them.
"""

from __future__ import annotations

from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.quorum.raft.config import GroupConfig, decode_config
from holdfast.rules.quorum.raft.disk import health
from holdfast.rules.quorum.raft.effects import InstalledSnapshot
from holdfast.rules.quorum.raft.log import RaftLog, after_snapshot
from holdfast.rules.quorum.raft.messages import (
    NO_ROUND,
    AppendAnswer,
    AppendEntries,
    Heartbeat,
    HeartbeatAnswer,
    RaftEntry,
    SnapshotOffer,
)
from holdfast.rules.quorum.raft.roles import become_follower
from holdfast.rules.quorum.raft.state import GroupState
from holdfast.rules.quorum.raft.turn import RaftTurn, lowered

Entries = tuple[RaftEntry, ...]


def on_append(turn: RaftTurn, message: AppendEntries) -> None:
    if not _follow(turn, message.sender):
        return
    if message.entries:
        if turn.state.quiet:
            turn.set(quiet=0)
        if turn.state.disk == "full":
            turn.send.append(_sign_of_life(turn.state, message.sender, message.round))
            return
    log = turn.state.log
    prev, prev_term, entries = _above_boundary(log, message)
    if log.term_at(prev) != prev_term:
        _reject(turn, message, prev)
        return
    start = first_new(log, prev, entries)
    if not _take_entries(turn, prev, entries, start):
        return
    match = prev + len(entries)
    commit = min(message.commit, match)
    if commit > turn.state.commit:
        turn.set(commit=commit)
    answer = AppendAnswer(
        turn.state.group,
        turn.state.me,
        message.sender,
        turn.state.term,
        True,
        match,
        turn.state.log.last,
        message.round,
        disk=health(turn.state),
    )
    turn.send_durable(answer, wait=ack_waits())


def on_heartbeat(turn: RaftTurn, message: Heartbeat) -> None:
    if not _follow(turn, message.sender):
        return
    state = turn.state
    if message.commit > state.commit and state.log.term_at(message.commit) == message.commit_term:
        turn.set(commit=message.commit)
    if message.sleep and has_everything(turn.state, message.commit):
        turn.set(asleep=True)
    if message.round != NO_ROUND:
        turn.send.append(_sign_of_life(turn.state, message.sender, message.round))


def on_snapshot(turn: RaftTurn, offer: SnapshotOffer) -> None:
    """Takes a whole snapshot, if it says more than is committed here. Entries after it stay only if
    the log has the very entry that it ends with.
    """
    if not _follow(turn, offer.sender):
        return
    state = turn.state
    if offer.index > state.commit:
        if state.log.term_at(offer.index) == offer.index_term:
            turn.set(commit=offer.index)
        else:
            _install(turn, offer)
    match = min(max(offer.index, state.commit), turn.state.log.last)
    answer = AppendAnswer(
        state.group,
        state.me,
        offer.sender,
        state.term,
        True,
        match,
        turn.state.log.last,
        offer.round,
        disk=health(state),
    )
    turn.send_durable(answer, wait=ack_waits())


def ack_waits() -> bool:
    """An acknowledgement leaves when the disk has what it acknowledges."""
    return True


def first_new(log: RaftLog, prev: int, entries: Entries) -> int:
    """The position of the first entry that the log does not have: one whose term differs, or one
    past the end; the number of entries if it has all.
    """
    for position, entry in enumerate(entries):
        if log.term_at(prev + 1 + position) != entry.term:
            return position
    return len(entries)


def has_everything(state: GroupState, commit: int) -> bool:
    """Whether a follower may sleep: nothing is under way, on its disk or in its log."""
    return commit == state.log.last == state.commit and not state.unsynced


def _follow(turn: RaftTurn, leader: int) -> bool:
    """Notes that the leader of this term was heard; any message of it resets the timer."""
    state = turn.state
    if state.role == "leader" or state.leader not in (0, leader):
        turn.alarm("two_leaders", leader)
        return False
    become_follower(turn, state.term, leader)
    if turn.state.elapsed:
        turn.set(elapsed=0)
    return True


def _above_boundary(log: RaftLog, message: AppendEntries) -> tuple[int, int, Entries]:
    """Of a message that reaches below the boundary, the part above it: what a snapshot covers is
    committed, and the leader has the same.
    """
    below = log.boundary - message.prev
    if below <= 0:
        return message.prev, message.prev_term, message.entries
    return log.boundary, log.boundary_term, message.entries[below:]


def _take_entries(turn: RaftTurn, prev: int, entries: Entries, start: int) -> bool:
    """Cuts what differs and appends what is new; False if the message cannot be true."""
    new = entries[start:]
    first = prev + 1 + start
    configs = _configs(first, new)
    if configs is None:
        turn.alarm("bad_config", turn.state.leader)
        return False
    if new and first <= turn.state.log.last:
        if first <= turn.state.commit:
            turn.alarm("contradicts_commit", turn.state.leader)
            return False
        turn.cut(first)
    if new:
        turn.append(*new)
        for index, config in configs.items():
            turn.set(log=turn.state.log.with_config(index, config))
    return True


def _configs(first: int, entries: Entries) -> dict[int, GroupConfig] | None:
    """The configs among entries by index; None if one cannot be read."""
    try:
        return {
            index: decode_config(entry.payload)
            for index, entry in enumerate(entries, first)
            if entry.kind == "config"
        }
    except BadQuorumMessage:
        return None


def _reject(turn: RaftTurn, message: AppendEntries, prev: int) -> None:
    state = turn.state
    hint = state.log.probe_from(min(prev, state.log.last), message.prev_term)
    turn.send.append(
        AppendAnswer(
            state.group,
            state.me,
            message.sender,
            state.term,
            False,
            message.prev,
            state.log.last,
            message.round,
            hint,
            max(0, state.log.term_at(hint)),
            health(state),
        )
    )


def _install(turn: RaftTurn, offer: SnapshotOffer) -> None:
    state = turn.state
    turn.install(InstalledSnapshot(offer.index, offer.index_term, offer.config_index, offer.config))
    log = after_snapshot(offer.index, offer.index_term, offer.config_index, offer.config)
    turn.set(
        log=log,
        commit=offer.index,
        told=offer.index,
        # What the disk has beyond the committed part is no longer this log's.
        durable=min(state.durable, state.commit),
        unsynced=lowered(state.unsynced, state.commit),
    )


def _sign_of_life(state: GroupState, to: int, round: int) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        state.group,
        state.me,
        to,
        state.term,
        round,
        state.log.last,
        state.asleep,
        health(state),
    )
