"""Bugs to plant: real mistakes, each seen in some real system, put into the code by patching it.

A harness that has caught nothing has shown nothing. Each bug names the finder that must catch it:

    world       a few seeds of `holdfast.simulate.nodes.nodes`
    zones       a few seeds of `holdfast.simulate.zones.zones`
    delivery    a few seeds of `holdfast.simulate.delivery.delivery`
    bus         a few seeds of `holdfast.simulate.bus.bus`; `mesh` are those with homes
    mesh power  the power goes at every moment while pages of a mesh arrive
    capabilities  a home is shown what it must refuse
    sweep       every disk call of one operation fails
    power       the power goes at every moment of a story
    failed sync the same, after a sync of the log has failed
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple

import apsw
import msgspec
import pytest

from faults import planted_bus, planted_clock, planted_delivery, planted_mesh, planted_sharing
from holdfast.node.core import change, files, intake, keyed_writes, operations
from holdfast.node.core.engine import NodeEngine
from holdfast.node.library import conflicts
from holdfast.node.links import appetite, receive
from holdfast.node.log import consumers, serve
from holdfast.node.upkeep import sweep
from holdfast.protocol.log_wire import Batch, Fetch
from holdfast.rules import ledger, tasks
from holdfast.rules.errors import DiskFull
from holdfast.rules.filters import Filter
from holdfast.rules.ledger import Meeting, Seen, Written
from holdfast.rules.rows import LinkRow
from holdfast.rules.tasks import Judged, TaskEvent, TaskStatus
from holdfast.service.caller import Caller
from holdfast.simulate.nodes import pulling
from holdfast.storage import group_commit
from holdfast.storage.files import blobs, durable
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite import log, meshes, store

Patch = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    name: str
    finder: str
    plant: Patch


def _acknowledge_before_commit(patch: pytest.MonkeyPatch) -> None:
    """The commit of a write to the state waits for the write after it."""
    begin, commit = store.SqliteEngine.begin, store.SqliteEngine.commit
    append = log.LogWrites.log_append

    def append_and_note(tx: Any, id: bytes, mesh: str, op: str, *rest: Any) -> int:
        tx.put_off = op == "state.set"
        return append(tx, id, mesh, op, *rest)

    def begin_after_commit(engine: store.SqliteEngine) -> None:
        if engine._con.in_transaction:
            commit(engine)
        begin(engine)

    def commit_later(engine: Any) -> None:
        if not getattr(engine.transaction, "put_off", False):
            commit(engine)
        engine.transaction.put_off = False

    patch.setattr(log.LogWrites, "log_append", append_and_note)
    patch.setattr(store.SqliteEngine, "begin", begin_after_commit)
    patch.setattr(store.SqliteEngine, "commit", commit_later)


def _commit_error_ignored(patch: pytest.MonkeyPatch) -> None:
    commit = store.SqliteEngine.commit

    def careless(engine: store.SqliteEngine) -> None:
        try:
            commit(engine)
        except apsw.Error:
            if engine._con.in_transaction:
                engine._con.execute("ROLLBACK")

    patch.setattr(store.SqliteEngine, "commit", careless)


def _outcome_forgotten(patch: pytest.MonkeyPatch) -> None:
    """After a failed sync the writer goes on as if nothing had been."""

    def forget(self: group_commit.GroupWriter, error: BaseException) -> BaseException:
        self._rollback()
        return self._engine.error(error, committing=True)

    patch.setattr(group_commit.GroupWriter, "_commit_failed", forget)


def _unknown_called_refused(patch: pytest.MonkeyPatch) -> None:
    """A failure while committing is reported as certain."""
    error = store.SqliteEngine.error

    def certain(engine: store.SqliteEngine, raised: BaseException, *, committing: bool) -> Any:
        known = error(engine, raised, committing=committing)
        return DiskFull("no") if committing and isinstance(raised, apsw.IOError) else known

    patch.setattr(store.SqliteEngine, "error", certain)


def _log_append_skipped(patch: pytest.MonkeyPatch) -> None:
    """One family is written past the log."""
    append = log.LogWrites.log_append

    def forgetful(tx: Any, id: bytes, mesh: str, op: str, *rest: Any) -> int:
        if op == "memory.set":
            return int(tx.log_bounds()[1])
        return append(tx, id, mesh, op, *rest)

    patch.setattr(log.LogWrites, "log_append", forgetful)


def _tick_outside_of_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """The clock is counted in memory, where a rollback does not reach it."""
    tick = meshes.MeshWrites.tick

    def counted(tx: Any, mesh: str) -> tuple[int, int, str | None, int]:
        lamport, seq, lane, on_bus = tick(tx, mesh)
        seen = max(getattr(tx, "_seq_seen", 0) + 1, seq)
        tx._seq_seen = seen
        tx._con.execute("UPDATE mesh SET seq = ? WHERE slug = ?", (seen, mesh))
        return lamport, seen, lane, on_bus

    patch.setattr(meshes.MeshWrites, "tick", counted)


def _lower_stamp_wins(patch: pytest.MonkeyPatch) -> None:
    """Of two versions that have not seen each other, the older one stands."""
    real = ledger.meet

    def reversed_(
        standing: Written, seen: Seen, lost: Any, incoming: Written, history: Any
    ) -> Meeting:
        met = real(standing, seen, lost, incoming, history)
        return met._replace(wins=not met.wins) if met.lost else met

    patch.setattr("holdfast.rules.ledger.meet", reversed_)


def _dedupe_skipped(patch: pytest.MonkeyPatch) -> None:
    for module in (intake, change, conflicts):
        patch.setattr(module, "known_receipt", lambda *asked: None)


def _blob_after_row(patch: pytest.MonkeyPatch) -> None:
    def share(node: NodeEngine, mesh: str, path: str, content: bytes, id: str | None) -> Any:
        digest = sha256(content).hexdigest()
        change = operations.file_share(node.ctx, mesh, path, digest, len(content), None, id)
        receipt = node.write("file.share", change)
        node.blobs.put(content)
        return receipt

    patch.setattr(operations.FileSharing, "make_ready", keyed_writes.Replacing.make_ready)
    patch.setattr(files, "share_file", share)


def _blob_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(durable, "_flush", lambda fd: None)


def _folder_not_synced(patch: pytest.MonkeyPatch) -> None:
    for module in (durable, blobs):
        patch.setattr(module, "fsync_dir", lambda folder: None)


def _left_log_trusted(patch: pytest.MonkeyPatch) -> None:
    """What a bad end left in the write-ahead log is taken for durable."""
    patch.setattr("holdfast.storage.sqlite.recovery.wal.rewrite_wal", lambda *args, **kwargs: None)


def _cursor_before_rows(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint is written when news is seen, not when it is stored."""
    real = receive.receive_batch

    def hasty(engine: NodeEngine, link: str, batch: Batch) -> receive.BatchReceived:
        def move(tx: Transaction) -> LinkRow | None:
            row = tx.link_get(link)
            if row is None or row.epoch != batch.epoch or batch.start > row.cursor + 1:
                return None
            tx.link_put(msgspec.structs.replace(row, cursor=max(row.cursor, batch.upto)))
            return row

        row = engine.write("link.cursor", move)
        if row is None:
            return real(engine, link, batch)
        zone = engine.read("zone", lambda tx: tx.zone_get(row.zone))
        assert zone is not None
        new = engine.write("link.take", intake.Intake(engine.ctx, batch.raws, zone.number))
        return receive.BatchReceived(msgspec.structs.replace(row, cursor=batch.upto), len(new))

    patch.setattr(receive, "receive_batch", hasty)


def _sent_back(patch: pytest.MonkeyPatch) -> None:
    """A source sends a zone what it wrote or brought."""

    def everything(caller: Caller, filter: Filter) -> Filter:
        return msgspec.structs.replace(filter, beyond="")

    patch.setattr(serve, "_sent_to", everything)


def _way_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A log does not say through whom an entry came."""
    of = intake.Intake.of

    def nameless(ctx: Any, arrivals: Any, *way: Any, **more: Any) -> intake.Intake:
        return of(ctx, arrivals, **more)

    patch.setattr(intake.Intake, "of", nameless)


def _filtered_not_counted(patch: pytest.MonkeyPatch) -> None:
    """What a filter leaves out at the end of a batch is not read: the frontier stays behind it."""
    real = serve.serve_batch

    def stingy(engine: NodeEngine, caller: Caller, f: Fetch) -> Batch:
        batch = real(engine, caller, f)
        upto = batch.offsets[-1] if batch.offsets else batch.start - 1
        return msgspec.structs.replace(batch, upto=upto)

    patch.setattr(serve, "serve_batch", stingy)


def _counted_too_early(patch: pytest.MonkeyPatch) -> None:
    """A batch says that it reaches the end of the log, although its limit has cut it short."""
    real = serve.serve_batch

    def generous(engine: NodeEngine, caller: Caller, f: Fetch) -> Batch:
        batch = real(engine, caller, f)
        return msgspec.structs.replace(batch, upto=batch.head)

    patch.setattr(serve, "serve_batch", generous)


def _truncated_ids_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An envelope is new again once its log entry is truncated."""
    real = change.known_receipt

    def known(tx: Transaction, id: bytes, asked: bytes, mesh: str) -> change.Receipt | None:
        return None if tx.log_find(id) is None else real(tx, id, asked, mesh)

    patch.setattr(intake, "known_receipt", known)
    patch.setattr(log.LogWrites, "_any_forgotten", lambda tx, arrivals, before: False)


def _confirmed_when_read(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks from an offset on is taken to have stored everything before it."""
    real = serve.serve_batch

    def hasty(engine: NodeEngine, caller: Caller, f: Fetch) -> Batch:
        if f.confirm is not None and f.start is not None:
            f = msgspec.structs.replace(f, confirm=f.start - 1)
        return real(engine, caller, f)

    patch.setattr(serve, "serve_batch", hasty)


def _epoch_ignored(patch: pytest.MonkeyPatch) -> None:
    """An offset is an offset, also of a log that went back in time."""
    real = receive._check_place

    def check(row: LinkRow, epoch: int, start: int, first: int) -> None:
        real(row, row.epoch, start, first)

    patch.setattr(consumers, "check_epoch", lambda tx, epoch: None)
    patch.setattr(receive, "_check_place", check)


def _truncated_skipped(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks for what is gone gets what there is, and is not told."""
    patch.setattr(consumers, "check_there", lambda start, end, first: None)


def _truncated_past_readers(patch: pytest.MonkeyPatch) -> None:
    """A log goes by its age alone."""
    patch.setattr(sweep, "_frontiers", lambda tx: [])


def _facts_before_objects(patch: pytest.MonkeyPatch) -> None:
    """What an entry names is not asked for."""
    patch.setattr(receive, "objects_named", lambda batch: [])


def _tombstones_swept_at_once(patch: pytest.MonkeyPatch) -> None:
    """Age and readers are not asked, and nothing remembers what was deleted."""

    def sweep_all(tx: Transaction, engine: NodeEngine, ttl: sweep.Ttl, mesh: str) -> int:
        return len(tx.tombstones_sweep(mesh, tx.log_bounds()[1] + 1, 200))

    patch.setattr(sweep, "tombstones_of", sweep_all)


def _blobs_swept_past_readers(patch: pytest.MonkeyPatch) -> None:
    """Content goes although a reader of the log has yet to fetch it."""
    real = sweep._unlink_orphans

    def greedy(tx: Transaction, engine: NodeEngine, found: Any) -> int:
        named = [item for item in found if isinstance(item, blobs.BlobFile)]
        return sum(engine.blobs.unlink(item.sha) for item in named) + real(
            tx, engine=engine, found=[]
        )

    patch.setattr(sweep, "_unlink_orphans", greedy)


def _last_claim_wins(patch: pytest.MonkeyPatch) -> None:
    real = tasks._claim

    def claim(task: tasks.Task, turn: tasks.Turn) -> tuple[tasks.Task, Judged]:
        if task.status is TaskStatus.CLAIMED and turn.generation == task.generation:
            return msgspec.structs.replace(task, holder=turn.version), Judged(
                turn, TaskEvent.CLAIMED
            )
        return real(task, turn)

    patch.setattr(tasks, "_claim", claim)


def _lost_stays_lost(patch: pytest.MonkeyPatch) -> None:
    """What the newest version has seen after all stays in the ledger."""
    patch.setattr(ledger, "_found", lambda seen, lost: [])


def _clock_not_merged(patch: pytest.MonkeyPatch) -> None:
    """A received stamp does not move the clock."""
    patch.setattr(
        meshes.MeshWrites, "tick_merged_run", lambda tx, mesh, lamports, now_ms: lamports[-1]
    )


def _turn_given_back_with_a_transaction(patch: pytest.MonkeyPatch) -> None:
    """A write that is interrupted between its work and its commit is not undone."""

    def release_only(self: group_commit.GroupWriter) -> None:
        self._turn.release()

    patch.setattr(group_commit.GroupWriter, "_settle", release_only)


def _query_left_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    """A rollback leaves the query alone that was interrupted: it keeps the old state."""

    def by_another_cursor(tx: store.SqliteTransaction) -> None:
        tx._con.execute("ROLLBACK")

    patch.setattr(store.SqliteTransaction, "rollback", by_another_cursor)


def _full_batch_always(patch: pytest.MonkeyPatch) -> None:
    """A link asks for as much as ever, however often its line breaks under it."""
    for module in (appetite, pulling):
        patch.setattr(module, "rows_after_break", lambda asked: asked)


BUGS = [
    Bug("turn given back with a transaction", "interrupts", _turn_given_back_with_a_transaction),
    Bug("query left in the middle", "interrupts", _query_left_in_the_middle),
    Bug("acknowledge before commit", "power", _acknowledge_before_commit),
    Bug("acknowledge before commit", "world", _acknowledge_before_commit),
    Bug("commit error ignored", "sweep", _commit_error_ignored),
    Bug("outcome forgotten", "sweep", _outcome_forgotten),
    Bug("unknown called refused", "sweep", _unknown_called_refused),
    Bug("log append skipped", "world", _log_append_skipped),
    Bug("tick outside of the transaction", "world", _tick_outside_of_the_transaction),
    Bug("lower stamp wins", "world", _lower_stamp_wins),
    Bug("dedupe skipped", "world", _dedupe_skipped),
    Bug("blob after row", "power", _blob_after_row),
    Bug("blob not synced", "power", _blob_not_synced),
    Bug("folder not synced", "power", _folder_not_synced),
    Bug("left log trusted", "failed sync", _left_log_trusted),
    Bug("cursor before rows", "world", _cursor_before_rows),
    Bug("cursor before rows", "zones", _cursor_before_rows),
    Bug("sent back", "zones", _sent_back),
    Bug("way forgotten", "zones", _way_forgotten),
    Bug("filtered not counted", "zones", _filtered_not_counted),
    Bug("counted too early", "zones", _counted_too_early),
    Bug("truncated ids forgotten", "zones", _truncated_ids_forgotten),
    Bug("confirmed when read", "zones", _confirmed_when_read),
    Bug("epoch ignored", "zones", _epoch_ignored),
    Bug("truncated skipped", "zones", _truncated_skipped),
    Bug("truncated past readers", "zones", _truncated_past_readers),
    Bug("facts before objects", "zones", _facts_before_objects),
    Bug("tombstones swept at once", "world", _tombstones_swept_at_once),
    Bug("blobs swept past readers", "world", _blobs_swept_past_readers),
    Bug("last claim wins", "world", _last_claim_wins),
    Bug("clock not merged", "world", _clock_not_merged),
    Bug("lost stays lost", "world", _lost_stays_lost),
    Bug("full batch always", "zones", _full_batch_always),
    *(Bug(name, "delivery", plant) for name, plant in planted_delivery.PLANTS.items()),
    *(Bug(name, "delivery", plant) for name, plant in planted_sharing.PLANTS.items()),
    *(Bug(name, "bus", plant) for name, plant in planted_bus.PLANTS.items()),
    *(Bug(name, finder, plant) for name, (finder, plant) in planted_mesh.PLANTS.items()),
    *(Bug(name, "world", plant) for name, plant in planted_clock.IN_NODES.items()),
    *(Bug(name, "delivery", plant) for name, plant in planted_clock.IN_DELIVERY.items()),
]
