"""What a store must be able to do, one protocol per concern.

The node decides (with `rules`), the store keeps. Two stores exist: SQLite on disk and plain
dictionaries in memory; one contract suite runs on both. A `Reader` sees one consistent state. A
`Transaction` is a reader that changes it: everything done in it becomes durable together or not at
all.

Scans are paged by key (`after`, `limit`), so that memory stays bounded and no read is held open for
long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from holdfast.rules.filters import Filter
from holdfast.rules.order import Version
from holdfast.rules.rows import (
    BlobRow,
    Columns,
    ConflictRow,
    ConsumerRow,
    Entry,
    FileRow,
    JobRow,
    LinkRow,
    MemoryRow,
    MeshRow,
    ModelRow,
    Page,
    PeerRow,
    QuarantineRow,
    StateRow,
    TaskEventRow,
    TaskRow,
    TokenRow,
    VectorRow,
    WarningRow,
    ZoneRow,
)
from holdfast.rules.tasks import Status
from holdfast.rules.vectors import Model

T = TypeVar("T")


class MeshReader(Protocol):
    def peer_name(self) -> str | None:
        """Whose home this is; None before it is told."""

    def mesh_get(self, slug: str) -> MeshRow | None: ...
    def mesh_list(self) -> list[MeshRow]: ...
    def peer_list(self, mesh: str) -> list[PeerRow]: ...


class MeshWriter(MeshReader, Protocol):
    def set_peer_name(self, name: str) -> None: ...
    def mesh_add(self, row: MeshRow) -> None: ...
    def tick(self, mesh: str) -> tuple[int, int]:
        """One local event: the stamp's lamport and the origin's sequence. UnknownMesh if there is
        none.
        """

    def tick_merged(self, mesh: str, incoming: int) -> int:
        """One merged event: the clock moves past the incoming stamp and to this new value."""

    def tick_merged_run(self, mesh: str, lamports: Sequence[int]) -> int:
        """Many merged events in a row, in order; BadStamp, and no tick, if one is absurd."""

    def forget_below(self, mesh: str, lamport: int) -> None:
        """Remembers that tombstones up to this lamport may be gone."""

    def peer_seen(self, row: PeerRow) -> None: ...


Arrived = tuple[bytes, str, str, str, str, int, bytes]
"""An entry on its way into the log: id, mesh, op, entity, origin, lamport, raw."""


class LogReader(Protocol):
    def epoch(self) -> int: ...
    def log_bounds(self) -> tuple[int, int]:
        """First and last offset; (1, 0) for a log that never held anything."""

    def log_get(self, offset: int) -> Entry | None: ...
    def log_find(self, id: bytes) -> Entry | None: ...
    def log_range(self, start: int, end: int, limit: int) -> list[Entry]:
        """Entries with start <= offset < end, at most `limit`."""

    def log_page(self, start: int, end: int, limit: int, bytes_max: int, filter: Filter) -> Page:
        """What passes a filter of start <= offset < end: at most `limit` entries, and no more after
        about `bytes_max` of them (one always fits). Looks at SCAN_ROWS_MAX entries at most.
        """

    def log_columns(
        self, start: int, end: int, limit: int, bytes_max: int, filter: Filter
    ) -> Columns:
        """The same, as whole columns."""

    def log_of(self, mesh: str, entity: str, before: int) -> list[Entry]:
        """All entries but facts about an entity with offset < before, in offset order."""

    def log_at(self, recorded_by_ms: int) -> int:
        """The last offset that was recorded at or before a time of our wall clock; 0 for none."""

    def forgotten(self, id: bytes) -> tuple[int, bytes] | None:
        """Offset and fingerprint of a truncated entry that is still remembered."""


class LogWriter(LogReader, Protocol):
    def log_append(
        self,
        id: bytes,
        mesh: str,
        op: str,
        entity: str,
        origin: str,
        lamport: int,
        now_ms: int,
        raw: bytes,
        via: int = 0,
    ) -> int:
        """The new entry's offset: the one after the last, without gaps. `via` is the number of the
        zone that it came through.
        """

    def log_append_new(self, arrivals: Sequence[Arrived], now_ms: int, via: int = 0) -> int | None:
        """Appends all of them and returns the first offset; or None, and nothing is appended, if
        the id of one is known: in the log, among the forgotten, or twice in the list.
        """

    def log_truncate(self, below: int, most: int, now_ms: int) -> int:
        """Removes up to `most` entries below an offset, remembering their ids; returns how many
        went.
        """

    def forgotten_add(self, id: bytes, fingerprint: bytes, now_ms: int) -> None:
        """Remembers the id of an entry that never stood in this log, as if it had been truncated;
        nothing changes if it is remembered already. Its offset is 0.
        """

    def forgotten_sweep(self, before_ms: int, most: int) -> int: ...
    def set_epoch(self, epoch: int) -> None: ...


class FamilyReader(Protocol):
    def state_version(self, mesh: str, key: str) -> Version | None: ...
    def state_get(self, mesh: str, key: str) -> StateRow | None: ...
    def state_scan(self, mesh: str, prefix: str, after: str, limit: int) -> list[StateRow]:
        """Live and dead rows with key > after."""

    def memory_get(self, mesh: str, owner: str, key: str) -> MemoryRow | None: ...
    def memory_all(self, mesh: str, key: str) -> list[MemoryRow]:
        """Live rows of every owner, newest first, then by owner."""

    def memory_scan(
        self, mesh: str, owner: str | None, after: tuple[str, str], limit: int
    ) -> list[MemoryRow]:
        """Rows with (owner, key) > after."""

    def file_get(self, mesh: str, owner: str, path: str) -> FileRow | None: ...
    def file_scan(
        self, mesh: str, owner: str | None, after: tuple[str, str], limit: int
    ) -> list[FileRow]: ...
    def blob_get(self, sha256: str) -> BlobRow | None: ...
    def blob_scan(self, after: str, limit: int) -> list[BlobRow]: ...
    def blob_released(self, limit: int) -> list[BlobRow]:
        """Blobs without references whose files wait to be removed, longest first."""

    def blob_refs(self, sha256: str) -> int:
        """How many live files, and facts in the log, name this blob: counted, not stored, so it
        cannot be wrong.
        """

    def fact_objects(self, below: int, limit: int) -> list[tuple[int, str]]:
        """Offset and hash of objects that facts below an offset name, by offset."""

    def family_counts(self, mesh: str) -> dict[str, int]:
        """Live rows per family."""


class FamilyWriter(FamilyReader, Protocol):
    def state_put(self, row: StateRow) -> None: ...
    def memory_put(self, row: MemoryRow) -> None: ...
    def file_put(self, row: FileRow) -> None: ...
    def blob_put(self, row: BlobRow) -> None: ...
    def fact_objects_put(self, offset: int, sha256s: Sequence[str]) -> None:
        """The fact at this offset names these objects."""

    def fact_objects_drop(self, below: int) -> None:
        """Forgets what facts below an offset named: they are truncated."""

    def blob_drop(self, sha256: str) -> None: ...
    def tombstones_sweep(self, mesh: str, below_offset: int, most: int) -> tuple[int, int]:
        """Removes dead rows written below an offset: how many went, and their highest lamport."""


class VectorReader(Protocol):
    def vector_live(self, mesh: str, owner: str, key: str, model: str) -> VectorRow | None: ...
    def vector_newest(self, mesh: str, owner: str, key: str, model: str) -> Version | None:
        """The newest version of a key, live or not."""

    def vector_scan(
        self, mesh: str, model: str | None, after: int, limit: int, *, live_only: bool
    ) -> list[tuple[int, VectorRow]]:
        """Rows by row number."""

    def vector_search(
        self, mesh: str, model: Model, packed: bytes, limit: int, *, exact: bool
    ) -> list[tuple[VectorRow, float]]: ...
    def model_list(self) -> list[ModelRow]: ...


class VectorWriter(VectorReader, Protocol):
    def vector_add(self, row: VectorRow, model: Model) -> None: ...
    def vector_retire(self, mesh: str, owner: str, key: str, model: str) -> None:
        """The live row of a key stays, but is live no more."""

    def vector_bury(self, row: VectorRow) -> None:
        """Adds the tombstone of a key."""

    def model_mark(
        self, model: str, *, deprecated_at: int | None = None, last_read_at: int | None = None
    ) -> None: ...
    def model_drop(self, model: str) -> None: ...


class TaskReader(Protocol):
    def task_get(self, mesh: str, task: str) -> TaskRow | None: ...
    def task_scan(
        self,
        mesh: str,
        status: Status | None,
        after: str,
        limit: int,
        *,
        known_only: bool = True,
    ) -> list[TaskRow]:
        """By task; without `known_only` also those whose creation has not arrived."""

    def task_events(self, mesh: str, task: str) -> list[TaskEventRow]:
        """In stamp order."""


class TaskWriter(TaskReader, Protocol):
    def task_put(self, row: TaskRow) -> None: ...
    def task_event_put(self, row: TaskEventRow) -> None:
        """Adds a turn, or changes what it came to."""


class LedgerReader(Protocol):
    def conflict_get(self, number: int) -> ConflictRow | None: ...
    def conflict_open(
        self, mesh: str, family: str, owner: str, entity: str, loser: str
    ) -> ConflictRow | None:
        """The entry about this entity that still waits and whose loser is of this peer."""

    def conflict_list(
        self, mesh: str | None, *, open_only: bool, after: int, limit: int
    ) -> list[ConflictRow]: ...
    def warning_list(self, mesh: str | None) -> list[WarningRow]: ...


class LedgerWriter(LedgerReader, Protocol):
    def conflict_add(self, row: ConflictRow) -> int: ...
    def conflict_change(self, row: ConflictRow) -> None:
        """Puts another winner and loser into the entry with this number."""

    def conflict_resolve(self, number: int, resolution: str, now_ms: int) -> None: ...
    def warning_add(self, row: WarningRow) -> None: ...
    def warnings_take(self, mesh: str | None) -> list[WarningRow]:
        """All that wait, which then wait no more."""


class ConsumerReader(Protocol):
    def consumer_get(self, name: str) -> ConsumerRow | None: ...
    def consumer_list(self) -> list[ConsumerRow]: ...
    def job_get(self, name: str) -> JobRow | None: ...


class ConsumerWriter(ConsumerReader, Protocol):
    def consumer_put(self, row: ConsumerRow) -> None: ...
    def consumer_drop(self, name: str) -> None: ...
    def job_put(self, row: JobRow) -> None: ...
    def job_drop(self, name: str) -> None: ...


class ZoneReader(Protocol):
    def zone_get(self, name: str) -> ZoneRow | None: ...
    def zone_list(self) -> list[ZoneRow]:
        """By name."""

    def zone_of_key(self, key: bytes) -> ZoneRow | None: ...
    def token_find(self, digest: bytes) -> TokenRow | None: ...
    def token_list(self) -> list[TokenRow]:
        """By name."""

    def link_get(self, name: str) -> LinkRow | None: ...
    def link_list(self) -> list[LinkRow]:
        """By name."""

    def quarantine_get(self, number: int) -> QuarantineRow | None: ...
    def quarantine_list(self, link: str | None, after: int, limit: int) -> list[QuarantineRow]:
        """By number, those after one."""

    def quarantine_count(self, link: str) -> int: ...


class ZoneWriter(ZoneReader, Protocol):
    def zone_put(self, row: ZoneRow) -> ZoneRow:
        """Adds or changes the zone of this name, with all its keys; returns it with its number.
        AlreadyExists if a key belongs to another zone. A number is never given twice.
        """

    def token_put(self, row: TokenRow) -> None:
        """AlreadyExists if the name or the digest is taken."""

    def token_drop(self, name: str) -> bool: ...
    def link_put(self, row: LinkRow) -> None:
        """Adds or changes the link of this name."""

    def link_drop(self, name: str) -> bool:
        """The link and its quarantine."""

    def quarantine_add(self, row: QuarantineRow) -> int: ...
    def quarantine_drop(self, number: int) -> bool: ...


class Reader(
    MeshReader,
    LogReader,
    FamilyReader,
    VectorReader,
    TaskReader,
    LedgerReader,
    ConsumerReader,
    ZoneReader,
    Protocol,
):
    """One consistent state of everything."""


class Transaction(
    MeshWriter,
    LogWriter,
    FamilyWriter,
    VectorWriter,
    TaskWriter,
    LedgerWriter,
    ConsumerWriter,
    ZoneWriter,
    Reader,
    Protocol,
):
    """A reader that changes the state: all of it or nothing."""


Work = Callable[[Transaction], T]


class Store(Protocol):
    """Where a node's envelopes and state rest."""

    def write(self, work: Work[T]) -> T:
        """Runs `work` in a transaction shared with whoever else waits; returns after the commit."""

    def read(self) -> AbstractContextManager[Reader]:
        """One consistent state, for as long as the context is held. Never waits for the writer."""

    def on_commit(self, told: Callable[[], None]) -> None:
        """Calls `told` after every commit, in the thread that committed: it must be quick and must
        not raise.
        """

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finishes what waits, then closes. False if time ran out."""

    def abort(self) -> None:
        """Refuses what waits and closes at once."""
