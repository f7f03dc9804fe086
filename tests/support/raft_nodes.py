"""Nodes as values, for searches: the product's machine, its disk, and writes that wait for it.

A search meets the same node in the same state again and again, so nodes are numbered and every
local step is done once: (node, event) -> (node, what it sends). Counters that only grow are put
back to a normal form between actions; they would make equal states look different.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from holdfast.rules.quorum.raft.config import GroupConfig, encode_config
from holdfast.rules.quorum.raft.effects import RaftWrite, SendAppend, SendSnapshot, filled
from holdfast.rules.quorum.raft.events import DiskWrote, RaftEvent
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.machine import step
from holdfast.rules.quorum.raft.messages import Message, RaftEntry
from holdfast.rules.quorum.raft.state import DurablePast, GroupState, GroupTiming, restarted

GROUP = b"group of a model"
TIMING = GroupTiming(heartbeat=1, election=1000, sleep=0)


class ModelNode(NamedTuple):
    """One node: what it remembers, what its disk has, and writes and messages under way."""

    state: GroupState
    disk: DurablePast
    queue: tuple[RaftWrite, ...] = ()
    waiting: tuple[tuple[int, Message], ...] = ()


def started(me: int, past: DurablePast, *, barred: bool = False) -> ModelNode:
    """A node that starts from its disk. Nothing is applied in a model: what is committed is learned
    again.
    """
    state = restarted(past, me=me, group=GROUP, incarnation=1, timing=TIMING, barred=barred)
    return ModelNode(state, past)


def empty_past(config: GroupConfig) -> DurablePast:
    return DurablePast(0, 0, RaftLog(configs=((0, config),)), 0)


def on_disk(past: DurablePast, write: RaftWrite, state: GroupState) -> DurablePast:
    """The disk after a write."""
    log = past.log.cut(write.cut_from) if write.cut_from else past.log
    configs = dict(state.log.configs)
    for index, entry in enumerate(write.entries, write.first):
        assert index == log.last + 1, "a gap in a log"
        log = log.appended(entry.term, 1)
        if entry.kind == "config":
            log = log.with_config(index, configs[index])
    return DurablePast(write.term, write.vote, log, 0)


def entries_of(log: RaftLog, first: int, last: int) -> tuple[RaftEntry, ...]:
    """Entries of a log; of payloads a model needs only the configs."""
    configs = dict(log.configs)
    return tuple(
        RaftEntry(log.term_at(index), "config", encode_config(configs[index]))
        if index in configs
        else RaftEntry(log.term_at(index), "data")
        for index in range(first, last + 1)
    )


Sent = tuple[Message, ...]


def advanced(node: ModelNode, event: RaftEvent, *, entries_max: int = 0) -> tuple[ModelNode, Sent]:
    """One step; what is sent at once comes back, the rest waits for the disk."""
    state, effects = step(node.state, event)
    sent: list[Message] = []
    for out in effects.send:
        if isinstance(out, SendAppend):
            part = entries_of(state.log, out.first, out.last)
            sent += filled(out, part[:entries_max] if entries_max else part)
        else:
            assert not isinstance(out, SendSnapshot), "no snapshots in a model"
            sent.append(out)
    queue = (*node.queue, effects.write) if effects.write else node.queue
    waiting = (*node.waiting, *effects.send_after) if effects.send_after else node.waiting
    return ModelNode(state, node.disk, queue, waiting), tuple(sent)


def written(node: ModelNode, *, told: bool = True) -> tuple[ModelNode, Sent]:
    """The disk takes the first write that waits, and tells it."""
    write = node.queue[0]
    disk = on_disk(node.disk, write, node.state)
    ready = tuple(message for after, message in node.waiting if after <= write.number)
    waiting = tuple(pair for pair in node.waiting if pair[0] > write.number)
    there = ModelNode(node.state, disk, node.queue[1:], waiting)
    there, sent = advanced(there, DiskWrote(write.number, write.term, write.last))
    return there, (*ready, *sent)


def synced(node: ModelNode) -> tuple[ModelNode, Sent]:
    """The disk takes all."""
    sent: Sent = ()
    while node.queue:
        node, more = written(node)
        sent += more
    return node, sent


def normal(node: ModelNode) -> ModelNode:
    """The same node with its counters put back, between two actions that are atomic."""
    state = node.state
    role, leader = ("leader", state.me) if state.role == "leader" else ("follower", 0)
    peers = tuple(
        [
            replace(
                peer,
                next=peer.match + 1,
                mode="probe",
                waiting=False,
                active=False,
                echoed=0,
                match_round=0,
            )
            for peer in state.peers
        ]
    )
    shift = state.next_write - 1 - len(node.queue)
    queue = tuple([replace(write, number=write.number - shift) for write in node.queue])
    unsynced = tuple([replace(it, number=it.number - shift, age=0) for it in state.unsynced])
    state = replace(
        state,
        role=role,
        leader=leader,
        peers=peers,
        unsynced=unsynced,
        next_write=state.next_write - shift,
        elapsed=0,
        quiet=0,
        timeout=0,
        votes=(),
        vote_write=0,
        forced=False,
        round=0,
        told=0,
    )
    return ModelNode(state, node.disk, queue, ())
