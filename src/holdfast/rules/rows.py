"""The rows of a node's tables: what the log folds to.

Every row of a family carries the version of the change that made it (`lamport`, `peer`, `id`, as
its origin gave them) and `offset`, the place of that change in this node's log.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from holdfast.rules.filters import Filter
from holdfast.rules.order import Version
from holdfast.rules.shown import Shown
from holdfast.rules.tasks import TaskStanding, TaskStatus, Turn


class VersionedRow(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """The base of rows that carry the version of the change that made them."""

    mesh: str
    lamport: int
    peer: str
    id: bytes
    offset: int
    updated_at: int
    tombstone: bool = False

    @property
    def version(self) -> Version:
        return Version(self.lamport, self.peer, self.id)


class StateRow(VersionedRow, frozen=True, kw_only=True):
    """One key of a mesh's shared state."""

    key: str
    value: bytes


class MemoryRow(VersionedRow, frozen=True, kw_only=True):
    """What one peer remembers under a key."""

    owner: str
    key: str
    value: bytes
    tags: tuple[str, ...] = ()
    created_at: int = 0
    """When the first version was written; 0 if this one is the first."""


class FileRow(VersionedRow, frozen=True, kw_only=True):
    """One path of one peer's files."""

    owner: str
    path: str
    sha256: str
    size: int
    content: bytes | None = None
    """The content itself below the inline limit; None where a blob holds it."""
    created_at: int = 0
    """When the first version was written; 0 if this one is the first."""

    @property
    def in_blob(self) -> bool:
        return self.content is None and not self.tombstone


class VectorRow(VersionedRow, frozen=True, kw_only=True):
    """One stored vector. Rows are only added; at most one per owner, key and model is live."""

    owner: str
    key: str
    model: str
    content: str = ""
    metadata: bytes = b"null"
    embedding: bytes = b""
    live: bool = True


class ModelRow(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A registered embedding model."""

    id: str
    provider: str
    name: str
    version: str
    dim: int
    quantization: str
    created_at: int
    deprecated_at: int | None = None
    last_read_at: int | None = None


class TaskRow(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stands; `last` is the highest version folded into it."""

    mesh: str
    task: str
    known: bool
    title: str
    description: str
    created_by: str
    created_at: int
    status: TaskStatus
    generation: int
    holder: Version | None
    claimed_at: int | None
    ended: Version | None
    ended_at: int | None
    last: Version
    offset: int
    updated_at: int

    @property
    def claimed_by(self) -> str | None:
        return self.holder.peer if self.holder and self.status is not TaskStatus.OPEN else None


class TaskEventRow(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """One turn on a task with what it came to (so far: an older turn may still arrive)."""

    mesh: str
    task: str
    version: Version
    kind: str
    generation: int
    event: str
    event_time: int
    """By the clock of the peer that made the turn."""
    applied_at: int
    """By this node's clock, for people who look into what happened here."""
    against: Version | None = None
    """The version that it lost against."""
    title: str = ""
    description: str = ""
    standing: TaskStanding | None = None
    """How the task stands after this turn, so that a turn which arrives late is joined from there.
    None: it was stored before nodes kept this.
    """
    opened: int | None = None
    """The generation that the task had reached after this turn, and had not before it."""
    place: int = 0
    """Where commit order decides: twice the number of the commit, plus one for the second turn of a
    handoff. 0 where stamps decide.
    """

    @property
    def turn(self) -> Turn:
        """The turn as its origin made it."""
        return Turn(
            self.version,
            self.kind,
            self.generation,
            self.event_time,
            self.title,
            self.description,
        )


class MeshRow(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A mesh that this node takes part in."""

    slug: str
    name: str
    kind: str = "personal"
    created_at: int
    updated_at: int
    last_sync_at: int | None = None
    sync_paused: bool = False
    lamport: int = 0
    seq: int = 0
    forgotten_lamport: int = 0
    """Rows up to this stamp may have been removed, tombstones among them."""
    forgotten_floor: int = 0
    """Up to this stamp it is not known which keys had a tombstone that was removed. Above it,
    `buried` says so key by key.
    """
    broker_url: str | None = None
    """The broker of a shared mesh; this, the card and the server's id are set together."""
    broker_card: str | None = None
    """The broker's name and key, as they were when the mesh was shared or joined."""
    server_id: str | None = None
    """Which mesh of the broker this is."""
    broker_epoch: int = 0
    broker_seq: int = 0
    """The cursor: everything that the broker has for this node up to this seq of this epoch is in
    this node's log."""
    on_bus: bool = False
    """It is shared over the bus: what this node has of each stream is kept beside the log."""

    @property
    def shared(self) -> bool:
        return self.kind != "personal"


class Entry(Shown, msgspec.Struct, frozen=True, gc=False):
    """One entry of the log."""

    offset: int
    id: bytes
    mesh: str
    op: str
    entity: str
    origin: str
    lamport: int
    recorded_at: int
    """When this node appended it, by its own wall clock, never running backwards."""
    raw: bytes
    """The canonical bytes of the envelope."""


NOT_BY_ENTITY: Final = ("fact.append", "entity.change")
"""Ops whose entries nobody looks up by what they are about: facts never change, and of entities the
revisions tell. A store keeps no index of them, which would cost a page in random order for each.
"""


class ConsumerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A named reader of the log, with what it has confirmed."""

    name: str
    frontier: str
    created_at: int
    seen_at: int
    """When it last confirmed, by this node's clock."""
    retire_ms: int | None = None
    """A sweep retires it when it has not confirmed for so long; None: never."""
    retire_lag: int | None = None
    """A sweep retires it when more entries than this wait for it; None: never."""
    zone: str = ""
    """The zone that reads by it; empty for this node's own readers."""
    filter: Filter = Filter()
    """Which entries it gets; the others count as confirmed with their neighbours."""


class Page(msgspec.Struct, frozen=True, gc=False):
    """A piece of the log as it travels: the entries that pass a filter, and how far the read
    got.
    """

    offsets: list[int]
    raws: list[bytes]
    upto: int
    """The read has looked at every entry up to this offset; the next one begins after it."""


class Columns(msgspec.Struct, frozen=True, gc=False):
    """A piece of the log as columns, for readers that work on whole columns."""

    offset: list[int]
    id: list[bytes]
    mesh: list[str]
    op: list[str]
    entity: list[str]
    origin: list[str]
    lamport: list[int]
    recorded_at: list[int]
    raw: list[bytes]
    upto: int


class ZoneKey(msgspec.Struct, frozen=True, kw_only=True):
    """An Ed25519 public key that a zone may prove itself by."""

    key: bytes
    added_at: int
    expires_at: int | None = None


class ZoneRow(msgspec.Struct, frozen=True, kw_only=True):
    """A zone: another node that this one speaks with directly and knows by its keys."""

    number: int = 0
    """Given by the store; log entries that came through the zone carry it."""
    name: str
    keys: tuple[ZoneKey, ...] = ()
    reads: tuple[str, ...] = ()
    """Meshes of this node that the zone may read; `*` for all."""
    added_at: int
    blocked_at: int | None = None


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A bearer token, of which only the digest is kept."""

    name: str
    digest: bytes
    scope: str
    """`all`: everything, on the local listeners only; `read`: reading, on every listener."""
    reads: tuple[str, ...] = ()
    """Meshes, for the scope `read`; `*` for all."""
    created_at: int
    expires_at: int | None = None


class LinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """A link: this node pulls the log of a zone."""

    name: str
    url: str
    zone: str
    filter: Filter
    """What the link asks for and takes in; its origins are the peers that the zone may carry."""
    paused: bool = False
    epoch: int = 0
    """The epoch of the source's log that `cursor` counts in; 0 before the first batch."""
    cursor: int = 0
    """Everything of the source up to this offset is in this node's log. It moves in the transaction
    that puts the entries there."""
    added_at: int
    moved_at: int | None = None


class QuarantineRow(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope that a link or a broker brought and this node refused, with the reason."""

    number: int = 0
    link: str
    epoch: int
    offset: int
    """In the source's log."""
    code: str
    message: str
    raw: bytes
    found_at: int


class SweptRow(NamedTuple):
    """A dead row that a sweep removed."""

    family: str
    owner: str
    key: str
    model: str
    lamport: int
    tombstone: bool
    """False: a vector that a newer one had replaced."""


class ConflictRow(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Something that a merge discarded."""

    number: int = 0
    mesh: str
    family: str
    owner: str
    entity: str
    reason: str
    winner: Version
    loser: Version
    loser_op: str
    loser_body: bytes
    base_lamport: int | None = None
    """This and the next are the stamp that the loser's writer saw; None: nothing, or it is not
    known.
    """
    base_peer: str | None = None
    found_at: int
    resolved_at: int | None = None
    resolution: str | None = None


class EndedMesh(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a mesh that was deleted in this home."""

    mesh: str
    lamport: int
    """Its clock then: it goes on from there if the mesh is made or joined again."""
    seq: int
    """How many envelopes this node had written to it; these numbers are not given again."""
    epoch: int
    """Of our log, in which they were counted."""
    head: int
    """The end of our log then. Ids that were truncated up to there are of the former mesh."""
    begun_at: int
    ended_at: int | None = None
    """None while its rows are removed."""
    dropped: int = 0
    """Envelopes that came for it afterwards."""

    def was_ours(self, epoch: int, seq: int) -> bool:
        """Whether an envelope in our own name, which is not here, may be one that went with it."""
        return epoch <= self.epoch and seq <= self.seq


class WarningRow(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Something that the library reports to this node's user, once."""

    mesh: str
    type: str
    entity: str
    by_peer: str
    at_lamport: int


class PeerRow(msgspec.Struct, frozen=True, kw_only=True):
    """When this node last saw a write of a peer, and its stamp: a cache."""

    mesh: str
    peer: str
    last_seen_at: int
    last_lamport: int


class BlockedPeer(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A peer whose messages this node does not want."""

    peer: str
    since: int
    dropped: int = 0
    """How many of its messages were dropped at the door."""


class BlobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that rows name, or named until `released_at`."""

    sha256: str
    size: int
    created_at: int
    released_at: int | None = None
    """With `released_offset`: when, and at which offset of the log, the last row stopped naming it;
    None while a row names it."""
    released_offset: int | None = None


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """How far long work has got, so that it goes on after a crash."""

    name: str
    cursor: dict[str, Any]
    updated_at: int


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An envelope of this node's log that goes, or went, to a broker; or a message of the bus that
    waits for a peer.
    """

    number: int = 0
    lane: str
    id: bytes
    mesh: str
    entity: str = ""
    """Rows of one entity keep their order; empty for messages (see `outbox.entity_of`)."""
    rank: int = 1
    """A row with a lower rank goes first (see `destinations.rank`)."""
    offset: int
    """Where the envelope is in this node's log; 0 for a message of the bus, which has a table of
    its own and stands there under this row's number.
    """
    state: str = "pending"
    """One of `outbox.OutboxState`."""
    attempts: int = 0
    """How many times the broker has refused it."""
    not_before: int = 0
    tried_at: int | None = None
    ended_at: int | None = None
    created_at: int
    code: str = ""
    error: str = ""
    """Why the broker refused it last."""
    broker_id: bytes | None = None
    broker_epoch: int = 0
    broker_seq: int = 0
    replaces: bytes | None = None
    """The id of the failed message that was requeued under this row's id."""


class InboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message that came for this node."""

    number: int = 0
    id: bytes
    mesh: str
    kind: str
    ref: str
    sender: str
    priority: str = "next"
    offset: int
    """Where its envelope is in this node's log."""
    broker_id: bytes | None = None
    received_at: int
    read_at: int | None = None
    hooked_at: int | None = None


class KnownMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a shared mesh, as the broker last listed it."""

    mesh: str
    key: bytes
    name: str
    grants: tuple[str, ...] = ()
    seen_at: int | None = None
