"""What callers get: rows with their values decoded, without the bookkeeping of the store."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.rules.bodies import decode_value
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.frontier import Frontier
from holdfast.rules.rows import ConsumerRow, FileRow, MemoryRow, StateRow, VectorRow


class StateEntry(msgspec.Struct, frozen=True):
    """One key of a mesh's shared state, with who wrote it last."""

    key: str
    value: Any
    lamport: int
    peer: str
    updated_at: int

    @classmethod
    def of(cls, row: StateRow) -> StateEntry:
        return cls(row.key, decode_value(row.value), row.lamport, row.peer, row.updated_at)


class Memory(msgspec.Struct, frozen=True):
    """What one peer remembers under a key."""

    peer: str
    key: str
    value: Any
    tags: tuple[str, ...]
    lamport: int
    updated_at: int

    @classmethod
    def of(cls, row: MemoryRow) -> Memory:
        value = decode_value(row.value)
        return cls(row.owner, row.key, value, row.tags, row.lamport, row.updated_at)


class FileInfo(msgspec.Struct, frozen=True):
    """One shared file."""

    peer: str
    path: str
    size: int
    sha256: str
    lamport: int
    updated_at: int
    here: bool
    """The content is on this machine."""

    @classmethod
    def of(cls, row: FileRow, *, here: bool) -> FileInfo:
        return cls(row.owner, row.path, row.size, row.sha256, row.lamport, row.updated_at, here)


class LastKnown(msgspec.Struct, frozen=True):
    """A file's content as far as this machine has it."""

    status: str
    """`fresh`: the version that is shared now; `stale`: an older one, the newest that is here."""
    content: bytes
    sha256: str
    lamport: int
    updated_at: int


class Hit(msgspec.Struct, frozen=True):
    """One result of a vector search, nearest first."""

    key: str
    peer: str
    content: str
    metadata: Any
    distance: float

    @classmethod
    def of(cls, row: VectorRow, distance: float) -> Hit:
        return cls(row.key, row.owner, row.content, decode_value(row.metadata), distance)


class MeshClock(msgspec.Struct, frozen=True):
    """The clock of a mesh, and how the mesh stands with its broker."""

    lamport: int
    sync_state: str
    last_sync_at: int | None


class PeerInfo(msgspec.Struct, frozen=True):
    """The last sign of a peer that reached this node."""

    peer: str
    last_seen_at: int
    last_lamport: int
    stale: bool


class Consumer(msgspec.Struct, frozen=True):
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
