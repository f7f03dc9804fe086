"""A new database from what a damaged one still gives.

The log is copied first, and where its table is damaged, looked for in the pages themselves. Entries
are checked against the envelope that they carry; those that do not fit, and those that cannot be
read, are lost. A log has no holes, so if some are lost the rest is
counted anew, and every offset elsewhere (in rows, in the frontiers of its readers) moves with it.

Tables that are a fold of the log are copied only as far as the log cannot give them: where it is
whole, rows that are newer than its end; otherwise all. What is then still missing, the caller folds
from the log again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from holdfast.rules.errors import BadVector, StoreCorrupt
from holdfast.rules.frontier import Frontier
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.mesh_end import ENDS
from holdfast.rules.recorded import ClockTurn, with_turn
from holdfast.rules.vectors import Model
from holdfast.storage.files.durable import drafting
from holdfast.storage.sqlite import migrations, vector_index
from holdfast.storage.sqlite.committed.audit import COUNT_ANEW
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.log import note_turns
from holdfast.storage.sqlite.recovery import delivery_rows, trust_rows
from holdfast.storage.sqlite.recovery.chunked import chunks, named, transaction
from holdfast.storage.sqlite.recovery.entries import WholeEntries
from holdfast.storage.sqlite.recovery.pages import absorb, scan_pages
from holdfast.storage.sqlite.recovery.salvage import Salvage, copy_with_wal, damaged
from holdfast.storage.sqlite.recovery.sound_rows import is_sound
from holdfast.storage.sqlite.recovery.swap import remove_companions
from holdfast.storage.sqlite.recovery.wal_frames import lay_over, look_at_wal

Fields = dict[str, Any]

FOLDED: Final = ("state", "memory", "file", "vector", "task", "task_event", "audit")
"""Tables that the log can give back."""
_DECIDED: Final = ("task", "task_event")
"""Those of them that voters decide, where a mesh has voters."""
_LINEAGE: Final = 9
"""The migration that brings what versions have seen, and the names of buried keys."""
_VECTORS: Final = 3
"""The migration that brings vectors; their index tables are made later, one per model."""
_AUDIT: Final = 17
"""The migration that brings audit streams."""
_TELEMETRY: Final = 18
"""The migration that brings telemetry."""
_ENDED: Final = 19
"""The migration that brings the end of meshes."""
_BURIED_TASKS: Final = 20
"""The migration that brings the names of forgotten tasks."""
_MESHES: Final = ("log", *FOLDED, "peer")


class Saved(msgspec.Struct):
    """What became of one table."""

    rows: int = 0
    """Copied from the damaged table."""
    lost: int = 0
    """Known to have been there and not readable; more may be, where `damaged` says so."""
    damaged: bool = False
    from_log: int = 0
    """Written again from the log."""


class Salvaged(msgspec.Struct):
    """What the new database holds so far."""

    tables: dict[str, Saved]
    peer: str | None = None
    epoch: int = 1
    whole_log: bool = False
    """Every entry that the log ever had is there, so that it can give all tables."""
    headless: list[tuple[str, str]] = []
    """Mesh and id of tasks of which only the turns were saved."""


def salvage(
    old: Path, new: Path, *, known_head: int, now_ms: int, blob_size: Callable[[str], int]
) -> Salvaged:
    """Copies into `new`, which has the tables and nothing in them.

    `known_head` is the highest offset that is known from elsewhere; `blob_size` is asked where only
    the hash of a blob is left.
    """
    with damaged(old, new) as source, closing(connect(new)) as target:
        # Rows may arrive before the mesh that they belong to.
        target.pragma("foreign_keys", 0)
        return _Repair(old, source, target, known_head, now_ms, blob_size).run()


def roll_back(path: Path, to: int) -> list[int]:
    """Takes the schema back to a version, and the search index with the vectors it belongs to."""
    with closing(connect(path)) as connection:
        if to < _VECTORS <= migrations.version(connection):
            with transaction(connection):
                ids: list[Any] = connection.execute("SELECT id FROM vector_model").fetchall()
                for (id,) in ids:
                    vector_index.drop_table(connection, id)
        return migrations.rollback(connection, to)


class _Repair:
    def __init__(
        self,
        old: Path,
        source: apsw.Connection,
        target: apsw.Connection,
        known_head: int,
        now_ms: int,
        blob_size: Callable[[str], int],
    ) -> None:
        self._old, self._source, self._target = old, source, target
        self._known_head, self._now_ms, self._blob_size = known_head, now_ms, blob_size
        self._offsets = array("q")
        """The offsets of the entries that were saved, as they were."""
        self._first = self._began = 1
        """Where the log begins now, and where it began before it was damaged."""
        self._known_columns: dict[str, list[str]] = {}
        self._wal_broken = look_at_wal(_wal_of(old)).beyond > 0
        """The database knows nothing of the newest commits; entries of theirs can be found."""
        self._harmed = self._wal_broken
        """Whether some of the log is not what was written."""
        self._entries = WholeEntries()
        self.result = Salvaged({})

    def run(self) -> Salvaged:
        self._log()
        for table in ("meta", "mesh", "forgotten", "consumer", "job", "conflict", "warning"):
            self._table(table, self._plain(table))
        for table in (
            "peer",
            "blob",
            "vector_model",
            "buried",
            "telemetry",
            "ended_mesh",
            "buried_task",
        ):
            self._table(table, self._plain(table))
        for table in (*trust_rows.TABLES, *trust_rows.SHARED, *trust_rows.RIGHTS):
            self._table(table, self._neighbour(table))
        for table in delivery_rows.TABLES:
            self._table(table, self._shared(table))
        for table in delivery_rows.BUS_TABLES:
            self._table(table, self._plain(table))
        for table in delivery_rows.QUORUM_TABLES:
            self._table(table, self._plain(table))
        for table in FOLDED:
            self._table(table, self._folded(table))
        if not self.result.whole_log:
            self._table("state_seen", self._plain("state_seen"))
        with transaction(self._target):
            self._turns()
            self._meshes()
            self._lineage()
            self._target.execute(COUNT_ANEW)
            self._fact_objects()
            self._blobs()
        with transaction(self._target):
            self._index()
        self._count_lost(self._known_head)
        with transaction(self._target):
            saved = self.result.tables["log"]
            trust_rows.settle_rows(self._target, lost=saved.damaged or saved.lost > 0)
        self._tell()
        with transaction(self._target):
            self._deliver()
        return self.result

    @cached_property
    def _ended(self) -> set[Any]:
        """Meshes that were deleted and have not come back."""
        back = {fields.get("slug") for fields in named(Salvage(self._source, "mesh"))}
        ended = {fields.get("mesh") for fields in named(Salvage(self._source, "ended_mesh"))}
        return ended - back

    # --- the log -----------------------------------------------------------------------------

    def _log(self) -> None:
        found = Salvage(self._source, "log")
        saved = self.result.tables["log"] = Saved()
        self._take_entries(named(found))
        if found.damaged or self._wal_broken:
            self._take_entries(self._carved(absorb))
        if self._wal_broken:
            wal = _wal_of(self._old)
            self._take_entries(self._carved(lambda copy: lay_over(wal, copy)))
        self._offsets = array("q", sorted(self._offsets))
        saved.rows, saved.damaged = len(self._offsets), found.damaged or self._harmed
        if self._offsets:
            self._first = self._offsets[0]
            self._began = min(self._first, self._truncated_to() + 1)
        self._close_holes()
        self._count_lost(self._known_head)
        self.result.whole_log = self._first == 1 and saved.lost == 0

    def _take_entries(self, entries: Iterator[Fields]) -> None:
        for chunk in chunks(entries):
            with transaction(self._target):
                for fields in chunk:
                    entry = self._entries.entry(fields)
                    if entry is None:
                        self._harmed = True
                    elif entry["mesh"] in self._ended:
                        continue  # free pages still hold what was deleted
                    elif self._insert("log", entry):
                        self._offsets.append(entry["offset"])

    def _carved(self, take_wal: Callable[[Path], None]) -> Iterator[Fields]:
        """Entries to which the way is broken. What was truncated is not brought back. `take_wal`
        brings what the WAL holds into a copy of the database.
        """
        columns = self._columns("log")
        ids = (fields["id"] for fields in named(Salvage(self._source, "forgotten")))
        gone = {id for id in ids if isinstance(id, bytes)}
        with drafting(self._old.parent) as draft:
            # Reading the file beside SQLite drops its locks; nobody else is there to be kept out.
            copy_with_wal(self._old, draft.path)
            try:
                take_wal(draft.path)
                # Entries from before zones end at `raw`, those from before leaf hashes at `via`.
                before_zones = columns.index("via")
                for number, values in scan_pages(draft.path, range(before_zones, len(columns) + 1)):
                    fields = dict(zip(columns, values, strict=False)) | {"offset": number}
                    if not isinstance(fields["id"], bytes) or fields["id"] not in gone:
                        yield fields
            finally:
                remove_companions(draft.path)

    def _close_holes(self) -> None:
        """From the beginning on: an entry only ever moves down, to a place that is free by then."""
        pairs = zip(self._offsets, range(self._first, self._end + 1), strict=True)
        for chunk in chunks(pair for pair in pairs if pair[0] != pair[1]):
            with transaction(self._target):
                self._target.executemany("UPDATE log SET offset = ?2 WHERE offset = ?1", chunk)

    def _turns(self) -> None:
        """Notes anew where the clock was set back along the log, which is as it was saved."""
        falls: list[Any] = self._target.execute(
            "SELECT offset, before, recorded_at FROM (SELECT offset, recorded_at, "
            "lag(recorded_at) OVER (ORDER BY offset) AS before FROM log) "
            "WHERE recorded_at < before ORDER BY offset"
        ).fetchall()
        turns: tuple[ClockTurn, ...] = ()
        for fall in falls:
            turns = with_turn(turns, ClockTurn(*fall))
        note_turns(self._target, turns)

    def _count_lost(self, head: int) -> None:
        """A log that got as far as `head` has lost what is not there between."""
        last = max(head, self._last)
        before = max(0, self._first - self._began) if self.result.tables["log"].damaged else 0
        here = max(0, last - self._first + 1 - len(self._offsets))
        self.result.tables["log"].lost = before + here

    def _truncated_to(self) -> int:
        """The last offset that a sweep took, as far as its ids are remembered."""
        offsets = (fields["offset"] for fields in named(Salvage(self._source, "forgotten")))
        return max((at for at in offsets if is_sound("log", {"offset": at})), default=0)

    @property
    def _last(self) -> int:
        return self._offsets[-1] if self._offsets else 0

    def _moved(self, offset: int) -> int:
        """Where what stood at an offset stands now; in a log without holes, where it stood."""
        if offset < self._first:
            return offset
        return min(self._first + bisect_left(self._offsets, offset), self._end)

    @property
    def _end(self) -> int:
        return self._first + len(self._offsets) - 1

    # --- tables ------------------------------------------------------------------------------

    def _table(self, table: str, fit: Callable[[Fields], Fields | None]) -> None:
        found = Salvage(self._source, table)
        saved = self.result.tables[table] = Saved()
        for chunk in chunks(named(found)):
            with transaction(self._target):
                for fields in chunk:
                    fitting = fit(fields)
                    if fitting is not None:
                        kept = self._insert(table, fitting)
                        saved.rows += kept
                        saved.lost += not kept and not self._is_there(table, fitting)
        never_had = not found.columns and self._is_older_than(table)
        saved.damaged = found.damaged and not never_had

    def _is_older_than(self, table: str) -> bool:
        since = {
            **dict.fromkeys(trust_rows.TABLES, trust_rows.SINCE),
            **dict.fromkeys(trust_rows.SHARED, trust_rows.SHARED_SINCE),
            **dict.fromkeys(trust_rows.RIGHTS, trust_rows.RIGHTS_SINCE),
            **dict.fromkeys(delivery_rows.TABLES, delivery_rows.SINCE),
            **dict.fromkeys(delivery_rows.BUS_TABLES, delivery_rows.BUS_SINCE),
            **dict.fromkeys(delivery_rows.QUORUM_TABLES, delivery_rows.QUORUM_SINCE),
            **dict.fromkeys(("buried", "state_seen"), _LINEAGE),
            "audit": _AUDIT,
            "telemetry": _TELEMETRY,
            "ended_mesh": _ENDED,
            "buried_task": _BURIED_TASKS,
        }
        return migrations.version(self._source) < since.get(table, 0)

    def _insert(self, table: str, fields: Fields) -> bool:
        """False for what the table does not take: a second row of one key, or no row at all."""
        chosen = [name for name in self._columns(table) if name in fields]
        marks = ", ".join("?" * len(chosen))
        try:
            self._target.execute(
                f"INSERT INTO {table} ({', '.join(chosen)}) VALUES ({marks})",
                tuple(fields[name] for name in chosen),
            )
        except (apsw.ConstraintError, OverflowError, UnicodeEncodeError):
            return False
        return True

    def _is_there(self, table: str, fields: Fields) -> bool:
        """Whether a harmed tree has given this very row before."""
        chosen = [name for name in self._columns(table) if name in fields]
        same = " AND ".join(f"{name} IS ?" for name in chosen)
        query = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {same})"
        try:
            return bool(self._target.execute(query, tuple(fields[n] for n in chosen)).get)
        except (OverflowError, UnicodeEncodeError):
            return False

    def _columns(self, table: str) -> list[str]:
        if table not in self._known_columns:
            rows: list[Any] = self._target.execute(f"PRAGMA table_info({table})").fetchall()
            self._known_columns[table] = [row[1] for row in rows]
        return self._known_columns[table]

    def _plain(self, table: str) -> Callable[[Fields], Fields | None]:
        mended = {"mesh": _with_clocks, "consumer": self._reader}.get(table)

        def fit(fields: Fields) -> Fields | None:
            if mended is not None:
                fields = mended(fields)
            if is_sound(table, fields):
                return self._at_new_offset(fields)
            self.result.tables[table].lost += 1
            return None

        return fit

    def _reader(self, fields: Fields) -> Fields:
        return {
            **fields,
            "frontier": self._moved_frontier(fields.get("frontier")),
            "filter": trust_rows.filter_or_all(fields.get("filter")),
        }

    def _neighbour(self, table: str) -> Callable[[Fields], Fields | None]:
        def fit(fields: Fields) -> Fields | None:
            if is_sound(table, fields) and trust_rows.is_valid(fields):
                return fields
            self.result.tables[table].lost += 1
            return None

        return fit

    def _shared(self, table: str) -> Callable[[Fields], Fields | None]:
        def fit(fields: Fields) -> Fields | None:
            # A place at the broker names its entry by nothing but the offset.
            known = table != "heard" or self._is_saved(fields.get("offset"))
            if known and is_sound(table, fields) and delivery_rows.is_valid(table, fields):
                return self._at_new_offset(fields)
            self.result.tables[table].lost += 1
            return None

        return fit

    def _is_saved(self, offset: Any) -> bool:
        if not isinstance(offset, int):
            return False
        at = bisect_left(self._offsets, offset)
        return at < len(self._offsets) and self._offsets[at] == offset

    def _deliver(self) -> None:
        tables = self.result.tables
        log, outbox = tables["log"], tables["spool"]
        lost = delivery_rows.settle_rows(
            self._target,
            self.result.peer,
            log_lost=log.damaged or log.lost > 0,
            outbox_lost=outbox.damaged or outbox.lost > 0 or self._wal_broken,
            now_ms=self._now_ms,
        )
        for table, count in lost.items():
            tables[table].rows -= count
            tables[table].lost += count

    def _folded(self, table: str) -> Callable[[Fields], Fields | None]:
        rows: list[Any] = self._target.execute("SELECT mesh FROM quorum").fetchall()
        # In a mesh with voters the log does not say in which order tasks were decided.
        decided = {row[0] for row in rows} if table in _DECIDED else set()

        def fit(fields: Fields) -> Fields | None:
            offset = fields.get("offset", 0)
            sound = is_sound(table, fields)
            if sound:
                self._known_head = max(self._known_head, offset)
            given = fields.get("mesh") not in decided and (not sound or offset <= self._last)
            if self.result.whole_log and given:
                return None  # the log gives it again
            if not sound:
                self.result.tables[table].lost += 1
                return None
            return self._at_new_offset(fields)

        return fit

    def _at_new_offset(self, fields: Fields) -> Fields:
        moved = {
            name: self._moved(fields[name])
            for name in ("offset", "released_offset", "head")
            if isinstance(fields.get(name), int)
        }
        return {**fields, **moved}

    def _moved_frontier(self, text: Any) -> str:
        try:
            frontier = Frontier.decode(text if isinstance(text, str) else "")
        except StoreCorrupt:
            # Nothing is confirmed then: its reader gets everything once more.
            return Frontier(self._first - 1).encode()
        moved = Frontier(self._first - 1 + bisect_right(self._offsets, frontier.prefix))
        for start, end in frontier.ranges:
            last = self._first - 1 + bisect_right(self._offsets, end - 1)
            if (begin := self._moved(start)) <= last:
                moved = moved.confirm_range(begin, last + 1)
        return moved.encode()

    # --- what holds the tables together --------------------------------------------------------

    def _meshes(self) -> None:
        """A mesh of which only rows are left, and clocks that are past all of them."""
        for table in _MESHES:
            lamport = "last_lamport" if table == "peer" else "lamport"
            self._target.execute(
                "INSERT INTO mesh (slug, name, kind, created_at, updated_at) "
                f"SELECT DISTINCT mesh, mesh, 'personal', ?1, ?1 FROM {table} WHERE mesh <> ?2 "
                "ON CONFLICT (slug) DO NOTHING",
                (self._now_ms, ENDS),
            )
            self._target.execute(
                "UPDATE mesh SET lamport = max(lamport, coalesce("
                f"(SELECT max({lamport}) FROM {table} WHERE {table}.mesh = mesh.slug), 0))"
            )
        # Which keys had the tombstones that are gone is not saved: any key may have had one.
        self._target.execute("UPDATE mesh SET forgotten_floor = forgotten_lamport")

    def _lineage(self) -> None:
        """What versions have seen belongs to rows that are there. Where names of buried keys are
        lost, nothing old may come in by any name: it might be what a lost one had deleted.
        """
        self._target.execute(
            "DELETE FROM state_seen WHERE (mesh, key) NOT IN (SELECT mesh, key FROM state)"
        )
        buried = self.result.tables["buried"]
        if buried.damaged or buried.lost:
            self._target.execute("UPDATE mesh SET forgotten_lamport = lamport")

    def _fact_objects(self) -> None:
        """The log tells which objects its facts name."""
        saved = self.result.tables["fact_object"] = Saved()
        for offset, objects in trust_rows.objects_of_facts(self._target):
            saved.from_log += len(objects)
            for digest in objects:
                self._insert("fact_object", {"sha256": digest.hex(), "offset": offset})

    def _blobs(self) -> None:
        """Every blob that a live file or a fact names is registered, and no other is held on to."""
        named = (
            "SELECT sha256 FROM file WHERE tombstone = 0 AND content IS NULL "
            "UNION SELECT sha256 FROM fact_object"
        )
        self._target.execute(
            "INSERT INTO blob (sha256, size, created_at) SELECT sha256, max(size), ? FROM file "
            "WHERE tombstone = 0 AND content IS NULL GROUP BY sha256 "
            "ON CONFLICT (sha256) DO UPDATE SET released_at = NULL, released_offset = NULL",
            (self._now_ms,),
        )
        facts: list[Any] = self._target.execute(
            "SELECT DISTINCT sha256 FROM fact_object"
        ).fetchall()
        self._target.executemany(
            "INSERT INTO blob (sha256, size, created_at) VALUES (?, ?, ?) "
            "ON CONFLICT (sha256) DO UPDATE SET released_at = NULL, released_offset = NULL",
            ((digest, self._blob_size(digest), self._now_ms) for (digest,) in facts),
        )
        self._target.execute(
            "UPDATE blob SET released_at = ?, released_offset = ? "
            f"WHERE released_at IS NULL AND sha256 NOT IN ({named})",
            (self._now_ms, self._end),
        )

    def _index(self) -> None:
        """The search index is made anew from the vectors. Those of an unknown model are lost."""
        rows: list[Any] = self._target.execute(
            "SELECT id, provider, name, version, dim, quantization, created_at, deprecated_at, "
            "last_read_at FROM vector_model"
        ).fetchall()
        self._target.execute("DELETE FROM vector_model")
        models: dict[str, Model] = {}
        for id, *identity, created_at, deprecated_at, last_read_at in rows:
            model = _model(identity)
            if model is not None and model.fingerprint == id:
                models[id] = model
                vector_index.ensure_table(self._target, model, created_at)
                self._target.execute(
                    "UPDATE vector_model SET deprecated_at = ?, last_read_at = ? WHERE id = ?",
                    (deprecated_at, last_read_at, id),
                )
        named: list[Any] = self._target.execute("SELECT DISTINCT model FROM vector").fetchall()
        for (id,) in named:
            if id not in models:
                self._drop_vectors(id)
        self._put_vectors(models)

    def _put_vectors(self, models: dict[str, Model]) -> None:
        after = 0
        while True:
            page: list[Any] = self._target.execute(
                "SELECT row, mesh, model, embedding FROM vector WHERE row > ? AND live = 1 "
                "ORDER BY row LIMIT ?",
                (after, CHUNK_ROWS),
            ).fetchall()
            for number, mesh, id, embedding in page:
                vector_index.put(self._target, models[id], number, mesh, embedding)
            if not page:
                return
            after = page[-1][0]

    def _drop_vectors(self, model: str) -> None:
        self._target.execute("DELETE FROM vector WHERE model = ?", (model,))
        gone = self._target.changes()
        self.result.tables["vector"].rows -= gone
        self.result.tables["vector"].lost += gone

    def _tell(self) -> None:
        rows: list[Any] = self._target.execute("SELECT name, value FROM meta").fetchall()
        values = dict(rows)
        peer, epoch = values.get("peer"), values.get("epoch")
        named = isinstance(peer, str) and is_sound("peer", {"peer": peer})
        self.result.peer = peer if named else self._only_stranger()
        if isinstance(epoch, int) and is_sound("link", {"epoch": epoch}):
            self.result.epoch = epoch
        headless: list[Any] = self._target.execute(
            "SELECT DISTINCT mesh, task FROM task_event EXCEPT SELECT mesh, task FROM task"
        ).fetchall()
        self.result.headless = headless

    def _only_stranger(self) -> str | None:
        """Peers that were heard of are on record; the one origin that is not is ourselves."""
        ours = self._target.execute(
            "SELECT DISTINCT origin FROM log WHERE origin NOT IN (SELECT peer FROM peer)"
        ).fetchall()
        return str(ours[0][0]) if len(ours) == 1 else None


def _wal_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def _with_clocks(fields: Fields) -> Fields:
    """A mesh whose counters make no sense begins again from what its rows show."""
    counters = ("lamport", "seq", "forgotten_lamport", "broker_epoch", "broker_seq")
    harmed = [c for c in counters if c in fields and not is_sound("mesh", {c: fields[c]})]
    return {**fields, **dict.fromkeys(harmed, 0)}


def _model(identity: list[Any]) -> Model | None:
    provider, name, version, dim, quantization = identity
    try:
        return Model(
            provider=provider, name=name, version=version, dim=dim, quantization=quantization
        )
    except BadVector:
        return None
