"""What callers get: rows with their values decoded, without the bookkeeping of the store."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.rules.bodies import decode_value
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.frontier import Frontier
from holdfast.rules.order import Stamp
from holdfast.rules.rows import ConsumerRow, FileRow, MemoryRow, StateRow, VectorRow
from holdfast.rules.shown import Shown


class StateEntry(Shown, msgspec.Struct, frozen=True):
    """One key of a mesh's shared state, with who wrote it last."""

    key: str
    value: Any
    lamport: int
    peer: str
    updated_at: int

    @property
    def stamp(self) -> Stamp:
        """What `expect` takes, to write only if this is still what is there."""
        return Stamp(self.lamport, self.peer)

    @classmethod
    def of(cls, row: StateRow) -> StateEntry:
        return cls(row.key, decode_value(row.value), row.lamport, row.peer, row.updated_at)


class Memory(Shown, msgspec.Struct, frozen=True):
    """What one peer remembers under a key."""

    peer: str
    key: str
    value: Any
    tags: tuple[str, ...]
    lamport: int
    updated_at: int
    created_at: int = 0
    """When the first version was written, since the key was last forgotten."""

    @property
    def stamp(self) -> Stamp:
        """What `expect` takes, to write only if this is still what is there."""
        return Stamp(self.lamport, self.peer)

    @classmethod
    def of(cls, row: MemoryRow) -> Memory:
        value = decode_value(row.value)
        created_at = row.created_at or row.updated_at
        return cls(row.owner, row.key, value, row.tags, row.lamport, row.updated_at, created_at)


class KeyVersion(Shown, msgspec.Struct, frozen=True):
    """One version of a key that the log still holds, of the shared state or of a memory."""

    key: str
    value: Any
    """None if this version deleted the key."""
    deleted: bool
    lamport: int
    peer: str
    updated_at: int
    """By the clock of the peer that wrote it."""
    offset: int
    """Where it is in this node's log."""
    tags: tuple[str, ...] = ()
    """Of a memory."""

    @property
    def stamp(self) -> Stamp:
        """Its place among the versions: the greatest one counts."""
        return Stamp(self.lamport, self.peer)


class FileInfo(Shown, msgspec.Struct, frozen=True):
    """One shared file."""

    peer: str
    path: str
    size: int
    sha256: str
    lamport: int
    updated_at: int
    here: bool
    """The content is on this machine."""
    created_at: int = 0
    """When the first version was shared, since the path was last deleted."""

    @classmethod
    def of(cls, row: FileRow, *, here: bool) -> FileInfo:
        created_at = row.created_at or row.updated_at
        content = (row.size, row.sha256, row.lamport, row.updated_at)
        return cls(row.owner, row.path, *content, here, created_at)


class LastKnown(Shown, msgspec.Struct, frozen=True):
    """A file's content as far as this machine has it."""

    status: str
    """`fresh`: the version that is shared now; `stale`: an older one, the newest that is here."""
    content: bytes
    sha256: str
    lamport: int
    updated_at: int


class Hit(Shown, msgspec.Struct, frozen=True):
    """One result of a vector search, nearest first."""

    key: str
    peer: str
    content: str
    metadata: Any
    distance: float

    @classmethod
    def of(cls, row: VectorRow, distance: float) -> Hit:
        return cls(row.key, row.owner, row.content, decode_value(row.metadata), distance)


class MeshClock(Shown, msgspec.Struct, frozen=True):
    """The clock of a mesh, and how the mesh stands with its broker."""

    lamport: int
    sync_state: str
    last_sync_at: int | None


class PeerInfo(Shown, msgspec.Struct, frozen=True):
    """The last sign of a peer that reached this node."""

    peer: str
    last_seen_at: int
    last_lamport: int
    stale: bool


class ObjectInfo(Shown, msgspec.Struct, frozen=True):
    """Content that is known by its hash: that of facts and of larger files."""

    sha256: str
    size: int
    here: bool
    """Its content is on this machine."""
    named: bool
    """A fact or a file names it. What nobody names goes with a sweep, after a while."""
    since: int
    """When it was first named here, or put on the disk."""


class Consumer(Shown, msgspec.Struct, frozen=True):
    """A named reader of the log."""

    name: str
    position: int
    """Where the next fetch begins."""
    frontier: int
    """Everything up to here is confirmed."""
    beyond: tuple[tuple[int, int], ...]
    """Ranges confirmed beyond the first hole."""
    lag: int
    """Entries that are not confirmed yet."""
    created_at: int
    seen_at: int
    retire_ms: int | None = None
    """The sweep retires it when it has not confirmed for this long."""
    retire_lag: int | None = None
    """The sweep retires it when more entries than this wait for it."""
    zone: str = ""
    """The zone that reads with it; empty for a reader of this node itself."""
    filter: Filter = EVERYTHING
    """Which entries it gets."""

    @classmethod
    def of(cls, row: ConsumerRow, head: int) -> Consumer:
        frontier = Frontier.decode(row.frontier)
        confirmed_beyond = sum(end - start for start, end in frontier.ranges)
        return cls(
            name=row.name,
            position=frontier.prefix + 1,
            frontier=frontier.prefix,
            beyond=frontier.ranges,
            lag=head - frontier.prefix - confirmed_beyond,
            created_at=row.created_at,
            seen_at=row.seen_at,
            retire_ms=row.retire_ms,
            retire_lag=row.retire_lag,
            zone=row.zone,
            filter=row.filter,
        )
