"""What a node keeps of the groups in which it votes: the values of a quorum log.

A **group** is the voters of one scope (a mesh). A node has one **voter id** in it at a time, and no
id twice: a node that lost its past comes back under a new one. The **incarnation** tells a group
from one of the same scope before it, by a number that grows and by 16 random bytes, the tag.

The log of a group is entries with indexes from 1 on. Everything up to its **base** stands in a
snapshot; from there to `last` all entries are here. What an entry means is for others to say.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

CONFIG_KIND: Final = 2
"""The kind of an entry that changes who the voters are. Other kinds mean nothing to the log."""
FOUNDED_AT: Final = 1
"""The index that stands for everything before it, where a group takes over from another engine."""
TAG_BYTES: Final = 16
"""The length of a tag of a group."""

Standing = Literal["voter", "learner", "removed", "must_rejoin"]
"""What this node is in a group. `must_rejoin`: it may have forgotten what it promised, so it takes
no part until it was removed and added under a new voter id."""
TAKES_PART: Final[frozenset[Standing]] = frozenset({"voter", "learner"})


class QuorumValue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The base of the values that a quorum log takes and returns."""


class GroupRow(QuorumValue, frozen=True, kw_only=True):
    """What this node is in one group."""

    scope: str
    incarnation: int
    tag: bytes
    voter: int
    standing: Standing
    reason: str = ""
    """Why it must rejoin; empty otherwise."""


class KnownGroup(QuorumValue, frozen=True, kw_only=True):
    """What another store of this node says about a group: the quorum log must show no less."""

    scope: str
    incarnation: int
    tag: bytes
    voter: int
    applied: int = 0
    """The last entry that is applied to that store."""
    term: int = 0
    """A term that this node has been in."""


class HardStateRow(QuorumValue, frozen=True, kw_only=True):
    """What a voter has promised, and as a hint how far it knows entries to be committed."""

    term: int
    vote: int = 0
    """The voter id that got the vote of this term; 0: nobody."""
    commit: int = 0


class EntryRow(QuorumValue, frozen=True, kw_only=True):
    index: int
    term: int
    kind: int
    payload: bytes


class GroupWrite(QuorumValue, frozen=True, kw_only=True):
    """What is to be saved for a group at once."""

    scope: str
    voter: int
    """The voter id on whose behalf it is saved: a late write of an earlier one is refused."""
    number: int
    """Grows with each write of a group, also over restarts (see LogHead.written)."""
    hard: HardStateRow | None = None
    cut_from: int | None = None
    """Entries from this index on are dropped first."""
    entries: tuple[EntryRow, ...] = ()

    @property
    def is_promise(self) -> bool:
        """Whether it adds no data: such a write has room where others have none."""
        return not self.entries


class LogHead(QuorumValue, frozen=True, kw_only=True):
    """How far the log of a group is."""

    term: int = 0
    vote: int = 0
    commit: int = 0
    written: int = 0
    """The number of the last write."""
    base: int = 0
    base_term: int = 0
    """The last entry that stands in the snapshot, and its term."""
    last: int = 0
    last_term: int = 0
    """The last entry and its term; the same as base if there is none after it."""

    @property
    def first(self) -> int:
        """The index of the first entry that may be here."""
        return self.base + 1


class SavedWrite(QuorumValue, frozen=True, kw_only=True):
    """A write that is on the disk, and the end of the log after it."""

    scope: str
    number: int
    last: int
    last_term: int


class SaveAnswer(QuorumValue, frozen=True, kw_only=True):
    """What came of a write that was submitted: one of the two is there."""

    write: GroupWrite
    saved: SavedWrite | None = None
    error: BaseException | None = None


class TermRun(QuorumValue, frozen=True, kw_only=True):
    """Neighbouring entries of one term, both ends included."""

    first: int
    last: int
    term: int


class BoundaryRow(QuorumValue, frozen=True, kw_only=True):
    """Where the log begins: the last entry of the snapshot, and the voters as of it."""

    index: int
    term: int
    config: bytes


class QuorumSnapshot(QuorumValue, frozen=True, kw_only=True):
    """A snapshot that comes in parts. The same one has the same fields."""

    index: int
    term: int
    config: bytes
    size: int
    digest: bytes
    """BLAKE3 of all of its bytes."""


class SnapshotIntake(QuorumValue, frozen=True, kw_only=True):
    """How far a snapshot has come in."""

    snapshot: QuorumSnapshot
    received: int
    installed: bool
    """Whether the log begins after it now."""
