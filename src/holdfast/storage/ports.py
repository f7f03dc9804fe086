"""What a store must be able to do, one protocol per concern.

The node decides (with `rules`), the store keeps. Two stores exist: SQLite on disk and plain
dictionaries in memory; one contract suite runs on both. A `Reader` sees one consistent state. A
`Transaction` is a reader that changes it: everything done in it becomes durable together or not at
all.

Scans are paged by key (`after`, `limit`): memory stays bounded, and no read is held open for long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast.rules.limits import LAMPORT_MAX
from holdfast.storage.audit_port import AuditReader, AuditWriter
from holdfast.storage.blocked_port import BlockedReader, BlockedWriter
from holdfast.storage.broker_position_port import BrokerPositionReader, BrokerPositionWriter
from holdfast.storage.bus_port import BusReader, BusSweeper
from holdfast.storage.family_port import FamilyReader, FamilyWriter
from holdfast.storage.inbox_port import InboxReader, InboxWriter
from holdfast.storage.membership_port import MembershipReader, MembershipWriter
from holdfast.storage.mesh_end_port import MeshEndReader, MeshEndWriter
from holdfast.storage.quorum_state_port import QuorumStateReader, QuorumStateWriter
from holdfast.storage.stream_port import StreamReader, StreamWriter
from holdfast.storage.task_port import TaskReader, TaskWriter
from holdfast.storage.telemetry_port import TelemetryReader, TelemetryWriter

if TYPE_CHECKING:
    from holdfast.rules.arrivals import Arrived
    from holdfast.rules.commit_columns import CommitColumns
    from holdfast.rules.filters import Filter
    from holdfast.rules.id_prefix import IdSpan
    from holdfast.rules.order import Version
    from holdfast.rules.recorded import ClockTurn
    from holdfast.rules.rows import (
        Columns,
        ConflictRow,
        ConsumerRow,
        Entry,
        JobRow,
        KnownMember,
        LinkRow,
        MeshRow,
        ModelRow,
        OutboxRow,
        Page,
        PeerRow,
        QuarantineRow,
        TokenRow,
        VectorRow,
        WarningRow,
        ZoneRow,
    )
    from holdfast.rules.vectors import Model

T = TypeVar("T")


class MeshReader(Protocol):
    def peer_name(self) -> str | None:
        """Whose home this is; None before it was set."""

    def mesh_get(self, slug: str) -> MeshRow | None: ...
    def mesh_list(self) -> list[MeshRow]: ...
    def buried(self, mesh: str, name: bytes) -> int:
        """The lamport of the newest tombstone of a key that was removed; 0 if none is known."""

    def peer_list(self, mesh: str) -> list[PeerRow]: ...
    def known_members_list(self, mesh: str) -> list[KnownMember]:
        """The members of a shared mesh as its broker last listed them, by key."""


class MeshWriter(MeshReader, Protocol):
    def set_peer_name(self, name: str) -> None: ...
    def mesh_add(self, row: MeshRow) -> None: ...  # of one that was deleted the clock goes on
    def mesh_change(self, row: MeshRow) -> None:
        """Changes every column but the clocks: lamport, seq and what was forgotten. UnknownMesh if
        there is no such mesh.
        """

    def tick(self, mesh: str) -> tuple[int, int, str | None, int]:
        """One local event: the stamp's lamport, the origin's sequence, the lane by which the mesh's
        changes leave (None for a mesh that is not shared through a broker), and whether it is
        shared over the bus. UnknownMesh if there is no such mesh.
        """

    def tick_many(self, mesh: str, count: int) -> tuple[int, int, str | None, int]:
        """So many local events in a row, one at least. Says of the first what `tick` says; the
        others follow without gaps. No clock moves if one of them would wear it out.
        """

    def tick_merged(self, mesh: str, incoming: int, now_ms: int) -> int:
        """One merged event: the clock moves past the incoming stamp and to this new value."""

    def tick_merged_run(self, mesh: str, lamports: Sequence[int], now_ms: int) -> int:
        """Many merged events in a row, in order; BadStamp, and no tick, if one is absurd by the
        wall clock's time `now_ms`.
        """

    def clock_raise(self, mesh: str, lamport: int) -> None:
        """Moves the clock to this value unless it is past it: for stamps of our own that were lost,
        so nothing is judged. UnknownMesh if there is no such mesh.
        """

    def forget_below(self, mesh: str, lamport: int) -> None:
        """Remembers that tombstones up to this lamport may be gone, of whatever keys."""

    def bury(self, mesh: str, highest: int, names: Sequence[tuple[bytes, int]], most: int) -> None:
        """Remembers that rows up to the lamport `highest` are gone, and of which keys, by a hash, a
        tombstone of which lamport. Of more than `most` keys the lowest are forgotten: then up to
        there tombstones of whatever keys are gone.
        """

    def peer_seen(self, row: PeerRow) -> None: ...
    def known_members_put(self, mesh: str, rows: Sequence[KnownMember]) -> None:
        """Takes the place of all that were known of this mesh."""


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
        self,
        start: int,
        end: int,
        limit: int,
        bytes_max: int,
        filter: Filter,
        *,
        damaged: bool = False,
        odd: bool = False,
    ) -> Columns:
        """What `log_page` gives, as whole columns. `damaged`: also entries whose bytes have
        changed, as they are now: for those who compare them, not for those who pass them on.
        `odd`: also entries whose names beside the bytes are no longer text, with the mark for
        unknown characters in them: for those who look into the bytes in any case.
        """

    def log_newest(self, mesh: str, entity: str, most: int) -> list[Entry]:
        """The entries that are looked up by entity, those with the highest lamports first."""

    def log_entities(self, mesh: str, ops: str, after: str, limit: int) -> list[str]:
        """What the ops that begin like this are about, each once, in the order of its bytes. Those
        of `NOT_BY_ENTITY` are not looked for.
        """

    def log_of(
        self, mesh: str, entity: str, before: int, after: int = 0, limit: int = LAMPORT_MAX
    ) -> list[Entry]:
        """All entries that are looked up by entity with offset < before, in offset order."""

    def log_at(self, recorded_by_ms: int, now_ms: int, *, cautious: bool = False) -> int:
        """The last offset that counts as recorded at or before a time; 0 for none. How it counts,
        where our wall clock was set, is said in `rules.recorded`.
        """

    def log_turns(self) -> tuple[ClockTurn, ...]:
        """Where along the log our wall clock was set back."""

    def forgotten(self, id: bytes) -> tuple[int, bytes] | None:
        """Offset and fingerprint of an entry that was truncated and is still remembered."""

    def ids_known(self, ids: Collection[bytes]) -> set[bytes]:
        """Those of these ids that entries of the log have, or truncated ones that are remembered
        had.
        """

    def log_leaves(self, start: int, end: int, limit: int) -> list[bytes | None]:
        """The leaf hashes of entries with start <= offset < end; None for an entry from before
        hashes.
        """

    def log_damage(self, start: int, end: int, limit: int) -> list[tuple[int, str]]:
        """Of the first `limit` entries with start <= offset < end: the offsets of those that are
        not what was written, and what is wrong with each.
        """


class LogWriter(LogReader, Protocol):
    def log_set_aside(self, offset: int, id: bytes) -> None:
        """Gives an entry another id, so that its own is free. Its bytes stay as they are."""

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

    def log_append_columns(self, mesh: str, run: CommitColumns, now_ms: int) -> int | None:
        """The same of committed entries that came in columns."""

    def log_truncate(self, below: int, most: int, now_ms: int) -> int:
        """Removes up to `most` entries below an offset, keeping their ids; returns how many."""

    def forgotten_add(self, id: bytes, fingerprint: bytes, now_ms: int) -> None:
        """Remembers the id of an entry that never stood in this log, as if it had been truncated;
        nothing changes if it is remembered already. Its offset is 0.
        """

    def forgotten_sweep(self, before_ms: int, most: int) -> int: ...
    def log_replace(self, offset: int, raw: bytes) -> None:
        """Puts the bytes of an envelope in the place of a damaged entry. The caller has made sure
        that they are what was written there.
        """

    def set_epoch(self, epoch: int) -> None: ...


class LogSealer(Protocol):
    def log_seal(self, rows_max: int, bytes_max: int) -> int:
        """Gives the next entries from before leaf hashes theirs, about so many of them; returns how
        many were looked at, 0 if all have theirs. What a reader sees does not change.
        """


class VectorReader(Protocol):
    def vector_live(self, mesh: str, owner: str, key: str, model: str) -> VectorRow | None: ...
    def vector_newest(self, mesh: str, owner: str, key: str, model: str) -> Version | None:
        """The newest version of a key, live or not."""

    def vector_scan(
        self, mesh: str, model: str | None, after: int, limit: int, *, live_only: bool
    ) -> list[tuple[int, VectorRow]]:
        """Rows by row number."""

    def vector_search(
        self,
        mesh: str,
        model: Model,
        packed: bytes,
        limit: int,
        *,
        exact: bool,
        owner: str | None = None,
    ) -> list[tuple[VectorRow, float]]:
        """The nearest live vectors of the mesh, or of one owner there."""

    def model_list(self) -> list[ModelRow]: ...


class VectorWriter(VectorReader, Protocol):
    def vector_add(self, row: VectorRow, model: Model) -> None: ...
    def vector_retire(self, mesh: str, owner: str, key: str, model: str) -> None:
        """Keeps the live row of a key, but not as a live one."""

    def vector_bury(self, row: VectorRow) -> None:
        """Adds the tombstone of a key."""

    def model_mark(
        self, model: str, *, deprecated_at: int | None = None, last_read_at: int | None = None
    ) -> None: ...
    def model_drop(self, model: str) -> None: ...


class LedgerReader(Protocol):
    def conflict_get(self, number: int) -> ConflictRow | None: ...
    def conflicts_of(
        self, mesh: str, family: str, entity: str, loser: Version | None = None
    ) -> list[ConflictRow]:
        """All entries about an entity, or about one version of it, resolved ones too, by number."""

    def conflict_list(
        self, mesh: str | None, *, open_only: bool, after: int, limit: int
    ) -> list[ConflictRow]: ...
    def warning_list(self, mesh: str | None) -> list[WarningRow]: ...


class LedgerWriter(LedgerReader, Protocol):
    def conflict_add(self, row: ConflictRow) -> int: ...
    def conflict_change(self, row: ConflictRow) -> None:
        """Puts another winner and loser into the entry with this number."""

    def conflict_drop(self, number: int) -> None: ...

    def conflict_resolve(self, number: int, resolution: str, now_ms: int) -> None: ...
    def warning_add(self, row: WarningRow) -> None: ...
    def warnings_take(self, mesh: str | None) -> list[WarningRow]:
        """All warnings of a mesh, or of all; they are removed."""


class ConsumerReader(Protocol):
    def consumer_get(self, name: str) -> ConsumerRow | None: ...
    def consumer_list(self) -> list[ConsumerRow]: ...
    def job_get(self, name: str) -> JobRow | None: ...


class ConsumerWriter(ConsumerReader, Protocol):
    def consumer_put(self, row: ConsumerRow) -> None: ...
    def consumer_drop(self, name: str) -> None: ...
    def job_put(self, row: JobRow) -> None: ...
    def job_drop(self, name: str) -> None: ...


class ZoneReader(MembershipReader, Protocol):
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
        """Rows with number > after, by number."""

    def quarantine_count(self, link: str) -> int: ...
    def quarantine_places(self, link: str, epoch: int) -> list[tuple[int, int, int]]:
        """Number, offset and size in bytes of every row of a link and epoch, by number."""


class ZoneWriter(ZoneReader, MembershipWriter, Protocol):
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
        """Removes the link and its quarantine."""

    def quarantine_add(self, row: QuarantineRow) -> int: ...
    def quarantine_drop(self, number: int) -> bool: ...


class OutboxReader(Protocol):
    def outbox_get(self, lane: str, id: bytes) -> OutboxRow | None: ...
    def outbox_states(self, lane: str, ids: Collection[bytes]) -> dict[bytes, str]:
        """The state of each row of a lane that has one of these ids."""

    def outbox_find(self, id: bytes) -> list[OutboxRow]:
        """In every lane, by number."""

    def outbox_ids_within(self, lane: str | None, span: IdSpan, limit: int) -> list[bytes]:
        """Ids that lie in a span, each once, in order."""

    def outbox_due(
        self, lane: str, now_ms: int, limit: int, after: tuple[int, int] = (-1, 0)
    ) -> list[OutboxRow]:
        """Pending rows whose time has come, with (rank, number) > after, in that order."""

    def outbox_next_at(self, lane: str) -> int | None:
        """When the first pending row may go; None if none is pending."""

    def outbox_failing(self, lane: str, entities: Collection[str] | None) -> list[OutboxRow]:
        """Rows that the broker has refused and that still wait, or are dead: the first row of each
        of these entities, or, with None, the first of the lane. By number.
        """

    def outbox_list(
        self, lane: str | None, states: Collection[str], after: int, limit: int
    ) -> list[OutboxRow]:
        """Rows with number > after, by number; without states, rows of every state."""

    def outbox_counts(self) -> dict[tuple[str, str], int]:
        """How many rows there are by lane and state."""

    def outbox_oldest(self, lane: str) -> int | None:
        """When the first row that is pending or in flight was added."""

    def outbox_old(self, lane: str, before_ms: int, now_ms: int, limit: int) -> list[OutboxRow]:
        """Messages of a lane that are pending and were added before a time, or at one that has not
        come yet, by number. Changes, which may wait for ever, are not among them.
        """

    def outbox_floor(self) -> int | None:
        """The lowest offset of the log that a pending, inflight or dead row still needs."""


class OutboxWriter(OutboxReader, Protocol):
    def outbox_add(self, rows: Sequence[OutboxRow]) -> int:
        """Adds the rows whose lane and id are not known, and returns how many. Numbers grow, and
        none is given twice.
        """

    def outbox_put(self, row: OutboxRow) -> None:
        """Changes the row with this number."""

    def outbox_inflight(self, lane: str, numbers: Sequence[int]) -> None:
        """Marks the rows with these numbers that are pending as in flight."""

    def outbox_recover(self, lane: str | None = None) -> int:
        """Marks what is in flight as pending again, because its answer will not come: in one lane,
        or in all. Returns how many rows.
        """

    def outbox_done(self, rows: Sequence[tuple[int, bytes, int, int]], now_ms: int) -> None:
        """Marks rows as done: number, id at the broker, epoch and seq of each."""

    def outbox_arrived(
        self, lane: str, rows: Sequence[tuple[bytes, bytes, int, int]], now_ms: int
    ) -> int:
        """The broker has brought envelopes with these ids (each with its id, epoch and seq there):
        those that still wait in the lane end, because it has them. Returns how many.
        """

    def outbox_sweep(self, before_ms: int, now_ms: int, most: int) -> int:
        """Removes done and aborted rows that ended before a time, by number, up to the first that
        ended between then and now; returns how many. A time that has not come yet stops nothing.
        Rows of quorums stay: they tell what became of each write.
        """


class Reader(
    MeshReader,
    BlockedReader,
    MeshEndReader,
    LogReader,
    FamilyReader,
    VectorReader,
    TaskReader,
    AuditReader,
    TelemetryReader,
    LedgerReader,
    ConsumerReader,
    ZoneReader,
    OutboxReader,
    InboxReader,
    BrokerPositionReader,
    StreamReader,
    QuorumStateReader,
    BusReader,
    Protocol,
):
    """One consistent state of everything."""


class Transaction(
    MeshWriter,
    BlockedWriter,
    MeshEndWriter,
    LogWriter,
    LogSealer,
    FamilyWriter,
    VectorWriter,
    TaskWriter,
    AuditWriter,
    TelemetryWriter,
    LedgerWriter,
    ConsumerWriter,
    ZoneWriter,
    OutboxWriter,
    InboxWriter,
    BrokerPositionWriter,
    StreamWriter,
    QuorumStateWriter,
    BusSweeper,
    Reader,
    Protocol,
):
    """A reader that changes the state: all of it or nothing."""


class Reading(AbstractContextManager[Reader], Protocol):
    """One consistent state, from `begin` to `end`; as a context manager it does both."""

    def begin(self) -> Reader: ...
    def end(self) -> None:
        """May be called twice, and before `begin`."""

    def error(self, error: BaseException) -> BaseException:
        """The typed error for one of the database's own."""


Work = Callable[[Transaction], T]


class Store(Protocol):
    """Where a node's envelopes and state rest."""

    def write(self, work: Work[T]) -> T:
        """Runs `work` in a transaction that it shares with other waiting writes; returns after the
        commit.
        """

    def read(self) -> Reading:
        """One consistent state, for as long as the context is held. Never waits for the writer."""

    def on_commit(
        self, listener: Callable[[], None], *, unstreamed: Callable[[], None] | None = None
    ) -> None:
        """Calls the listener after every commit, in the thread that committed: it must be quick and
        must not raise. `unstreamed` is called instead, if it is given, after writes that say of
        themselves that nothing of theirs counts in a stream (`in_no_stream`).
        """

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finishes the writes that wait, then closes. False if time ran out."""

    def abort(self) -> None:
        """Refuses the writes that wait, and closes at once."""
