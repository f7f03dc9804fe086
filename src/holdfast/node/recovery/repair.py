"""Repairing a damaged database, and going back a schema version.

A repair copies everything that can still be read into a new database, folds from the log what its
tables have lost, checks the result and only then puts it in place. The damaged files stay beside it
under names that end in `corrupt-<time>`; nothing is ever deleted.

Entries of the log may be lost, so the repaired log counts on in a new epoch, and clocks skip ahead
as after a restore.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from holdfast.node.core.context import NodeContext
from holdfast.node.core.fold import current_version, fold
from holdfast.node.core.fold_tasks import task_of_events
from holdfast.node.home.exclusive import exclusive
from holdfast.node.home.opening import LogMark, read_mark
from holdfast.node.log.history import REPAIR_JOB
from holdfast.node.recovery.backup import count_on
from holdfast.rules import limits
from holdfast.rules.bodies import (
    AuditAppend,
    Body,
    VectorDelete,
    VectorStore,
    decode_trusted_body,
    family_of,
)
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import BlobCorrupt, BlobMissing, StoreCorrupt
from holdfast.rules.merge import version_of
from holdfast.rules.order import is_newer
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import ConflictRow, Entry, JobRow, TaskRow, WarningRow
from holdfast.service.clock import SystemClock
from holdfast.storage.files import home as homes
from holdfast.storage.files import presence as presences
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.files.durable import drafting, durable_replace
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader, Store, Transaction
from holdfast.storage.sqlite.recovery import swap
from holdfast.storage.sqlite.recovery.kept_copies import ROLLBACK_LABEL
from holdfast.storage.sqlite.recovery.repair import Salvaged, Saved, roll_back, salvage
from holdfast.storage.sqlite.snapshot_copy import copy_database, open_read_only
from holdfast.storage.sqlite.store import SqliteStore

log = logging.getLogger("holdfast")

_RESTORE: Final = "restore a backup: holdfast restore"


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair saved and lost, table by table, and where the damaged files are."""

    home: Path
    peer: str
    epoch: int
    head: int
    tables: dict[str, Saved]
    whole_log: bool
    """Whether no entry of the log was lost: then every table is complete."""
    kept: tuple[Path, ...]


class RollbackReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which schema versions were undone, and the copy of the database from before."""

    home: Path
    undone: tuple[int, ...]
    schema: int
    kept: Path


def repair_home(home: Path, *, peer: str | None = None) -> RepairReport:
    """Makes a new database from what is readable of the old one, which is kept.

    `peer` is the home's peer; it is needed only if the database can no longer be asked for it.
    """
    paths = homes.require_home(home)
    homes.check_modes(paths)
    with exclusive(paths, "repair") as still_alone:
        crashed = presences.unclean(paths)
        swap.undo_half_swap(paths)
        now_ms = SystemClock().now_ms()
        known = read_mark(paths) or LogMark(1, 0)
        with drafting(paths.root) as draft:
            try:
                SqliteStore(draft.path).stop()
                saved = salvage(
                    paths.database,
                    draft.path,
                    known_head=known.offset,
                    now_ms=now_ms,
                    blob_size=partial(_blob_size, _blobs(paths)),
                )
                name = _whose(paths, saved, peer)
                epoch = max(saved.epoch, known.epoch) + 1
                _fold_again(
                    draft.path, NodeContext(name, epoch, SystemClock(), _blobs(paths)), saved
                )
                mark = count_on(draft.path, epoch, {})
                _refuse_damage(draft.path)
            finally:
                swap.remove_companions(draft.path)
            still_alone()
            label = swap.fresh_label(paths.root, "corrupt", now_ms)
            kept = swap.swap_database(paths, draft, label)
        durable_replace(paths.mark, msgspec.json.encode(mark))
        presences.clear_unclean(paths, crashed)
    return RepairReport(
        home=home,
        peer=name,
        epoch=mark.epoch,
        head=mark.offset,
        tables=saved.tables,
        whole_log=saved.whole_log,
        kept=tuple(kept),
    )


def rollback_migration(home: Path, version: int) -> RollbackReport:
    """Undoes a schema version and those after it. What they added remains only in the kept copy."""
    paths = homes.require_home(home)
    with exclusive(paths, "roll back the schema") as still_alone:
        label = swap.fresh_label(paths.root, ROLLBACK_LABEL, SystemClock().now_ms())
        kept = paths.database.with_name(f"{paths.database.name}.{label}")
        with drafting(paths.root) as draft:
            copy_database(paths.database, draft.path)
            draft.publish(kept)
        still_alone()
        undone = roll_back(paths.database, version - 1)
    return RollbackReport(home=home, undone=tuple(undone), schema=version - 1, kept=kept)


def _blobs(paths: HomePaths) -> FileBlobs:
    return FileBlobs(paths.blobs)


def _blob_size(blobs: FileBlobs, sha: str) -> int:
    try:
        return blobs.size(sha)
    except (BlobMissing, BlobCorrupt):
        return 0


def _whose(paths: HomePaths, saved: Salvaged, peer: str | None) -> str:
    name = saved.peer or peer
    if name is None:
        raise StoreCorrupt(
            f"the name of the peer cannot be read from the database of {paths.root}",
            hint=f"give it: holdfast doctor --repair --peer NAME; or {_RESTORE}",
        )
    return name


def _refuse_damage(database: Path) -> None:
    with open_read_only(database) as reader:
        problems = reader.problems()
    if problems:
        raise StoreCorrupt(
            f"what could be saved does not pass its check: {problems[0]}",
            hint=f"nothing was changed; {_RESTORE}",
        )


# --- what the tables have lost, from the log -----------------------------------------------------


def _fold_again(database: Path, ctx: NodeContext, saved: Salvaged) -> None:
    store = SqliteStore(database)
    try:
        refold = _Refold(ctx, saved)
        store.write(lambda tx: _name(tx, ctx.peer))
        store.write(lambda tx: _tasks_of_turns(tx, saved))
        for page in _log_pages(store):
            store.write(partial(refold, entries=page))
        if not saved.whole_log:
            store.write(lambda tx: _note_loss(tx, saved, ctx.now_ms()))
    finally:
        store.stop()
    swap.refuse_leftover_wal(database)


def _name(tx: Transaction, peer: str) -> None:
    if tx.peer_name() is None:
        tx.set_peer_name(peer)


def _note_loss(tx: Transaction, saved: Salvaged, now_ms: int) -> None:
    cursor = {"head": tx.log_bounds()[1], "lost": saved.tables["log"].lost}
    tx.job_put(JobRow(name=REPAIR_JOB, cursor=cursor, updated_at=now_ms))


def _tasks_of_turns(tx: Transaction, saved: Salvaged) -> None:
    """Makes the rows of tasks again of which only the turns were saved."""
    for mesh, id in saved.headless:
        events = tx.task_events(mesh, id)
        task = task_of_events(events)
        row = TaskRow(
            mesh=mesh,
            task=id,
            last=events[-1].version,
            offset=tx.log_bounds()[1],
            updated_at=events[-1].event_time,
            **msgspec.structs.asdict(task),
        )
        tx.task_put(row)
    saved.tables["task"].from_log += len(saved.headless)


def _log_pages(store: Store) -> Iterator[list[Entry]]:
    with store.read() as reader:
        at, end = reader.log_bounds()
    while at <= end:
        with store.read() as reader:
            page = reader.log_range(at, end + 1, limits.CHUNK_ROWS)
        yield page
        at = page[-1].offset + 1


class _Refold:
    """Folds the entries of the log whose rows are lost."""

    def __init__(self, ctx: NodeContext, saved: Salvaged) -> None:
        self._ctx, self._saved = ctx, saved
        self._rebuilt: set[tuple[str, ...]] = set()
        """Keys of which no row was saved: all their entries are folded."""

    def __call__(self, tx: Transaction, entries: list[Entry]) -> None:
        quiet = cast(Transaction, _Quiet(tx))
        for entry in entries:
            envelope = decode_trusted(entry.raw)
            body = decode_trusted_body(envelope)
            family = family_of(entry.op)
            if body is None or family not in self._saved.tables:
                continue
            if envelope.write_class == "strong":
                continue  # commit order decided it, and its rows were saved as they are
            if not self._saved.whole_log and family == "task":
                self._refold_turn(quiet, envelope, body, entry.offset)
            elif isinstance(body, AuditAppend):
                if fold(quiet, self._ctx, envelope, body, entry.offset, None) is Outcome.APPLIED:
                    self._saved.tables[family].from_log += 1
            elif self._saved.whole_log or self._is_lost(tx, envelope, body):
                current = current_version(tx, envelope, body)
                fold(quiet, self._ctx, envelope, body, entry.offset, current)
                self._saved.tables[family].from_log += 1

    def _refold_turn(self, tx: Transaction, envelope: Envelope, body: Body, offset: int) -> None:
        """Adds a lost turn. The row of a task that was saved stays as it is, because more turns
        than those in the log may have made it.
        """
        turns = tx.task_events(envelope.mesh, envelope.entity)
        if version_of(envelope) in {turn.version for turn in turns}:
            return
        before = tx.task_get(envelope.mesh, envelope.entity)
        fold(tx, self._ctx, envelope, body, offset, None)
        if before is not None and not is_newer(version_of(envelope), before.last):
            tx.task_put(before)
        self._saved.tables["task_event"].from_log += 1

    def _is_lost(self, tx: Reader, envelope: Envelope, body: Body) -> bool:
        family = family_of(envelope.op)
        key = (envelope.mesh, family, envelope.owner, envelope.entity, _model(body))
        current = current_version(tx, envelope, body)
        if current is None and envelope.lamport <= self._forgotten(tx, envelope.mesh):
            # A sweep may have removed its tombstone: it must not be brought back.
            return False
        if current is None or is_newer(version_of(envelope), current):
            self._rebuilt.add(key)
        return key in self._rebuilt

    def _forgotten(self, tx: Reader, mesh: str) -> int:
        row = tx.mesh_get(mesh)
        return 0 if row is None else row.forgotten_lamport


def _model(body: Body) -> str:
    if isinstance(body, VectorStore):
        return body.identity().fingerprint
    return body.model_id if isinstance(body, VectorDelete) else ""


class _Quiet:
    """A transaction that records no conflicts: the saved ledger has them already."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def conflict_add(self, row: ConflictRow) -> int:
        return 0

    def warning_add(self, row: WarningRow) -> None:
        return None
