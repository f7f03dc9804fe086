"""What a store keeps of what quorums have committed.

The rules decide and hand in whole rows (`rules/quorum`); a store keeps them and finds them again.
Nothing here looks at more rows because there are more entities or a longer past.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.rules.quorum.degraded_read import SharedSnapshot
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.state_rows import (
    CommitRow,
    QueueNote,
    QuorumRow,
    RevisionRow,
    WaitingConflict,
)
from holdfast.rules.quorum.view import EntityRow, IntentRecord, LeaseRow, NodeRow

if TYPE_CHECKING:
    from holdfast.rules.commit_columns import CommitColumns

EntityKey = tuple[str, str]
"""Type and id."""


class EntityReader(Protocol):
    def entity_get(self, mesh: str, type: str, id: str) -> EntityRow | None:
        """Also of one that is deleted; None only if it never was."""

    def entity_many(self, mesh: str, keys: Sequence[EntityKey]) -> dict[EntityKey, EntityRow]:
        """Those of these that ever were."""

    def entity_revision_many(self, mesh: str, keys: Sequence[EntityKey]) -> dict[EntityKey, int]:
        """At which revision each of these stands, of those that ever were."""

    def entity_list(
        self, mesh: str, type: str, after: str, limit: int, *, live_only: bool = True
    ) -> list[EntityRow]:
        """Entities with id > after, by id."""

    def entity_children(self, mesh: str, type: str, parent: str, most: int) -> int:
        """How many live entities of a type have this parent; `most` if there are more."""

    def entity_revisions(
        self, mesh: str, type: str, id: str, after: int, limit: int
    ) -> list[RevisionRow]:
        """Revisions of an entity above `after`, the lowest first."""

    def entity_revision_by(
        self, mesh: str, type: str, id: str, number: int, *, whole: bool = False
    ) -> RevisionRow | None:
        """The last revision that was there after the commit with this number; with `whole`, the
        last of those that no patch made.
        """


class EntityWriter(EntityReader, Protocol):
    def entities_put(self, mesh: str, rows: Sequence[EntityRow]) -> None:
        """Adds entities, or changes those of the same type and id."""

    def entity_revisions_add(self, mesh: str, rows: Sequence[RevisionRow]) -> None: ...


class CommitReader(Protocol):
    def quorum_get(self, mesh: str) -> QuorumRow | None:
        """None: the mesh has no voters."""

    def quorum_list(self) -> list[QuorumRow]:
        """By mesh."""

    def commit_at(self, offset: int) -> CommitRow | None:
        """The record of the entry of the log at this offset."""

    def commit_of(self, mesh: str, id: bytes) -> CommitRow | None: ...
    def commit_range(self, mesh: str, start: int, limit: int) -> list[CommitRow]:
        """Commits from a number on, in commit order."""

    def commit_by_head(self, mesh: str, offset: int) -> int:
        """The number of the last commit that was folded when the log ended at this offset or
        before; 0 for none.
        """

    def commit_lowest(self) -> int:
        """The lowest offset of a record, in whatever mesh; 0 for none. Records that came without
        their envelopes have offsets below 0.
        """

    def voids(self, mesh: str, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Intents that were given up, with id > after, and by which commits; by id."""

    def intents_known(self, mesh: str, ids: Sequence[bytes]) -> dict[bytes, IntentRecord]:
        """Those of these intents that were committed or given up."""

    def intents_are_new(self, mesh: str, ids: Sequence[bytes]) -> bool:
        """Whether none of these intents, of which there is one at least, was committed or given up.
        One look tells, if all are newer than what was; so it may say False of new ones too.
        """

    def lease_get(self, mesh: str, name: str) -> LeaseRow | None:
        """None: nobody holds it."""

    def lease_list(self, mesh: str, after: str, limit: int) -> list[LeaseRow]:
        """Leases that somebody holds, with name > after, by name."""

    def node_get(self, mesh: str, peer: str) -> NodeRow | None: ...
    def node_list(self, mesh: str) -> list[NodeRow]:
        """Nodes that were ever declared lost, by name."""

    def waiting_conflicts(
        self, mesh: str, after: int, limit: int, *, open_only: bool = True
    ) -> list[WaitingConflict]:
        """Conflicts with a commit number > after, in commit order."""

    def waiting_conflict_count(self, mesh: str) -> int:
        """How many wait for a decision."""

    def queue_note(self, number: int) -> QueueNote | None: ...
    def queue_counts(self, lane: str) -> dict[str, int]:
        """How many rows of a lane with a note there are in each state of the outbox, without those
        that somebody has dealt with.
        """

    def queue_newest(self) -> int:
        """When the last row that has a note was added, in whatever lane; 0 for none."""

    def snapshot_latest(self, mesh: str, source: str | None = None) -> SharedSnapshot | None:
        """The newest snapshot of a mesh, or the one of a node."""


class CommitWriter(CommitReader, Protocol):
    def quorum_put(self, row: QuorumRow) -> None:
        """Adds or changes what is kept of the quorum of a mesh."""

    def commits_add(self, rows: Sequence[CommitRow]) -> None: ...
    def columns_put(
        self, mesh: str, run: CommitColumns, fence: FenceToken, number: int, offset: int
    ) -> array[int]:
        """Stores what follows from a run whose envelopes `log_append_columns` has appended from
        this offset on: entities, revisions, and records from this commit number and fence on.
        Returns at which revision each entity stands then.
        """

    def voids_add(self, mesh: str, rows: Sequence[tuple[bytes, int]]) -> None:
        """Intents that were given up, each with the number of the commit that did so."""

    def committed_clear(self, mesh: str) -> None:
        """Removes all rows of a mesh that a fold has made: entities, revisions, voids, leases,
        nodes, conflicts, turns of tasks, commit records. Not where the node stands, and no tasks.
        """

    def committed_move(self, source: str, mesh: str, head: int) -> None:
        """The rows of `source`, which is no mesh, take the place of those of a mesh. Its commit
        records stay: those of `source` are added to them, as folded when the log ended at `head`.
        Its tasks are removed.
        """

    def lease_put(self, mesh: str, row: LeaseRow) -> None:
        """Adds or changes a lease; one that nobody holds is forgotten."""

    def node_put(self, mesh: str, row: NodeRow) -> None: ...
    def waiting_conflict_add(self, row: WaitingConflict) -> None: ...
    def waiting_conflict_resolve(
        self, mesh: str, number: int, resolution: str, now_ms: int
    ) -> bool:
        """False if there is none that waits."""

    def queue_note_put(self, row: QueueNote) -> None: ...
    def snapshot_put(self, row: SharedSnapshot) -> bool:
        """Keeps it in the place of an older one of the same node; False if it is the older."""


class QuorumStateReader(EntityReader, CommitReader, Protocol):
    """All of what quorums have committed."""


class QuorumStateWriter(EntityWriter, CommitWriter, Protocol):
    """Changes it."""
