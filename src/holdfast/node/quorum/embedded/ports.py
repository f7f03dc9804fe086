"""What a driver of a group needs of the world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from holdfast.node.core.commit import CommittedEntry
from holdfast.rules.errors import HoldfastError
from holdfast.rules.quorum.log_rows import QuorumSnapshot, SnapshotIntake
from holdfast.rules.quorum.raft.config import GroupConfig, GroupMember
from holdfast.rules.quorum.raft.effects import Alarm, RaftWrite, RoleChange
from holdfast.rules.quorum.raft.messages import Message, RaftEntry

Wrote = Callable[[HoldfastError | None], None]
"""Is called when a write is on the disk, or with the error by which nobody knows whether it is."""


class GroupDisk(Protocol):
    """The log of one group, durable."""

    def write(self, write: RaftWrite, commit: int, done: Wrote) -> None:
        """Begins a write; writes are done in the order in which they were begun. `done` is called
        later, in the thread of the driver, never before this returns. With it the log learns that
        entries up to `commit` are committed. A write with a snapshot puts the one that came in
        (`IntakeDisk`) in the place of the log.
        """

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        """Entries of the log from `first` on, as far as `bytes_max` reaches; one at least."""


class VoterNet(Protocol):
    """Carries messages between members of groups, over links that prove their keys."""

    def send(self, to: GroupMember, message: Message) -> None:
        """Sends a message if there is a way to that member, and forgets it otherwise: the machine
        sends again what matters.
        """

    def has_room(self, to: GroupMember) -> bool:
        """Whether a payload for that member would be sent or wait. Nobody reads from the disk what
        would be dropped.
        """


class FoldedEntry(msgspec.Struct, frozen=True, gc=False):
    """What became of a committed entry on this node."""

    index: int
    id: bytes
    """The id of its envelope; empty if that cannot be read."""
    result: object


Folded = Callable[[Iterable[FoldedEntry] | HoldfastError], None]
"""Gets what became of each entry, which may be made as it is looked at; or the error after which
nothing of them is applied.
"""


class CommitFold(Protocol):
    """What committed entries become on this node."""

    @property
    def applied(self) -> int:
        """The index of the last entry that was applied, in the same transaction as its rows."""

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        """Applies entries, all or none, and notes that everything up to the index `upto` is
        applied. `done` is called later, in the thread of the driver, never before this returns.
        """


class GroupHooks(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a driver tells, and what it asks, beside disk, network and fold."""

    now_ms: Callable[[], int]
    post: Callable[[Callable[[], None]], None]
    """Calls a function soon, in the driver's thread, not within this call."""
    later: Callable[[int, Callable[[], None]], None] | None = None
    """Calls a function after so many ms, in the driver's thread. Without it no fold waits for
    another.
    """
    on_role: Callable[[RoleChange], None] = lambda change: None
    on_alarm: Callable[[Alarm], None] = lambda alarm: None
    on_config: Callable[[GroupConfig], None] = lambda config: None
    """Another config is committed: members came, went, or have another place."""


# --- snapshots -----------------------------------------------------------------------------------

Received = Callable[[int | HoldfastError], None]
"""Gets how many bytes of a snapshot are on the disk, or why it takes none."""
ReadPart = Callable[[int], bytes]
"""The part of a snapshot that begins at this byte; empty at its end. From any thread."""


class IntakeDisk(Protocol):
    """Where the parts of a snapshot that comes in rest, beside the log; and how that is shortened.
    `done` is called later, in the thread of the driver, never before the call returns.
    """

    def compact(self, index: int, config: bytes, done: Wrote) -> None:
        """The log may begin after this entry: its fold has it. `config` is in force there. An error
        means that the log stays as it is.
        """

    def intake(self) -> SnapshotIntake | None:
        """The snapshot that is coming in, or that came in last and was not dropped yet."""

    def intake_part(self, offset: int) -> bytes:
        """A `ReadPart` of it."""

    def intake_begin(self, snapshot: QuorumSnapshot, done: Received) -> None: ...
    def intake_add(self, offset: int, content: bytes, done: Received) -> None: ...
    def intake_drop(self, done: Wrote) -> None: ...


class GivenSnapshot(Protocol):
    """Everything that the fold of this node has made of the order, up to an index."""

    @property
    def index(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def digest(self) -> bytes:
        """BLAKE3 of all of its bytes."""

    def part(self, offset: int) -> bytes:
        """The bytes from there on, as many as go in one part."""

    def close(self) -> None:
        """Nobody needs it any more."""


Given = Callable[[GivenSnapshot | HoldfastError], None]


class GroupSnapshots(Protocol):
    """Snapshots of what the fold makes. `done` is called later, in the thread of the driver, never
    before the call returns; no fold is under way meanwhile, but for `give`.
    """

    def give(self, done: Given) -> None:
        """A snapshot of what is applied now, or a moment ago."""

    def check(self, snapshot: QuorumSnapshot, read: ReadPart, done: Wrote) -> None:
        """Whether all parts together are a snapshot that this node can take in; changes nothing
        that anybody reads.
        """

    def take_in(self, snapshot: QuorumSnapshot, read: ReadPart, done: Wrote) -> None:
        """Puts it in the place of what is applied, in one step; `CommitFold.applied` is its index
        after that. After an error everything is as it was.
        """


class SnapshotPorts(msgspec.Struct, frozen=True):
    """What a driver needs for snapshots. Without it no log is shortened."""

    disk: IntakeDisk
    states: GroupSnapshots
