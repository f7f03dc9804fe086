"""What a driver of a group needs of the world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from holdfast.node.core.commit import CommittedEntry
from holdfast.rules.errors import HoldfastError
from holdfast.rules.quorum.raft.config import GroupMember
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.messages import Message, RaftEntry

Wrote = Callable[[HoldfastError | None], None]
"""Is called when a write is on the disk, or with the error by which nobody knows whether it is."""


class GroupDisk(Protocol):
    """The log of one group, durable."""

    def write(self, write: RaftWrite, done: Wrote) -> None:
        """Begins a write; writes are done in the order in which they were begun. `done` is called
        later, in the thread of the driver, never before this returns.
        """

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        """Entries of the log from `first` on, as far as `bytes_max` reaches; one at least."""


class VoterNet(Protocol):
    """Carries messages between members of groups, over links that prove their keys."""

    def send(self, to: GroupMember, message: Message) -> None:
        """Sends a message if there is a way to that member, and forgets it otherwise: the machine
        sends again what matters.
        """


class FoldedEntry(msgspec.Struct, frozen=True, gc=False):
    """What became of a committed entry on this node."""

    index: int
    id: bytes
    """The id of its envelope; empty if that cannot be read."""
    result: object


Folded = Callable[[Sequence[FoldedEntry] | HoldfastError], None]
"""Gets what became of each entry, or the error after which nothing of them is applied."""


class CommitFold(Protocol):
    """What committed entries become on this node."""

    @property
    def applied(self) -> int:
        """The index of the last entry that was applied, in the same transaction as its rows."""

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        """Applies entries, all or none, and notes that everything up to the index `upto` is
        applied. `done` is called later, in the thread of the driver, never before this returns.
        """
