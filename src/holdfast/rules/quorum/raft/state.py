"""What a node knows of one group: one frozen value, so that a step cannot half happen.

Durable are term, vote and log (`RaftWrite` carries them). Everything else is lost in a crash, and
`restarted` makes the state that a node begins with from what its disk has.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.rules.limits import QUORUM_TERM_MAX, QUORUM_TERM_SPAN
from holdfast.rules.quorum.raft.effects import Role
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.messages import DiskHealth


class GroupTiming(msgspec.Struct, frozen=True):
    """In ticks. An election timeout is drawn from [election, 2 * election)."""

    heartbeat: int = 1
    election: int = 10
    sleep: int = 20
    """After so many ticks without work a group falls asleep; 0: never."""


class PeerProgress(msgspec.Struct, frozen=True):
    """What the leader knows of one other member."""

    id: int
    match: int = 0
    """The member's disk has the leader's log up to here."""
    next: int = 1
    """The first index that has not been sent to it."""
    mode: Literal["probe", "stream", "snapshot"] = "probe"
    """`probe`: one message at a time, until it is known where the logs agree. `stream`: many may
    be under way. `snapshot`: it waits for a snapshot."""
    waiting: bool = False
    """A probe is under way."""
    active: bool = False
    """It has answered since the leader last counted its quorum."""
    echoed: int = 0
    """The highest round that it has answered."""
    match_round: int = 0
    """The leader's round when `match` last rose."""
    disk: DiskHealth = "fine"
    asleep: bool = False
    restored: bool = False
    """It has less than it had acknowledged: its disk went back, and it counts for nothing."""


class UnsyncedWrite(msgspec.Struct, frozen=True):
    """A write that the disk has not acknowledged."""

    number: int
    term: int
    last: int
    """How far the log is on the disk once this is: lowered when a later write cuts the log, so
    that a late acknowledgement never counts for entries that took the place of others."""
    age: int = 0
    """Ticks since it was given out."""


class PendingRead(msgspec.Struct, frozen=True):
    """A read that the leader has to confirm."""

    origin: int
    number: int
    round: int = 0
    """The round that will confirm it; 0: it waits for the next one."""
    index: int = 0


class TransferState(msgspec.Struct, frozen=True):
    """A transfer of leadership under way."""

    to: int
    elapsed: int = 0


def last_term(incarnation: int) -> int:
    """The highest term that an incarnation of a group may come to."""
    return min(incarnation * QUORUM_TERM_SPAN, QUORUM_TERM_MAX + 1) - 1


class GroupState(msgspec.Struct, frozen=True):
    """All that the machine of one group on one node remembers."""

    group: bytes
    """The tag of the incarnation; every message carries it."""
    incarnation: int
    """Its number, the first part of every fence."""
    me: int
    timing: GroupTiming
    log: RaftLog
    term: int = 0
    vote: int = 0
    role: Role = "follower"
    leader: int = 0
    commit: int = 0
    told: int = 0
    """Up to here entries were given out to be applied, or came with a snapshot. Entries are given
    out when they are committed and this node's disk has them."""
    durable: int = 0
    """Up to here the disk has the log."""
    unsynced: tuple[UnsyncedWrite, ...] = ()
    next_write: int = 1
    elapsed: int = 0
    """Ticks since a leader was heard, this election began, or the quorum was counted."""
    timeout: int = 0
    """The election timeout in ticks; 0: the next tick draws it."""
    quiet: int = 0
    """Ticks since there was work."""
    no_leap: int = 0
    """For so many ticks the term rises by steps only: it has leapt (`admission`)."""
    votes: tuple[tuple[int, bool], ...] = ()
    """Who has answered in this election, by id."""
    vote_write: int = 0
    """The write that makes a candidate's vote for itself durable; it counts only then."""
    forced: bool = False
    """The last leader asked for this election."""
    peers: tuple[PeerProgress, ...] = ()
    """Of a leader: all other members, by id."""
    round: int = 0
    """Of a leader: the number of the last round of heartbeats."""
    term_start: int = 0
    """Of a leader: the index of its first entry."""
    reads: tuple[PendingRead, ...] = ()
    transfer: TransferState | None = None
    asleep: bool = False
    barred: bool = False
    """The disk of this node may have forgotten votes and promises: it neither votes nor leads nor
    counts until its id is removed and it joins anew."""
    removed: bool = False
    removed_by: tuple[int, ...] = ()
    """Voters that said so since a leader last spoke to this node; it believes most of them."""
    disk: DiskHealth = "fine"
    lost: tuple[int, ...] = ()
    """Members whose nodes are not heard."""

    def peer(self, id: int) -> PeerProgress | None:
        for peer in self.peers:
            if peer.id == id:
                return peer
        return None

    @property
    def last_write(self) -> int:
        """The number of the last write that the disk has not acknowledged; 0 if it has all."""
        return self.unsynced[-1].number if self.unsynced else 0

    @property
    def terms_are_used(self) -> bool:
        """Whether there is no term left for another election. Only a recovery helps."""
        return self.term >= last_term(self.incarnation)

    @property
    def may_lead(self) -> bool:
        """Whether this node may stand for election. While a config that removes it is not committed
        it still may: the others may not be able to elect without it (dissertation, 4.2.2). In the
        last term of an incarnation nobody may: there is no next one.
        """
        if self.barred or self.removed or self.disk not in ("fine", "slow") or self.terms_are_used:
            return False
        since = self.log.config_at(self.commit)[0]
        return any(config.is_voter(self.me) for at, config in self.log.configs if at >= since)

    @property
    def leads_settled(self) -> bool:
        """Whether this node leads and has committed an entry of its own term."""
        return self.role == "leader" and self.commit >= self.term_start

    def fence(self, index: int) -> tuple[int, int, int]:
        """The fence of an entry: incarnation, term, index. It only grows."""
        term = self.log.term_at(index)
        assert term >= 0, "the log does not know that entry any more"
        return (self.incarnation, term, index)


class DurablePast(msgspec.Struct, frozen=True):
    """What the disk of a node has of a group when it starts."""

    term: int
    vote: int
    log: RaftLog
    applied: int
    """Applied by this node's fold, in the same transaction: never above the end of the log."""


def restarted(
    past: DurablePast,
    *,
    me: int,
    group: bytes,
    incarnation: int,
    timing: GroupTiming,
    next_write: int = 1,
    barred: bool = False,
) -> GroupState:
    """The state that a node starts with. `barred`: its disk may not be the one that it voted with
    (a restored or copied home, a damaged log), so it must not vote. Where the log is gone and the
    fold is not, the past is `after_snapshot` of what was applied.
    """
    assert past.log.boundary <= past.applied <= past.log.last, "the fold has what the log has not"
    return GroupState(
        group=group,
        incarnation=incarnation,
        me=me,
        timing=timing,
        log=past.log,
        term=past.term,
        vote=past.vote,
        commit=past.applied,
        told=past.applied,
        durable=past.log.last,
        next_write=next_write,
        barred=barred,
    )
