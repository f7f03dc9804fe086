"""The committed state of a mesh while a run of entries is folded.

Decisions look at one record at a time, and each may depend on what the entry before it wrote. So
the writes of a run are kept here and seen at once, and the store gets them together at the end: one
statement for each table. What a run will nearly surely ask for, the intents and the entities that
its envelopes name, is read at its beginning by one query each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.node.core.fold_tasks import is_adopted, task_of
from holdfast.rules.bodies import Body
from holdfast.rules.data_classes import ENTITY_TYPES
from holdfast.rules.envelope import Envelope
from holdfast.rules.limits import INTENT_OPERATIONS_MAX, QUORUM_CONFLICTS_OPEN_MAX
from holdfast.rules.quorum.decide import Decision
from holdfast.rules.quorum.entities import parent_type
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import ADOPT, EntityChange
from holdfast.rules.quorum.order_move import moved_standing
from holdfast.rules.quorum.state_rows import QuorumRow, RevisionRow, WaitingConflict
from holdfast.rules.quorum.view import (
    EntityRow,
    IntentRecord,
    LeaseRow,
    NodeRow,
    PutEntity,
    PutIntent,
    PutLease,
    PutNode,
    PutOrder,
    PutTask,
    Write,
)
from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.rules.tasks import Task, TaskStanding, TaskStatus
from holdfast.storage.ports import Reader, Transaction
from holdfast.storage.quorum_state_port import EntityKey

CHILD_TYPES: Final = {parent_type(type): type for type in ENTITY_TYPES if parent_type(type)}
"""By type: the type of the entities that have such a one as their parent."""


NOT_DECIDED: Final = "committed: nobody had decided when newer conflicts filled the list"


class _Turn(msgspec.Struct, frozen=True):
    """A turn that was committed, and where the envelope stands among the entries of the run."""

    put: PutTask
    before: Task
    place: int
    number: int


class CommittedState:
    """A `View` of the store and of the writes of a run that are not stored yet."""

    def __init__(
        self,
        tx: Reader,
        standing: QuorumRow,
        ids: Sequence[bytes],
        bodies: Sequence[Body | None],
    ) -> None:
        self._tx, self._mesh = tx, standing.mesh
        self.standing = standing
        """As it was, but for an order that the run itself ends."""
        self.fence = standing.fence
        self.number = standing.number
        known = tx.intents_known(self._mesh, ids)
        self._intents: dict[bytes, IntentRecord | None] = {id: known.get(id) for id in ids}
        keys = [
            (operation.type, operation.id)
            for body in bodies
            if isinstance(body, EntityChange)
            for operation in body.operations
        ]
        there = tx.entity_many(self._mesh, keys)
        self._entities: dict[EntityKey, EntityRow | None] = {key: there.get(key) for key in keys}
        self._leases: dict[str, LeaseRow | None] = {}
        self._nodes: dict[str, NodeRow | None] = {}
        self._tasks: dict[str, Task | None] = {}
        self._unadopted: dict[str, TaskRow] = {}
        """Tasks that only stamps have made, as this node has them."""
        self._gained: Counter[EntityKey] = Counter()
        self._changed: dict[EntityKey, EntityRow] = {}
        self._revisions: list[RevisionRow] = []
        self._turns: list[_Turn] = []
        self._voids: list[tuple[bytes, int]] = []
        self._conflicts: list[WaitingConflict] = []
        self._put_leases: dict[str, LeaseRow] = {}
        self._put_nodes: dict[str, NodeRow] = {}

    # --- View --------------------------------------------------------------------------------

    def last_fence(self) -> FenceToken | None:
        return self.fence

    def intent(self, id: bytes) -> IntentRecord | None:
        if id not in self._intents:
            self._intents[id] = self._tx.intents_known(self._mesh, [id]).get(id)
        return self._intents[id]

    def entity(self, type: str, id: str) -> EntityRow | None:
        key = (type, id)
        if key not in self._entities:
            self._entities[key] = self._tx.entity_get(self._mesh, type, id)
        return self._entities[key]

    def children(self, type: str, id: str) -> int:
        """As many as there are, if they are few. Of many, so many that no intent could move or
        delete all of them: more than that nobody asks.
        """
        below = CHILD_TYPES.get(type)
        if below is None:
            return 0
        most = len(self._changed) + INTENT_OPERATIONS_MAX + 1
        return self._tx.entity_children(self._mesh, below, id, most) + self._gained[below, id]

    def lease(self, name: str) -> LeaseRow | None:
        if name not in self._leases:
            self._leases[name] = self._tx.lease_get(self._mesh, name)
        return self._leases[name]

    def task(self, id: str) -> Task | None:
        if id not in self._tasks:
            row = self._tx.task_get(self._mesh, id)
            if row is not None and not is_adopted(self._tx, row):
                self._unadopted[id] = row
                row = None
            self._tasks[id] = None if row is None else task_of(row)
        return self._tasks[id]

    def tasks_of(self, holder: str, limit: int) -> list[tuple[str, Task]]:
        stored = self._tx.task_held(self._mesh, holder, limit + len(self._tasks))
        found: dict[str, Task | None] = {row.task: task_of(row) for row in stored}
        found |= self._tasks
        held = [
            (id, task)
            for id, task in found.items()
            if task is not None
            and task.status is TaskStatus.CLAIMED
            and task.holder is not None
            and task.holder.peer == holder
        ]
        return sorted(held, key=lambda one: one[0].encode())[:limit]

    def node(self, peer: str) -> NodeRow | None:
        if peer not in self._nodes:
            self._nodes[peer] = self._tx.node_get(self._mesh, peer)
        return self._nodes[peer]

    @property
    def voids(self) -> list[bytes]:
        """The intents that the run has given up."""
        return [id for id, _ in self._voids]

    # --- what a decision writes --------------------------------------------------------------

    def take(self, envelope: Envelope, fence: FenceToken, decision: Decision) -> int:
        """Makes the writes of a decision that counts; returns the number of its commit."""
        assert decision.counts, "an entry that does not count changes nothing"
        self.number += 1
        self.fence = fence
        turns, apart = 0, envelope.op != ADOPT
        for write in decision.writes:
            if isinstance(write, PutTask):
                self._turn(write, 2 * self.number + turns)
                turns += apart  # what is adopted together stands in one place, in stamp order
            else:
                self._put(write, envelope)
        if decision.clashes:
            self._conflicts.append(
                WaitingConflict(mesh=self._mesh, number=self.number, clashes=decision.clashes)
            )
        return self.number

    def _put(self, write: Write, envelope: Envelope) -> None:
        if isinstance(write, PutEntity):
            row, key = write.row, (write.row.type, write.row.id)
            self._entities[key] = self._changed[key] = row
            if write.was is not None and write.was.parent:
                self._gained[row.type, write.was.parent] -= 1
            if row.parent:
                self._gained[row.type, row.parent] += 1
            revision = RevisionRow(
                row.type, row.id, row.revision, self.number, row.deleted, row.whole
            )
            self._revisions.append(revision)
        elif isinstance(write, PutLease):
            self._put_leases[write.row.name] = write.row
            self._leases[write.row.name] = write.row if write.row.holder else None
        elif isinstance(write, PutOrder):
            self.standing = moved_standing(self.standing, write)
        elif isinstance(write, PutNode):
            self._nodes[write.row.peer] = self._put_nodes[write.row.peer] = write.row
        else:
            assert isinstance(write, PutIntent)
            self._intents[write.record.id] = write.record
            if write.record.id != envelope.id:
                assert write.record.void, "an entry decides about itself, or gives another one up"
                self._voids.append((write.record.id, self.number))

    def _settle_oldest(self, tx: Transaction, now_ms: int) -> None:
        """Most refused writes had a caller who looked again, so the list must not grow for ever. A
        write that waited in the queue of its node keeps its row there until somebody resolves it.
        """
        many = tx.waiting_conflict_count(self._mesh) - QUORUM_CONFLICTS_OPEN_MAX
        for old in tx.waiting_conflicts(self._mesh, 0, many) if many > 0 else ():
            tx.waiting_conflict_resolve(self._mesh, old.number, NOT_DECIDED, now_ms)

    def _turn(self, put: PutTask, place: int) -> None:
        before = self.task(put.id) or Task()
        self._turns.append(_Turn(put, before, place, self.number))
        self._tasks[put.id] = put.task

    def replaced(self) -> list[tuple[TaskRow, Task]]:
        """Tasks that stood otherwise here than the order makes them: before, and now."""
        found = ((row, self._tasks[id]) for id, row in self._unadopted.items())
        return [
            (row, task)
            for row, task in found
            if task is not None and TaskStanding.of(task) != TaskStanding.of(task_of(row))
        ]

    # --- into the store ----------------------------------------------------------------------

    def store(self, tx: Transaction, offsets: dict[int, int], now_ms: int) -> None:
        """Stores everything that the run has written. `offsets` says, by the number of a commit,
        where its envelope stands in the log.
        """
        if self._changed:
            tx.entities_put(self._mesh, list(self._changed.values()))
            tx.entity_revisions_add(self._mesh, self._revisions)
        if self._voids:
            tx.voids_add(self._mesh, self._voids)
        for conflict in self._conflicts:
            tx.waiting_conflict_add(conflict)
        if self._conflicts:
            self._settle_oldest(tx, now_ms)
        for lease in self._put_leases.values():
            tx.lease_put(self._mesh, lease)
        for node in self._put_nodes.values():
            tx.node_put(self._mesh, node)
        last: dict[str, _Turn] = {}
        for turn in self._turns:
            tx.task_event_put(self._event_row(turn, now_ms))
            last[turn.put.id] = turn
        for turn in last.values():
            tx.task_put(self._task_row(turn, offsets[turn.number]))

    def _event_row(self, turn: _Turn, now_ms: int) -> TaskEventRow:
        judged, task = turn.put.judged, turn.put.task
        made = judged.turn
        return TaskEventRow(
            mesh=self._mesh,
            task=turn.put.id,
            version=made.version,
            kind=made.kind,
            generation=made.generation,
            event=judged.event.value,
            event_time=made.event_time,
            applied_at=now_ms,
            against=judged.against,
            title=made.title,
            description=made.description,
            standing=TaskStanding.of(task),
            opened=None if task.generation == turn.before.generation else task.generation,
            place=turn.place,
        )

    def _task_row(self, turn: _Turn, offset: int) -> TaskRow:
        made = turn.put.judged.turn
        return TaskRow(
            mesh=self._mesh,
            task=turn.put.id,
            last=made.version,
            offset=offset,
            updated_at=made.event_time,
            **msgspec.structs.asdict(turn.put.task),
        )
