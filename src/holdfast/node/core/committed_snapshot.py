"""Snapshots of what a quorum has committed in a mesh: given from one state, taken in in one step.

**Giving** reads everything in one read transaction, so that it is the state after one index.

**Taking in** has three steps, each of which may be broken off and begun again:

1. *Stage.* All pages are read, every row is checked, envelopes go into the log (as intents that
   wait there: nobody reads them as committed), and rows into their tables under the name of no
   mesh, in many short transactions. Nobody sees them there. What is refused leaves what was.
2. *Put in place*, in one transaction: the staged rows take the place of the mesh's, tasks are
   written, rows of the outbox that the snapshot has decided end, the clock moves past the stamps,
   and the node stands where the giver stood.
3. *Clear* what is left of a staging that came to nothing.

A node that has folded a part of the order before must have folded it as the giver has: its records
are compared with the snapshot's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from holdfast.node.core.commit import append_committed
from holdfast.node.core.context import NodeContext
from holdfast.node.core.fold_tasks import is_adopted, note_replaced, task_of
from holdfast.node.core.write_queue import queue_list, queue_put
from holdfast.protocol.quorum_snapshot import (
    VERSION,
    CommittedPage,
    ConflictsPage,
    EntitiesPage,
    GivenClash,
    GivenCommit,
    GivenConflict,
    GivenEntity,
    GivenLease,
    GivenNode,
    GivenRevision,
    GivenTask,
    GivenTurn,
    GivenVoid,
    LeasesPage,
    NodesPage,
    RevisionsPage,
    SnapshotHeader,
    SnapshotWriter,
    TasksPage,
    TurnsPage,
    VoidsPage,
    read_pages,
)
from holdfast.rules.data_classes import ENTITY_TYPES
from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import (
    BadQuorumSnapshot,
    CommitForked,
    IntentAbandoned,
    LogMismatch,
    NoVoters,
)
from holdfast.rules.lamport import highest_taken
from holdfast.rules.limits import CHUNK_ROWS, QUORUM_STAGE_ROWS
from holdfast.rules.quorum.commit_record import decode_stored_record
from holdfast.rules.quorum.intents import Engine
from holdfast.rules.quorum.snapshot_rules import SnapshotRules, check_last_revision
from holdfast.rules.quorum.state_rows import (
    CommitRow,
    QuorumRow,
    RevisionRow,
    WaitingConflict,
    staged_offset,
)
from holdfast.rules.quorum.view import Clash, EntityRow, LeaseRow, NodeRow
from holdfast.rules.quorum.write_queue import WriteStatus, decided
from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.storage.ports import Reader, Store, Transaction
from holdfast.storage.scans import paged

T = TypeVar("T")
_Put = Callable[[Transaction], None]
_WAITS: Final = frozenset({WriteStatus.PENDING, WriteStatus.REPLAYING})


def staging_of(mesh: str) -> str:
    """Under which name rows wait: no mesh can have it."""
    return f"{mesh}\x1fsnapshot"


# --- giving ---------------------------------------------------------------------------------------


def give_snapshot(
    reader: Reader, mesh: str, write: Callable[[bytes], object], applied: int = 0
) -> int:
    """Writes everything that was committed in a mesh, and returns the index up to which. `applied`
    is how far this node was at least before `reader` began to look.
    """
    standing = reader.quorum_get(mesh)
    if standing is None:
        raise NoVoters(f"the mesh {mesh!r} has no voters")
    index = max(standing.applied, applied)
    writer = SnapshotWriter(write)
    writer.header(
        SnapshotHeader(
            VERSION,
            mesh,
            standing.incarnation,
            standing.tag,
            index,
            standing.number,
            standing.fence,
            standing.committed_at,
        )
    )
    writer.rows(CommittedPage, _given_commits(reader, mesh))
    writer.rows(EntitiesPage, map(_given_entity, _entities(reader, mesh)))
    writer.rows(RevisionsPage, _given_revisions(reader, mesh))
    voids = paged(lambda after: reader.voids(mesh, after, CHUNK_ROWS), lambda row: row[0], b"")
    writer.rows(VoidsPage, (GivenVoid(*row) for row in voids))
    leases = paged(lambda at: reader.lease_list(mesh, at, CHUNK_ROWS), lambda row: row.name, "")
    writer.rows(LeasesPage, (GivenLease(*msgspec.structs.astuple(row)) for row in leases))
    nodes = reader.node_list(mesh)
    writer.rows(NodesPage, (GivenNode(*msgspec.structs.astuple(row)) for row in nodes))
    conflicts = paged(
        lambda after: reader.waiting_conflicts(mesh, after, CHUNK_ROWS, open_only=False),
        lambda row: row.number,
        0,
    )
    writer.rows(ConflictsPage, map(_given_conflict, conflicts))
    writer.rows(TasksPage, map(_given_task, _tasks(reader, mesh)))
    turns = (
        turn
        for task in _tasks(reader, mesh)
        for turn in reader.task_events(mesh, task.task)
        if turn.place
    )
    writer.rows(TurnsPage, map(_given_turn, turns))
    writer.end()
    return index


def _given_commits(reader: Reader, mesh: str) -> Iterator[GivenCommit]:
    commits = paged(
        lambda after: reader.commit_range(mesh, after + 1, CHUNK_ROWS), lambda row: row.number, 0
    )
    for commit in commits:
        entry = reader.log_get(commit.offset) if commit.offset > 0 else None
        yield GivenCommit(commit.record, None if entry is None else entry.raw)


def _entities(reader: Reader, mesh: str) -> Iterator[EntityRow]:
    for type in sorted(ENTITY_TYPES):
        yield from paged(
            lambda after, type=type: reader.entity_list(  # type: ignore[misc]
                mesh, type, after, CHUNK_ROWS, live_only=False
            ),
            lambda row: row.id,
            "",
        )


def _given_entity(row: EntityRow) -> GivenEntity:
    return GivenEntity(
        row.type,
        row.id,
        row.revision,
        row.fields,
        row.parent,
        row.deleted,
        row.whole,
        row.origin,
        row.lamport,
        row.fence,
        row.committed_at,
    )


def _given_revisions(reader: Reader, mesh: str) -> Iterator[GivenRevision]:
    for entity in _entities(reader, mesh):
        for row in paged(
            lambda after, entity=entity: reader.entity_revisions(  # type: ignore[misc]
                mesh, entity.type, entity.id, after, CHUNK_ROWS
            ),
            lambda row: row.revision,
            0,
        ):
            yield GivenRevision(*msgspec.structs.astuple(row))


def _given_conflict(row: WaitingConflict) -> GivenConflict:
    clashes = tuple([GivenClash(*msgspec.structs.astuple(clash)) for clash in row.clashes])
    return GivenConflict(row.number, clashes, row.resolved_at, row.resolution)


def _tasks(reader: Reader, mesh: str) -> Iterator[TaskRow]:
    """Those that the order has: what stamps alone have made is this node's own."""
    rows = paged(
        lambda after: reader.task_scan(mesh, None, after, CHUNK_ROWS, known_only=False),
        lambda row: row.task,
        "",
    )
    return (row for row in rows if is_adopted(reader, row))


def _given_task(row: TaskRow) -> GivenTask:
    fields = msgspec.structs.asdict(row)
    return GivenTask(**{name: fields[name] for name in GivenTask.__struct_fields__})


def _given_turn(row: TaskEventRow) -> GivenTurn:
    fields = msgspec.structs.asdict(row)
    return GivenTurn(**{name: fields[name] for name in GivenTurn.__struct_fields__})


# --- taking in ------------------------------------------------------------------------------------


class SnapshotStage:
    """One snapshot that is taken in. `chunks` gives its bytes from the beginning, whenever it is
    called.
    """

    def __init__(
        self,
        store: Store,
        ctx: NodeContext,
        mesh: str,
        chunks: Callable[[], Iterable[bytes]],
        *,
        follows: Engine | None = None,
    ) -> None:
        """`follows` is the engine of the voters, on a node that has no vote: it takes what was
        committed up to any index, and may not have heard of the quorum or of its last incarnation.
        """
        self._store, self._ctx, self._mesh, self._chunks = store, ctx, mesh, chunks
        self._follows = follows
        self._staging = staging_of(mesh)
        self._header: SnapshotHeader | None = None
        self._rules: SnapshotRules | None = None
        self._known = 0
        self._highest = 0
        """The highest stamp among its envelopes."""

    @property
    def number(self) -> int:
        """The last commit that is in what was staged."""
        assert self._header is not None, "it was staged"
        return self._header.number

    def stage(self, index: int | None) -> None:
        """Reads and checks all of it and stages its rows. BadQuorumSnapshot if it is not a snapshot
        up to this index that this node can take in, LogMismatch if this node has folded another
        order: nothing that anybody reads has changed then.
        """
        self.clear()
        try:
            for page in read_pages(self._chunks()):
                if isinstance(page, SnapshotHeader):
                    self._begin(page, index)
                else:
                    for at in range(0, len(page.rows), QUORUM_STAGE_ROWS):
                        rows = page.rows[at : at + QUORUM_STAGE_ROWS]
                        # The checks remember what came before, and a transaction may be done
                        # again: so they come first.
                        self._store.write(_TAKES[type(page)](self, rows))
            self._check_whole()
        except BaseException:
            self._header = None
            self.clear()
            raise

    def put_in_place(self, index: int | None) -> None:
        """The mesh is as the snapshot says, from one moment to the next."""
        if self._header is None:
            self.stage(index)
        tasks = [
            row
            for page in read_pages(self._chunks())
            if isinstance(page, TasksPage)
            for row in page.rows
        ]
        self._store.write(lambda tx: self._place(tx, tasks))
        self._header = None

    def clear(self) -> None:
        """Removes what was staged for this mesh."""
        self._store.write(lambda tx: tx.committed_clear(self._staging))

    # --- staging -----------------------------------------------------------------------------

    def _begin(self, header: SnapshotHeader, index: int | None) -> None:
        if header.version != VERSION:
            raise BadQuorumSnapshot(f"a snapshot of version {header.version}")
        with self._store.read() as reader:
            standing = self._stands(reader, header)
        if self._follows is not None and header.tag != standing.tag:
            raise CommitForked(f"another group of voters than that of {self._mesh!r} here")
        if (header.mesh, header.incarnation, header.tag) != (
            standing.mesh,
            standing.incarnation,
            standing.tag,
        ):
            raise BadQuorumSnapshot(
                f"a snapshot of incarnation {header.incarnation} of {header.mesh!r} for "
                f"incarnation {standing.incarnation} of {standing.mesh!r}"
            )
        if index is not None and header.index != index:
            raise BadQuorumSnapshot(f"a snapshot up to {header.index}, offered as {index}")
        if header.number < standing.number or header.index < standing.applied:
            raise LogMismatch(
                f"a snapshot of {header.number} commits of {self._mesh!r}, of which this node has "
                f"folded {standing.number}"
            )
        self._header, self._known = header, standing.number
        self._highest = 0
        self._rules = SnapshotRules(header.mesh, header.number, header.fence, header.committed_at)

    def _stands(self, reader: Reader, header: SnapshotHeader) -> QuorumRow:
        """Where this node stands. One that follows has its group and incarnation from the snapshot,
        unless it knows of a later one, or of another group.
        """
        if self._follows is None:
            return _standing(reader, self._mesh)
        theirs = QuorumRow(
            mesh=self._mesh,
            engine=self._follows,
            incarnation=header.incarnation,
            tag=header.tag,
        )
        here = reader.quorum_get(self._mesh)
        if here is None:
            return theirs
        if here.voter is not None:
            raise LogMismatch(f"this node takes part in the order of {self._mesh!r} itself")
        if header.incarnation < here.incarnation:
            raise LogMismatch(
                f"a snapshot of incarnation {header.incarnation} of {self._mesh!r}, of which this "
                f"node knows {here.incarnation}"
            )
        if header.incarnation == here.incarnation:
            return msgspec.structs.replace(here, tag=here.tag or header.tag)
        return msgspec.structs.replace(theirs, number=here.number)

    def _commits(self, rows: Sequence[GivenCommit]) -> _Put:
        checked = [(row, *self._the_rules.commit(row.record, row.raw)) for row in rows]
        stamps = [envelope.lamport for _, _, envelope in checked if envelope is not None]
        self._highest = max([self._highest, *stamps])
        now, known = self._ctx.now_ms(), self._known

        def put(tx: Transaction) -> None:
            staged: list[CommitRow] = []
            for row, record, envelope in checked:
                if record.number <= known:
                    self._compare(tx, record.number, row.record)
                    continue
                # Where the giver has truncated the envelope, the record alone stays known.
                found = _place_in_log(tx, record.id, envelope, row.raw, now)
                offset = staged_offset(self._mesh, found, record.number)
                staged.append(
                    CommitRow(offset, self._staging, record.number, record.id, 0, row.record)
                )
            tx.commits_add(staged)

        return put

    def _compare(self, tx: Transaction, number: int, record: bytes) -> None:
        ours = tx.commit_range(self._mesh, number, 1)
        if [row.record for row in ours] != [record]:
            error = LogMismatch if self._follows is None else CommitForked
            raise error(
                f"commit {number} of {self._mesh!r} is another one here than in the snapshot",
                hint="this node has followed another group: let it join with another home",
            )

    def _entities(self, rows: Sequence[GivenEntity]) -> _Put:
        entities = [EntityRow(**msgspec.structs.asdict(row)) for row in rows]
        for entity in entities:
            self._the_rules.entity(entity)
        return lambda tx: tx.entities_put(self._staging, entities)

    def _revisions(self, rows: Sequence[GivenRevision]) -> _Put:
        revisions = [RevisionRow(*msgspec.structs.astuple(row)) for row in rows]
        for revision in revisions:
            self._the_rules.revision(revision)
        return lambda tx: tx.entity_revisions_add(self._staging, revisions)

    def _voids(self, rows: Sequence[GivenVoid]) -> _Put:
        for row in rows:
            self._the_rules.void(row.id, row.number)
        return lambda tx: tx.voids_add(self._staging, [(row.id, row.number) for row in rows])

    def _leases(self, rows: Sequence[GivenLease]) -> _Put:
        leases = [LeaseRow(**msgspec.structs.asdict(row)) for row in rows]
        for lease in leases:
            self._the_rules.lease(lease)
        return _each(leases, lambda tx, lease: tx.lease_put(self._staging, lease))

    def _nodes(self, rows: Sequence[GivenNode]) -> _Put:
        nodes = [NodeRow(**msgspec.structs.asdict(row)) for row in rows]
        for node in nodes:
            self._the_rules.node(node)
        return _each(nodes, lambda tx, node: tx.node_put(self._staging, node))

    def _conflicts(self, rows: Sequence[GivenConflict]) -> _Put:
        conflicts = [
            WaitingConflict(
                mesh=self._staging,
                number=row.number,
                clashes=tuple([_clash(clash) for clash in row.clashes]),
                resolved_at=row.resolved_at,
                resolution=row.resolution,
            )
            for row in rows
        ]
        for conflict in conflicts:
            self._the_rules.conflict(conflict)
        return _each(conflicts, self._put_conflict)

    def _put_conflict(self, tx: Transaction, conflict: WaitingConflict) -> None:
        """Somebody may have dealt with it here."""
        ours = tx.waiting_conflicts(self._mesh, conflict.number - 1, 1, open_only=False)
        if ours and ours[0].number == conflict.number and ours[0].resolved_at is not None:
            conflict = msgspec.structs.replace(ours[0], mesh=self._staging)
        tx.waiting_conflict_add(conflict)

    def _turns(self, rows: Sequence[GivenTurn]) -> _Put:
        now = self._ctx.now_ms()
        turns = [
            TaskEventRow(
                mesh=self._staging,
                applied_at=now,
                **(msgspec.structs.asdict(row) | {"event": row.event.value}),
            )
            for row in rows
        ]
        for turn in turns:
            self._the_rules.turn(turn)
        return _each(turns, lambda tx, turn: tx.task_event_put(turn))

    def _tasks(self, rows: Sequence[GivenTask]) -> _Put:
        """They are written at the end: a task needs a mesh."""
        for row in rows:
            self._the_rules.task(self._task(row, 0))
        return lambda tx: None

    def _check_whole(self) -> None:
        """What rows say of each other."""
        self._the_rules.end_of_commits()
        with self._store.read() as reader:
            for row in _entities(reader, self._staging):
                revisions = reader.entity_revisions(
                    self._staging, row.type, row.id, row.revision - 1, 2
                )
                check_last_revision(row, revisions, self._record(reader, revisions))

    def _record(self, reader: Reader, revisions: Sequence[RevisionRow]) -> Any:
        if not revisions:
            return None
        number = revisions[0].number
        of = self._mesh if number <= self._known else self._staging
        found = reader.commit_range(of, number, 1)
        return decode_stored_record(found[0].record) if found else None

    # --- in place ----------------------------------------------------------------------------

    def _place(self, tx: Transaction, tasks: Sequence[GivenTask]) -> None:
        header = self._header
        assert header is not None, "it was staged"
        standing = self._stands(tx, header)
        if standing.number != self._known or standing.applied > header.index:
            raise LogMismatch(f"commits of {self._mesh!r} were folded meanwhile; take it in again")
        kept = self._not_adopted(tx)
        tx.committed_move(self._staging, self._mesh, tx.log_bounds()[1])
        for row in tasks:
            ours, given = kept.pop(row.task, None), task_of(self._task(row, 0))
            if ours is not None and task_of(ours[0]) != given:
                note_replaced(tx, self._ctx, ours[0], given, row.last)
            entry = tx.log_find(row.last.id)
            tx.task_put(self._task(row, 0 if entry is None else entry.offset))
        for own, events in kept.values():  # the order has not heard of them yet
            tx.task_put(own)
            for event in events:
                tx.task_event_put(event)
        self._end_queued(tx)
        mesh = tx.mesh_get(self._mesh)
        assert mesh is not None, "a mesh with voters is there"
        now = self._ctx.now_ms()
        stamp = min(self._highest, highest_taken(mesh.lamport, now))
        if stamp > mesh.lamport:
            tx.tick_merged(self._mesh, stamp, now)
        tx.quorum_put(
            msgspec.structs.replace(
                standing,
                applied=header.index,
                number=header.number,
                fence=header.fence,
                committed_at=header.committed_at,
            )
        )

    def _not_adopted(self, tx: Transaction) -> dict[str, tuple[TaskRow, list[TaskEventRow]]]:
        """Tasks of this node that stamps alone have made."""
        rows = paged(
            lambda after: tx.task_scan(self._mesh, None, after, CHUNK_ROWS, known_only=False),
            lambda row: row.task,
            "",
        )
        own = [row for row in rows if not is_adopted(tx, row)]
        return {row.task: (row, tx.task_events(self._mesh, row.task)) for row in own}

    def _task(self, row: GivenTask, offset: int) -> TaskRow:
        return TaskRow(mesh=self._mesh, offset=offset, **msgspec.structs.asdict(row))

    def _end_queued(self, tx: Transaction) -> None:
        """Ends the writes of this node that the snapshot has decided."""
        after = 0
        while page := queue_list(tx, self._mesh, after, CHUNK_ROWS):
            after = page[-1][0]
            waiting = [write for _, write in page if write.status in _WAITS]
            known = tx.intents_known(self._mesh, [write.id for write in waiting])
            for write in waiting:
                intent = known.get(write.id)
                if intent is None:
                    continue
                reason = IntentAbandoned.code if intent.void else intent.reason
                queue_put(tx, decided(write, intent.outcome, self._ctx.now_ms(), reason, ""))

    # --- inside ------------------------------------------------------------------------------

    @property
    def _the_rules(self) -> SnapshotRules:
        assert self._rules is not None, "a header comes first"
        return self._rules


_TAKES: Final[dict[type[Any], Callable[[SnapshotStage, Any], _Put]]] = {
    CommittedPage: SnapshotStage._commits,
    EntitiesPage: SnapshotStage._entities,
    RevisionsPage: SnapshotStage._revisions,
    VoidsPage: SnapshotStage._voids,
    LeasesPage: SnapshotStage._leases,
    NodesPage: SnapshotStage._nodes,
    ConflictsPage: SnapshotStage._conflicts,
    TasksPage: SnapshotStage._tasks,
    TurnsPage: SnapshotStage._turns,
}


def _each(rows: Sequence[T], put: Callable[[Transaction, T], None]) -> _Put:
    def put_all(tx: Transaction) -> None:
        for row in rows:
            put(tx, row)

    return put_all


def _place_in_log(
    tx: Transaction, id: bytes, envelope: Envelope | None, raw: bytes | None, now_ms: int
) -> int | None:
    """Where an envelope stands in the log, from now on if it did not; None if nobody has it."""
    if envelope is None or raw is None:
        found = tx.log_find(id)
        return None if found is None else found.offset
    return append_committed(tx, envelope, raw, now_ms)


def _clash(row: GivenClash) -> Clash:
    kind = cast(Literal["moved", "ahead", "covered"], row.kind)
    return Clash(row.type, row.id, row.base, row.revision, kind, row.fields)


def _standing(reader: Reader, mesh: str) -> QuorumRow:
    standing = reader.quorum_get(mesh)
    if standing is None:
        raise NoVoters(f"the mesh {mesh!r} has no voters")
    return standing
