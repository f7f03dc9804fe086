"""What can happen to a group on a node: the inputs of `machine.step`."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.rules.quorum.raft.messages import DiskHealth, Message, Proposal


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: one heartbeat interval. A group that sleeps needs none."""

    draw: int = 0
    """A fresh random number, from the driver; used when a new election timeout is drawn."""


class Receive(msgspec.Struct, frozen=True):
    """A message has come, over a link that belongs to the key of its sender."""

    message: Message


class Propose(msgspec.Struct, frozen=True):
    """Callers of this node want these in the log; many at once share a round and a sync."""

    proposals: tuple[Proposal, ...]


class AskRead(msgspec.Struct, frozen=True):
    """A caller wants to read what is committed now. The driver numbers its reads and may let many
    callers share one number, if all of them came before this.
    """

    number: int


class ChangeMembers(msgspec.Struct, frozen=True):
    """An operator adds a learner (peer, key), promotes a learner, or removes a member (id)."""

    change: Literal["add", "promote", "remove"]
    id: int = 0
    peer: str = ""
    key: bytes = b""


class TransferLeadership(msgspec.Struct, frozen=True):
    """The leader is to hand over: to this voter, or to the best one (0)."""

    to: int = 0


class StepDown(msgspec.Struct, frozen=True):
    """The leader is to stop leading at once."""


class DiskWrote(msgspec.Struct, frozen=True):
    """The disk has all writes up to this number. Term and last index are those of the write, as
    the machine gave them out with it.
    """

    number: int
    term: int
    last: int


class DiskChanged(msgspec.Struct, frozen=True):
    """The disk of this node is full, or has room again; or a sync has failed, which is for ever."""

    health: DiskHealth


class LogCompacted(msgspec.Struct, frozen=True):
    """The driver has stored a snapshot of all that was applied up to this index; it keeps a tail of
    the log or drops it.
    """

    index: int


class SnapshotFinished(msgspec.Struct, frozen=True):
    """A snapshot was handed to that member, or could not be."""

    to: int


class NodeStalled(msgspec.Struct, frozen=True):
    """This process stood still for a good part of an election timeout. The driver hands in what
    waited on its links first, then this, then ticks again.
    """


class PairLost(msgspec.Struct, frozen=True):
    """The node of that member is not heard any more."""

    peer: int


class PairFound(msgspec.Struct, frozen=True):
    """The node of that member is heard again."""

    peer: int


RaftEvent = (
    Tick
    | Receive
    | Propose
    | AskRead
    | ChangeMembers
    | TransferLeadership
    | StepDown
    | DiskWrote
    | DiskChanged
    | LogCompacted
    | SnapshotFinished
    | NodeStalled
    | PairLost
    | PairFound
)
