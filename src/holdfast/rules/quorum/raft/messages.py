"""What the members of a group tell each other, and how it looks on a link.

Every message names its group by the tag of its incarnation, its sender and its recipient by id, and
the sender's term. The driver checks that the link belongs to the sender's key; the machine checks
the rest (`admission`), but for the three of snapshots, which are between drivers: the machine hears
of a snapshot when all of its parts are there and were checked. Messages are MessagePack arrays with
a number for their kind in front; every field has its bounds, and what is outside them is refused
where it is decoded.

    election       AskVote  VoteAnswer  TimeoutNow
    replication    AppendEntries  AppendAnswer  SnapshotOffer
    snapshots      GroupSnapshotBegin  GroupSnapshotPart  SnapshotReceived
    liveness       Heartbeat  HeartbeatAnswer  WakeGroup
    callers        ForwardProposals  ForwardAnswer  ReadAsk  ReadAnswer
    identity       RemovedVoter
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.limits import (
    QUORUM_APPEND_ENTRIES_MAX,
    QUORUM_ENTRY_BYTES_MAX,
    QUORUM_INDEX_MAX,
    QUORUM_MESSAGE_BYTES_MAX,
    QUORUM_PART_BYTES_MAX,
    QUORUM_PROPOSALS_MAX,
    QUORUM_SNAPSHOT_BYTES_MAX,
    QUORUM_TERM_MAX,
    REASON_CHARS_MAX,
)
from holdfast.rules.quorum.raft.config import GroupConfig, MemberId, check_config

GroupTag = Annotated[bytes, Meta(min_length=16, max_length=16)]
Term = Annotated[int, Meta(ge=0, le=QUORUM_TERM_MAX)]
Index = Annotated[int, Meta(ge=0, le=QUORUM_INDEX_MAX)]
Round = Annotated[int, Meta(ge=0, le=QUORUM_INDEX_MAX)]
NO_ROUND: Final = 0
"""Rounds count from 1."""
PartPlace = Annotated[int, Meta(ge=0, le=QUORUM_SNAPSHOT_BYTES_MAX)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
ProposalId = Annotated[bytes, Meta(min_length=16, max_length=16)]
EntryKind = Literal["noop", "data", "config"]
DiskHealth = Literal["fine", "slow", "full", "failed", "forgot"]
RefusalReason = Literal[
    "no_leader",
    "leader_changed",
    "transferring",
    "disk_full",
    "disk_failed",
    "too_many",
    "too_large",
    "removed",
]


class RaftEntry(msgspec.Struct, array_like=True, frozen=True):
    """One entry of the log: its term, what it is, and its payload. Its index follows from where it
    stands.
    """

    term: Term
    kind: EntryKind
    payload: Annotated[bytes, Meta(max_length=QUORUM_ENTRY_BYTES_MAX)] = b""


class Proposal(msgspec.Struct, array_like=True, frozen=True):
    """What a caller wants in the log, under an id that it keeps however often it is sent."""

    id: ProposalId
    payload: Annotated[bytes, Meta(max_length=QUORUM_ENTRY_BYTES_MAX)]


class RaftMessage(msgspec.Struct, array_like=True, frozen=True):
    """What every message begins with."""

    group: GroupTag
    sender: MemberId
    to: MemberId
    term: Term


class AskVote(RaftMessage, frozen=True, tag=1):
    """Asks for a vote; a pre-vote asks whether one would be given, and changes nothing."""

    pre: bool
    last: Index
    last_term: Term
    transfer: bool = False
    """The leader itself asked for this election: that a leader is alive is no reason to refuse."""


class VoteAnswer(RaftMessage, frozen=True, tag=2):
    """Of a granted pre-vote the term is the one that was asked for, else the sender's own."""

    pre: bool
    granted: bool


class AppendEntries(RaftMessage, frozen=True, tag=3):
    """Entries that follow the one at `prev`; none to find out whether `prev` is there."""

    prev: Index
    prev_term: Term
    commit: Index
    round: Round
    entries: Annotated[tuple[RaftEntry, ...], Meta(max_length=QUORUM_APPEND_ENTRIES_MAX)] = ()


class AppendAnswer(RaftMessage, frozen=True, tag=4):
    """`accepted`: the sender's disk has the leader's log up to `match`. Else the sender lacks the
    entry at `match`, and `hint` with its term is the last that can be the same.
    """

    accepted: bool
    match: Index
    last: Index
    """The last index of the sender: if it is below what it has acknowledged, its disk went back."""
    round: Round
    hint: Index = 0
    hint_term: Term = 0
    disk: DiskHealth = "fine"


class Heartbeat(RaftMessage, frozen=True, tag=5):
    """The sender leads this term, and the entry at `commit` is committed. A driver may merge the
    heartbeats of all groups between two nodes into one frame.
    """

    commit: Index
    commit_term: Term
    round: Round
    """`NO_ROUND`: it only tells what is committed, and is not answered."""
    sleep: bool = False
    """The leader wants the group to sleep: all have everything."""


class HeartbeatAnswer(RaftMessage, frozen=True, tag=6):
    """The sender knows of no later term. It echoes the round, which confirms reads."""

    round: Round
    last: Index
    asleep: bool = False
    disk: DiskHealth = "fine"


class SnapshotOffer(RaftMessage, frozen=True, tag=7):
    """A whole snapshot. Its parts came on their own lane; the receiver's driver makes this message
    and hands it in when it has checked all of them. From a link it is not taken.
    """

    index: Index
    index_term: Term
    config_index: Index
    config: GroupConfig
    round: Round = 0


class ForwardProposals(RaftMessage, frozen=True, tag=8):
    """Proposals for the leader, through another member."""

    proposals: Annotated[tuple[Proposal, ...], Meta(max_length=QUORUM_PROPOSALS_MAX)]


class ForwardAnswer(RaftMessage, frozen=True, tag=9):
    """Forwarded proposals that the sender did not take, and why. Those that it takes are answered
    by the log.
    """

    ids: Annotated[tuple[ProposalId, ...], Meta(max_length=QUORUM_PROPOSALS_MAX)]
    reason: RefusalReason


class ReadAsk(RaftMessage, frozen=True, tag=10):
    """From which index on may a read be served that began before this?"""

    number: Round


class ReadAnswer(RaftMessage, frozen=True, tag=11):
    """`index` answers the ask of that number; -1 and a reason if the sender cannot tell."""

    number: Round
    index: Annotated[int, Meta(ge=-1, le=QUORUM_INDEX_MAX)]
    reason: RefusalReason | Literal[""] = ""


class TimeoutNow(RaftMessage, frozen=True, tag=12):
    """The leader hands over: the recipient has the whole log and is to be elected at once."""


class WakeGroup(RaftMessage, frozen=True, tag=13):
    """A sleeping group has work again."""


class RemovedVoter(RaftMessage, frozen=True, tag=14):
    """The recipient's id was removed from the group by a committed config; it never comes back."""


class GroupSnapshotBegin(RaftMessage, frozen=True, tag=15):
    """The leader is about to send a snapshot of everything up to `index`; the receiver says from
    which byte on it needs it.
    """

    transfer: Round
    """Tells the transfers of one sender apart."""
    index: Index
    index_term: Term
    config_index: Index
    config: GroupConfig
    size: PartPlace
    digest: Digest
    """BLAKE3 of all of its bytes."""
    round: Round = 0


class GroupSnapshotPart(RaftMessage, frozen=True, tag=16):
    transfer: Round
    offset: PartPlace
    content: Annotated[bytes, Meta(min_length=1, max_length=QUORUM_PART_BYTES_MAX)]


class SnapshotReceived(RaftMessage, frozen=True, tag=17):
    """So many bytes are on the sender's disk."""

    transfer: Round
    received: PartPlace
    end: Literal["", "taken", "refused"] = ""
    """How the transfer has ended; empty while it goes on."""


Message = (
    AskVote
    | VoteAnswer
    | AppendEntries
    | AppendAnswer
    | Heartbeat
    | HeartbeatAnswer
    | SnapshotOffer
    | ForwardProposals
    | ForwardAnswer
    | ReadAsk
    | ReadAnswer
    | TimeoutNow
    | WakeGroup
    | RemovedVoter
    | GroupSnapshotBegin
    | GroupSnapshotPart
    | SnapshotReceived
)
SnapshotMessage = GroupSnapshotBegin | GroupSnapshotPart | SnapshotReceived
"""What drivers tell each other, and no machine hears."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    return _encode(message)


def decode_message(data: bytes) -> Message:
    """The message; raises BadQuorumMessage if it is none, is too long, or a field is out of
    bounds.
    """
    if len(data) > QUORUM_MESSAGE_BYTES_MAX:
        raise BadQuorumMessage(f"a message of {len(data)} bytes is too long")
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:REASON_CHARS_MAX]
        raise BadQuorumMessage(f"a message of a voter cannot be read: {why}") from None
    return _checked(message)


def _checked(message: Message) -> Message:
    """What single fields cannot tell."""
    if isinstance(message, SnapshotOffer | GroupSnapshotBegin):
        check_config(message.config)
        if message.config_index > message.index:
            raise BadQuorumMessage("a snapshot carries a config that it does not cover")
        if message.index_term > message.term:
            raise BadQuorumMessage("a snapshot is of a later term than its sender")
    if isinstance(message, AppendEntries):
        terms = [message.prev_term, *[entry.term for entry in message.entries], message.term]
        if terms != sorted(terms):
            raise BadQuorumMessage("the terms of appended entries fall, or pass the sender's")
    return message
