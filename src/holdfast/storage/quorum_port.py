"""What a node asks of the store of its Raft logs: terms, votes and entries of all its groups.

It is a store of its own, with a sync of its own, so that a vote never waits for ordinary writes.
All groups share its commits: what comes while one commit is synced goes into the next. A caller is
answered after the sync, and the writes of a group are done in the order in which they came.

    open ──close()──▶ closed
      └──an error of the disk──▶ failed, for good: only a new opening helps, which checks all rows

A group whose rows are damaged, or that shows less than it had acknowledged, is `must_rejoin`: it
can be read as far as it is whole, and nothing can be saved for it. Every call that names a scope
raises UnknownGroup if there is no such group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from holdfast.rules.quorum.log_rows import (
    BoundaryRow,
    EntryRow,
    GroupRow,
    GroupWrite,
    HardStateRow,
    LogHead,
    QuorumSnapshot,
    SaveAnswer,
    SavedWrite,
    SnapshotIntake,
    Standing,
    TermRun,
)

Answer = Callable[[list[SaveAnswer]], None]
"""Gets the answers to writes that were submitted together, as far as they shared a commit. It is
called by the thread that writes, and must not call the log."""
LogState = Literal["open", "failed", "closed"]


class QuorumReader(Protocol):
    """One group's rows, as of the last commit. EntryDamaged if one is not what was written."""

    def groups(self) -> list[GroupRow]:
        """By scope."""

    def group(self, scope: str) -> GroupRow: ...
    def voters_used(self, scope: str) -> frozenset[int]:
        """All voter ids that this node ever had in the group."""

    def head(self, scope: str) -> LogHead: ...
    def boundary(self, scope: str) -> BoundaryRow: ...
    def term_at(self, scope: str, index: int) -> int | None:
        """The term of an entry, or of the base; None if the log does not reach there."""

    def term_runs(self, scope: str) -> list[TermRun]:
        """All of the log, from its first entry to its last. The cost grows with the runs, not with
        the entries.
        """

    def entries(self, scope: str, start: int, end: int, bytes_max: int) -> list[EntryRow]:
        """The entries with start <= index < end, as far as the log has them: no more after about
        `bytes_max` (one always fits). Truncated if the first of them stands in the snapshot.
        """

    def configs(self, scope: str) -> list[EntryRow]:
        """All entries that change the voters, from the first to the last."""

    def intake(self, scope: str) -> SnapshotIntake | None:
        """The snapshot that is coming in, or that came in last and was not dropped yet."""

    def intake_part(self, scope: str, offset: int) -> bytes:
        """The part of that snapshot that begins at this byte; empty at its end."""


class QuorumLog(QuorumReader, Protocol):
    """The Raft logs of all groups of a node."""

    @property
    def state(self) -> LogState: ...

    def close(self) -> None:
        """Waits for what was submitted. Twice is once."""

    # --- groups ------------------------------------------------------------------------------

    def init(self, scope: str, *, tag: bytes, voter: int, config: bytes) -> GroupRow:
        """The first voter of a new group, in incarnation 1. AlreadyExists if this node has or had
        a group of this scope.
        """

    def found(
        self, scope: str, *, incarnation: int, tag: bytes, voter: int, config: bytes, term: int
    ) -> GroupRow:
        """The first voter of a group that takes over from another engine: its log begins behind
        one entry of this term, which stands for all that was committed before it. An earlier log
        of the scope is given up. LogMismatch unless the incarnation is later than that one's; the
        same tag again changes nothing.
        """

    def join(self, scope: str, *, incarnation: int, tag: bytes, voter: int) -> GroupRow:
        """This node becomes a learner under an id that it never had there (VoterReused). An older
        log of the scope is given up; its term stays. AlreadyExists while this node takes part in
        it under another id.
        """

    def set_standing(self, scope: str, voter: int, standing: Standing, reason: str = "") -> None:
        """The learner is a voter now, or the voter was removed or must rejoin. What must rejoin or
        was removed gets no other standing (MustRejoin, NotAMember): it may only `join` anew.
        """

    def begin_incarnation(
        self, scope: str, *, incarnation: int, tag: bytes, voter: int
    ) -> GroupRow:
        """The log goes on in a later incarnation, under a new voter id: after a majority is gone
        for good.
        """

    # --- writes ------------------------------------------------------------------------------

    def save(self, write: GroupWrite) -> SavedWrite:
        """Returns after the sync. LogMismatch if it does not fit, MustRejoin, OutcomeUnknown if the
        disk failed under it, DiskFull (a write without entries has a reserve).
        """

    def submit(self, writes: Sequence[GroupWrite], answer: Answer) -> int:
        """Queues writes; `answer` gets what came of them. Returns how many of them, from the first,
        the queue had room for: `answer` hears of those only.
        """

    def save_at_once(self, write: GroupWrite) -> SaveAnswer | None:
        """Saves in the thread of the caller, which gets the answer after the sync, if nobody else
        writes and the disk was quick of late; otherwise nothing happens, and None comes back.
        """

    def oldest_unsynced_ms(self) -> int | None:
        """How long the oldest write waits that is not answered yet; None if none does."""

    # --- compaction and snapshots ------------------------------------------------------------

    def compact(self, scope: str, index: int, config: bytes) -> None:
        """A snapshot of ours holds everything up to a committed entry, with the voters as of it:
        the log begins after it from now on. Rows are removed after that, in short transactions.
        """

    def intake_begin(self, scope: str, voter: int, snapshot: QuorumSnapshot) -> int:
        """A snapshot is to come in. Returns from which byte on it is needed: not the first if a
        part of the very same one is here. Parts of another one are given up.
        """

    def intake_add(self, scope: str, offset: int, content: bytes) -> int:
        """Adds the next bytes; returns how many are here. LogMismatch if they are not the next."""

    def intake_install(
        self, scope: str, voter: int, number: int, hard: HardStateRow | None = None
    ) -> SavedWrite:
        """In one step: the log begins after the snapshot, and term and vote are these. The entries
        after it stay if they follow it. StoreCorrupt, and the parts are given up, if they are not
        what was announced.
        """

    def intake_drop(self, scope: str) -> None:
        """Forgets the parts: they were applied, or nobody needs them."""
