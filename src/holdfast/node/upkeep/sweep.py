"""Forgetting, safely: log entries, tombstones, dedupe rows, blobs.

A sweep removes something only when it is old enough *and* every registered reader of the log has
confirmed it. What is still needed later stays in a smaller form: the ids of truncated entries for
some time, and per mesh the highest stamp among removed tombstones; a write from outside below it is
refused, or it could bring back what was deleted. A sweep works in chunks, between which other
writes are done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from time import monotonic

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.forgetting.log_gone import begin_to_know, deletions_gone, facts_gone
from holdfast.node.core.views import Consumer
from holdfast.node.upkeep import reembed
from holdfast.node.upkeep.delete_mesh import finish_deletions
from holdfast.rules import limits
from holdfast.rules.filters import EVERYTHING
from holdfast.rules.frontier import Frontier
from holdfast.rules.keeping import KeptFor, Retention, first_held, span_ms
from holdfast.rules.log_gone import last_unshown
from holdfast.rules.retention import buried_name, is_absent, oldest_kept_ms, truncate_below
from holdfast.rules.rows import BlobRow, ConsumerRow
from holdfast.storage.files.blobs import BlobFile, DraftFile, Found
from holdfast.storage.ports import Reader, Transaction

log = logging.getLogger("holdfast")


class Ttl(msgspec.Struct, frozen=True, kw_only=True):
    """How long things are kept at least."""

    log_ms: int = limits.LOG_TTL_MS
    tombstone_ms: int = limits.TOMBSTONE_TTL_MS
    task_ms: int = limits.TOMBSTONE_TTL_MS
    """Of tasks that have ended."""
    dedupe_ms: int = limits.DEDUPE_TTL_MS
    blob_ms: int = limits.BLOB_RELEASE_AGE_MS
    orphan_ms: int = limits.BLOB_ORPHAN_AGE_MS
    outbox_ms: int = limits.OUTBOX_DONE_MS
    unread_ms: int = limits.INBOX_UNREAD_MS
    fact_ms: int | None = None
    """Of facts, which are in the log; None: as other entries."""
    meshes: dict[str, KeptFor] = {}
    """What single meshes keep longer or shorter."""

    @classmethod
    def of_settings(cls, retention: Retention) -> Ttl:
        common = retention.of("")
        return cls(
            log_ms=common.log_ms,
            fact_ms=common.fact_ms,
            tombstone_ms=common.dead_ms,
            task_ms=common.dead_ms,
            dedupe_ms=span_ms(retention.ids),
            blob_ms=span_ms(retention.blobs),
            meshes={mesh: retention.of(mesh) for mesh in retention.meshes},
        )

    def dead_of(self, mesh: str, common_ms: int) -> int:
        """How long a mesh keeps what is dead, if it does not keep it as all do."""
        own = self.meshes.get(mesh)
        return common_ms if own is None else own.dead_ms

    @property
    def by_entry(self) -> dict[tuple[str, bool], int]:
        """How long entries of a mesh are kept, and facts in it; `""` is for all other meshes."""
        facts = self.log_ms if self.fact_ms is None else self.fact_ms
        found = {("", False): self.log_ms, ("", True): facts}
        for mesh, own in self.meshes.items():
            found[mesh, False], found[mesh, True] = own.log_ms, own.fact_ms
        return found


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep removed. As JSON, two fields keep the names that programs know."""

    consumers: tuple[str, ...] = ()
    """Readers that were retired: they were absent, or behind, for more than they had declared."""
    outbox_rows: int = msgspec.field(default=0, name="spool_rows")
    """Items that the broker has had for a while, or that were given up."""
    log_entries: int = 0
    tombstones: int = 0
    tasks: int = 0
    """Tasks that had ended, with their turns."""
    dedupe_rows: int = 0
    inbox_rows: int = 0
    """Messages whose envelope is no longer in the log."""
    broker_position_rows: int = msgspec.field(default=0, name="heard_rows")
    """Positions at the broker of envelopes that are no longer in the log."""
    telemetry_rows: int = 0
    """Telemetry whose time is up."""
    bus_ids: int = 0
    """Ids of messages of the bus that no sender can send again."""
    blobs: int = 0
    orphans: int = 0
    models: int = 0


DEFAULT_TTL = Ttl()


def sweep(engine: NodeEngine, ttl: Ttl = DEFAULT_TTL) -> SweepReport:
    """One pass over everything that may be forgotten."""
    finish_deletions(engine)
    retired = engine.write("sweep.consumers", partial(_retire_absent, engine=engine))
    meshes = [row.slug for row in engine.read("sweep", lambda tx: tx.mesh_list())]
    # Before the log: its entries show how old the tombstones are.
    tombstones = sum(
        _repeat(
            engine, "sweep.tombstones", partial(tombstones_of, engine=engine, ttl=ttl, mesh=mesh)
        )
        for mesh in meshes
    )
    tasks = sum(
        _repeat(engine, "sweep.tasks", partial(tasks_of, engine=engine, ttl=ttl, mesh=mesh))
        for mesh in meshes
    )
    now = engine.ctx.now_ms()
    ended = oldest_kept_ms(now_ms=now, ttl_ms=ttl.outbox_ms)
    outbox = _repeat(
        engine, "sweep.outbox", lambda tx: tx.outbox_sweep(ended, now, limits.CHUNK_ROWS)
    )
    truncated = _repeat(engine, "sweep.log", partial(truncate, engine=engine, ttl=ttl))
    inbox = _repeat(
        engine, "sweep.inbox", lambda tx: tx.inbox_sweep(tx.log_bounds()[0], limits.CHUNK_ROWS)
    )
    positions = _repeat(
        engine,
        "sweep.heard",
        lambda tx: tx.broker_positions_sweep(tx.log_bounds()[0], limits.CHUNK_ROWS),
    )
    before = oldest_kept_ms(now_ms=engine.ctx.now_ms(), ttl_ms=ttl.dedupe_ms)
    dedupe = _repeat(
        engine, "sweep.dedupe", lambda tx: tx.forgotten_sweep(before, limits.CHUNK_ROWS)
    )
    telemetry = _repeat(
        engine,
        "sweep.telemetry",
        lambda tx: tx.telemetry_expire(engine.ctx.now_ms(), limits.CHUNK_ROWS),
    )
    bus_ids = _repeat(
        engine, "sweep.bus", lambda tx: tx.bus_sweep(engine.ctx.now_ms(), limits.CHUNK_ROWS)
    )
    _repeat(
        engine,
        "sweep.leaves",
        lambda tx: tx.log_seal(limits.CHUNK_ROWS, limits.SEAL_BYTES_MAX),
    )
    removed, orphans = collect_blobs(engine, ttl)
    return SweepReport(
        consumers=retired,
        outbox_rows=outbox,
        log_entries=truncated,
        tombstones=tombstones,
        tasks=tasks,
        dedupe_rows=dedupe,
        inbox_rows=inbox,
        broker_position_rows=positions,
        telemetry_rows=telemetry,
        bus_ids=bus_ids,
        blobs=removed,
        orphans=orphans,
        models=len(reembed.drop_unread(engine)),
    )


def collect_blobs(
    engine: NodeEngine, ttl: Ttl = DEFAULT_TTL, *, deadline_s: float | None = None
) -> tuple[int, int]:
    """Removes the files of released blobs, then files that no row names; returns how many of
    each.
    """
    with engine.blobs_free() as free:
        if not free:  # a backup is copying them; the next sweep removes them
            return 0, 0
        released = _repeat(
            engine,
            "sweep.blobs",
            partial(_unlink_released, engine=engine, ttl=ttl),
            deadline_s=deadline_s,
        )
        return released, _collect_orphans(engine, ttl, deadline_s)


def _collect_orphans(engine: NodeEngine, ttl: Ttl, deadline_s: float | None) -> int:
    orphans = 0
    oldest = engine.ctx.now_ms() - ttl.orphan_ms
    stale = (found for found in engine.blobs.scan() if is_stale(found, oldest))
    while chunk := list(islice(stale, limits.CHUNK_ROWS)):
        orphans += engine.write(
            "sweep.orphans", partial(_unlink_orphans, engine=engine, found=chunk)
        )
        if deadline_s is not None and monotonic() > deadline_s:
            break
    return orphans


def _retire_absent(tx: Transaction, engine: NodeEngine) -> tuple[str, ...]:
    """Retires readers that are absent or behind for more than they declared; returns their
    names.
    """
    now, head = engine.ctx.now_ms(), tx.log_bounds()[1]
    retired = []
    for row in tx.consumer_list():
        why = given_up(tx, row, now, head)
        if why:
            log.warning("consumer %s %s and is retired", row.name, why)
            tx.consumer_drop(row.name)
            retired.append(row.name)
    return tuple(retired)


def given_up(tx: Reader, row: ConsumerRow, now_ms: int, head: int) -> str:
    """Why a sweep retires a reader; empty if it does not."""
    if row.retire_ms is not None and is_absent(
        seen_at_ms=row.seen_at,
        now_ms=now_ms,
        retire_ms=row.retire_ms,
        confirmed=Frontier.decode(row.frontier).prefix,
        old_upto=_kept_from(tx, now_ms, row.retire_ms) - 1,
    ):
        return "has not confirmed for too long"
    waiting = Consumer.of(row, head).lag
    if row.retire_lag is not None and waiting > row.retire_lag:
        return f"has {waiting} entries waiting, more than it declared"
    return ""


def lowest_frontier(tx: Reader) -> int | None:
    """The offset up to which every reader has confirmed; None when there are no readers. Brokers
    count as readers: they have confirmed what no longer waits in the outbox.
    """
    return min(_frontiers(tx), default=None)


def _frontiers(tx: Reader) -> list[int]:
    frontiers = [Frontier.decode(row.frontier).prefix for row in tx.consumer_list()]
    floor = tx.outbox_floor()
    return frontiers if floor is None else [*frontiers, floor - 1]


def _kept_from(tx: Reader, now_ms: int, ttl_ms: int) -> int:
    """The first offset that is too young to go, by this node's clock at the time of its arrival."""
    # What was truncated before counts as young until an entry after it is old: the log may be kept
    # for a shorter time than tombstones.
    old = oldest_kept_ms(now_ms=now_ms, ttl_ms=ttl_ms) - 1
    return tx.log_at(old, now_ms, cautious=True) + 1


def truncate(tx: Transaction, engine: NodeEngine, ttl: Ttl) -> int:
    """Truncates a chunk of the log, and releases the objects that its facts named."""
    first, head = tx.log_bounds()
    now = engine.ctx.now_ms()
    frontiers = _frontiers(tx)
    by_entry = ttl.by_entry
    from_ = {ms: _kept_from(tx, now, ms) for ms in set(by_entry.values())}
    bounds = {which: from_[ms] for which, ms in by_entry.items()}
    unread = tx.inbox_floor(_kept_from(tx, now, ttl.unread_ms) - 1)
    if unread is not None:
        frontiers.append(unread - 1)
    below = truncate_below(
        head=head,
        first=first,
        frontiers=frontiers,
        oldest_kept_offset_by_age=max(bounds.values()),
    )
    begin_to_know(tx, now)
    chunk = _chunk(tx, first, below)
    below = first_held(chunk, bounds, below)
    named = tx.fact_objects(below, limits.CHUNK_ROWS + 1)
    if len(named) > limits.CHUNK_ROWS:
        # Only as many facts that all their objects are in this chunk; one fact has fewer.
        below = named[-1][0]
    truncated = tx.log_truncate(below, limits.CHUNK_ROWS, now)
    first = tx.log_bounds()[0]
    facts_gone(tx, last_unshown(entry for entry in chunk if entry[0] < first), now)
    _release_objects(tx, [(at, sha) for at, sha in named if at < tx.log_bounds()[0]], now)
    return truncated


def _chunk(tx: Reader, first: int, below: int) -> list[tuple[int, str, str]]:
    """Offset, mesh and op of the entries that are truncated next."""
    if below <= first:
        return []
    bytes_max = limits.CHUNK_ROWS * limits.ENVELOPE_BYTES_MAX
    rows = tx.log_columns(
        first, below, limits.CHUNK_ROWS, bytes_max, EVERYTHING, damaged=True, odd=True
    )
    return list(zip(rows.offset, rows.mesh, rows.op, strict=True))


def _release_objects(tx: Transaction, named: Sequence[tuple[int, str]], now_ms: int) -> None:
    if not named:
        return
    last = named[-1][0]
    tx.fact_objects_drop(last + 1)
    for sha in dict.fromkeys(sha for _, sha in named):
        blob = tx.blob_get(sha)
        if blob is not None and blob.released_at is None and tx.blob_refs(sha) == 0:
            tx.blob_put(msgspec.structs.replace(blob, released_at=now_ms, released_offset=last))


def _forgotten_below(tx: Reader, engine: NodeEngine, ttl_ms: int) -> int:
    """The first offset of which the row may not be forgotten: it is too young, or a reader has not
    confirmed it.
    """
    bound = _kept_from(tx, engine.ctx.now_ms(), ttl_ms)
    lowest = lowest_frontier(tx)
    return bound if lowest is None else min(bound, lowest + 1)


def tasks_of(tx: Transaction, engine: NodeEngine, ttl: Ttl, mesh: str) -> int:
    """Where voters decide, tasks are committed state and the same on every node: they stay."""
    if tx.quorum_get(mesh) is not None:
        return 0
    begin_to_know(tx, engine.ctx.now_ms())
    bound = _forgotten_below(tx, engine, ttl.dead_of(mesh, ttl.task_ms))
    removed = tx.tasks_forget(mesh, bound, limits.CHUNK_ROWS, limits.BURIED_TASKS_MAX)
    if removed:
        # Whoever compares this node with others leaves out what is that old.
        tx.bury(mesh, max(one.lamport for one in removed), (), limits.BURIED_KEYS_MAX)
        offset = max(one.offset for one in removed)
        deletions_gone(tx, mesh, offset, engine.ctx.now_ms())
    return len(removed)


def tombstones_of(tx: Transaction, engine: NodeEngine, ttl: Ttl, mesh: str) -> int:
    begin_to_know(tx, engine.ctx.now_ms())
    bound = _forgotten_below(tx, engine, ttl.dead_of(mesh, ttl.tombstone_ms))
    removed = tx.tombstones_sweep(mesh, bound, limits.CHUNK_ROWS)
    if removed:
        names = [
            (buried_name(row.family, row.owner, row.key, row.model), row.lamport)
            for row in removed
            if row.tombstone
        ]
        highest = max(row.lamport for row in removed)
        tx.bury(mesh, highest, names, limits.BURIED_KEYS_MAX)
        if names:
            deletions_gone(tx, mesh, bound - 1, engine.ctx.now_ms())
    return len(removed)


def released_blobs(tx: Reader, engine: NodeEngine, ttl: Ttl) -> list[BlobRow]:
    """A chunk of the blobs that no row names any more, for long enough."""
    lowest = lowest_frontier(tx)
    now = engine.ctx.now_ms()
    oldest = oldest_kept_ms(now_ms=now, ttl_ms=ttl.blob_ms)
    upto = tx.log_bounds()[1] if lowest is None else lowest
    old_upto = _kept_from(tx, now, ttl.blob_ms) - 1
    return tx.blob_old(upto, oldest, now, old_upto, limits.CHUNK_ROWS)


def _unlink_released(tx: Transaction, engine: NodeEngine, ttl: Ttl) -> int:
    """Removes the files of a chunk of released blobs. Inside the transaction, so that no share can
    name a blob between the check and the removal.
    """
    old = released_blobs(tx, engine, ttl)
    for blob in old:
        assert tx.blob_refs(blob.sha256) == 0, "a released blob has no references"
        if not engine.is_kept(blob.sha256):  # else it goes as an orphan, when nobody keeps it
            engine.blobs.unlink(blob.sha256)
        tx.blob_drop(blob.sha256)
    return len(old)


def _unlink_orphans(tx: Transaction, engine: NodeEngine, found: Iterable[Found]) -> int:
    removed = 0
    for item in found:
        if isinstance(item, DraftFile):
            removed += engine.blobs.remove_draft(item)
        elif (
            isinstance(item, BlobFile)
            and tx.blob_get(item.sha) is None
            and not engine.is_kept(item.sha)
        ):
            removed += engine.blobs.unlink(item.sha)
    return removed


def is_stale(found: Found, oldest_ms: int) -> bool:
    return isinstance(found, BlobFile | DraftFile) and found.mtime_ms < oldest_ms


def _repeat(
    engine: NodeEngine,
    name: str,
    step: Callable[[Transaction], int],
    *,
    deadline_s: float | None = None,
) -> int:
    """Runs a chunked step until it finds nothing more or time is up; returns the sum."""
    total = 0
    while count := engine.write(name, step):
        total += count
        if deadline_s is not None and monotonic() > deadline_s:
            break
    return total
